"""The events of one phase and category as a source of columns: of records, or of columns that were decoded natively."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from operator import attrgetter
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.groups import at_rows
from tracekit.readers.kineto import args as records
from tracekit.readers.kineto import columns
from tracekit.readers.kineto.records import AnyEvent, read_array
from tracekit.readers.kineto.salvage import Defects

__all__ = [
    "COMMON",
    "Arguments",
    "Columns",
    "Group",
    "Key",
    "NativeColumn",
    "Records",
    "Text",
    "grouped",
    "joined",
]

Key = tuple[str, str | None]
"""Phase and category."""

COMMON: Final = ("name", "ts", "dur", "pid", "tid")
"""The columns of an event's own keys, which stand before those of its arguments in what the native decoder gives."""

NativeColumn = tuple[bytes, int, bytes, Any] | None
"""Values, the number of rows with one, the places of odd values, and the distinct texts; None if no event has a value."""

_NO_INTEGER: Final = -(2**63)
_NO_CODE: Final = 2**32 - 1
_NAMELESS: Final = "(no name)"
_MOST_RECORDS: Final = 100_000
"""Decoded at a time: each takes half a kilobyte, an empty event as well."""
_SCALAR: Final = msgspec.json.Decoder(records.Scalar)
_TEXTS: Final = msgspec.json.Decoder(list[str])


class Arguments(Protocol):
    """The arguments of a group by the names of a record's fields."""

    def integers(self, key: str) -> pl.Series:
        """Whole numbers (Int64)."""
        ...

    def floats(self, key: str) -> pl.Series:
        """Numbers (Float64)."""
        ...

    def labels(self, key: str) -> pl.Series:
        """Texts (Categorical)."""
        ...

    def filled_labels(self, key: str) -> pl.Series | None:
        """Texts, with null for empty ones; None if there are only empty ones."""
        ...

    def raw_texts(self, key: str) -> pl.Series:
        """The JSON text of values (Categorical)."""
        ...


class Group(Protocol):
    """Events of one phase and category, in the order of the file."""

    def __len__(self) -> int: ...

    def names(self) -> pl.Series:
        """Names (Categorical)."""
        ...

    def times(self, key: str) -> pl.Series:
        """Starts (`ts`) or durations (`dur`) in ns (Int64)."""
        ...

    def identities(self, key: str) -> pl.Series:
        """Numbers of processes (`pid`) or threads (`tid`) (Int64)."""
        ...

    def args(self, record: type[msgspec.Struct], defects: Defects) -> Arguments:
        """The arguments, read by this record."""
        ...


def grouped(events: Sequence[AnyEvent]) -> list[tuple[Key, Records]]:
    """The events by phase and category, in the order in which these appear."""
    groups: dict[Key, list[AnyEvent]] = defaultdict(list)
    for event in events:
        groups[event.ph, event.cat].append(event)
    return [(key, Records(group)) for key, group in groups.items()]


def joined(groups: Sequence[Records]) -> Records:
    """Several groups as one."""
    return groups[0] if len(groups) == 1 else Records([event for group in groups for event in group.events])


# -- of records --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Records:
    """Events as records; those of a natively decoded block are decoded when they are asked for."""

    decoded: list[AnyEvent] | None
    text: Text | None = None
    places: npt.NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        """How many events."""
        return len(self.places if self.decoded is None and self.places is not None else self.events)

    @property
    def events(self) -> list[AnyEvent]:
        """All of them."""
        if self.decoded is None:
            self.decoded = self._decode(slice(None))
        return self.decoded

    @property
    def first(self) -> AnyEvent:
        """The first one."""
        return self._decode(slice(1))[0] if self.decoded is None else self.decoded[0]

    def parts(self) -> Iterator[Records]:
        """The events in parts, so that few records are there at a time."""
        if self.decoded is not None or self.places is None:
            yield self
            return
        for begin in range(0, len(self.places), _MOST_RECORDS):
            yield Records(None, self.text, self.places[begin : begin + _MOST_RECORDS])

    def _decode(self, part: slice) -> list[AnyEvent]:
        if self.text is None or self.places is None:
            return []
        return self.text.records(self.places[part])

    def names(self) -> pl.Series:
        """See `Group`."""
        names = _get(self.events, "name")
        if None in names:
            names = [_NAMELESS if name is None else name for name in names]
        return columns.categorical(names)

    def times(self, key: str) -> pl.Series:
        """See `Group`."""
        return columns.times(_get(self.events, key))

    def identities(self, key: str) -> pl.Series:
        """See `Group`."""
        return columns.identities(_get(self.events, key))

    def args(self, record: type[msgspec.Struct], defects: Defects) -> Arguments:
        """See `Group`."""
        return _RecordArguments(records.decode_args(_get(self.events, "args"), record, defects))


@dataclass(frozen=True, slots=True)
class _RecordArguments:
    decoded: Sequence[msgspec.Struct]

    def integers(self, key: str) -> pl.Series:
        return columns.integers(_get(self.decoded, key))

    def floats(self, key: str) -> pl.Series:
        return columns.floats(_get(self.decoded, key))

    def labels(self, key: str) -> pl.Series:
        return columns.categorical(_get(self.decoded, key))

    def filled_labels(self, key: str) -> pl.Series | None:
        labels = _get(self.decoded, key)
        return columns.categorical([label or None for label in labels]) if any(labels) else None

    def raw_texts(self, key: str) -> pl.Series:
        return columns.raw_texts(_get(self.decoded, key))


