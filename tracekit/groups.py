"""Rows grouped by keys that are numbers, and sums of the groups, as arrays.

A query costs Polars some tenths of a millisecond, however few the rows are. A report asks hundreds of times for sums of few
rows, or by few keys; there these functions are faster.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.spans import BoolArray, Int64Array, narrow, take

__all__ = [
    "Groups",
    "Integers",
    "any_known",
    "are_known",
    "at_rows",
    "codes_of",
    "distinct",
    "distinct_counts",
    "falling",
    "groups",
    "in_order",
    "kept",
    "none_to_null",
    "numbered",
    "or_none",
    "rows_of",
    "runs",
    "text_codes",
    "text_numbers",
    "with_series",
]

_ROOM = 1 << 10
"""So many possible keys are counted in a table; more, where there are more rows."""
_LARGE = 1 << 21
"""A table of so many keys takes some MB."""
_FEW = 1 << 14
"""To make arrays of fewer numbers takes less time than a query."""
_EXACT = 1 << 53
"""Numbers up to here are exact as floats."""
_LAST: Final = (1 << 32) - 1

Integers = npt.NDArray[np.integer]


class Groups(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Rows in groups. The groups are in the order of their keys: `of` is the number of each row's group, `keys` has one array
    for each key, with one value for each group.
    """

    of: Int64Array
    keys: tuple[Int64Array, ...]

    @property
    def size(self) -> int:
        """How many groups there are."""
        return int(self.keys[0].size)

    @cached_property
    def first(self) -> Int64Array:
        """The first row of each group."""
        found = np.zeros(self.size, dtype=np.int64)
        found[self.of[::-1]] = np.arange(self.of.size)[::-1]
        return found

    @cached_property
    def counts(self) -> Int64Array:
        """How many rows each group has."""
        return np.bincount(self.of, minlength=self.size)

    def rows(self) -> list[Int64Array]:
        """The rows of each group, in order."""
        order = np.argsort(narrow(self.of, self.size), kind="stable")  # in 16 bits without comparing
        return np.split(order, np.cumsum(self.counts)[:-1])[: self.size]

    def sums(self, values: Integers | BoolArray) -> Int64Array:
        """The sum of each group."""
        found = np.zeros(self.size, dtype=np.int64)
        np.add.at(found, self.of, values.astype(np.int64, copy=False))  # of other types it is slow
        return found

    def least(self, values: Int64Array) -> Int64Array:
        """The least value of each group."""
        found = np.full(self.size, np.iinfo(np.int64).max)
        np.minimum.at(found, self.of, values)
        return found

    def greatest(self, values: Int64Array) -> Int64Array:
        """The greatest value of each group."""
        found = np.full(self.size, np.iinfo(np.int64).min)
        np.maximum.at(found, self.of, values)
        return found


def groups(*keys: Integers) -> Groups:
    """The rows with equal keys.

    >>> found = groups(np.array([3, 1, 3]), np.array([0, 5, 0]))
    >>> found.of.tolist(), [key.tolist() for key in found.keys], found.sums(np.array([1, 2, 4])).tolist()
    ([1, 0, 1], [[1, 3], [5, 0]], [2, 5])
    """
    if len(keys) == 1:
        code, values = codes_of(keys[0])
        return Groups(code, (values,))
    most = _table_size(keys[0].size)
    code, room = np.zeros(1, dtype=np.int64), 1
    parts: list[Int64Array] = []
    digits: list[Int64Array] = []
    for key in keys:
        digit, values = _digits(key, most)
        if room * values.size > most and digits:
            code, parts = _counted_off(code, parts, digits)
            room, digits = parts[0].size, []
        if room * values.size > most and values.size > _ROOM:
            digit, values = codes_of(key)
        code = code * values.size + digit if room > 1 else digit
        room *= values.size
        digits.append(values)
    code, parts = _counted_off(code, parts, digits)
    return Groups(code, tuple(parts))


def _table_size(rows: int) -> int:
    """So many possible keys of rows are counted in a table; of more, the rows are sorted."""
    return _ROOM + max(4 * rows, min(32 * rows, _LARGE))


def _digits(key: Integers, most: int) -> tuple[Int64Array, Int64Array]:
    """A number for each value, in their order, and the values by these; others among them where they are no more than `most`."""
    low, high = (int(key.min()), int(key.max())) if key.size else (0, -1)
    if high - low >= most:
        return codes_of(key)
    numbers = key.astype(np.int64, copy=False)
    # There may be no number behind the last one.
    return (numbers - low if low else numbers), low + np.arange(high - low + 1)


def _counted_off(
    code: Int64Array, parts: list[Int64Array], digits: list[Int64Array]
) -> tuple[Int64Array, list[Int64Array]]:
    """The codes without gaps, and the keys of each, where the last digits have these values and the rest is a row of the `parts`."""
    code, rest = codes_of(code)
    found = []
    for values in reversed(digits):
        found.append(values[rest % max(values.size, 1)])
        rest = rest // max(values.size, 1)
    return code, [*(part[rest] for part in parts), *reversed(found)]


