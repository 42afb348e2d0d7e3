"""The traces of a job that have no summary, as a table of its section and as a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.facts.units import count_of
from tracekit.names import clean, shorten_name
from tracekit.readers.common.trace_frames import rank_in_name
from tracekit.report.model import Table, table_of

__all__ = ["unread_sentence", "unread_table"]

_NAMED: Final = 3
_LONGEST: Final = 60


def unread_table(failed: Sequence[tuple[str, str]]) -> Table:
    """One row for each path and the line of its error: the rank that the name of the file gives, the name, the error."""
    rows = [(rank_in_name(path), clean(Path(path.partition("?")[0]).name), line) for path, line in failed]
    schema = {"rank": pl.Int64, "trace": pl.String, "error": pl.String}
    frame = pl.DataFrame(rows, schema=schema, orient="row").sort("rank", "trace", nulls_last=True)
    return table_of("unread", "Traces without an answer", frame)


def unread_sentence(table: Table) -> str:
    """How many traces could not be read, and the names of the first."""
    names = [shorten_name(name, _LONGEST) for name in table.frame["trace"].head(_NAMED)]
    others = ", …" if table.total_rows > _NAMED else ""
    return f"{count_of(table.total_rows, 'file')} could not be read: {', '.join(names)}{others}."
