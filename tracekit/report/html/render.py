"""The report as one HTML file that needs nothing else: no server, no network, no other file.

A trace is foreign matter. Every text goes through Jinja's escaping, data are embedded as JSON in which `<`, `>` and
`&` cannot occur, and a Content-Security-Policy lets the browser run and style nothing but what is named by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import msgspec
import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import format_bytes, format_count, format_ns, format_share
from tracekit.names import shorten_name, shorten_names, unbroken
from tracekit.report.format import (
    RIGHT_ALIGNED,
    bound_name,
    costliest,
    format_cell,
    format_scalars,
    format_source,
    format_value,
    format_window,
    is_silent,
    legend,
    missing,
    shown_columns,
)
from tracekit.report.formats import Page
from tracekit.report.html.charts import Chart, Part, chart, kind_class
from tracekit.report.html.timeline import timeline
from tracekit.report.model import Column, Report, Section, Table
from tracekit.trace import Trace
from tracekit.trees import parent_rows

__all__ = ["MAX_ROWS", "Cell", "Grid", "render", "render_reports"]

MAX_ROWS: Final = 1000
"""Rows of one table in the page; the JSON report has all."""

MAX_LAYERS: Final = 5000
OPEN_LAYERS: Final = 25
"""Layers that are visible at first, the costliest."""

TREE_FIGURES: Final = ("device_ns", "share", "device_own_ns", "calls", "host_ns")

NAME_WIDTH: Final = 64
BARRED: Final = frozenset({"share", "launch_bound_share", "utilisation", "overlap"})
"""Ratios that get a small bar beside the figure."""

SCRIPTS: Final = ("timeline_data.js", "timeline_view.js", "timeline.js", "timeline_places.js", "report.js")
COLOURED: Final = frozenset({"category", "role", "kind"})


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: what is shown, what it is sorted by, the full text where that is longer, and its decoration."""

    text: str
    value: str
    full: str = ""
    bar: float | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table ready for the page."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total_rows: int


@dataclass(frozen=True, slots=True)
class Node:
    """A row of a tree: `ends` open nodes close before it; an `inner` one has nodes below it, and may be `open`."""

    name: str
    type: str
    path: str
    figures: tuple[str, ...]
    parts: tuple[Part, ...]
    inner: bool
    open: bool
    ends: int


@dataclass(frozen=True, slots=True)
class Branches:
    """A tree ready for the page; `ends` nodes are open after the last one."""

    title: str
    columns: tuple[str, ...]
    nodes: tuple[Node, ...]
    ends: int
    phases: tuple[str, ...]
    total_rows: int


def render(report: Report, trace: Trace) -> str:
    """The whole page as text. `trace` gives the timeline of one step; it must be the one the report was built from."""
    style, script = _asset("report.css"), "".join(map(_asset, SCRIPTS))
    shapes = timeline(trace, report)
    charts = {section.name: [chart(figure) for figure in section.figures] for section in report.sections}
    page = _environment().get_template("report.html.j2")
    return page.render(
        report=report,
        source=format_source(report.trace),
        window=format_window(report.window),
        sections=[_view(section, charts[section.name]) for section in report.sections],
        facts=_facts(report),
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        policy=_policy(style, script),
        timeline=shapes,
        timeline_json=embed(shapes),
        series_json=embed(_series(report)),
    )


def render_reports(reports: Sequence[tuple[Report, Trace]], _page: Page) -> str:
    """The page of the one report; raises ValueError for several, which `check_traces` refuses before."""
    ((report, trace),) = reports
    return render(report, trace)


def embed(value: Any) -> Markup:
    r"""A value as JSON that can stand in a script element, whatever texts it holds.

    >>> str(embed("</script><!-- & \u2028"))
    '"\\u003c/script\\u003e\\u003c!-- \\u0026 \\u2028"'
    """
    text = msgspec.json.encode(value).decode()
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704 - nothing in it can end the element or begin another


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tracekit.report.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        capitalize_first=lambda text: text[:1].upper() + text[1:],
        ns=format_ns,
        share=format_share,
        count=format_count,
        size=format_bytes,
        kind=kind_class,
        bound=bound_name,
        unbroken=unbroken,
        parts=lambda text: Markup("<wbr>").join(re.split(r"(?<=[./])", text)),
    )
    environment.globals["right_aligned"] = RIGHT_ALIGNED
    return environment


