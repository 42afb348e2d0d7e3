"""The formats in which results are written: what each can hold, and the module that writes it.

A new format is one line of `Format`, and a module with the functions that its traits promise (`Can` names them).
Nothing heavy is imported here, so that `--help` can name the formats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, Flag, auto
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from tracekit.classes import dataclass
from tracekit.errors import UsageError
from tracekit.files import is_special, refuse_input

if TYPE_CHECKING:
    import polars as pl

    from tracekit.report.model import Report, Section, TraceInfo
    from tracekit.trace import Trace

__all__ = [
    "FIGURE_FORMATS",
    "Can",
    "FigureFormat",
    "Format",
    "Page",
    "check_traces",
    "choose_format",
    "encode_frame",
    "formats_of",
    "render_alone",
    "render_data",
    "render_reports",
    "render_sections",
    "render_stacks",
    "render_text",
]

FigureFormat = Literal["svg", "png", "pdf"]
FIGURE_FORMATS: Final[tuple[FigureFormat, ...]] = get_args(FigureFormat)
"""How figures are written that are files of their own."""


MOST_RANKS: Final = 20
"""Rows of a job's tables above the report of one of its ranks."""


class Can(Flag):
    """What a format can hold, and what its module has."""

    REPORT = auto()
    SECTION = auto()
    """One analysis."""
    TABLES = auto()
    """Tables that belong to no report: those of a sweep, of `xsp` and of `nsys-stats`."""
    FACTS = auto()
    """What `info` and `doctor` say."""
    STACKS = auto()
    """Layers, operators and kernels for a flame graph: `render_stacks(format, stacks, name)`."""
    FRAMES = auto()
    """The frames of a trace."""

    PROSE = auto()
    """Text for a reader, one report or section below the other: `render(report, page)`, `render_section(section, page)`
    and `head(trace, page)`."""
    DOCUMENT = auto()
    """One document for all reports, each with its trace: `render_reports(pairs, page)`, with a third argument where an overview
    of more traces stands above them; or for one section that is of no single trace: `render_alone(section, page)`."""
    DATA = auto()
    """Any nested value: `render_data(value)`; sections of several traces: `render_sections(sections, page)`. An analysis stands in a
    report, with the verdict."""
    FILES = auto()
    """A file for each table: `encode_frame(frame, format)`. Reports are written by `tracekit.report.tables.write`."""

    BINARY = auto()
    """It is not for a terminal."""
    FITTED = auto()
    """Its lines are as wide as the terminal."""


_PROSE: Final = Can.PROSE | Can.REPORT | Can.SECTION | Can.TABLES
_FILES: Final = Can.FILES | Can.REPORT | Can.SECTION | Can.TABLES | Can.FRAMES
_DATA: Final = Can.DATA | Can.DOCUMENT | Can.REPORT | Can.SECTION | Can.TABLES | Can.FACTS
_NONE: Final = Can(0)


class Format(str, Enum):
    """A format: its name, its module, what it can hold, what of that only of one trace, and its suffixes."""

    module: str
    can: Can
    alone: Can
    suffixes: tuple[str, ...]

    def __new__(cls, name: str, module: str, can: Can, alone: Can, *suffixes: str) -> Format:
        """The member with these properties, whose value is its name."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.module, member.can = f"tracekit.report.{module}", can
        member.alone, member.suffixes = alone, suffixes
        return member

    def __str__(self) -> str:
        """The name, which is also what releases of typer look an Enum's value up by."""
        return str(self._value_)

    table = "table", "terminal", _PROSE | Can.FACTS | Can.FITTED, _NONE, ".txt"
    html = "html", "html", Can.REPORT | Can.DOCUMENT, _NONE, ".html", ".htm"
    json = "json", "json.render", _DATA, _NONE, ".json"
    md = "md", "markdown", _PROSE, _NONE, ".md", ".markdown"
    csv = "csv", "tables", _FILES, Can.SECTION, ".csv"
    parquet = "parquet", "tables", _FILES | Can.BINARY, Can.SECTION, ".parquet"
    collapsed = "collapsed", "stacks", Can.STACKS, Can.STACKS, ".collapsed", ".folded"
    speedscope = "speedscope", "stacks", Can.STACKS, Can.STACKS, ".speedscope.json", ".speedscope"


@dataclass(frozen=True, slots=True)
class Page:
    """For what a text is laid out: lines of at most `width` cells, with ANSI colours or not, at most `top` rows of a table.

    Without `top` each format has a number of its own.
    """

    width: int = 100
    color: bool = False
    top: int | None = None


def formats_of(content: Can) -> list[Format]:
    """The formats that can hold this, or any of several such things."""
    return [each for each in Format if each.can & content]


