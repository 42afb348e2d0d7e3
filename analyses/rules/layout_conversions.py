"""cuDNN converts between NCHW and NHWC around convolutions, because the model does not keep the layout it wants."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.kernels import Kernels
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_count, format_ns, format_share

__all__ = ["RULE"]

LEAST_SHARE: Final = 0.02
"""The conversion of the first input alone stays below one part in fifty."""

_CONVERSION: Final = r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|batched_transpose_\d+x\d+"


def evidence(scope: Scope, result: Kernels) -> Evidence | None:
    """Fires when conversion kernels take `LEAST_SHARE` of the summed device time."""
    if not result.total_ns:
        return None
    rows = result.by_name.filter((pl.col("kind") == "kernel") & pl.col("name").str.contains(_CONVERSION))
    total = int(rows["total_ns"].sum())
    if total / result.total_ns < LEAST_SHARE:
        return None
    at_stake = bounded(total, scope)
    return Evidence(
        title=f"Layout conversions take {format_share(total / result.total_ns)} of the device time",
        text=f"{format_ns(total)} in {_launches(int(rows['count'].sum()))} of kernels that turn NCHW into NHWC or back.",
        ns_at_stake=at_stake,
    )


def _launches(count: int) -> str:
    return f"{format_count(count)} launch{'es' if count != 1 else ''}"


RULE = Rule(
    id="layout_conversions",
    analysis="kernels",
    evidence=evidence,
    runs="device",
    advice=Advice(
        "Keep channels last from end to end: model.to(memory_format=torch.channels_last) and the same for"
        " the input batch; avoid .contiguous() and view() in between.",
        plain=("Keep the data in the layout that the library computes in (NHWC for tensor cores)."),
        flags=("--channels-last",),
    ),
)
