"""What pages of an export's tables have in common, whichever form it has: types, lengths, times, texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import polars as pl

__all__ = [
    "DTYPES",
    "LONGEST_PAYLOAD",
    "LONGEST_TEXT",
    "PAGE_ROWS",
    "ColumnKind",
    "Only",
    "clocked",
    "conditions_on",
    "decoded",
]

ColumnKind = Literal["int", "float", "text", "bytes"]
Only = tuple[str, tuple[int, ...]]
DTYPES: Final[dict[str, pl.DataType]] = {
    "int": pl.Int64(),
    "float": pl.Float64(),
    "text": pl.String(),
    "bytes": pl.Binary(),
}

PAGE_ROWS: Final = 1 << 17
LONGEST_TEXT: Final = 1 << 14
"""Bytes of a text that are read, so that a page stays small whatever a file holds; no real name is as long."""

LONGEST_PAYLOAD: Final = 1 << 10
"""Bytes of a binary value that are read."""

_MOST_IDS: Final = 1 << 13
"""So many ids stand in one condition."""
_MOST_BETWEEN: Final = 4
"""So many rows are read for each that is wanted, rather than to look for each."""

_TIMES: Final = ("start", "end", "timestamp")
_LATEST_NS: Final = 3 * 10**18
"""95 years; the difference of two such times, with such a duration added, is still an Int64."""


def conditions_on(column: str, ids: pl.Series) -> Iterator[str]:
    """Conditions of SQL that these ids fulfil together, some thousands in each: what lies between their ends, where that is not much more."""
    rising = ids.drop_nulls().unique().sort()
    for chunk in rising.to_frame().iter_slices(_MOST_IDS):
        some = chunk.to_series().to_list()
        if some[-1] - some[0] < _MOST_BETWEEN * len(some):
            yield f"{column} between {some[0]} and {some[-1]}"
        else:
            yield f"{column} in ({', '.join(map(str, some))})"


def clocked(page: pl.DataFrame) -> pl.DataFrame:
    """The page with times that no clock shows as null, so that sums and differences of the others cannot overflow."""
    times = [name for name in _TIMES if name in page.columns]
    if page.select(pl.all_horizontal(pl.col(times).is_between(-_LATEST_NS, _LATEST_NS).all())).item():
        return page
    return page.with_columns(
        pl.when(pl.col(name).is_between(-_LATEST_NS, _LATEST_NS)).then(name) for name in times
    )


def decoded(values: pl.Series) -> tuple[pl.Series, int]:
    """Bytes as texts, and how many of them were no UTF-8: what is none in those is replaced."""
    try:
        return values.cast(pl.String), 0
    except (pl.exceptions.ComputeError, pl.exceptions.InvalidOperationError):
        return _decoded_one_by_one(values)  # some of them are no UTF-8


def _decoded_one_by_one(values: pl.Series) -> tuple[pl.Series, int]:
    texts = [None if raw is None else raw.decode("utf-8", "replace") for raw in values]
    replaced = sum(
        text is not None and "\ufffd" in text and text.encode() != raw
        for raw, text in zip(values, texts, strict=True)
    )
    return pl.Series(values.name, texts, dtype=pl.String), replaced
