"""`tracekit nsys-stats`: the reports of `nsys stats` and the rules of `nsys analyze`, of a trace of any format."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracekit.cli import completion
from tracekit.cli import options as flags
from tracekit.cli.catalogue import format_for, keys_of, section_of, write_tables
from tracekit.cli.options import Reading, Selection, with_flags
from tracekit.cli.output import say
from tracekit.cli.sources import Sources, expanded

if TYPE_CHECKING:
    import polars as pl

    from tracekit.analyses.stated import Entry, StatedTable
    from tracekit.report.model import Column, Section
    from tracekit.trace import Trace

__all__ = ["nsys_stats"]

_NUMBERS: Final = frozenset(
    {"PID", "TID", "Pid", "Tid", "CorrId", "CorrID", "DevId", "Ctx", "Strm", "RangeId", "ParentId", "Lvl"}
    | {"Device ID", "Context ID", "Stream ID"}
)
"""Columns whose whole numbers count nothing."""


class TimeUnit(str, Enum):
    """The unit of times."""

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
        help="Show only these reports or rules, named as NVIDIA names them; repeatable. `all` shows every report and rule, `rules` every rule.",
        autocompletion=completion.stats_reports,
    ),
]
_Unit = Annotated[TimeUnit, flags.flag("The unit of times.", "--timeunit", of=TimeUnit)]
_Rows = Annotated[int, flags.flag("Show at most this many rows of a rule; 0 shows all.", min=0)]


@with_flags
def nsys_stats(
    traces: flags.TraceFiles,
    report: _Report = None,
    rank: flags.Rank = None,
    process: flags.Process = None,
    top: flags.Top = None,
    rows: _Rows = 50,
    timeunit: _Unit = TimeUnit.ns,
    format_: flags.TablesFormat = None,
    output: flags.Output = None,
    *,
    reading: Reading,
) -> None:
    """Show reports of `nsys stats` and rules of `nsys analyze`.

    They are made from Nsight Systems exports and from PyTorch traces.
    """
    from tracekit.analyses.nsys_stats.catalogue import CATALOGUE, DEFAULT_REPORTS, ELSEWHERE, RULES
    from tracekit.analyses.nsys_stats.tables import in_unit, table

    groups = {"all": tuple(CATALOGUE), "rules": RULES, "default": DEFAULT_REPORTS}
    names = keys_of(report or ["default"], list(CATALOGUE), "report", groups, ELSEWHERE)
    chosen = format_for("nsys-stats", len(names), format_, output, one="one --report")
    read, _ = Sources(expanded(traces), Selection(rank, process), reading, all_processes=True).read()
    _tell_excerpts(read)
    unit = timeunit.value
    tables = [(CATALOGUE[name], in_unit(table(read, name, rows), unit)) for name in names]
    write_tables("nsys_stats", tables, partial(_section, unit), chosen, output, top=top)


def _tell_excerpts(traces: Sequence[Trace]) -> None:
    """Print a line on stderr for each trace of which only a part was read, since its sums cover only that part."""
    from tracekit.report.format import format_excerpt

    for trace in traces:
        if trace.meta.excerpt is not None:
            say(f"tracekit: {format_excerpt(trace.meta.excerpt)}")


def _section(unit: str, entry: Entry, table: StatedTable) -> Section:
    short = [name.replace("(ns)", f"({unit})") for name in entry.shown or entry.columns]
    # NVIDIA's tables name the kernel, call or range of a row first or last.
    return section_of(entry.key, entry, table, _column, short=short, ends=True)


def _column(name: str, kind: pl.DataType) -> Column:
    """The heading of a column as NVIDIA writes it, with the unit."""
    from tracekit.report.model import Column

    if not kind.is_numeric():
        return Column(name, name, "text")
    if name in _NUMBERS:
        return Column(name, name, "id")
    return Column(name, name, "count" if kind.is_integer() else "number")
