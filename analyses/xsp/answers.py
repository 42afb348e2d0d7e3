"""The answers of XSP's analyses: the sentences of their records, with the figures that these name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from tracekit.analyses.counters.analysis import NCU_SUFFIX
from tracekit.analyses.xsp.catalogue import Analysis
from tracekit.analyses.xsp.runs import XspRun
from tracekit.facts.units import count_of, format_bytes, format_count, format_ns, format_share
from tracekit.names import shorten_name

__all__ = ["answer_of", "figures_of"]

_LONGEST: Final = 80
"""Of the name of a kernel in a sentence: a whole C++ signature can fill a page."""


def answer_of(analysis: Analysis, rows: pl.DataFrame, run: XspRun) -> str:
    """The answer of an analysis to its question, in one sentence; `rows` is its table, with at least one row."""
    decisive = "share" if analysis.share else "memory_bound"
    if analysis.otherwise and not rows[decisive].count():
        return analysis.otherwise.format_map(figures_of(rows, run))
    return analysis.answer.format_map(figures_of(rows, run))


class _Count:
    """A number, and the number of things of the noun in brackets."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __str__(self) -> str:
        return format_count(self._number)

    def __getitem__(self, noun: str) -> str:
        return count_of(self._number, noun)


def figures_of(rows: pl.DataFrame, run: XspRun) -> dict[str, Any]:
    """The figures that an answer may name: the number of `rows` (`rows[layer]`: of layers), the row at the `top` (by share), the `sum` of each column and
    over `layers` alone, the device's `part` of the own times, `works` and `calls` (words for the device or operators), the
    number of rows `bound` by memory or the `unknown` quantity, the `sources` of FLOPs and bytes and of the `bandwidth`.
    """
    numeric = rows.select(pl.col(pl.Int64, pl.UInt32, pl.Float64, pl.Boolean))
    top = rows
    if "share" in rows.columns:
        top = rows.sort("share", descending=True, nulls_last=True, maintain_order=True)
    figures: dict[str, Any] = {
        "rows": _Count(rows.height),
        "sum": _texts(numeric.sum()),
        "top": _texts(top),
    }
    if "index" in rows.columns:
        figures["layers"] = _texts(numeric.filter(pl.col("index").is_not_null()).sum())
    if "gpu_ns" in rows.columns and "self_ns" in rows.columns:
        busy, whole = float(rows["gpu_ns"].sum()), float(rows["self_ns"].sum())
        figures["part"] = format_share(busy / whole) if whole else "an unknown part"
    figures["works"] = "operators run" if run.on_cpu else "the device works"
    captured = "operator calls (no device was captured)"
    figures["calls"] = captured if run.on_cpu else "kernels, copies and fills"
    if "memory_bound" in rows.columns:
        figures |= _roofline_figures(rows, run)
    return figures


def _roofline_figures(rows: pl.DataFrame, run: XspRun) -> dict[str, Any]:
    bound, rate = rows["memory_bound"], run.recorded_bandwidth_gbps
    peaks = "the peaks of the device are"
    precision = "the precision of the arithmetic, and therefore the peak, is"
    sources = {
        what: rows[column].drop_nulls().str.split("+").explode().unique().sort().to_list()
        for what, column in (("FLOPs", "flops_source"), ("bytes", "dram_source"))
    }
    of_ncu = any(NCU_SUFFIX in source for each in sources.values() for source in each)
    named = "; ".join(f"{what}: {', '.join(each)}" for what, each in sources.items())
    recorded = rate is not None and bound.count() > 0
    return {
        "bound": int(bound.sum()),
        "unknown": peaks if rows["precision"].count() else precision,
        "sources": f" {named}." if of_ncu else "",
        "bandwidth": f" The peak bandwidth, {rate:,.0f} GB/s, comes from the trace." if recorded else "",
    }


def _texts(rows: pl.DataFrame) -> Mapping[str, str]:
    """The first row, with units."""
    return {name: _text(name, value) for name, value in rows.row(0, named=True).items()}


def _text(name: str, value: Any) -> str:
    if value is None:
        return {"share": "none", "type": "an unknown type"}.get(name, "an unknown time")
    if name == "share":
        return format_share(value)
    if name.endswith("_bytes"):
        return format_bytes(round(value))
    if name == "name":
        return shorten_name(value, _LONGEST)
    return format_ns(value) if name.endswith("_ns") else str(value)
