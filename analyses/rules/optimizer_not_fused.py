"""The optimizer updates parameter by parameter, with several kernels for each.

At stake is the time of those kernels: a fused optimizer reads and writes the same data in one pass.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.kernels import Kernels
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded
from tracekit.analyses.scope import Scope
from tracekit.facts.kernel_rules import OPTIMIZER_RANGE
from tracekit.facts.units import format_count, format_ns, format_share

__all__ = ["RULE"]

LEAST_KERNELS_PER_STEP: Final = 50
"""A fused or foreach optimizer takes one to some tens of kernels a step, however many parameters there are."""
LEAST_SHARE: Final = 0.01
"""Of the summed device time; the launches of so many small kernels cost the host several times that."""

_FUSED: Final = r"(?i)multi_tensor|_foreach_|_fused_|fused_?adam|fusedsgd|fused_?lamb|^triton_"


def evidence(scope: Scope, result: Kernels) -> Evidence | None:
    """Fires when a step runs `LEAST_KERNELS_PER_STEP` optimizer kernels that are not fused."""
    rows = result.by_name.filter((pl.col("category") == "optimizer") & ~pl.col("name").str.contains(_FUSED))
    count, total = int(rows["count"].sum()), int(rows["total_ns"].sum())
    steps = scope.steps.height if scope.window == "steps" else _optimizer_ranges(scope)
    each = count / max(steps, 1)
    if not result.total_ns or total / result.total_ns < LEAST_SHARE or each < LEAST_KERNELS_PER_STEP:
        return None
    at_stake = bounded(total, scope)
    what = "operator calls" if scope.on_cpu else "kernels"
    return Evidence(
        title=f"The optimizer runs {each:,.0f} {what} {'a step' if steps else 'in this trace'}, "
        f"{format_share(total / result.total_ns)} of {'operator' if scope.on_cpu else 'device'} time",
        text=f"{format_count(count)} unfused {what} of the optimizer take {format_ns(total)}; "
        f"the costliest is {_costliest(rows)}.",
        ns_at_stake=at_stake,
    )


def _optimizer_ranges(scope: Scope) -> int:
    """How many times an optimizer stepped, in a trace that marks no steps."""
    names = scope.host("annotation")["name"].cast(pl.String)
    return int(names.str.contains(OPTIMIZER_RANGE).sum())


def _costliest(rows: pl.DataFrame) -> str:
    name = str(rows.sort("total_ns", "name", descending=[True, False])["name"][0])
    return name if len(name) <= 80 else f"{name[:79]}…"


RULE = Rule(
    id="optimizer_not_fused",
    analysis="kernels",
    evidence=evidence,
    advice=Advice(
        "Construct it with fused=True (torch.optim.AdamW, Adam, SGD, Adagrad), or foreach=True where that is not "
        "available; do not set foreach=False.",
        processor=(
            "Construct it with fused=True (torch.optim.AdamW, Adam, SGD and Adagrad have it for processors as well); "
            "foreach=True gains nothing there."
        ),
    ),
)
