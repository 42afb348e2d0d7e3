"""`tracekit nsys-stats`: the reports of `nsys stats` and the rules of `nsys analyze`, of a trace of any format."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.catalogue import as_json, as_pages, format_for
from tracekit.cli.options import Reading, Selection, with_flags
from tracekit.cli.sources import Sources, expanded
from tracekit.errors import InconclusiveError, UsageError
from tracekit.report.formats import Can, Format

if TYPE_CHECKING:
    import polars as pl

    from tracekit.analyses.nsys_stats.table import StatsTable
    from tracekit.report.model import Column, Section
    from tracekit.trace import Trace

__all__ = ["nsys_stats"]

_NUMBERS: Final = frozenset(
    {
        "PID",
        "TID",
        "Pid",
        "Tid",
        "CorrId",
        "CorrID",
        "DevId",
        "Ctx",
        "Strm",
        "RangeId",
        "ParentId",
        "Lvl",
        "Row#",
    }
    | {"Device ID", "Context ID", "Stream ID"}
)
"""Columns whose whole numbers count nothing."""


class TimeUnit(str, Enum):
    """In which unit times are given."""

    ns = "ns"
    us = "us"
    ms = "ms"
    s = "s"


_Report = Annotated[
    list[str] | None,
    typer.Option(
        "--report",
        "-r",
        metavar="NAME[,NAME]",
        help="Only these reports or rules, by NVIDIA's names; repeatable; all, rules: all of them, all rules.",
    ),
]
_Unit = Annotated[TimeUnit, typer.Option("--timeunit", help="Unit of times.")]
_Rows = Annotated[int, typer.Option(min=0, help="Most rows of a rule; 0: all.")]
_Gap = Annotated[
    float,
    typer.Option(min=0, metavar="MS", help="Shortest gap of gpu_gaps."),
]
_Threshold = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="PERCENT",
        help="gpu_time_util: what is used less is listed.",
    ),
]
_Chunks = Annotated[
    int,
    typer.Option(min=1, max=10**6, help="gpu_time_util: parts of the time."),
]


@with_flags
def nsys_stats(
    traces: flags.TraceFiles,
    report: _Report = None,
    rank: flags.Rank = None,
    process: flags.Process = None,
    top: flags.Top = None,
    rows: _Rows = 50,
    gap: _Gap = 500.0,
    threshold: _Threshold = 50.0,
    chunks: _Chunks = 30,
    timeunit: _Unit = TimeUnit.ns,
    format_: flags.TablesFormat = None,
    output: flags.Output = None,
    *,
    reading: Reading,
) -> None:
    """The reports of `nsys stats` and rules of `nsys analyze`, of exports of Nsight Systems and PyTorch traces alike."""
    from tracekit.analyses.nsys_stats.tables import Options, table

    names = _names(report)
    chosen = format_for("nsys-stats", len(names), format_, output, one="one --report")
    options = Options(rows=rows, gap_ms=gap, threshold=threshold, chunks=chunks)
    found, _ = Sources(expanded(traces), Selection(rank, process), reading).read()
    _tell_excerpts(found)
    tables = {name: table(found, name, options) for name in names}
    _write(tables, chosen, output, top, timeunit.value)


def _tell_excerpts(traces: Sequence[Trace]) -> None:
    """A line on stderr for each trace of which only a part was read: its sums are of that part."""
    from tracekit.report.format import format_excerpt

    for trace in traces:
        if trace.meta.excerpt is not None:
            sys.stderr.write(f"tracekit: {format_excerpt(trace.meta.excerpt)}\n")


def _names(asked: Sequence[str] | None) -> list[str]:
    """The reports asked for, in order. Raises UsageError for one that is not there."""
    from tracekit.analyses.nsys_stats.catalogue import CATALOGUE, DEFAULT_REPORTS, RULES

    groups = {"all": tuple(CATALOGUE), "rules": RULES}
    if not asked:
        return list(DEFAULT_REPORTS)
    found: list[str] = []
    for name in (part.strip() for text in asked for part in text.split(",")):
        if name not in CATALOGUE and name not in groups:
            raise UsageError(f"there is no report {name!r}", remedy=f"choose of {', '.join(CATALOGUE)}")
        found += groups.get(name, (name,))
    return list(dict.fromkeys(found))


def _write(
    tables: Mapping[str, StatsTable], chosen: Format, output: Path | None, top: int | None, unit: str
) -> None:
    from tracekit.analyses.nsys_stats.catalogue import CATALOGUE
    from tracekit.analyses.nsys_stats.tables import in_unit

    frames = {name: in_unit(table.frame, unit) for name, table in tables.items()}
    if Can.FILES in chosen.can:
        _write_files(tables, frames, chosen, output)
    elif chosen is Format.json:
        shown = {name: (CATALOGUE[name], table, frames[name]) for name, table in tables.items()}
        out.emit(as_json("nsys_stats", shown, top=top), output)
    else:
        sections = [_section(table, frames[name], unit) for name, table in tables.items()]
        out.emit(as_pages(sections, chosen, top=top), output)


def _write_files(
    tables: Mapping[str, StatsTable], frames: Mapping[str, pl.DataFrame], chosen: Format, output: Path | None
) -> None:
    """One table to the output; several into its folder, and a line on stderr for each that was not captured."""
    from tracekit.files import make_directory

    if len(tables) == 1:
        ((name, table),) = tables.items()
        if table.not_captured is not None:
            raise InconclusiveError(f"{name}: not captured", remedy=f"record {table.not_captured}")
        out.emit_frame(frames[name], chosen, output)
        return
    folder = make_directory(output or Path())
    for name, table in tables.items():
        if table.not_captured is None:
            out.emit_frame(frames[name], chosen, folder / f"{name}.{chosen.value}")
        else:
            sys.stderr.write(f"tracekit: {name} is not captured; record {table.not_captured}\n")


def _section(table: StatsTable, frame: pl.DataFrame, unit: str) -> Section:
    from tracekit.analyses.nsys_stats.catalogue import CATALOGUE
    from tracekit.report.model import Section, Table
    from tracekit.report.text import clean, clean_frame

    entry = CATALOGUE[table.name]
    shown = tuple(name.replace("(ns)", f"({unit})") for name in entry.shown)
    cleaned = clean_frame(frame)
    columns = tuple(_column(name, kind) for name, kind in cleaned.schema.items())
    shape = Table(
        entry.name, entry.title, cleaned, columns, cleaned.height, short=shown, kept=_naming(shown, columns)
    )
    question = f"{entry.name} · {entry.question}"
    tables = (shape,) if cleaned.height else ()
    return Section(entry.name, question, clean(table.answer), table.not_captured, tables=tables)


def _naming(shown: Sequence[str], columns: Sequence[Column]) -> tuple[str, ...]:
    """The texts at the ends of a narrow page: NVIDIA's tables name the kernel, call or range of a row first or last."""
    texts = {column.name for column in columns if column.unit == "text"}
    return tuple(name for name in (*shown[:1], *shown[-1:]) if name in texts)


def _column(name: str, kind: pl.DataType) -> Column:
    """The column under NVIDIA's heading, which holds the unit."""
    from tracekit.report.model import Column

    if not kind.is_numeric():
        return Column(name, name, "text")
    if name in _NUMBERS:
        return Column(name, name, "id")
    return Column(name, name, "count" if kind.is_integer() else "number")
