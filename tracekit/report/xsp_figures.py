"""The figures of XSP's analyses: layers in the order of execution, shares by type, rooflines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from tracekit.analyses.result import unit_of
from tracekit.analyses.stated import StatedTable
from tracekit.analyses.xsp.catalogue import CATALOGUE, Analysis, Figure
from tracekit.files import write_all
from tracekit.names import clean_frame, shorten_name
from tracekit.report.figures import canvas_for, check_format, encode_canvas, plain
from tracekit.report.format import format_cell
from tracekit.report.formats import FigureFormat

__all__ = ["write_xsp"]

_MOST_BARS: Final = 30
_EXECUTION: Final = "layer, in the order of execution"
_BLUE, _GREY, _ORANGE, _RED = "#4e79a7", "#cdd2da", "#f28e2b", "#d9484c"


def write_xsp(
    tables: Mapping[str, StatedTable], directory: str | os.PathLike[str], format: FigureFormat = "svg"
) -> tuple[Path, ...]:
    """Draw each table that has rows and a figure as `<key>.<format>`; return the paths.

    The directory is made if it is not there. Raises UsageError for an unknown format or when a file cannot be written.
    """
    check_format(format)
    drawn = {key: table for key, table in tables.items() if CATALOGUE[key].figure and table.frame.height}
    return write_all(
        directory,
        (
            (f"{key}.{format}", _encode(CATALOGUE[key], clean_frame(table.frame), format))
            for key, table in drawn.items()
        ),
    )


def _encode(analysis: Analysis, frame: pl.DataFrame, form: FigureFormat) -> bytes:
    height = 1.5 + 0.28 * min(frame.height, _MOST_BARS) if analysis.figure == "type" else 3.6
    canvas = canvas_for(height)
    axes = canvas.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    _DRAW[analysis.figure or "order"](axes, frame, analysis.share or "gpu_ns")
    axes.set_title(plain(analysis.title), loc="left", fontsize=11, fontweight="bold")
    if axes.get_legend_handles_labels()[0]:
        canvas.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return encode_canvas(canvas, form)


def _with_unit(column: str, frame: pl.DataFrame) -> FuncFormatter:
    unit = unit_of(column, frame.schema[column])
    return FuncFormatter(lambda value, _: format_cell(value, unit))


def _in_order(axes: Axes, frame: pl.DataFrame, column: str) -> None:
    """One bar a layer, from left to right."""
    rows = frame.filter(pl.col("index").is_not_null())
    axes.bar(rows["index"].to_list(), rows[column].to_list(), color=_BLUE, width=0.8)
    axes.set_xlabel(_EXECUTION, fontsize=8)
    axes.yaxis.set_major_formatter(_with_unit(column, frame))


def _by_type(axes: Axes, frame: pl.DataFrame, column: str) -> None:
    """One bar a type, the largest on top."""
    rows, unit = frame.head(_MOST_BARS), _with_unit(column, frame)
    values = rows[column].to_list()
    bars = axes.barh(range(rows.height), values, color=_BLUE, height=0.75)
    axes.bar_label(bars, [unit(value) for value in values], padding=3, fontsize=8)
    names = [plain(shorten_name("unknown" if name is None else name, 32)) for name in rows["type"]]
    axes.set_yticks(range(rows.height), names, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(unit)


def _device_part(axes: Axes, frame: pl.DataFrame, column: str) -> None:
    place, busy = frame["index"].to_list(), frame[column].to_list()
    rest = frame["non_gpu_ns"].fill_null(0.0).to_list()
    axes.bar(place, busy, color=_ORANGE, width=0.8, label="device")
    axes.bar(place, rest, bottom=busy, color=_GREY, width=0.8, label="not the device")
    axes.set_xlabel(_EXECUTION, fontsize=8)
    axes.yaxis.set_major_formatter(_with_unit(column, frame))


def _roofline(axes: Axes, frame: pl.DataFrame, _column: str) -> None:
    """Points (intensity, FLOP/s) below the roof of each precision."""
    rows = frame.filter((pl.col("intensity") > 0) & (pl.col("tflops") > 0))
    axes.set_xscale("log")
    axes.set_yscale("log")
    for name, colour, wanted in (
        ("bound by memory", _RED, pl.col("memory_bound").fill_null(value=False)),
        ("bound by arithmetic", _BLUE, ~pl.col("memory_bound").fill_null(value=True)),
        ("peak not known", _GREY, pl.col("memory_bound").is_null()),
    ):
        points = rows.filter(wanted)
        if points.height:
            axes.scatter(points["intensity"], points["tflops"], s=14, color=colour, label=name)
    for (precision,), roof in rows.filter(pl.col("attainable_tflops").is_not_null()).group_by(
        ["precision"], maintain_order=True
    ):
        line = roof.sort("intensity")
        label = f"roof, {precision}"
        axes.plot(line["intensity"], line["attainable_tflops"], linewidth=1, color="#8b93a0", label=label)
    axes.set_xlabel("FLOPs a byte of device memory", fontsize=8)
    axes.set_ylabel("10¹² FLOP/s", fontsize=8)


_DRAW: Final[dict[Figure, Callable[[Axes, pl.DataFrame, str], None]]] = {
    "order": _in_order,
    "type": _by_type,
    "device": _device_part,
    "roofline": _roofline,
}
