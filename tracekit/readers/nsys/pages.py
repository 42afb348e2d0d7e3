"""Code for pages of tables that both forms of an export share: types, lengths, times, texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import polars as pl

__all__ = [
    "DTYPES",
    "LONGEST_PAYLOAD",
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
LONGEST_PAYLOAD: Final = 1 << 10
"""The bytes of a binary value that are read."""

_MOST_IDS: Final = 1 << 13
"""The most ids in one condition."""
_MOST_BETWEEN: Final = 4
"""Up to this many rows per wanted row, a range of ids is read instead of single ids."""

_TIMES: Final = ("start", "end", "timestamp")
_LATEST_NS: Final = 3 * 10**18
"""95 years; the difference of two such times plus such a duration still fits into an Int64."""


def conditions_on(column: str, ids: pl.Series) -> Iterator[str]:
    """SQL conditions that together select these ids, some thousands in each: a range of ids if it holds few others, else a list."""
    rising = ids.drop_nulls().unique().sort()
    for chunk in rising.to_frame().iter_slices(_MOST_IDS):
        some = chunk.to_series().to_list()
        if some[-1] - some[0] < _MOST_BETWEEN * len(some):
            yield f"{column} between {some[0]} and {some[-1]}"
        else:
            yield f"{column} in ({', '.join(map(str, some))})"


def clocked(page: pl.DataFrame) -> pl.DataFrame:
    """The page with null for times that no clock shows, so that sums and differences of the others cannot overflow."""
    times = [name for name in _TIMES if name in page.columns]
    if page.select(pl.all_horizontal(pl.col(times).is_between(-_LATEST_NS, _LATEST_NS).all())).item():
        return page
    return page.with_columns(
        pl.when(pl.col(name).is_between(-_LATEST_NS, _LATEST_NS)).then(name) for name in times
    )


def decoded(values: pl.Series) -> tuple[pl.Series, int]:
    """Bytes as texts, and the number of values that were not UTF-8; their invalid bytes are replaced."""
    try:
        return values.cast(pl.String), 0
    except (pl.exceptions.ComputeError, pl.exceptions.InvalidOperationError):
        return _decoded_one_by_one(values)  # some of them are not UTF-8


def _decoded_one_by_one(values: pl.Series) -> tuple[pl.Series, int]:
    texts = [None if raw is None else raw.decode("utf-8", "replace") for raw in values]
    replaced = sum(
        text is not None and "\ufffd" in text and text.encode() != raw
        for raw, text in zip(values, texts, strict=True)
    )
    return pl.Series(values.name, texts, dtype=pl.String), replaced
