"""The figures of a report as files, drawn with matplotlib's objects only: no global state, no window system."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import BytesIO
from math import ceil, floor, log
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter

from tracekit.errors import UsageError
from tracekit.files import write_all
from tracekit.names import category_name, shorten_name, shorten_names
from tracekit.report.format import format_cell
from tracekit.report.formats import FIGURE_FORMATS, FigureFormat
from tracekit.report.model import Figure, Report

__all__ = ["canvas_for", "check_format", "encode", "encode_canvas", "plain", "write"]

WIDTH: Final = 8.0
LETTERS: Final = 135
"""Of the labels of an icicle, over its whole width."""

LEAST_LETTERS: Final = 4
DPI: Final = 150
LABEL_WIDTH: Final = 32
_COLOURS: Final = {
    **dict.fromkeys(("compute", "kernel", "busy", "gemm", "efficiency", "device"), "#4e79a7"),
    **dict.fromkeys(
        ("communication", "exposed communication", "slower training", "synchronisation"), "#d9484c"
    ),
    **dict.fromkeys(("memcpy", "exposed copies"), "#e39a2d"),
    **dict.fromkeys(("idle", "unknown", "start", "start-up"), "#cdd2da"),
    **dict.fromkeys(("reduction", "host wait", "waits", "more epochs", "host"), "#f28e2b"),
    **dict.fromkeys(("elementwise", "kernel wait"), "#dcb53c"),
    **dict.fromkeys(("attention", "other wait", "evaluation"), "#9d6bb3"),
    **dict.fromkeys(("normalisation", "runtime"), "#4fa5a0"),
    **dict.fromkeys(("fused", "data loader", "loading not hidden"), "#c75a92"),
    "convolution": "#59a14f",
    "softmax": "#e8798a",
    "embedding": "#9c755f",
    "optimizer": "#6b8e23",
    "pooling": "#7fb3d5",
    "copy": "#7fa8c9",
    "memset": "#c2a46a",
    "operator": "#8fbf6b",
    "forward": "#4e79a7",
    "backward": "#9d6bb3",
    "data": "#e39a2d",
    "slower": "#c3272f",
    "a little slower": "#e39a97",
    "in both": "#8b93a0",
    "a little faster": "#96b2e3",
    "faster": "#3567c4",
}
_OTHER: Final = "#8b93a0"
_SERIES: Final = ("#4e79a7", "#f28e2b", "#59a14f", "#9d6bb3", "#4fa5a0", "#e8798a", "#9c755f", "#dcb53c")


def write(
    report: Report, directory: str | os.PathLike[str], format: FigureFormat = "svg"
) -> tuple[Path, ...]:
    """Write every figure of the report as `<section>.<figure>.<format>`; return the paths, in order.

    The directory is made if it is not there. Raises UsageError for an unknown format or when a file cannot be
    written.
    """
    check_format(format)
    figures = ((section.name, figure) for section in report.sections for figure in section.figures)
    return write_all(
        directory,
        ((f"{section}.{figure.name}.{format}", encode(figure, format)) for section, figure in figures),
    )


def check_format(format: str) -> None:
    """Raise UsageError for what is no format of a figure."""
    if format not in FIGURE_FORMATS:
        raise UsageError(
            f"unknown figure format {format!r}", remedy=f"use one of {', '.join(FIGURE_FORMATS)}"
        )


def encode(figure: Figure, format: FigureFormat) -> bytes:
    """One figure as the bytes of a file; the same figure always gives the same bytes."""
    draw: dict[str, Callable[[Axes, dict[str, Any]], None]] = {
        **{"stack": _stack, "bars": _bars, "line": _line, "icicle": _icicle, "curve": _curve, "heat": _heat}
    }
    canvas = canvas_for(_height(figure))
    axes = canvas.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    draw[figure.kind](axes, figure.data)
    axes.set_title(plain(figure.title), loc="left", fontsize=11, fontweight="bold")
    if figure.kind not in ("bars", "heat"):
        canvas.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return encode_canvas(canvas, format)


def canvas_for(height: float) -> Canvas:
    """An empty page of this height in inches, as wide as all figures."""
    canvas = Canvas(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(canvas)
    return canvas


def encode_canvas(canvas: Canvas, format: FigureFormat) -> bytes:
    """A drawn page as the bytes of a file; the same page always gives the same bytes."""
    stream = BytesIO()
    # no dates and no random ids, so that a figure changes only with its data
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}[format]
    with _reproducible():
        canvas.savefig(stream, format=format, dpi=DPI, metadata=metadata)
    return stream.getvalue()


def _reproducible() -> Any:
    from matplotlib import rc_context  # noqa: PLC0415 - restores the settings of whoever else draws

    return rc_context({"svg.hashsalt": "tracekit", "svg.fonttype": "path"})


def _height(figure: Figure) -> float:
    if figure.kind == "icicle":
        return 1.4 + 0.26 * (1 + max((node["depth"] for node in figure.data["nodes"]), default=0))
    if figure.kind == "curve":
        return 4.2
    if figure.kind == "heat":
        return 1.5 + 0.16 * sum(len(one["rows"]) + 2 for one in figure.data["maps"])
    rows = figure.data.get("rows") or figure.data.get("bars") or ()
    return 2.8 if figure.kind == "line" else min(1.5 + 0.28 * len(rows), 12.0)


def plain(text: str) -> str:
    """A dollar sign would begin a formula."""
    return text.replace("$", r"\$")


def _label(text: str) -> str:
    return plain(shorten_name(text, LABEL_WIDTH))


def _time_axis(axes: Axes, unit: str) -> None:
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_cell(value, unit)))  # type: ignore[arg-type]


def _stack(axes: Axes, data: dict[str, Any]) -> None:
    rows = data["rows"]
    places = range(len(rows))
    left = [0] * len(rows)
    labels = [part["label"] for part in rows[0]["parts"]] if rows else []
    for index, label in enumerate(labels):
        values = [row["parts"][index]["value"] for row in rows]
        if any(values):
            colour = _COLOURS.get(label, _OTHER)
            axes.barh(places, values, left=left, color=colour, label=category_name(label), height=0.75)
        left = [at + value for at, value in zip(left, values, strict=True)]
    _rows(axes, [row["label"] for row in rows])
    _time_axis(axes, data["unit"])


def _rows(axes: Axes, labels: list[str]) -> None:
    every = max(1, len(labels) // 40)
    short = shorten_names(labels, LABEL_WIDTH)
    axes.set_yticks(
        range(0, len(labels), every), [plain(short[label]) for label in labels[::every]], fontsize=8
    )
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=8)


def _bars(axes: Axes, data: dict[str, Any]) -> None:
    bars = data["bars"]
    values = [bar["value"] for bar in bars]
    drawn = axes.barh(
        range(len(bars)), values, color=[_COLOURS.get(bar["label"], _OTHER) for bar in bars], height=0.75
    )
    axes.bar_label(drawn, [format_cell(value, data["unit"]) for value in values], padding=3, fontsize=8)
    axes.margins(x=0.12)
    _rows(axes, [category_name(bar["label"]) for bar in bars])
    _time_axis(axes, data["unit"])


def _icicle(axes: Axes, data: dict[str, Any]) -> None:
    total, nodes = data["total"], data["nodes"]
    for kind in dict.fromkeys(node["kind"] for node in nodes):
        mine = [node for node in nodes if node["kind"] == kind]
        axes.barh(
            [node["depth"] for node in mine],
            [node["value"] for node in mine],
            left=[node["start"] for node in mine],
            color=_COLOURS.get(kind, _OTHER),
            edgecolor="white",
            linewidth=0.4,
            height=1,
            label=data.get("kinds", {}).get(kind, kind),
        )
    for node in nodes:
        letters = int(LETTERS * node["value"] / total)
        if letters >= LEAST_LETTERS:
            label = plain(shorten_name(node["label"], letters))
            middle = node["start"] + node["value"] / 2
            axes.text(middle, node["depth"], label, ha="center", va="center", fontsize=6.5, color="white")
    axes.set_xlim(0, total)
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=8)
    _time_axis(axes, data["unit"])


def _heat(axes: Axes, data: dict[str, Any]) -> None:
    """The maps below each other; each is as dark as its percentage."""
    top, ticks = 0, []
    for one in data["maps"]:
        axes.text(0, top + 0.8, plain(one["label"]), fontsize=8, fontweight="bold", va="bottom")
        colour = _COLOURS.get(one["kind"], _OTHER)
        rows = [[max(value, 0) / 100 for value in row["percent"]] for row in one["rows"]]
        shades = [[(*to_rgb(colour), share) for share in row] for row in rows]
        axes.imshow(
            shades,
            extent=(0, data["span_ns"], top + 1 + len(rows), top + 1),
            aspect="auto",
            interpolation="nearest",
        )
        ticks += [(top + 1.5 + place, _label(row["label"])) for place, row in enumerate(one["rows"])]
        top += len(rows) + 2
    axes.set_xlim(0, data["span_ns"])
    axes.set_ylim(top, 0)
    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks], fontsize=7)
    axes.tick_params(axis="x", labelsize=8)
    _time_axis(axes, "time")


def _line(axes: Axes, data: dict[str, Any]) -> None:
    for index, series in enumerate(data["series"]):
        colour = _SERIES[index % len(_SERIES)]
        axes.step(
            series["x"], series["y"], where="post", color=colour, label=_label(series["label"]), linewidth=1
        )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_cell(value, data["unit"])))
    if ends := data.get("ends"):
        axes.set_xticks(
            [min(s["x"][0] for s in data["series"]), max(s["x"][-1] for s in data["series"])], ends
        )
    else:
        _time_axis(axes, "time")
    axes.tick_params(labelsize=8)
    axes.set_ylim(bottom=0 if min(min(s["y"]) for s in data["series"]) >= 0 else None)


def _curve(axes: Axes, data: dict[str, Any]) -> None:
    base = data.get("base", 2)
    if base:
        axes.set_xscale("log", base=base)
        axes.set_yscale("log", base=base)
    for index, series in enumerate(data["series"]):
        colour, label = _SERIES[index % len(_SERIES)], _label(series["label"])
        if series["style"] == "dots":
            sizes = [22 + 200 * size for size in series.get("sizes", [0] * len(series["x"]))]
            axes.scatter(series["x"], series["y"], color=colour, label=label, zorder=3, s=sizes, alpha=0.8)
            if marks := series.get("marks"):
                axes.plot(series["x"], series["y"], color=colour, linewidth=1)
                for x, y, mark in zip(series["x"], series["y"], marks, strict=True):
                    axes.annotate(plain(mark), (x, y), (4, 4), textcoords="offset points", fontsize=7)
            elif base == 2 and all(float(x).is_integer() for x in series["x"]):  # such as numbers of ranks
                axes.set_xticks(sorted(set(series["x"])))
        elif series["style"] == "dashes":
            axes.plot(series["x"], series["y"], color=_OTHER, label=label, linestyle="--", linewidth=1)
            if base == 2:
                axes.set_ylim(top=2 * max(series["y"]))
        else:
            axes.plot(series["x"], series["y"], color=colour, label=label, linewidth=1.2)
            axes.fill_between(series["x"], series["low"], series["high"], color=colour, alpha=0.15)
    if base and any(
        "marks" in series for series in data["series"]
    ):  # else a narrow range of them may have no tick
        powers = [log(value, base) for series in data["series"] for value in series["x"]]
        axes.set_xlim(base ** floor(min(powers)), base ** ceil(max(powers)))
        axes.set_ylim(top=1.5 * max(max(series["y"]) for series in data["series"]))
    if base:
        low = min(min(series["y"]) for series in data["series"])
        axes.set_ylim(bottom=low / 1.5)
    for axis, title in ((axes.xaxis, data["x_title"]), (axes.yaxis, data["y_title"])):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_label_text(title, fontsize=8)
    axes.tick_params(labelsize=8)