def choose_format(
    content: Can, given: Format | None, output: Path | None, *, command: str, several: bool = False
) -> Format:
    """The format that was asked for, else the one of the output's suffix, else a table for reading.

    Raises UsageError for an output that is an input, for a suffix that says nothing, for a format that cannot hold the `content`, and when `several`
    tables would be files without a folder for them; `command` is the one that cannot do it.
    """
    if output is not None:
        refuse_input(output)
    plain = output is None or is_special(output)
    chosen = given or (Format.table if plain or output is None else _format_of_suffix(output, content))
    names = [each.value for each in formats_of(content)]
    if chosen.value not in names:
        has = (
            f"use tracekit report --only {command} -o FILE.{chosen.value}"
            if Can.SECTION in content and Can.REPORT in chosen.can
            else ""
        )
        raise UsageError(f"{command} writes {_listed(names)}, not {chosen.value}", remedy=has)
    if Can.FILES in chosen.can and several and output is None:
        raise UsageError(f"{command} writes several {chosen.value} files", remedy="give -o FOLDER")
    return chosen


def check_traces(
    content: Can, chosen: Format, traces: int, *, path: str | None = None, remedy: str = ""
) -> None:
    """Raise UsageError when so many traces are to be one file of a format that holds one trace."""
    if traces > 1 and chosen.alone & content:
        raise UsageError(
            f"one {chosen.value} file holds one trace",
            path=path,
            remedy=remedy or "give one, or use --rank or --process",
        )


def _format_of_suffix(output: Path, content: Can) -> Format:
    """The format whose suffix ends the name; the longest suffix counts, and one of a format that fits before others."""
    name = output.name.lower()
    ends = [
        (bool(each.can & content), len(suffix), each)
        for each in Format
        for suffix in each.suffixes
        if name.endswith(suffix)
    ]
    if ends:
        return max(ends)[-1]
    suffixes = ", ".join(suffix for each in formats_of(content) for suffix in each.suffixes)
    raise UsageError(
        f"no format has the suffix {output.suffix!r}",
        path=output,
        remedy=f"use {suffixes}, or give --format",
    )


def _listed(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# -- the writers: each asks the format's module -------------------------------------------------------


def render_reports(
    chosen: Format, reports: Sequence[tuple[Report, Trace]], page: Page, overview: Section | None = None
) -> str:
    """The reports as one text; an `overview` of more traces stands above them."""
    module = _module(chosen, Can.REPORT)
    if Can.DOCUMENT in chosen.can:
        return str(module.render_reports(reports, page, *(() if overview is None else (overview,))))
    texts = [module.render(report, page) for report, _ in reports]
    heads = [module.head(report.trace, page) for report, _ in reports]
    if overview is None:
        return _stacked(texts, heads)
    rows = max(table.total_rows for table in overview.tables)
    most = page.top or (MOST_RANKS if overview.name == "job" else rows)
    above = module.render_section(overview, replace(page, top=most))
    return f"{above}\n{_stacked(texts, heads, always=True)}"


def render_text(chosen: Format, report: Report, page: Page) -> str:
    """The one report as text for a reader."""
    return str(_module(chosen, Can.PROSE).render(report, page))


def render_sections(chosen: Format, sections: Sequence[tuple[Section, TraceInfo | None]], page: Page) -> str:
    """The sections one below the other; where there are several, each below its trace, if that is given. As data they are one document."""
    if Can.DATA in chosen.can:
        return str(_module(chosen, Can.DATA).render_sections(sections, page))
    module = _module(chosen, Can.PROSE)
    texts = [module.render_section(section, page) for section, _ in sections]
    return _stacked(texts, [None if trace is None else module.head(trace, page) for _, trace in sections])


def render_alone(chosen: Format, section: Section, page: Page) -> str:
    """A section that is of no single trace, as one text."""
    if Can.PROSE in chosen.can:
        return render_sections(chosen, [(section, None)], page)
    return str(_module(chosen, Can.DOCUMENT).render_alone(section, page))


def render_data(chosen: Format, value: object) -> str:
    """Dicts, lists, texts and numbers as one document."""
    return str(_module(chosen, Can.DATA).render_data(value))


def render_stacks(chosen: Format, stacks: pl.DataFrame, name: str) -> str:
    """The rows of `tracekit.analyses.layers.stacks.layer_stacks`, of a trace of this name."""
    return str(_module(chosen, Can.STACKS).render_stacks(chosen.value, stacks, name))


def encode_frame(chosen: Format, frame: pl.DataFrame) -> bytes:
    """One table as the bytes of a file."""
    return bytes(_module(chosen, Can.FILES).encode_frame(frame, chosen.value))


def _module(chosen: Format, trait: Can) -> Any:
    """The module of a format that has this. Raises LookupError for another format: no text of another stands in for it."""
    if trait not in chosen.can:
        message = f"{chosen.value} cannot hold {trait}"
        raise LookupError(message)
    return import_module(chosen.module)


def _stacked(texts: Sequence[str], heads: Sequence[str | None], *, always: bool = False) -> str:
    """The texts one below the other; of several, or `always`, each below its head, where it has one."""
    if len(texts) > 1 or always:
        texts = [text if head is None else f"{head}\n{text}" for head, text in zip(heads, texts, strict=True)]
    return "\n".join(texts)
