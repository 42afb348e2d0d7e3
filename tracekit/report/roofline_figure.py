"""Rooflines as figures: what took the time, each as large as its time, below the ceilings of the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Any, Final

import polars as pl

from tracekit.facts.units import format_flop, format_ns, format_share
from tracekit.names import shorten_name
from tracekit.report.format import format_cell, format_number
from tracekit.report.model import Figure

__all__ = ["roofline_figures"]

MOST_DOTS: Final = 20
"""Rows with less time than the twenty longest hide each other."""
LEAST_SHARE: Final = 0.001
"""A smaller part of the time would only stretch the axes."""

_DRAWN: Final = {
    "operators": ("operator", "Roofline of the operators"),
    "layers": ("layer", "Roofline of the layers"),
    "kernels": ("name", "Roofline of the kernels"),
}
_OF_CACHE: Final = {"DRAM": "intensity", "L2": "l2_intensity", "L1": "l1_intensity"}
_LONGEST_NAME: Final = 60


def roofline_figures(tables: Mapping[str, pl.DataFrame]) -> Iterator[Figure]:
    """A figure for each level whose rows have an intensity and a rate; none where no ceiling is known."""
    if not tables["ceilings"].height:
        return
    ceilings = tables["ceilings"].unique(["device", "precision", "unit", "level"], maintain_order=True)
    for table, (key, title) in _DRAWN.items():
        rows = tables[table].filter((pl.col("intensity") > 0) & (pl.col("flops_per_s") > 0))
        rows = rows.filter(pl.col("device_ns") >= LEAST_SHARE * pl.lit(tables[table]["device_ns"].sum()))
        rows = rows.sort("device_ns", descending=True).head(MOST_DOTS)
        if rows.height > 1:
            yield Figure(table, title, "curve", _data(rows, key, ceilings))


def _data(rows: pl.DataFrame, key: str, ceilings: pl.DataFrame) -> dict[str, Any]:
    levels = [level for level, column in _OF_CACHE.items() if rows[column].count()]
    dots = list(_dots(rows, key, levels))
    x = [value for one in dots for value in one["x"]]
    roofs = list(_roofs(ceilings, min(x), max(x), levels)) if ceilings["device"].n_unique() == 1 else []
    high = max(value for one in (*dots, *roofs) for value in one["y"])
    power, words = (12, "10¹² FLOP/s") if high >= 1e12 else (9, "10⁹ FLOP/s")
    series = [{**one, "y": [value / 10**power for value in one["y"]]} for one in (*dots, *roofs)]
    return {"base": 10, "x_title": "FLOP per byte of memory traffic", "y_title": words, "series": series}


def _dots(rows: pl.DataFrame, key: str, levels: list[str]) -> Iterator[dict[str, Any]]:
    """The rows by what bounds them, or where caches were counted, once for each level of memory."""
    if len(levels) > 1:
        for level in levels:
            yield _series(
                f"bytes of {level}", rows.filter(pl.col(_OF_CACHE[level]) > 0), key, _OF_CACHE[level]
            )
        return
    bound = pl.col("bound")
    for label, wanted in (
        ("memory-bound", bound == "memory"),
        ("compute-bound", bound == "compute"),
        ("ceiling not known", bound.is_null()),
    ):
        if (chosen := rows.filter(wanted)).height:
            yield _series(label, chosen, key, "intensity", max(rows["device_ns"]))


def _series(label: str, rows: pl.DataFrame, key: str, intensity: str, longest: float = 0) -> dict[str, Any]:
    longest = longest or max(rows["device_ns"])
    return {
        "label": label,
        "style": "dots",
        "x": rows[intensity].to_list(),
        "y": rows["flops_per_s"].to_list(),
        "sizes": [sqrt(time / longest) for time in rows["device_ns"].to_list()],
        "names": [_hint(row, key) for row in rows.iter_rows(named=True)],
    }


def _hint(row: dict[str, Any], key: str) -> str:
    roof = "" if row["efficiency"] is None else f", {format_share(row['efficiency'])} of its roof"
    rate = format_flop(row["flops_per_s"], per_second=True)
    name = shorten_name(row[key] or "no operator", _LONGEST_NAME)
    return f"{name}: {format_ns(row['device_ns'])}, {rate} at {format_number(row['intensity'])} FLOP per byte{roof}"


def _roofs(ceilings: pl.DataFrame, low: float, high: float, levels: list[str]) -> Iterator[dict[str, Any]]:
    """A line up to each peak, along each bandwidth."""
    rates = ceilings.filter(pl.col("level").is_in(levels))[["level", "bytes_per_s"]].rows()
    peaks = ceilings.drop_nulls("flops_per_s")[["precision", "unit", "flops_per_s"]].rows()
    highest = max((peak for *_, peak in peaks), default=0)
    for level, rate in rates:
        for precision, unit, peak in peaks:
            ridge = peak / rate
            if level != levels[0] and peak < highest:
                continue  # the flat part of a roof is the same at every level
            x = [min(low, ridge) / 2, ridge, max(high, ridge) * 2]
            peaked = f"{precision} {unit}, {format_flop(peak, per_second=True)}"
            label = peaked if level == levels[0] else f"{level}, {format_cell(rate, 'byte_rate')}"
            yield {"label": label, "style": "dashes", "x": x, "y": [x[0] * rate, peak, peak]}
