r"""Collectives run while no computation does (DEFINITIONS §3: |X \ C|)."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from tracekit.analyses.breakdown import Breakdown
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, by_share
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_ns, format_share

__all__ = ["RULE"]

EXPOSED_SHARE: Final = 0.05
"""Below a twentieth of the window the first and last collective of a step, which nothing can hide, explain it."""

_REMEDY: Final[tuple[tuple[str, str], ...]] = (
    (
        r"send_?recv|all_?to_?all",
        "Start the exchange earlier and wait for it later (async_op=True; with TorchRec its TrainPipelineSparseDist), and "
        "send fewer bytes (lower precision, balanced sharding)",
    ),
    (
        r"all_?gather|reduce_?scatter",
        "With FSDP prefetch the next layer's parameters (forward_prefetch=True, BackwardPrefetch.BACKWARD_PRE, or "
        "set_modules_to_forward_prefetch of fully_shard) and shard within a node first",
    ),
    (
        r"all_?reduce|reduce",
        "Let DistributedDataParallel overlap it with backward: tune bucket_cap_mb, set gradient_as_bucket_view=True, "
        "accumulate gradients under no_sync(), or reduce in bf16 with a communication hook",
    ),
)
_RANKS: Final = ". Compare the ranks first: part of it may be waiting for a slower rank."


def evidence(scope: Scope, result: Breakdown) -> Evidence | None:
    """Fires when the exposed communication of the worst device is `EXPOSED_SHARE` of the window or more."""
    if not result.devices.height:
        return None
    row = result.devices.sort("exposed_communication_ns", "device_id", descending=[True, False]).row(
        0, named=True
    )
    exposed, window = row["exposed_communication_ns"], row["window_ns"]
    if not window or exposed / window < EXPOSED_SHARE:
        return None
    collectives = (
        scope.activities.filter(pl.col("class") == "communication")
        .with_columns(pl.col("name").cast(pl.String))
        .group_by("name")
        .agg(pl.col("duration").sum())
        .sort("duration", "name", descending=[True, False])
    )
    name = collectives["name"][0] if collectives.height else ""
    remedy = next((text for pattern, text in _REMEDY if re.search(pattern, name, re.IGNORECASE)), None)
    return Evidence(
        title=f"Communication that nothing hides takes {format_share(exposed / window)} of the time",
        text=f"{format_ns(exposed)} of {format_ns(row['communication_ns'])} of communication ran without computation "
        f"beside it, in a window of {format_ns(window)}; the most time went to {name.partition('(')[0]}.",
        ns_at_stake=exposed,
        severity=by_share(exposed, window),
        advice=None if remedy is None else Advice(f"{remedy}{_RANKS}"),
    )


RULE = Rule(
    id="exposed_communication",
    analysis="breakdown",
    evidence=evidence,
    advice=Advice(
        f"Start collectives earlier with async_op=True and wait for them only where the result is used{_RANKS}",
        plain=(
            "Start communication earlier, on a stream of its own, and wait for it only where the result is "
            "used; send fewer bytes. Compare the ranks first: part of it may be waiting for a slower rank."
        ),
    ),
    answers=frozenset({"communication-bound"}),
)
