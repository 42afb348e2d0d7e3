"""The figures of XSP's analyses: layers in the order of execution, shares by type, rooflines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from tracekit.analyses.xsp.catalogue import CATALOGUE
from tracekit.analyses.xsp.result import XspTable
from tracekit.files import make_directory, write_bytes
from tracekit.names import shorten_name
from tracekit.report.figures import canvas_for, check_format, encode_canvas, plain
from tracekit.report.format import format_cell
from tracekit.report.formats import FigureFormat
from tracekit.report.model import Unit

__all__ = ["DRAWN", "write_xsp"]

DRAWN: Final = ("A3", "A4", "A5", "A6", "A7", "A9", "A13", "A14")
"""The analyses that have a figure."""

_MOST_BARS: Final = 30
_BLUE, _GREY, _ORANGE, _RED = "#4e79a7", "#cdd2da", "#f28e2b", "#d9484c"


def write_xsp(
    tables: Mapping[str, XspTable], directory: str | os.PathLike[str], format: FigureFormat = "svg"
) -> tuple[Path, ...]:
    """Draw each table of DRAWN that has rows as `<key>.<format>`; return the paths.

    The directory is made if it is not there. Raises UsageError for an unknown format or when a file cannot be written.
    """
    check_format(format)
    folder = make_directory(directory)
    return tuple(
        write_bytes(folder / f"{key}.{format}", _encode(tables[key], format))
        for key in DRAWN
        if key in tables and tables[key].frame.height
    )


def _encode(table: XspTable, form: FigureFormat) -> bytes:
    canvas = canvas_for(3.6 if table.key not in ("A5", "A6", "A7") else _height(table.frame))
    axes = canvas.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    _DRAW[table.key](axes, table.frame)
    axes.set_title(plain(CATALOGUE[table.key].title), loc="left", fontsize=11, fontweight="bold")
    if axes.get_legend_handles_labels()[0]:
        canvas.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return encode_canvas(canvas, form)


def _height(frame: pl.DataFrame) -> float:
    return 1.5 + 0.28 * min(frame.height, _MOST_BARS)


def _in_order(column: str, unit: Unit) -> Callable[[Axes, pl.DataFrame], None]:
    """One bar a layer, from left to right."""

    def draw(axes: Axes, frame: pl.DataFrame) -> None:
        rows = frame.filter(pl.col("index").is_not_null())
        axes.bar(rows["index"].to_list(), rows[column].to_list(), color=_BLUE, width=0.8)
        axes.set_xlabel("layer, in the order of execution", fontsize=8)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_cell(value, unit)))

    return draw


def _by_type(column: str, unit: Unit) -> Callable[[Axes, pl.DataFrame], None]:
    """One bar a type, the largest on top."""

    def draw(axes: Axes, frame: pl.DataFrame) -> None:
        rows = frame.head(_MOST_BARS)
        values = rows[column].to_list()
        drawn = axes.barh(range(rows.height), values, color=_BLUE, height=0.75)
        axes.bar_label(drawn, [format_cell(value, unit) for value in values], padding=3, fontsize=8)
        names = [plain(shorten_name("unknown" if name is None else name, 32)) for name in rows["type"]]
        axes.set_yticks(range(rows.height), names, fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_cell(value, unit)))

    return draw


def _device_part(axes: Axes, frame: pl.DataFrame) -> None:
    place, busy = frame["index"].to_list(), frame["gpu_ns"].to_list()
    rest = frame["non_gpu_ns"].fill_null(0.0).to_list()
    axes.bar(place, busy, color=_ORANGE, width=0.8, label="device")
    axes.bar(place, rest, bottom=busy, color=_GREY, width=0.8, label="not the device")
    axes.set_xlabel("layer, in the order of execution", fontsize=8)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_cell(value, "ns")))


def _roofline(axes: Axes, frame: pl.DataFrame) -> None:
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


_DRAW: Final[dict[str, Callable[[Axes, pl.DataFrame], None]]] = {
    "A3": _in_order("self_ns", "ns"),
    "A4": _in_order("allocated_bytes", "bytes"),
    "A5": _by_type("layers", "count"),
    "A6": _by_type("self_ns", "ns"),
    "A7": _by_type("allocated_bytes", "bytes"),
    "A9": _roofline,
    "A13": _device_part,
    "A14": _roofline,
}
