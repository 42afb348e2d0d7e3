"""Rules about layers: work that runs more than once."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.attribution import UNATTRIBUTED, attributed
from tracekit.analyses.attribution.layer_spans import ROOT
from tracekit.analyses.layers import Layers
from tracekit.analyses.memory import memory
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded, by_share, longest, of_time
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_bytes, format_ns
from tracekit.findings import Severity
from tracekit.names import shorten_name

__all__ = ["RECOMPUTATION"]

# -- recomputation ----------------------------------------------------------------------------------

RECOMPUTATION_LEAST_SHARE: Final = 0.05
"""Below a twentieth of the time, more memory would buy little."""
ROOM: Final = 0.75
"""If the memory is less full than this, some of the results may fit into it."""
MOST_OF_IT: Final = 0.9
"""A layer is named if at least this part of the recomputation is in it."""
_LONGEST_LAYER: Final = 60

_SELECTIVE: Final = (
    "torch.utils.checkpoint.create_selective_checkpoint_contexts keeps the results of matrix products and attention, and "
    "recomputes only what is cheap."
)
_FULL: Final = Advice(f"Memory is nearly full. {_SELECTIVE}")
_FREE: Final = Advice(f"There is free memory, so checkpoint fewer layers. {_SELECTIVE}")


def recomputation(scope: Scope, result: Layers) -> Evidence | None:
    """Activation checkpointing runs the forward pass of layers a second time, inside the backward pass.

    This saves memory and costs time. A forward operator inside a backward node runs again: autograd numbers it, or it is in
    a layer that opens inside of the node. Communication does not count. At stake is all of this time, which a run
    without checkpoints does not need, if the memory holds its activations. With a device, the recorded allocator events
    tell how much of the memory was in use.

    Fires when recomputation takes `RECOMPUTATION_LEAST_SHARE` of the summed time. If the memory is known to have room, the
    severity follows from the share; otherwise it is at most *warning*.
    """
    rows = attributed(scope)
    total = int(rows["duration"].sum())
    again = rows.filter(pl.col("recomputed") & (pl.col("class") != "communication"))
    ns = int(again["duration"].sum())
    if not total or ns / total < RECOMPUTATION_LEAST_SHARE:
        return None
    at_stake = bounded(ns, scope)
    full, words = _memory_in_use(scope)
    severity: Severity = by_share(at_stake, scope.duration)
    if full is None and severity == "critical":
        severity = "warning"
    elif full is not None and full >= ROOM:
        severity = "info"
    return Evidence(
        title=f"Recomputation takes {of_time(ns, scope)}",
        text=f"Activation checkpointing runs forward operators again inside the backward pass, for {format_ns(ns)} of "
        f"{format_ns(total)}{_layer(result, ns)}.{words}",
        ns_at_stake=at_stake,
        severity=severity,
        advice=None if full is None else _FREE if full < ROOM else _FULL,
        stretches=longest(again),
    )


def _memory_in_use(scope: Scope) -> tuple[float | None, str]:
    """The largest part of a device's memory that its allocator held, and a sentence; None if the trace does not tell."""
    peaks = memory(scope).peaks
    if peaks is None:
        return None, ""
    held = pl.max_horizontal("peak_bytes", "reserved_bytes")
    known = peaks.filter(
        pl.col("device_id").is_in(scope.device_ids) & ~pl.col("relative") & (pl.col("capacity_bytes") > 0)
    ).select(held.alias("held"), "capacity_bytes", (held / pl.col("capacity_bytes")).alias("part"))
    if not known.height:
        return None, ""
    most, capacity, part = known.sort("part").row(-1)
    return part, f" The allocator held at most {format_bytes(most)} of {format_bytes(capacity)}."


def _layer(result: Layers, ns: int) -> str:
    """` , mostly in layers LAYER`: the innermost group of layers that holds most of the recomputation."""
    rows = result.by_pattern.filter(
        (pl.col("recomputed_ns") >= MOST_OF_IT * ns) & ~pl.col("pattern").is_in([UNATTRIBUTED, ROOT])
    )
    if not rows.height:
        return ""
    pattern, count = rows.sort(pl.col("pattern").str.len_chars(), "pattern")[["pattern", "layers"]].row(-1)
    return f", mostly in {f'{count} × ' if count > 1 else ''}{shorten_name(pattern, _LONGEST_LAYER)}"


RECOMPUTATION = Rule(
    id="recomputation",
    analysis="layers",
    evidence=recomputation,
    advice=Advice(
        f"If memory allows, checkpoint fewer layers. {_SELECTIVE} A recording with {{memory}} shows how much is free.",
        processor=f"If memory allows, checkpoint fewer layers. {_SELECTIVE}",
    ),
)
