"""Reader of compliance logs of MLPerf training: the lines `:::MLL` (rounds 0.6) and `:::MLLOG` (from 0.7 on).

An event may stand behind and before other text, as launchers write it, and beside that of another rank; its value may be JSON or a Python
literal. What cannot be read is counted by what is wrong with it, and a line whose value alone cannot be read keeps its time and its key.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from tracekit.classes import dataclass

__all__ = ["Event", "Log", "is_marked", "literal", "number_of", "point_of", "read_log", "time_of"]

_LINE: Final = re.compile(r":::MLL\s+([0-9.eE+]{1,40})\s+([A-Za-z0-9_]{1,200}):\s+(.*)", re.DOTALL)
_NEW_LINE: Final = re.compile(r":::MLLOG\s+(\{.*)", re.DOTALL)
_MARK: Final = r":::ML(?:L|Pv)"
_MARKED: Final = re.compile(rf"{_MARK}.*?(?=$|{_MARK})", re.DOTALL)
_OLD: Final = ":::MLPv"
"""Lines of round 0.5 begin so: they have other keys, and no batch of all chips."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
"""Codes by which terminals are told to change colours."""
_QUOTED: Final = r"""'(?:[^'\\]|\\.)*\\?(?:'|\Z)|"(?:[^"\\]|\\.)*\\?(?:"|\Z)"""
"""A text in quotes; the last one may be cut, so that none is looked at twice."""
_BRACES: Final = re.compile(rf"{_QUOTED}|[{{}}]", re.DOTALL)
_WORDS: Final = re.compile(rf"({_QUOTED})|\b(null|true|false|nan)\b", re.DOTALL)
_PYTHON: Final = {"null": "None", "true": "True", "false": "False", "nan": "None"}
"""Words of JSON among Python's literals, as some submitters write them."""
_POINTS: Final = ("first_epoch_num", "epoch_num", "samples_count", "step_num")
"""The metadata that say how far training has come."""
_LONGEST: Final = 1 << 20
"""A longer line is none of a log's."""
_WRAPPED: Final = 16
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


def is_marked(text: str) -> bool:
    """Whether an event begins in this text."""
    return ":::ML" in text and _MARKED.search(text) is not None


def _whole(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The texts of the events, each joined with the lines that follow where it is broken into several, without what stood before the mark, as
    launchers write it before each of these lines.
    """
    open_: tuple[int, str, int] | None = None
    before = ""
    for number, line in enumerate(lines, 1):
        text = _COLOUR.sub("", line)[:_LONGEST].rstrip("\r\n")
        if open_ is not None:
            start, sofar, left = open_
            if not is_marked(text) and left and len(sofar) + len(text) < _LONGEST:
                text = text.removeprefix(before)
                open_ = start, sofar + text, left - 1
                if _closed(sofar + text):
                    yield start, sofar + text
                    open_ = None
                continue
            yield start, sofar
            open_ = None
        before = text[: match.start()] if (match := _MARKED.search(text)) is not None else before
        for event in _MARKED.findall(text):
            if open_ is not None:  # another rank wrote into it
                yield open_[:2]
            open_ = number, event, _WRAPPED
            if _closed(event):
                yield number, event
                open_ = None
    if open_ is not None:
        yield open_[:2]


def _closed(text: str) -> bool:
    return "{" not in text or _end_of(text) is not None


def _end_of(text: str) -> int | None:
    """Where the first value in braces ends; None if it does not. Braces within texts in quotes do not count."""
    depth = 0
    for match in _BRACES.finditer(text, text.find("{")):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return match.end()
    return None


def _event(number: int, text: str) -> tuple[Event | None, str | None]:
    """The event of a text, and what is wrong with it. What stands behind its value is no part of it."""
    text = text[: _end_of(text)] if "{" in text else text
    if (new := _NEW_LINE.match(text)) is not None:
        return _of_json(number, new[1])
    match = _LINE.match(text)
    if match is None:
        return None, "a form of round 0.5, which is not read" if text.startswith(
            _OLD
        ) else "no time or no key"
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
    with suppress(msgspec.MsgspecError, RecursionError):
        return msgspec.json.decode(text)
    with suppress(ValueError, RecursionError):  # a run that diverges logs NaN, which is no JSON
        return json.loads(text)
    try:
        return ast.literal_eval(_WORDS.sub(lambda match: match[1] or _PYTHON[match[2]], text.strip()))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def number_of(value: Any) -> float | None:
    """A number of a log; None for another value, and for one that a float does not hold."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and abs(value) < 2**53 else None


def point_of(event: Event) -> float | None:
    """How far training has come, in the unit of the submitter."""
    return next((number_of(event.metadata[name]) for name in _POINTS if name in event.metadata), None)