def _get(items: Iterable[Any], name: str) -> list[Any]:
    return list(map(attrgetter(name), items))


# -- of columns --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a block, and whether its starts are so large that only their text is exact."""

    plain: bytes | bytearray
    exact: bool

    def records(self, places: npt.NDArray[np.uint32]) -> list[AnyEvent]:
        """The events at these places as records."""
        array = b"[" + b",".join(self._pieces(places)) + b"]"
        return read_array(array, exact=self.exact)

    def values(self, places: npt.NDArray[np.uint32], *, as_text: bool) -> list[Any]:
        """The scalar values at these places; each distinct text is read once."""
        pieces = self._pieces(places)
        read: Callable[[bytes], Any] = msgspec.Raw if as_text else _SCALAR.decode
        of_text = {piece: read(piece) for piece in set(pieces)}
        return [of_text[piece] for piece in pieces]

    def _pieces(self, places: npt.NDArray[np.uint32]) -> list[bytes]:
        return [bytes(self.plain[begin:end]) for _, begin, end in places.tolist()]


@dataclass(frozen=True, slots=True)
class Columns:
    """Events as columns that the native decoder made; what it was not sure of is read here, value by value."""

    text: Text
    rows: int
    fields: dict[str, int]
    """The numbers of the columns."""
    native: Sequence[NativeColumn] = field(repr=False)

    def __len__(self) -> int:
        """How many events."""
        return self.rows

    def names(self) -> pl.Series:
        """See `Group`."""
        return self._texts("name", columns.categorical, _NAMELESS)

    def times(self, key: str) -> pl.Series:
        """See `Group`."""
        return self._whole(key, columns.times, as_text=key == "ts" and self.text.exact)

    def identities(self, key: str) -> pl.Series:
        """See `Group`."""
        return self._whole(key, columns.identities, missing=columns.identity(None))

    def args(self, record: type[msgspec.Struct], defects: Defects) -> Arguments:  # noqa: ARG002 - odd ones are not here
        """See `Group`; the record is the one that the native decoder was told."""
        return self

    def integers(self, key: str) -> pl.Series:
        """See `Arguments`."""
        return self._whole(key, columns.integers)

    def floats(self, key: str) -> pl.Series:
        """See `Arguments`."""
        native = self.native[self.fields[key]]
        if native is None:
            return columns.constant(None, pl.Float64, self.rows)
        values = _padded(np.frombuffer(native[0], dtype=np.float64), self.rows, np.nan)
        return self._with_odd(pl.Series(values, nan_to_null=True), native, columns.floats)

    def labels(self, key: str) -> pl.Series:
        """See `Arguments`."""
        return self._texts(key, columns.categorical)

    def filled_labels(self, key: str) -> pl.Series | None:
        """See `Arguments`."""
        native = self.native[self.fields[key]]
        if native is None or not any(_TEXTS.decode(native[3])):
            return None
        return self._texts(key, lambda labels: columns.categorical([label or None for label in labels]))

    def raw_texts(self, key: str) -> pl.Series:
        """See `Arguments`."""
        return self._texts(key, columns.raw_texts, msgspec.Raw())

    def _texts(self, key: str, make: Callable[[list[Any]], pl.Series], missing: Any = None) -> pl.Series:
        """Texts by the number of the distinct one; `make` makes those, and a last one of what stands in rows without any."""
        native = self.native[self.fields[key]]
        if native is None:
            return columns.constant(missing or None, pl.Categorical, self.rows)
        distinct = native[3] if isinstance(native[3], list) else _TEXTS.decode(native[3])
        codes = _padded(np.frombuffer(native[0], dtype=np.uint32), self.rows, _NO_CODE)
        if native[1] < self.rows:
            codes = np.minimum(codes, np.uint32(len(distinct)))
        return at_rows(make([*distinct, missing]), pl.Series(codes))

    def _whole(
        self,
        key: str,
        read: Callable[[list[Any]], pl.Series],
        *,
        as_text: bool = False,
        missing: int | None = None,
    ) -> pl.Series:
        """Whole numbers; `missing` stands in rows without one, and `read` reads those that are odd."""
        native = self.native[self.fields[key]]
        if native is None:
            return columns.constant(missing, pl.Int64, self.rows)
        values = _padded(np.frombuffer(native[0], dtype=np.int64), self.rows, _NO_INTEGER)
        numbers = pl.Series(values)
        if native[1] < self.rows:
            numbers = numbers.set(pl.Series(values == _NO_INTEGER), missing)
        return self._with_odd(numbers, native, read, as_text=as_text)

    def _with_odd(
        self,
        series: pl.Series,
        native: NativeColumn,
        read: Callable[[list[Any]], pl.Series],
        *,
        as_text: bool = False,
    ) -> pl.Series:
        """The column with its odd values, which `read` makes of what the JSON says."""
        if native is None or not native[2]:
            return series
        places = np.frombuffer(native[2], dtype=np.uint32).reshape(-1, 3)
        return series.scatter(places[:, 0].astype(np.int64), read(self.text.values(places, as_text=as_text)))


def _padded(values: npt.NDArray[Any], rows: int, none: float) -> npt.NDArray[Any]:
    """The values with `none` for the rows behind them."""
    if values.size == rows:
        return values
    return np.concatenate([values, np.full(rows - values.size, none, dtype=values.dtype)])
