"""The report as one HTML file that needs nothing else: no server, no network, no other file.

A trace is foreign matter. Every text goes through Jinja's escaping, data are embedded as JSON in which `<`, `>` and
`&` cannot occur, and a Content-Security-Policy lets the browser run and style nothing but what is named by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final, Literal

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tracekit.facts.units import format_bytes, format_count, format_ns, format_share
from tracekit.names import shorten_names
from tracekit.report.format import (
    RIGHT_ALIGNED,
    bound_name,
    costliest,
    first_rows,
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
from tracekit.report.glossary import WORDS, meaning
from tracekit.report.html.charts import chart, kind_class
from tracekit.report.html.compare import compared_row, names_of
from tracekit.report.html.texts import bounded, embed, prose, tail, tail_length
from tracekit.report.html.timeline import MAX_SHAPES, timeline
from tracekit.report.html.tree import Branches, branches, repeats_as_one
from tracekit.report.model import SCHEMA_VERSION, Column, Figure, Report, Section, Table
from tracekit.trace import Trace

__all__ = ["MAX_ROWS", "Cell", "Grid", "render", "render_alone", "render_reports"]

MAX_ROWS: Final = 1000
"""Rows of one table in the page; the JSON report has all."""

FEW_ROWS: Final = 80
FEW_SHAPES: Final = 12_000
"""Rows of a table and shapes of a timeline in the page of many traces, which is to stay small."""

NAME_WIDTH: Final = 64
BARRED: Final = frozenset({"share", "launch_bound_share", "utilisation", "overlap"})
"""Ratios that get a small bar beside the figure."""

SCRIPTS: Final = (
    "timeline_data.js",
    "timeline_frame.js",
    "timeline_view.js",
    "timeline_panel.js",
    "timeline.js",
    "timeline_places.js",
    "report.js",
)
COLOURED: Final = frozenset({"category"})

FIRST_COLUMNS: Final = 6
"""Columns of a table that are visible at first; the style sheet hides the others."""

MOST_HEADLINES: Final = 4
"""A table that compares more reports gives what bounds each, but not its whole verdict, which stands below."""

LEAST_LAYER: Final = 0.05
"""A smaller share of the window makes no card of a layer beside the verdict."""

DRAWN: Final = frozenset({"breakdown", "steps", "scaling", "diff", "compare"})
"""Sections that open with their figure, not with a table."""
JOINT: Final = ("ranks", "heat", "beside")
"""What of the joint view of a job is open, in this order."""
CLOSED: Final = frozenset(
    {"workload", "ops", "roofline", "launches", "overlap", "collectives", "memory", "counters"}
)
"""Sections whose answer is enough until the reader wants more."""
CLOSED_BELOW: Final = CLOSED | {"idle", "kernels"}
"""The same below a view of several traces, which says where the time of each went."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: what is shown, what it is sorted by if that is a number, the full text where that is longer, and its decoration."""

    text: str
    value: str = ""
    full: str = ""
    bar: float | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table ready for the page; `hints` has what each of the columns means, where the title does not say it."""

    name: str
    title: str
    columns: tuple[Column, ...]
    hints: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total_rows: int
    whole: bool
    """Whether all columns are visible at first."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A part of a section that opens and closes: its title, a note beside it, and what it holds."""

    kind: Literal["tree", "grid", "drawing", "comparison", "sums", "remarks"]
    title: str
    note: str
    item: Any
    open: bool = False


def render(report: Report, trace: Trace) -> str:
    """The whole page as text. `trace` gives the timeline of one step; it must be the one the report was built from."""
    return render_reports([(report, trace)], Page())


def render_reports(
    reports: Sequence[tuple[Report, Trace]], _page: Page, overview: Section | None = None
) -> str:
    """The page of one report, or of several with a table that compares them; an `overview` of more traces stands above."""
    template = _environment().get_template("report.html.j2")
    names = names_of([report for report, _ in reports])
    one_of_many = overview is not None and len(reports) == 1
    bodies = [
        Markup(_body(template, report, trace, at, names, few=one_of_many))  # noqa: S704 - our own template, which escapes
        for at, (report, trace) in enumerate(reports)
    ]
    compared = [compared_row(report, name) for (report, _), name in zip(reports, names, strict=True)]
    first = reports[0][0]
    alike = len({report.trace.name for report, _ in reports}) == 1
    return _page_of(
        title=_title(overview) if one_of_many else first.trace.name if alike else f"{len(reports)} traces",
        source=format_source(first.trace) if len(reports) == 1 and not one_of_many else "",
        bodies=bodies,
        compared=compared if len(reports) > 1 else [],
        overview=overview and _above(overview, compared if len(reports) > 1 else []),
        heat_json=embed(next((figure.data for figure in _figures(overview) if figure.kind == "heat"), None)),
        schema=first.schema_version,
    )


