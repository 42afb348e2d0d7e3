"""Event records: what the decoder of msgspec makes of an event."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final, cast

import msgspec

from tracekit.readers.kineto.columns import EXACT_FLOAT_US

__all__ = ["AnyEvent", "Event", "ExactEvent", "decode_array", "read_array"]

_TIME: Final = attrgetter("ts")
NO_ARGS: Final = msgspec.Raw(b"{}")


class Event(msgspec.Struct, gc=False):
    """One trace event; `args` stays undecoded until its category is known."""

    ph: str = ""
    cat: str | None = None
    name: str | int | float | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    id: int | str | float | None = None
    args: msgspec.Raw = NO_ARGS


class ExactEvent(msgspec.Struct, gc=False):
    """An event whose time stays text, because a double cannot represent it to the ns."""

    ph: str = ""
    cat: str | None = None
    name: str | int | float | None = None
    pid: int | str | float | None = None
    tid: int | str | float | None = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: int | float | str | None = None
    id: int | str | float | None = None
    args: msgspec.Raw = NO_ARGS


AnyEvent = Event | ExactEvent
_FAST: Final = msgspec.json.Decoder(list[Event])
_EXACT: Final = msgspec.json.Decoder(list[ExactEvent])


def decode_array(array: bytes) -> list[AnyEvent]:
    """A JSON array of events as records; with times as text if doubles would lose the ns.

    Raises msgspec.DecodeError or UnicodeDecodeError if the text is not such an array.
    """
    events = _FAST.decode(array)
    times = list(map(_TIME, events))
    types = set(map(type, times))
    if float in types and _loses_ns(times, types):
        return read_array(array, exact=True)
    return cast("list[AnyEvent]", events)


def read_array(array: bytes, *, exact: bool) -> list[AnyEvent]:
    """The same, where it is known whether times stay text."""
    return cast("list[AnyEvent]", (_EXACT if exact else _FAST).decode(array))


def _loses_ns(times: list[Any], types: set[type]) -> bool:
    """True if a time is too large for a double to represent it to the ns."""
    numbers = times if types <= {int, float} else [t for t in times if isinstance(t, int | float)]
    return max(numbers) >= EXACT_FLOAT_US or min(numbers) <= -EXACT_FLOAT_US