def _asset(name: str) -> str:
    return files("tracekit.report.html").joinpath("templates", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded from anywhere; only this style and this script, by their hashes."""
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _view(section: Section, charts: list[Chart]) -> dict[str, Any]:
    """What the template needs of a section."""
    listed = [table for table in section.tables if table.frame.height and not table.series]
    grids = [_grid(table) for table in listed if table.tree is None]
    return {
        "section": section,
        "charts": charts,
        "grids": grids,
        "trees": [_branches(table) for table in listed if table.tree is not None],
        "legend": legend(costliest(table, MAX_ROWS) for table in listed),
        "series": [table for table in section.tables if table.series and table.frame.height],
        "scalars": format_scalars(section),
        "empty": is_silent(section),
        "missing": section.not_captured if is_silent(section) else missing(section),
    }


def _branches(table: Table) -> Branches:
    """The tree as nodes in the order of the page; a node says how many open ones end before it."""
    frame = costliest(table, MAX_LAYERS)
    above = parent_rows(frame).tolist()
    inner = set(above)
    figures = [column for column in (table.column(name) for name in TREE_FIGURES) if column is not None]
    figures = [column for column in figures if frame[column.name].null_count() < frame.height]
    greatest = int(frame["device_ns"].max() or 0) or 1  # type: ignore[arg-type]
    shown = costliest(table, OPEN_LAYERS)
    opened = set(shown["parent_layer_id"].drop_nulls().to_list())
    nodes, before = [], 0
    for row, one in enumerate(frame.iter_rows(named=True)):
        nodes.append(
            Node(
                name=shorten_name(one["name"], NAME_WIDTH),
                type=shorten_name(one["type"] or "", NAME_WIDTH),
                path=one["path"],
                figures=tuple(format_cell(one[column.name], column.unit) for column in figures),
                parts=tuple(_phase_parts(one, greatest)),
                inner=row in inner,
                open=one["layer_id"] in opened,
                ends=max(before - one["depth"], 0),
            )
        )
        before = one["depth"] + (1 if row in inner else 0)
    phases = [phase for phase in PHASES if (frame[f"{phase}_ns"] > 0).any()]
    return Branches(
        table.title,
        tuple(column.title for column in figures),
        tuple(nodes),
        before,
        tuple(phases),
        table.total_rows,
    )


def _phase_parts(row: dict[str, Any], greatest: int) -> Iterator[Part]:
    """The pieces of a layer's bar, one a phase."""
    at = 0
    for phase in PHASES:
        value = row[f"{phase}_ns"]
        if value:
            hint = f"{phase} {format_ns(value)}"
            yield Part(phase, round(100 * at / greatest, 2), round(100 * value / greatest, 2), hint)
        at += value


def _grid(table: Table) -> Grid:
    ordered = [*table.short, *(name for name in table.frame.columns if name not in table.short)]
    columns = tuple(column for column in shown_columns(table, ordered) if column.name != "activity_id")
    frame = table.frame.head(MAX_ROWS)
    cells = [_cells(frame[column.name], column) for column in columns]
    return Grid(table.name, table.title, columns, tuple(zip(*cells, strict=True)), table.total_rows)


def _cells(values: pl.Series, column: Column) -> list[Cell]:
    if column.unit == "text":
        texts = [format_value(value, column) for value in values.to_list()]
        short = shorten_names(texts, NAME_WIDTH)
        return [
            _text_cell(value, text, short[text], column)
            for value, text in zip(values.to_list(), texts, strict=True)
        ]
    barred = column.name in BARRED
    return [
        Cell(
            format_cell(value, column.unit),
            "" if value is None else f"{float(value):.10g}",
            bar=min(max(100 * value, 0), 100) if barred and value is not None else None,
        )
        for value in values.to_list()
    ]


def _text_cell(value: Any, text: str, short: str, column: Column) -> Cell:
    kind = kind_class(str(value)) if column.name in COLOURED and value is not None else ""
    return Cell(
        short, text.lower() if value is not None else "", full=text if short != text else "", kind=kind
    )


def _series(report: Report) -> dict[str, Any]:
    """The lines of all sections by figure, for reading values off them."""
    return {
        figure.name: figure.data
        for section in report.sections
        for figure in section.figures
        if figure.kind == "line"
    }


def _facts(report: Report) -> list[tuple[str, str]]:
    trace = report.trace
    facts = [
        ("file", trace.path),
        ("size", format_bytes(trace.size_bytes)),
        ("format", f"{trace.format} {trace.format_version}".strip()),
        ("events", format_count(trace.event_count)),
        ("captured", ", ".join(trace.captured)),
    ]
    for device in trace.devices:
        words = [device.name or "name not in the file"]
        if device.compute_capability:
            words.append(f"compute capability {'.'.join(map(str, device.compute_capability))}")
        if device.sm_count:
            words.append(f"{device.sm_count} multiprocessors")
        if device.memory_bytes:
            words.append(format_bytes(device.memory_bytes))
        facts.append((f"device {device.device_id}", ", ".join(words)))
    facts += [(key.replace("_", " "), value) for key, value in trace.producer.items() if key != "trace_id"]
    return facts
