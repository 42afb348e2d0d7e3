"""A table that is no section of a report, in the formats of the others: the runs of a sweep, the models of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.classes import dataclass
from tracekit.cli.output import check_binary, emit, emit_frame, page_for
from tracekit.report.formats import Can, Format, choose_format, render_data, render_sections

if TYPE_CHECKING:
    import polars as pl

    from tracekit.report.model import Section

__all__ = ["Listing", "format_of", "varied"]

_NAMING = frozenset({"key", "series", "workload", "batch"})


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Rows with the `question` that they answer and the `answer` in one line.

    `short` are the columns for a reader, in order, and `titles` what those are called that do not speak for
    themselves; data formats get every column.
    """

    name: str
    question: str
    answer: str
    frame: pl.DataFrame
    short: Sequence[str]
    titles: Mapping[str, str] = field(default_factory=dict)

    def emit(self, chosen: Format, output: Path | None = None) -> None:
        """Write it to the file, or to stdout. Raises UsageError when the file cannot be written."""
        if Can.FILES in chosen.can:
            emit_frame(self.frame, chosen, output, piped=True)
        elif Can.DATA in chosen.can:
            rows = self.frame.to_dicts()
            emit(render_data(chosen, {"schema_version": "1.0", self.name: rows}), output)
        else:
            page = page_for(chosen, max(self.frame.height, 1))
            emit(render_sections(chosen, [(self._section(), None)], page), output)

    def _section(self) -> Section:
        from tracekit.names import clean
        from tracekit.report.model import Section, table_of

        table = table_of(self.name, self.name.capitalize(), self.frame, tuple(self.short), self.titles)
        return Section(self.name, self.question, clean(self.answer), tables=(table,))


def format_of(format_: Format | None, output: Path | None, *, command: str) -> Format:
    """The format of a listing. Raises UsageError for one that it does not have, or that would go to a terminal."""
    chosen = choose_format(Can.TABLES, format_, output, command=command)
    check_binary(chosen, output, piped=True)
    return chosen


def varied(rows: pl.DataFrame, names: Sequence[str] | Mapping[str, object]) -> list[str]:
    """The settings that tell the rows of a sweep apart."""
    return [name for name in names if name not in _NAMING and rows[name].n_unique() > 1]
