"""The step waits for its next batch.

Only time of the data loader in which no device worked and no runtime call ran counts (the composition of
`analyses.steps`), so loading that is hidden costs nothing; or the idle time that loading causes
(`analyses.idle_causes`), where that is more, since stacks show loading that no range marks.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.rules.idle_time import caused_idle
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded, by_share
from tracekit.analyses.scope import Scope
from tracekit.analyses.steps import Steps
from tracekit.facts.units import format_ns, format_share

__all__ = ["RULE"]

LEAST_SHARE: Final = 0.05
"""A loader that keeps up answers from its queue in well under a twentieth of a step."""

_SINGLE_PROCESS: Final = "_SingleProcessDataLoaderIter"
_PINNED: Final = ", pin_memory=True and copies with non_blocking=True"
_ELSEWHERE: Final = ", and move decoding and augmentation out of the loop (cached, batched or on the device)."
_IN_PROCESS: Final = Advice(
    f"The loader runs in the training process: set num_workers > 0, persistent_workers=True{_PINNED}.",
    processor="The loader runs in the training process: set num_workers > 0, persistent_workers=True.",
    flags=("--workers", "--pin-memory"),
)


def evidence(scope: Scope, result: Steps) -> Evidence | None:
    """Fires when unhidden data loading takes `LEAST_SHARE` of the steps or more."""
    loading = int(result.composition.filter(pl.col("part") == "data_loader")["total_ns"].sum())
    total = int(result.composition["total_ns"].sum())
    idle = caused_idle(scope, "data_loading")
    loading = max(loading, min(idle.ns, total))
    if not total or loading / total < LEAST_SHARE:
        return None
    names = scope.host("annotation")["name"].cast(pl.String)
    single = bool(names.str.contains(_SINGLE_PROCESS, literal=True).any())
    steps = result.table.height
    each = (
        f" in {steps} step{'s' if steps != 1 else ''}, {format_ns(loading / steps)} a step," if steps else ""
    )
    where = "" if scope.on_cpu else " while no device worked"
    return Evidence(
        title=f"Data loading takes {format_share(loading / total)} of the {'steps' if steps else 'time'}",
        text=f"{format_ns(loading)} of {format_ns(total)}{each} went to the data loader{where}{idle.where}.",
        ns_at_stake=bounded(loading, scope),
        severity=by_share(loading, total),
        advice=_IN_PROCESS if single else None,
    )


RULE = Rule(
    id="data_loading",
    analysis="steps",
    evidence=evidence,
    advice=Advice(
        f"Raise num_workers or prefetch_factor, keep persistent_workers=True{_PINNED}{_ELSEWHERE}",
        processor=f"Raise num_workers or prefetch_factor, keep persistent_workers=True{_ELSEWHERE}",
        plain="Load and prepare data in other threads, ahead of time, into pinned memory.",
        flags=("--workers", "--pin-memory"),
    ),
    answers=frozenset({"input-bound"}),
    pattern="data loading",
)
