"""Reader of compliance logs of MLPerf training: the lines `:::MLL` (rounds 0.6) and `:::MLLOG` (from 0.7 on).

A line may stand behind other text, as launchers write it, and its value may be JSON or a Python literal. What cannot be read is
counted by what is wrong with it, and a line whose value alone cannot be read keeps its time and its key.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

__all__ = ["Event", "Log", "literal", "read_log", "time_of"]

_LINE: Final = re.compile(r":::MLL ([0-9.eE+]{1,40}) ([A-Za-z0-9_]{1,200}): (.*)", re.DOTALL)
_NEW_LINE: Final = re.compile(r":::MLLOG (\{.*)", re.DOTALL)
_MARK: Final = ":::MLL"
_WORDS: Final = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|\b(null|true|false)\b""")
_PYTHON: Final = {"null": "None", "true": "True", "false": "False"}
"""Words of JSON among Python's literals, as some submitters write them."""
_LONGEST: Final = 1 << 20
"""A longer line is none of a log's."""
_WRAPPED: Final = 4
"""So many lines may one event be broken into."""
_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class Event:
    """One line."""

    line: int
    """In the file, from 1."""
    time_ns: int
    """Since 1970; 0 where the submitter wrote none."""
    key: str
    value: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Log:
    """The events of a file in its order, and what could not be read."""

    events: tuple[Event, ...]
    defects: dict[str, tuple[int, int]]
    """How often each kind of defect occurs, and the line of the first."""


def read_log(lines: Iterable[str]) -> Log:
    """The events in the lines of a log.

    >>> log = read_log(['0: :::MLL 1.5 eval_accuracy: {"value": 0.7, "metadata": {"epoch_num": 4}}', "loss 3.1"])
    >>> log.events
    (Event(line=1, time_ns=1500000000, key='eval_accuracy', value=0.7, metadata={'epoch_num': 4}),)
    """
    events: list[Event] = []
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    for number, text in _whole(lines):
        event, fault = _event(number, text)
        if event is not None:
            events.append(event)
        if fault is not None:
            counts[fault] += 1
            first.setdefault(fault, number)
    return Log(tuple(events), {fault: (count, first[fault]) for fault, count in counts.items()})


def _whole(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines that hold an event, joined with those that follow where it is broken into several."""
    open_: tuple[int, str, int] | None = None
    for number, text in enumerate(lines, 1):
        at = text.find(_MARK)
        if open_ is not None:
            start, sofar, left = open_
            if at < 0 and left and len(sofar) + len(text) < _LONGEST:
                sofar += text.strip("\r\n")
                if _closed(sofar):
                    yield start, sofar
                    open_ = None
                else:
                    open_ = start, sofar, left - 1
                continue
            yield start, sofar
            open_ = None
        if at >= 0:
            event = text[at : at + _LONGEST].rstrip("\r\n")
            if _closed(event):
                yield number, event
            else:
                open_ = number, event, _WRAPPED
    if open_ is not None:
        yield open_[0], open_[1]


def _closed(text: str) -> bool:
    return "{" not in text or text.rstrip().endswith("}")


def _event(number: int, text: str) -> tuple[Event | None, str | None]:
    """The event of a line, and what is wrong with it."""
    if (new := _NEW_LINE.match(text)) is not None:
        return _of_json(number, new[1])
    match = _LINE.match(text)
    if match is None:
        return None, "no time or no key"
    time = time_of(match[1])
    if time is None:
        return None, "a time that is none"
    rest = literal(match[3])
    if not isinstance(rest, dict):
        return Event(number, time, match[2]), "a value that is neither JSON nor a Python literal"
    metadata = rest.get("metadata")
    return Event(
        number, time, match[2], rest.get("value"), metadata if isinstance(metadata, dict) else {}
    ), None


def time_of(text: str) -> int | None:
    """Seconds since 1970 in ns; None for what is no such time.

    >>> time_of("1560873514.700728431"), time_of("1e99")
    (1560873514700728431, None)
    """
    try:
        time = Decimal(text)
        return int(time * _NS) if 0 <= time < 2**33 else None
    except InvalidOperation:
        return None


def _of_json(number: int, text: str) -> tuple[Event | None, str | None]:
    rest = literal(text)
    if not isinstance(rest, dict) or not isinstance(rest.get("key"), str):
        return None, "no time or no key"
    time = rest.get("time_ms")
    if not isinstance(time, int | float) or isinstance(time, bool) or not 0 <= time < 2**42:
        return None, "a time that is none"
    metadata = rest.get("metadata")
    of = metadata if isinstance(metadata, dict) else {}
    return Event(number, int(time * 1_000_000), rest["key"], rest.get("value"), of), None


def literal(text: str) -> Any:
    """The value of JSON or of a Python literal; None for what is neither. Nothing is evaluated.

    >>> literal('{"value": null}'), literal("{'lineno': 3, 'done': true}")
    ({'value': None}, {'lineno': 3, 'done': True})
    """
    with suppress(msgspec.MsgspecError, RecursionError):  # then it may be Python's
        return msgspec.json.decode(text)
    try:
        return ast.literal_eval(_WORDS.sub(lambda match: match[1] or _PYTHON[match[2]], text.strip()))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
