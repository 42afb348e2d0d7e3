"""Rules about rooflines: work far below its roof, and work that only fewer bytes make faster."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.roofline.analysis import Roofline
from tracekit.analyses.roofline.rated import rated_pieces
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded_by_host, of_time
from tracekit.analyses.scope import Scope
from tracekit.facts.units import count_of, format_ns, format_share
from tracekit.groups import kept

__all__ = ["FAR_BELOW_ROOF", "MEMORY_TRAFFIC"]

SHORTEST_NS: Final = 20_000
"""The time of a shorter kernel says little about its rate: much of it passes before all units work."""

# -- far_below_roof ---------------------------------------------------------------------------------

FAR_BELOW_ROOF_LEAST_SHARE: Final = 0.05
"""Less than a twentieth of the device time is not worth the search for another kernel."""
FAR_BELOW: Final = 0.4
"""Kernels of libraries reach more than half of a roof in large work."""
LEAST_NS: Final = 2_000
"""No kernel takes less, however little it has to do: one that does nothing takes about as long."""
WHOLE: Final = 0.9
"""Of so much of the operator's time the roof must be known."""


def far_below_roof(scope: Scope, result: Roofline) -> Evidence | None:
    """The kernels of an operator take much longer than the arithmetic and the memory traffic that it needs.

    The roof is the longer of two times: its FLOPs at the peak of the device, and its bytes at the bandwidth. Of an operator whose
    figures come from shapes each tensor counts once, so a kernel that reads it several times is below the roof, as it should be.
    Operators some of whose calls were faster than the roof do not count, since their bytes are in doubt. At stake is the time
    beyond the roof, which no kernel gets below.

    Fires when an operator loses `FAR_BELOW_ROOF_LEAST_SHARE` of the device time at less than `FAR_BELOW` of its roof, in calls of
    `SHORTEST_NS` or more on average that need `LEAST_NS` or more at the roof.
    """
    total = int(scope.activities["duration"].sum())
    rows = result.operators.filter(
        (pl.col("efficiency") < FAR_BELOW)
        & (pl.col("rated_share") >= WHOLE)
        & (pl.col("faster_ns") == 0)
        & (pl.col("device_ns") >= SHORTEST_NS * pl.col("calls"))
        & (pl.col("least_ns") >= LEAST_NS * pl.col("calls"))
        & (pl.col("wasted_ns") >= FAR_BELOW_ROOF_LEAST_SHARE * total)
    )
    if not rows.height:
        return None
    one, limits = (
        rows.row(0, named=True),
        {"memory": "the memory allows", "compute": "the arithmetic units allow"},
    )
    others = ", ".join(
        f"{name} ({format_ns(ns)})" for name, ns in rows[1:4, ["operator", "wasted_ns"]].rows()
    )
    return Evidence(
        title=f"{one['operator']} loses {of_time(one['wasted_ns'], scope)} against its roofline",
        text=f"Its kernels take {format_ns(one['device_ns'])} and reach {format_share(one['efficiency'])} of what "
        f"{limits.get(one['bound'], 'the caches allow')}: {format_ns(one['least_ns'])} would be enough."
        + (f" Others lose time as well: {others}." if others else ""),
        ns_at_stake=bounded_by_host(one["wasted_ns"], scope),
    )


FAR_BELOW_ROOF = Rule(
    id="far_below_roof",
    analysis="roofline",
    evidence=far_below_roof,
    runs="device",
    restates=True,
    advice=Advice(
        "See which sizes are slow (tracekit ops --by-shape).\n"
        "[!amd] Nsight Compute shows what holds these kernels back.\n"
        "[amd] ROCm Compute Profiler shows what holds these kernels back.",
        plain="Nsight Compute, or ROCm Compute Profiler on AMD, shows what holds these kernels back.",
    ),
)


# -- memory_traffic ---------------------------------------------------------------------------------

MEMORY_TRAFFIC_LEAST_SHARE: Final = 0.1
"""A tenth of the device time."""
LEAST_OF_WINDOW: Final = 0.02
"""Where the device is mostly idle, fewer bytes save nothing."""
NEAR: Final = 0.6
"""Kernels that only stream data reach 60 to 95 % of the published bandwidth."""
_STREAMS: Final = ("elementwise", "normalisation", "softmax", "reduction", "copy")


def memory_traffic(scope: Scope, _result: Roofline) -> Evidence | None:
    """Elementwise work, normalisations and reductions move data about as fast as kernels do.

    Other kernels save no more than the time beyond the roof. Only fewer bytes save more: results that stay in registers because a compiler makes one
    kernel of several operators, or types of fewer bits. How much that saves, the trace does not tell.

    Fires when memory-bound kernels of these categories, each of `SHORTEST_NS` or more, at `NEAR` or more of the bandwidth and not
    above it, take `MEMORY_TRAFFIC_LEAST_SHARE` of the device time, and `LEAST_OF_WINDOW` of the window.
    """
    total = int(scope.activities["duration"].sum())
    reached = pl.col("least_ns") / pl.col("piece_ns")
    rows = rated_pieces(scope)[["bound", "category", "piece_ns", "least_ns", "operator"]]
    rows = kept(rows, rows["bound"] == "memory").filter(
        pl.col("category").cast(pl.String).is_in(_STREAMS)
        & (pl.col("piece_ns") >= SHORTEST_NS)
        & reached.is_between(NEAR, 1)
    )
    ns = int(rows["piece_ns"].sum())
    if not total or ns / total < MEMORY_TRAFFIC_LEAST_SHARE or ns < LEAST_OF_WINDOW * scope.duration:
        return None
    by_name = rows.group_by(pl.col("operator").cast(pl.String)).agg(pl.col("piece_ns").sum())
    largest = by_name.sort("piece_ns", "operator", descending=[True, False])
    named = ", ".join(f"{name} {format_ns(time)}" for name, time in largest.drop_nulls().head(3).rows())
    least = float(rows["least_ns"].sum())
    return Evidence(
        title=f"Work that only moves data takes {of_time(ns, scope)}, at {format_share(least / ns)} of the memory bandwidth",
        text=f"It goes to {count_of(rows.height, 'operator call')}: {named}. Other kernels could save "
        f"{format_ns(round(ns - least))} at most, and only fewer bytes save more.",
    )


MEMORY_TRAFFIC = Rule(
    id="memory_traffic",
    analysis="roofline",
    evidence=memory_traffic,
    runs="device",
    restates=True,
    advice=Advice(
        "[!compiled] Use torch.compile: it fuses several operators into one kernel, whose intermediate results never reach "
        "memory.\n"
        "[!low_precision !fp16_only] Use bf16: 16-bit types halve the bytes.\n"
        "[!low_precision fp16_only] Use fp16: 16-bit types halve the bytes.",
        plain="Only moving fewer bytes makes it faster: use one kernel for several operations, or narrower types.",
    ),
)
