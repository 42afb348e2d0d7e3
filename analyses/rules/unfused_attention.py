"""Attention is computed in pieces: batched product, softmax, batched product, each through device memory.

A softmax between two batched matrix products shows in the operators: for each call of `aten::_softmax` (or
`aten::softmax`) there are about two of `aten::bmm` or `aten::baddbmm`. A classifier's softmax has no such
company. At stake is the time of the softmax alone; the products run either way.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.kernels import Kernels
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_count, format_ns, format_share

__all__ = ["RULE"]

LEAST_SHARE: Final = 0.05
"""Below a twentieth of the device time a fused kernel gains little."""
LEAST_PRODUCTS: Final = 1.5
"""Two products a softmax, less a few that the window cuts off."""

_SOFTMAX: Final = ("aten::_softmax", "aten::softmax", "aten::_softmax_backward_data")
_PRODUCT: Final = ("aten::bmm", "aten::baddbmm")


def evidence(scope: Scope, result: Kernels) -> Evidence | None:
    """Fires when softmax operators in the company of batched products take `LEAST_SHARE` of the time."""
    softmax = result.by_operator.filter(pl.col("operator").is_in(_SOFTMAX))
    products = int(result.by_operator.filter(pl.col("operator").is_in(_PRODUCT))["count"].sum())
    calls, total = int(softmax["count"].sum()), int(softmax["total_ns"].sum())
    if (
        not calls
        or not result.total_ns
        or total / result.total_ns < LEAST_SHARE
        or products < LEAST_PRODUCTS * calls
    ):
        return None
    at_stake = bounded(total, scope)
    return Evidence(
        title=f"Attention is not fused: its softmax takes {format_share(total / result.total_ns)} of the {'operator' if scope.on_cpu else 'device'} time",
        text=f"{format_count(calls)} softmax call{'s' if calls != 1 else ''} take{'' if calls != 1 else 's'} {format_ns(total)}, beside {format_count(products)} batched matrix "
        "products (aten::bmm): scores are written to memory and read again.",
        ns_at_stake=at_stake,
    )


RULE = Rule(
    id="unfused_attention",
    analysis="kernels",
    evidence=evidence,
    advice=Advice(
        "Use torch.nn.functional.scaled_dot_product_attention (in Hugging Face models "
        'attn_implementation="sdpa"), or flex_attention for masks and biases of your own.',
    ),
)