def codes_of(key: Integers) -> tuple[Int64Array, Int64Array]:
    """The number of each value among the distinct ones, and these, in order.

    >>> [found.tolist() for found in codes_of(np.array([7, 3, 7]))]
    [[1, 0, 1], [3, 7]]
    """
    if not key.size:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    low, high = int(key.min()), int(key.max())
    numbers = key.astype(np.int64, copy=False)
    if high - low >= _table_size(key.size):
        return _codes_by_order(numbers)
    shifted = numbers - low if low else numbers
    occurs = np.zeros(high - low + 1, dtype=bool)
    occurs[shifted] = True
    values = np.flatnonzero(occurs)
    if values.size == 1:
        return np.zeros(key.size, dtype=np.int64), values + low
    number = np.empty(occurs.size, dtype=np.int64)
    number[values] = np.arange(values.size)
    return number.take(shifted, mode="clip"), values + low


def _codes_by_order(key: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The same of numbers far apart. A stable sort is quick where they mostly rise, as the numbers of a profiler do."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    begins = np.append(True, ordered[1:] != ordered[:-1])
    code = np.empty(key.size, dtype=np.int64)
    code[order] = np.cumsum(begins) - 1
    return code, ordered[begins]


def distinct_counts(numbers: Int64Array, of: Groups) -> Int64Array:
    """How many distinct numbers each group has.

    >>> distinct_counts(np.array([7, 7, 8, 9]), groups(np.array([0, 0, 0, 1]))).tolist()
    [2, 1]
    """
    if (numbers[1:] > numbers[:-1]).all():
        return of.counts
    code, values = codes_of(numbers)
    holder = np.zeros(values.size, dtype=np.int64)
    holder[code] = of.of
    if (holder[code] != of.of).any():  # some are in several groups
        holder = groups(of.of, code).keys[0]
    return np.bincount(holder, minlength=of.size)


def falling(*keys: npt.NDArray[np.generic] | Int64Array) -> Int64Array:
    """The order of rows by these keys, the first one first; numbers that are to fall are given with a minus sign.

    >>> falling(-np.array([1, 9, 9]), np.array([0, 5, 2])).tolist()
    [2, 1, 0]
    """
    return np.lexsort(keys[::-1])


def runs(*keys: Integers) -> Int64Array:
    """The first row of each run of rows with equal keys.

    >>> runs(np.array([3, 3, 1]), np.array([0, 5, 5])).tolist()
    [0, 1, 2]
    """
    new = np.ones(keys[0].size, dtype=bool)
    new[1:] = False
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new)


# -- between columns and arrays ---------------------------------------------------------------------


def or_none(values: pl.Series, none: int = -1) -> Int64Array:
    """Whole numbers, such as those of rows, as an array, with `none` for null.

    >>> or_none(pl.Series([4, None]))
    array([ 4, -1])
    """
    if not values.null_count():
        return values.to_numpy().astype(np.int64, copy=False)
    if values.len() > _FEW or max(values.max() or 0, -(values.min() or 0)) > _EXACT:  # type: ignore[operator]
        return values.cast(pl.Int64).fill_null(none).to_numpy()
    known = are_known(values)
    found = np.full(known.size, none, dtype=np.int64)
    found[known] = values.to_numpy()[known].astype(np.int64)
    return found


def are_known(values: pl.Series) -> BoolArray:
    """For each of these values whether it is not null; NaN counts as null.

    >>> are_known(pl.Series([4, None])).tolist()
    [True, False]
    >>> are_known(pl.Series(["[[2]]", None], dtype=pl.Categorical)).tolist()
    [True, False]
    """
    if not values.null_count():
        return np.ones(values.len(), dtype=bool)
    if not any_known(values):
        return np.zeros(values.len(), dtype=bool)
    if not values.dtype.is_float() and (values.len() > _ROOM or not values.dtype.is_numeric()):
        return values.is_not_null().to_numpy()
    lacking: BoolArray = np.isnan(values.to_numpy())
    return ~lacking


def distinct(values: pl.Series) -> pl.Series:
    """The distinct values that are not null, in any order.

    >>> distinct(pl.Series(["b", None, "b"])).to_list()
    ['b']
    """
    if values.len() > _FEW and values.dtype in (pl.Categorical, pl.Enum):
        _, numbers, rows = numbered(values)
        return at_rows(values, rows[numbers > 0])
    found = values.alias("value").value_counts()["value"]
    return found.drop_nulls() if found.null_count() else found


def kept(rows: pl.DataFrame, wanted: pl.Series | BoolArray) -> pl.DataFrame:
    """The rows of which this is true; it costs nothing when all are, or none.

    >>> kept(pl.DataFrame({"a": [1, 2, 3]}), np.array([True, False, True]))["a"].to_list()
    [1, 3]
    """
    mask = wanted if isinstance(wanted, pl.Series) else pl.Series(wanted, dtype=pl.Boolean)
    count = mask.sum()
    if count == rows.height:
        return rows
    return pl.DataFrame([column.filter(mask) for column in rows]) if count else rows.clear()


