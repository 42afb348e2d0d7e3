"""The formats in which results are written: what each can hold, and the module that writes it.

A new format is one line of `Format`, and a module that has the functions which that line promises (`Can` names them).
Nothing heavy is imported here, so that `--help` can name the formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, auto
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from tracekit.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from tracekit.report.model import Report, Section, TraceInfo
    from tracekit.trace import Trace

__all__ = [
    "FIGURE_FORMATS",
    "WRITERS",
    "Can",
    "FigureFormat",
    "Format",
    "Page",
    "check_traces",
    "choose_format",
    "encode_frame",
    "formats_of",
    "render_data",
    "render_reports",
    "render_sections",
    "render_stacks",
    "stacked",
]

FigureFormat = Literal["svg", "png", "pdf"]
FIGURE_FORMATS: Final[tuple[FigureFormat, ...]] = get_args(FigureFormat)
"""How figures are written that are files of their own."""


class Can(Flag):
    """What a format can hold, and how its text is made."""

    REPORT = auto()
    SECTION = auto()
    """One analysis."""
    TABLES = auto()
    """Tables that belong to no report: those of a sweep, of `xsp` and of `nsys-stats`."""
    FACTS = auto()
    """What `info` and `doctor` say."""
    STACKS = auto()
    FRAMES = auto()
    """The frames of a trace."""
    PROSE = auto()
    """It is for reading; sections stand one below the other, and an overview may precede the reports."""
    DATA = auto()
    """It holds any nested value; an analysis stands in a report, with the verdict."""
    FILES = auto()
    """A file holds one table, so that several tables are a folder."""
    BINARY = auto()
    """It is not for a terminal."""
    FITTED = auto()
    """Its lines are as wide as the terminal."""


WRITERS: Final[Mapping[Can, str]] = {
    Can.REPORT: "render_reports",
    Can.PROSE: "render_sections",
    Can.DATA: "render_data",
    Can.FILES: "encode_frame",
    Can.STACKS: "render_stacks",
}
"""The function that the module of such a format has; a report in files is written by `tracekit.report.tables.write`."""

_PROSE: Final = Can.PROSE | Can.REPORT | Can.SECTION | Can.TABLES
_FILES: Final = Can.FILES | Can.REPORT | Can.SECTION | Can.TABLES | Can.FRAMES
_DATA: Final = Can.DATA | Can.REPORT | Can.SECTION | Can.TABLES | Can.FACTS
_NONE: Final = Can(0)


class Format(str, Enum):
    """A format: its name, its module, what it can hold, of which of that a file holds one trace only, and its suffixes."""

    module: str
    can: Can
    alone: Can
    suffixes: tuple[str, ...]

    def __new__(cls, name: str, module: str, can: Can, alone: Can, *suffixes: str) -> Format:
        """The member with these properties, whose value is its name."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.module, made.can, made.alone, made.suffixes = f"tracekit.report.{module}", can, alone, suffixes
        return made

    table = "table", "terminal", _PROSE | Can.FACTS | Can.FITTED, _NONE, ".txt"
    html = "html", "html", Can.REPORT, Can.REPORT, ".html", ".htm"
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

    Raises UsageError for a suffix that says nothing, for a format that cannot hold the `content`, and when `several`
    tables would be files without a folder for them; `command` is the one that cannot do it.
    """
    chosen = given or (Format.table if output is None else _format_of_suffix(output, content))
    names = [each.value for each in formats_of(content)]
    if chosen.value not in names:
        has = (
            f"use tracekit report --only {command}"
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
            f"one {chosen.value} file holds one trace", path=path, remedy=remedy or "use --rank or --process"
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
        f"the suffix {output.suffix!r} tells no format",
        path=output,
        remedy=f"use {suffixes}, or give --format",
    )


def _listed(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# -- the writers: each looks its format up ------------------------------------------------------------


def _writer(chosen: Format, trait: Can) -> Any:
    """The function of the format's module for this. Raises LookupError where the format's line does not promise it."""
    if trait not in chosen.can:
        message = f"{chosen.value} has no {WRITERS[trait]}"
        raise LookupError(message)
    return getattr(import_module(chosen.module), WRITERS[trait])


def render_reports(
    chosen: Format, reports: Sequence[tuple[Report, Trace]], page: Page, overview: Section | None = None
) -> str:
    """The reports as one text, below the `overview` of more traces where there is one."""
    text: str = _writer(chosen, Can.REPORT)(reports, page, overview)
    return text


def render_sections(chosen: Format, sections: Sequence[tuple[Section, TraceInfo | None]], page: Page) -> str:
    """The sections one below the other; where there are several, each below the name of its trace, if that is given."""
    text: str = _writer(chosen, Can.PROSE)(sections, page)
    return text


def render_data(chosen: Format, value: object) -> str:
    """Dicts, lists, texts and numbers as one document."""
    text: str = _writer(chosen, Can.DATA)(value)
    return text


def render_stacks(chosen: Format, stacks: pl.DataFrame, name: str) -> str:
    """The rows of `tracekit.analyses.layers.stacks.layer_stacks`, of a trace of this name."""
    text: str = _writer(chosen, Can.STACKS)(chosen.value, stacks, name)
    return text


def encode_frame(chosen: Format, frame: pl.DataFrame) -> bytes:
    """One table as the bytes of a file."""
    data: bytes = _writer(chosen, Can.FILES)(frame, chosen.value)
    return data


def stacked(texts: Sequence[str], heads: Sequence[str | None], *, always: bool = False) -> str:
    r"""The texts one below the other; of several, or `always`, each below its head, where it has one.

    >>> stacked(["one\n"], ["# 1"]), stacked(["one\n", "two\n"], ["# 1", None])
    ('one\n', '# 1\none\n\ntwo\n')
    """
    if len(texts) > 1 or always:
        texts = [text if head is None else f"{head}\n{text}" for head, text in zip(heads, texts, strict=True)]
    return "\n".join(texts)
