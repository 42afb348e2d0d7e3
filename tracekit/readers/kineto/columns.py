"""From lists of decoded JSON values to typed columns, exact and tolerant of mixed types.

Real JSON files write the same field sometimes as a number and sometimes as a string. Each function has a fast path over the
whole column for the plain case, and looks at single values only if the types are mixed.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import numpy as np
import polars as pl

from tracekit.facts.units import NS_PER_US
from tracekit.limits import LONGEST_TEXT

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

__all__ = [
    "EXACT_FLOAT_US",
    "categorical",
    "constant",
    "floats",
    "identities",
    "identity",
    "integers",
    "nanoseconds",
    "raw_texts",
    "times",
]

_PLAIN_INT: Final = {int, type(None)}
_PLAIN_FLOAT: Final = {float, int, type(None)}
EXACT_FLOAT_US: Final = float(2**43)
"""Below this a double holds a time in µs to the ns: the spacing of doubles there is 2⁻¹⁰ µs."""

_INT64: Final = 2**63 - 1
_LATEST_NS: Final = 3 * 10**18
"""A time in 2065. The difference of two such times plus such a duration still fits into an Int64."""

_LARGEST_US: Final = _INT64 // NS_PER_US
_NEAR_LIMIT_NS: Final = 8 * 10**18
_DIGITS: Final = 18
_ANONYMOUS_BASE: Final = -1_000
_INTEGER: Final = re.compile(r"[-+]?\d{1,40}(\.0*)?")


def nanoseconds(values: Sequence[Any]) -> pl.Series:
    """Microseconds as JSON wrote them, in integer ns (Int64, null where unreadable).

    Floats from `EXACT_FLOAT_US` on are not exact to the ns; the decoder gives these as text (`msgspec.Raw`).
    """
    types = set(map(type, values))
    if types <= _PLAIN_INT and all(abs(value) <= _LARGEST_US for value in _bounds(values)):
        return pl.Series(values, dtype=pl.Int64) * NS_PER_US
    if types <= _PLAIN_FLOAT and all(abs(value) < EXACT_FLOAT_US for value in _bounds(values)):
        given = pl.Series(values, dtype=pl.Float64, strict=False).to_numpy()
        us = np.nan_to_num(given)  # a null is not a number here
        whole = np.floor(us)
        # The fraction is exact as a double, and so is its product with 1000 to well below half a ns.
        ns = whole.astype(np.int64) * NS_PER_US + np.rint((us - whole) * NS_PER_US).astype(np.int64)
        missing = np.flatnonzero(np.isnan(given))
        return pl.Series(ns).scatter(missing, None) if missing.size else pl.Series(ns)
    if types == {msgspec.Raw}:
        return _nanoseconds_of_text(values)
    return pl.Series([_exact(value) for value in values], dtype=pl.Int64)


def times(values: Sequence[Any]) -> pl.Series:
    """`nanoseconds`, with null for times that no clock shows, so that sums and differences cannot overflow."""
    ns = nanoseconds(values)
    earliest, latest = cast("int | None", ns.min()), cast("int | None", ns.max())
    if earliest is None or latest is None or (earliest >= -_LATEST_NS and latest <= _LATEST_NS):
        return ns
    return pl.select(pl.when(ns.is_between(-_LATEST_NS, _LATEST_NS)).then(ns)).to_series()


def _bounds(values: Sequence[Any]) -> tuple[float, ...]:
    """The least and the greatest number; empty if there are no numbers."""
    numbers = [value for value in values if value is not None] if None in values else values
    return (min(numbers), max(numbers)) if numbers else ()


def _nanoseconds_of_text(values: Sequence[msgspec.Raw]) -> pl.Series:
    text = pl.Series("t", b"\x1e".join(values).decode("utf-8", "replace").split("\x1e"), dtype=pl.String)
    parts = text.to_frame().select(
        pl.col("t").str.extract_groups(r'^\s*"?(-?)([0-9]{1,16})(?:\.([0-9]{1,3})0*)?"?\s*$').struct.unnest()
    )
    sign, whole, fraction = (parts.to_series(i) for i in range(3))
    ns = whole.cast(pl.Int64) * NS_PER_US + fraction.fill_null("0").str.pad_end(3, "0").cast(pl.Int64)
    ns = pl.select(pl.when(sign == "-").then(-ns).otherwise(ns)).to_series()
    # Sixteen digits of µs may be more ns than an Int64 holds: they come out as other large numbers.
    ns = pl.select(pl.when(ns.is_between(-_NEAR_LIMIT_NS, _NEAR_LIMIT_NS)).then(ns)).to_series()
    if ns.null_count():
        odd = [i for i, missing in enumerate(ns.is_null()) if missing]
        ns = ns.scatter(odd, [_exact(text[i]) for i in odd])
    return ns


def _exact(value: object) -> int | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, float) and abs(value) < EXACT_FLOAT_US:
        whole = int(value // 1)
        return whole * NS_PER_US + round((value - whole) * NS_PER_US)
    try:
        us = Decimal(str(value).strip().strip('"'))
    except (InvalidOperation, ValueError):
        return None
    if not us.is_finite() or us.adjusted() > _DIGITS:
        return None  # writing 1e999999 out takes half a minute
    ns = int((us * NS_PER_US).to_integral_value())
    return ns if abs(ns) <= _INT64 else None


def integers(values: Sequence[Any]) -> pl.Series:
    """Whole numbers written as numbers, decimal or hexadecimal strings; anything else is null."""
    if set(map(type, values)) <= _PLAIN_INT:
        try:
            return pl.Series(values, dtype=pl.Int64)
        except (OverflowError, TypeError):  # beyond 64 bits; releases of Polars differ in what they raise
            return pl.Series([_integer(value) for value in values], dtype=pl.Int64)
    # Each distinct text is read once. Numbers are not looked up: a file could hold many with the same hash.
    of_text = {value: _integer(value) for value in {v for v in values if isinstance(v, str)}}
    return pl.Series(
        [of_text[value] if isinstance(value, str) else _integer(value) for value in values], dtype=pl.Int64
    )


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    number: int | None = None
    if isinstance(value, int):
        number = value
    elif isinstance(value, float):
        number = int(value) if math.isfinite(value) and abs(value) < float(_INT64) else None
    elif isinstance(value, str):
        text = value.strip().removeprefix("stream ")
        if _INTEGER.fullmatch(text):
            number = int(text.split(".")[0])
        elif text[:2].lower() == "0x" and re.fullmatch(r"[0-9a-fA-F]{1,16}", text[2:]):
            number = int(text, 16)
    # Addresses use all 64 bits: as signed numbers they stay distinct.
    if number is not None and number > _INT64:
        number = number - 2**64 if number < 2**64 else None
    return number if number is None or -_INT64 - 1 <= number <= _INT64 else None


def identities(values: Sequence[Any]) -> pl.Series:
    """`identity` of each value."""
    if set(map(type, values)) == {int} and not (numbers := integers(values)).null_count():
        return numbers
    of_text = {value: identity(value) for value in {v for v in values if not isinstance(v, int)}}
    return pl.Series([identity(v) if isinstance(v, int) else of_text[v] for v in values], dtype=pl.Int64)


def identity(value: int | str | float | None) -> int:
    """A process or thread number; a text that is not a number ("Spans", "") gets a negative number of its own."""
    if isinstance(value, int) and abs(value) < 2**63:
        return value  # the most frequent kind; metadata events come one by one
    number = integers([value])[0]
    # The same text gets the same number in every process that decodes a part of the file.
    return _ANONYMOUS_BASE - zlib.crc32(str(value).encode()) if number is None else int(number)


def floats(values: Sequence[Any]) -> pl.Series:
    """Numbers, also if written as strings; anything else is null."""
    if set(map(type, values)) <= _PLAIN_FLOAT:
        return pl.Series(values, dtype=pl.Float64, strict=False)
    return pl.Series([None if v is None else str(v) for v in values], dtype=pl.String).cast(
        pl.Float64, strict=False
    )


def categorical(values: Sequence[Any]) -> pl.Series:
    """Text, dictionary-encoded, the first `LONGEST_TEXT` characters of it; numbers become their text."""
    if set(map(type, values)) - {str, type(None)}:
        values = [None if value is None else str(value) for value in values]
    if max(map(len, filter(None, values)), default=0) > LONGEST_TEXT:
        values = [value and value[:LONGEST_TEXT] for value in values]
    return pl.Series(values, dtype=pl.Categorical)


def raw_texts(values: Sequence[msgspec.Raw]) -> pl.Series:
    """The JSON text of undecoded values on one line, dictionary-encoded; null if the key was absent or the text is too long."""
    joined = b"\x1e".join(values).decode("utf-8", "replace")
    if "\n" in joined:
        joined = re.sub(r"\s*\n\s*", " ", joined).replace("[ ", "[").replace(" ]", "]")
    # No JSON value has an empty text, so an empty one says that the key was absent.
    texts = [text or None for text in joined.split("\x1e")]
    if max(map(len, values), default=0) > LONGEST_TEXT:
        texts = [text if text and len(text.encode()) <= LONGEST_TEXT else None for text in texts]
    return pl.Series("text", texts, dtype=pl.Categorical)


def constant(value: str | int | None, dtype: PolarsDataType, rows: int) -> pl.Series:
    """A column that has this value in each row."""
    return _one(value, dtype).new_from_index(0, rows)


@lru_cache
def _one(value: str | int | None, dtype: PolarsDataType) -> pl.Series:
    return pl.Series([value], dtype=dtype)