def in_order(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """The rows in the order of these columns of whole numbers, null first; it costs little when they are in order.

    >>> in_order(pl.DataFrame({"a": [3, None, 1]}), "a")["a"].to_list()
    [None, 1, 3]
    """
    keys = [or_none(rows[name], np.iinfo(np.int64).min) for name in by]
    rises = np.zeros(max(rows.height - 1, 0), dtype=bool)
    for key in keys:
        if (~rises & (key[1:] < key[:-1])).any():
            return rows[falling(*keys)]
        rises |= key[1:] > key[:-1]
    return rows


def any_known(values: pl.Series) -> bool:
    """Whether a value is not null."""
    return values.null_count() < values.len()


def none_to_null(rows: Int64Array) -> pl.Series:
    """Numbers of rows as a column, null for −1.

    >>> none_to_null(np.array([4, -1])).to_list()
    [4, None]
    """
    column = pl.Series(rows)
    missing = rows < 0
    return column.set(pl.Series(missing), None) if missing.any() else column


def at_rows(column: pl.Series, rows: pl.Series | Int64Array) -> pl.Series:
    """The values of a column in these rows, null where the row is null or −1. `Series.gather` runs a query for it.

    >>> at_rows(pl.Series(["a", "b"]), np.array([1, -1, 0])).to_list()
    ['b', None, 'a']
    """
    numbers = rows if isinstance(rows, pl.Series) else pl.Series(rows, dtype=pl.Int64)
    return column[numbers.cast(pl.get_index_type(), strict=False)]


def with_series(rows: pl.DataFrame, *columns: pl.Series) -> pl.DataFrame:
    """The rows with these columns, each in the place of one of its name, else after the others. `with_columns` runs a query for it.

    >>> with_series(pl.DataFrame({"a": [1], "b": [2]}), pl.Series("a", [3]), pl.Series("c", [4])).row(0, named=True)
    {'a': 3, 'b': 2, 'c': 4}
    """
    new = {column.name: column for column in columns}
    placed = [new.pop(column.name, column) for column in rows]
    return pl.DataFrame([*placed, *new.values()])


def rows_of(ids: pl.Series, wanted: Int64Array) -> Int64Array:
    """The row of each wanted one among the ids, numbers from 0; −1 where it is not among them, or is −1.

    >>> rows_of(pl.Series([7, 3]), np.array([3, -1, 9])).tolist()
    [1, -1, -1]
    """
    rows = np.full(int(wanted.max(initial=-1)) + 1, -1, dtype=np.int64)
    numbers = ids.to_numpy()
    there = np.flatnonzero(numbers < rows.size)
    rows[numbers[there]] = there
    return take(rows, wanted)


def text_codes(column: pl.Series) -> tuple[Int64Array, list[str | None]]:
    """For each row of a column of texts the number of its text, and the texts by their numbers.

    >>> codes, texts = text_codes(pl.Series(["b", None, "b"]))
    >>> [texts[code] for code in codes.tolist()]
    ['b', None, 'b']
    """
    numbers, values, rows = numbered(column)
    number = np.zeros(int(values.max(initial=-1)) + 1, dtype=np.int64)
    number[values] = np.arange(values.size)
    return number.take(numbers), at_rows(column, rows).cast(pl.String).to_list()


def text_numbers(column: pl.Series) -> Int64Array:
    """For each row of a column of texts a number of its text among those of the process, 0 without one.

    >>> found = text_numbers(pl.Series(["b", None, "b"]))
    >>> bool(found[0] == found[2] > found[1] == 0)
    True
    """
    encoded = column.cast(pl.Categorical) if column.dtype == pl.String else column
    physical = encoded.to_physical()
    if not any_known(physical):
        return np.zeros(physical.len(), dtype=np.int64)
    if not physical.null_count() or physical.len() <= _ROOM:
        return or_none(physical) + 1
    # The last number of 32 bits and 1 are 0.
    return (physical.cast(pl.UInt32).fill_null(_LAST).to_numpy() + np.uint32(1)).astype(np.int64)


def numbered(column: pl.Series) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The numbers of the texts of a column, those that occur, in order, and a row of each."""
    numbers = text_numbers(column)
    high = int(numbers.max(initial=-1))
    if high >= _ROOM + 32 * numbers.size:  # other columns of the process have far more texts
        values, rows, numbers = np.unique(numbers, return_index=True, return_inverse=True)
        return numbers, np.arange(values.size), rows
    row = np.full(high + 1, -1, dtype=np.int64)
    row[numbers] = np.arange(numbers.size)
    values = np.flatnonzero(row >= 0)
    return numbers, values, row[values]
