"""Which part of a section a command shows: some tables, some levels of a tree, one phase."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracekit.errors import UsageError
from tracekit.readers import flag_for

if TYPE_CHECKING:
    from tracekit.report.model import Section, Table

__all__ = ["Refine"]


@dataclass(frozen=True, slots=True)
class Refine:
    """What to keep of a section.

    `tables`: these only (None: all); `needs` is the key of `tracekit.readers.RECORDABLE` for what they need. `depth`: so many levels
    of a tree. `phase`: rows with time in this phase, the most first. `in_order`: a tree in the order of its table.
    """

    tables: tuple[str, ...] | None = None
    needs: str | None = None
    depth: int | None = None
    phase: str | None = None
    in_order: bool = False

    def __call__(self, section: Section, format_: str) -> Section:
        """The section, of a trace of this format, with what is kept.

        Raises UsageError when the trace has none of the tables.
        """
        kept = tuple(one for one in section.tables if self.tables is None or one.name in self.tables)
        if section.tables and not kept:
            wanted = " or ".join(self.tables or ())
            remedy = "" if self.needs is None else f"{self.needs} need {flag_for(self.needs, format_)}"
            raise UsageError(f"{section.name} has no table {wanted} for this trace", remedy=remedy)
        return replace(section, tables=tuple(self._table(one) for one in kept))

    def _table(self, table: Table) -> Table:
        import polars as pl

        frame, tree = table.frame, table.tree
        if tree is not None and self.depth is not None:
            frame = frame.filter(pl.col("depth") < self.depth)
        if tree is not None and self.in_order:
            tree = replace(tree, largest_first=False)
        column = f"{self.phase}_ns"
        if self.phase is not None and column in frame.columns:
            frame = frame.filter(pl.col(column) > 0)
            if tree is not None:
                tree = replace(tree, measure=column)
            else:
                frame = frame.sort(column, descending=True, maintain_order=True)
        short = table.short
        if self.phase is not None and column in frame.columns and column not in short:
            short = (short[0], column, *short[1:])
        return replace(table, frame=frame, tree=tree, total_rows=frame.height, short=short)