def render_alone(section: Section, _page: Page) -> str:
    """The page of one section that is of no single trace."""
    view, title = _view(section, frozenset()), section.name.capitalize()
    first = next((fold for fold in view["folds"] if fold.kind == "grid"), None)
    view["folds"] = [
        # Below a verdict are many tables, of which a reader opens the one that he needs.
        replace(fold, open=not section.tag or fold is first or fold.kind in ("drawing", "tree"))
        for fold in view["folds"]
    ]
    return _page_of(title=title, source="", bodies=[], compared=[], overview=view, schema=SCHEMA_VERSION)


def _page_of(**parts: Any) -> str:
    style, script = _asset("report.css"), "".join(map(_asset, SCRIPTS))
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            style=Markup(style),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            policy=_policy(style, script),
            **parts,
        )
    )


def _above(overview: Section, compared: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The overview as the template needs it, with the verdicts on the traces whose reports stand below it."""
    view = _view(_fewer(overview), frozenset())
    if compared:
        view["folds"].append(
            Fold("comparison", "The verdict on each of them", format_count(len(compared)), compared)
        )
    return view


def _title(overview: Section | None) -> str:
    tables = () if overview is None else overview.tables
    return f"{format_count(tables[0].total_rows if tables else 0)} traces"


def _figures(overview: Section | None) -> tuple[Figure, ...]:
    return () if overview is None else overview.figures


def _fewer(section: Section) -> Section:
    """The section with the first rows of its tables."""
    tables = (
        table if table.tree else replace(table, frame=table.frame.head(FEW_ROWS)) for table in section.tables
    )
    return replace(section, tables=tuple(tables))


def _body(template: Any, report: Report, trace: Trace, at: int, names: Sequence[str], *, few: bool) -> str:
    """All of the page that is about one trace; the ids of those after the first have a prefix. With `few` it is smaller."""
    shapes = timeline(trace, report, limit=FEW_SHAPES if few else MAX_SHAPES)
    if few:
        report = replace(report, sections=tuple(map(_fewer, report.sections)))
    advised = frozenset(advice.finding for advice in report.verdict.advice)
    closed = CLOSED_BELOW if few or len(names) > 1 else CLOSED
    views = [_view(section, advised, closed) for section in report.sections]
    answered = [view for view in views if not view["empty"]]
    _pair(answered, closed - {"idle"})
    text: str = template.render(
        p=f"r{at}-" if at else "",
        at=at,
        names=names if len(names) > 1 else [],
        report=report,
        source=format_source(report.trace),
        window=format_window(report.window),
        sections=answered,
        unanswered=[view for view in views if view["empty"]],
        layers=[cost for cost in report.verdict.layers if (cost.share or 0) >= LEAST_LAYER],
        health=[item for item in report.health if item.severity != "info"],
        remarks=[item for item in report.health if item.severity == "info"],
        words=WORDS,
        facts=_facts(report),
        timeline=shapes,
        timeline_json=embed(shapes),
        series_json=embed(_series(report)),
    )
    return text


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("tracekit.report.html", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=bounded,
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
        prose=prose,
        tail=tail,
    )
    environment.globals.update(
        right_aligned=RIGHT_ALIGNED, first_columns=FIRST_COLUMNS, most_headlines=MOST_HEADLINES
    )
    return environment


def _asset(name: str) -> str:
    """A file of ours, without the lines of a script that are comments."""
    text = files("tracekit.report.html").joinpath("templates", name).read_text(encoding="utf-8")
    return re.sub(r"^ *//.*\n", "", text, flags=re.MULTILINE)


def _policy(style: str, script: str) -> str:
    """Nothing may be loaded from anywhere; only this style and this script, by their hashes."""
    return (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _view(section: Section, advised: frozenset[str], closed: frozenset[str] = CLOSED) -> dict[str, Any]:
    """What the template needs of a section; findings that the verdict `advised` on already stand there in one line."""
    listed = [table for table in section.tables if table.frame.height and not table.series]
    grave = [item for item in section.findings if item.severity != "info"]
    return {
        "section": section,
        "severity": grave[0].severity if grave else "",
        "findings": [(item, item.id not in advised) for item in grave],
        "folds": _folds(section, listed, closed),
        "half": False,
        "empty": is_silent(section),
        "missing": section.not_captured if is_silent(section) else missing(section),
    }


def _pair(views: Sequence[dict[str, Any]], closed: frozenset[str]) -> None:
    """Mark the sections that stand two side by side: neighbours that show no table at first (`closed`, or a figure), from the last of them on.

    If one stays alone, it is the first, which has the longest answer and the least to draw.
    """
    neighbours: list[dict[str, Any]] = []
    for view in [*views, None]:
        if view is not None and view["section"].name in closed | DRAWN:
            neighbours.append(view)
            continue
        for small in neighbours[len(neighbours) % 2 :]:
            small["half"] = True
        neighbours = []


def _folds(section: Section, listed: Sequence[Table], closed: frozenset[str]) -> list[Fold]:
    """The parts of a section; the one that answers its question comes first and is open, if there is more to say than the answer."""
    charts = [Fold("drawing", drawn.title, drawn.note, drawn) for drawn in map(chart, section.figures)]
    tables = [
        fold
        for table in listed
        for fold in ([_grid_fold(section, table)] if table.tree is None else _tree_folds(table))
    ]
    folds = [*charts, *tables] if section.name in DRAWN else [*tables, *charts]
    if section.name == "job":
        folds = _opened_joint(folds)
    elif folds and section.name not in closed:
        folds[0] = replace(folds[0], open=True)
    scalars = format_scalars(section)
    if scalars:
        folds.append(Fold("sums", "Figures", "", scalars))
    series = [
        f"{table.title}: {format_count(table.total_rows)} rows are drawn, not listed; the JSON report has them."
        for table in section.tables
        if table.series and table.frame.height
    ]
    minor = [item for item in section.findings if item.severity == "info"]
    notes = [note for note in (legend(costliest(table, MAX_ROWS) for table in listed), *series) if note]
    if minor or notes:
        folds.append(Fold("remarks", "Remarks", format_count(len(minor) + len(notes)), (minor, notes)))
    return folds


def _opened_joint(folds: Sequence[Fold]) -> list[Fold]:
    named = {fold.item.name: fold for fold in folds}
    opened = [replace(named[name], open=True) for name in JOINT if name in named]
    return [*opened, *(fold for name, fold in named.items() if name not in JOINT)]


def _grid_fold(section: Section, table: Table) -> Fold:
    grid = _grid(section, table)
    shown = (
        f" rows, the first {format_count(len(grid.rows))} here" if len(grid.rows) < grid.total_rows else ""
    )
    return Fold("grid", table.title, f"{format_count(grid.total_rows)}{shown}", grid)


def _tree_folds(table: Table) -> list[Fold]:
    """The tree with repeated layers as one, and the tree of every layer; only the latter where none repeats."""
    merged = repeats_as_one(table)
    if merged is None:
        trees = [branches(table, folded=True)]
    else:
        trees = [
            branches(merged, folded=True),
            branches(replace(table, title="Tree of every layer"), folded=False),
        ]
    return [
        Fold("tree", tree.title, f"{format_count(tree.total_rows)}{_shown(tree)}", tree) for tree in trees
    ]


def _shown(tree: Branches) -> str:
    few = len(tree.nodes) < tree.total_rows
    return f" rows, the costliest {format_count(len(tree.nodes))} here" if few else ""


def _grid(section: Section, table: Table) -> Grid:
    frame = first_rows(table, MAX_ROWS)
    others = [name for name in frame.columns if name not in table.short]
    # figures before names, and what is the same in every row last: it tells a reader the least
    ordered = [
        *table.short,
        *sorted(others, key=lambda name: (frame[name].n_unique() == 1, _is_text(table, name))),
    ]
    columns = tuple(column for column in shown_columns(table, ordered) if column.name != "activity_id")
    cells = [_cells(frame[column.name], column) for column in columns]
    hints = tuple(meaning(section.name, column.name) for column in columns)
    rows = tuple(zip(*cells, strict=True))
    return Grid(table.name, table.title, columns, hints, rows, table.total_rows, table.whole)


def _is_text(table: Table, name: str) -> bool:
    column = table.column(name)
    return column is not None and column.unit == "text"


def _cells(values: pl.Series, column: Column) -> list[Cell]:
    if column.unit == "text":
        texts = [format_value(value, column) for value in values.to_list()]
        short = shorten_names(texts, NAME_WIDTH)
        short |= {text: text for text in short if 0 < tail_length(text) <= NAME_WIDTH}
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
    return Cell(short, full=text if short != text else "", kind=kind)


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
