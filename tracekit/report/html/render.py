"""The report as one HTML file that needs nothing else: no server, no network, no other file.

A trace is foreign matter. Every text goes through Jinja's escaping, data are embedded as JSON in which `<`, `>` and
`&` cannot occur, and a Content-Security-Policy lets the browser run and style nothing but what is named by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tracekit.facts.units import format_bytes, format_count, format_ns, format_share
from tracekit.report.format import (
    RIGHT_ALIGNED,
    bound_name,
    format_source,
    format_window,
)
from tracekit.report.formats import Page
from tracekit.report.glossary import WORDS
from tracekit.report.html.charts import kind_class
from tracekit.report.html.compare import compared_row, names_of
from tracekit.report.html.folds import CLOSED, Fold, pair_up, section_view
from tracekit.report.html.texts import bounded, embed, prose, tail
from tracekit.report.html.timeline import MAX_SHAPES, timeline
from tracekit.report.model import SCHEMA_VERSION, Figure, Report, Section
from tracekit.trace import Trace

__all__ = ["Part", "join_parts", "part_of", "render", "render_alone", "render_reports"]

FEW_ROWS: Final = 80
FEW_SHAPES: Final = 12_000
"""Rows of a table and shapes of a timeline in the page of many traces, which is to stay small."""
SCRIPTS: Final = (
    "timeline_data.js",
    "timeline_frame.js",
    "timeline_view.js",
    "timeline_panel.js",
    "timeline.js",
    "timeline_places.js",
    "report.js",
)

FIRST_COLUMNS: Final = 6
"""Columns of a table that are visible at first; the style sheet hides the others."""

MOST_HEADLINES: Final = 4
"""A table that compares more reports gives what bounds each, but not its whole verdict, which stands below."""

_RANK: Final = re.compile(r"rank (\d+)")
LEAST_LAYER: Final = 0.05
"""A smaller share of the window makes no card of a layer beside the verdict."""

CLOSED_BELOW: Final = CLOSED | {"idle", "kernels"}
"""The same below a view of several traces, which says where the time of each went."""


def render(report: Report, trace: Trace) -> str:
    """The whole page as text. `trace` gives the timeline of one step; it must be the one the report was built from."""
    return render_reports([(report, trace)], Page())


def render_reports(
    reports: Sequence[tuple[Report, Trace]], _page: Page, overview: Section | None = None
) -> str:
    """The page of one report, or of several with a table that compares them; an `overview` of more traces stands above."""
    names = names_of([report for report, _ in reports])
    few = overview is not None and len(reports) == 1
    parts = [part_of(report, trace, at, names, few=few) for at, (report, trace) in enumerate(reports)]
    return join_parts(parts, overview)


class Part(msgspec.Struct, frozen=True):
    """All of a page that is about one trace, its row in the table that compares them, and what the trace is called."""

    body: str
    row: dict[str, Any]
    name: str
    source: str


def part_of(report: Report, trace: Trace, at: int, names: Sequence[str], *, few: bool = False) -> Part:
    """The part of one report of several with these names, the one at this place; with `few` it is smaller."""
    body = _body(report, trace, at, names, few=few)
    row = {**compared_row(report, names[at]), "anchor": anchors_of(names)[at]}
    return Part(body, row, report.trace.name, format_source(report.trace))


def anchors_of(names: Sequence[str]) -> list[str]:
    """Where the part of each of these names is on a page: of ranks by their numbers, if each has its own.

    >>> anchors_of(["rank 6", "rank 0"]), anchors_of(["rank 0", "rank 0"]), anchors_of(["a.json", "rank 0"])
    (['rank-6', 'rank-0'], ['part-0', 'part-1'], ['part-0', 'part-1'])
    """
    ranks = [match[1] for name in names if (match := _RANK.fullmatch(name))]
    if len(set(ranks)) == len(names):
        return [f"rank-{rank}" for rank in ranks]
    return [f"part-{at}" for at in range(len(names))]


def join_parts(parts: Sequence[Part], overview: Section | None = None) -> str:
    """The page of these parts, in the order of their places."""
    several = len(parts) > 1
    one_of_many = overview is not None and not several
    alike = len({part.name for part in parts}) == 1
    compared = [part.row for part in parts] if several else []
    return _page_of(
        title=_title(overview) if one_of_many else parts[0].name if alike else f"{len(parts)} traces",
        source="" if several or one_of_many else parts[0].source,
        bodies=[Markup(part.body) for part in parts],  # noqa: S704 - our own template, which escapes
        compared=compared,
        overview=overview and _above(overview, compared),
        heat_json=embed(next((figure.data for figure in _figures(overview) if figure.kind == "heat"), None)),
        schema=SCHEMA_VERSION,
    )


def render_alone(section: Section, _page: Page) -> str:
    """The page of one section that is of no single trace."""
    view, title = section_view(section), section.title or section.name.capitalize()
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
    view = section_view(_fewer(overview))
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


def _body(report: Report, trace: Trace, at: int, names: Sequence[str], *, few: bool) -> str:
    """The text of a part; the ids of those after the first have a prefix."""
    shapes = timeline(trace, report, limit=FEW_SHAPES if few else MAX_SHAPES)
    if few:
        report = replace(report, sections=tuple(map(_fewer, report.sections)))
    closed = CLOSED_BELOW if few or len(names) > 1 else CLOSED
    views = [section_view(section, closed) for section in report.sections]
    answered = pair_up([view for view in views if not view["empty"]], closed - {"idle"})
    text: str = (
        _environment()
        .get_template("report.html.j2")
        .render(
            p=f"r{at}-" if at else "",
            at=at,
            names=names if len(names) > 1 else [],
            anchors=anchors_of(names),
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
    )
    return text


@cache
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
