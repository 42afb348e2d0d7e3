"""The native decoder: blocks of events to columns, where `tracekit._native` is built and sure of what it reads."""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType
from typing import Any, Final

import msgspec
import numpy as np

from tracekit._native import decoder
from tracekit.classes import dataclass
from tracekit.readers.kineto import vocabulary as words
from tracekit.readers.kineto.args import LABEL, REAL, MemoryArgs, record_of
from tracekit.readers.kineto.groups import COMMON, Columns, Key, Records, Text

__all__ = ["Block", "decode", "described", "is_built"]

_INTEGER, _REAL, _LABEL, _RAW = 2, 3, 4, 5
"""The types of columns, as `_native/column.h` numbers them."""

_SEED: Final = int.from_bytes(os.urandom(8), "big")
_CATEGORIES: Final = (*words.HOST_CATEGORIES, *words.DEVICE_CATEGORIES, *words.DEVICE_SYNC_CATEGORIES)
_Numbered = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Block:
    """A block of events by phase and category, in the order in which these appear."""

    groups: list[tuple[Key, Columns | Records]]
    count: int  # of events
    used: int  # bytes of the text
    ended: bool  # the array's closing bracket was among them

    def __len__(self) -> int:
        """How many events."""
        return self.count


def is_built() -> bool:
    """Whether there is a native decoder, and it is not turned off."""
    return decoder is not None


def decode(text: bytes | bytearray, end: int) -> Block | None:
    """The events of text[:end], which are separated by commas, up to its end or to the bracket that closes their array.

    None where there is no native decoder, and where it is not sure to read them as the other one does: it is sure of JSON that
    is whole, with values of the usual types, and of all else it leaves the answer to the other one.
    """
    if decoder is None:
        return None
    plan, fields = _plan(decoder)
    with memoryview(text):  # what is being read must not be resized
        answer = decoder.decode(plan, text, end)
    if answer is None:
        return None
    used, ended, exact, count, groups = answer
    source = Text(text, exact)
    found: list[tuple[Key, Columns | Records]] = []
    for phase, category, table, rows, native, others in groups:
        key = phase.decode(), None if category is None else category.decode()
        if rows:
            found.append((key, Columns(source, rows, fields[table], native)))
        if others:
            found.append((key, Records(None, source, np.frombuffer(others, dtype=np.uint32).reshape(-1, 3))))
    return Block(found, count, used, ended)


@cache
def _plan(module: ModuleType) -> tuple[Any, list[dict[str, int]]]:
    """What the native decoder reads, and for each of its tables the numbers of the columns."""
    names = [[*COMMON, *(field.name for field in msgspec.structs.fields(record))] for record in _records()]
    return module.plan(*described(), _SEED), [{name: at for at, name in enumerate(table)} for table in names]


def described() -> tuple[tuple[tuple[_Numbered, ...], ...], tuple[_Numbered, ...], _Numbered]:
    """What the native decoder is told: for each record the keys of its fields with the types of their columns, the categories of
    complete events with the numbers of their records, and the name of the instant events that it reads with that of theirs.
    """
    records = _records()
    tables = tuple(
        tuple((field.encode_name.encode(), _type(field.type)) for field in msgspec.structs.fields(record))
        for record in records
    )
    categories = tuple((category.encode(), records.index(record_of(category))) for category in _CATEGORIES)
    return tables, categories, (words.MEMORY_EVENT.encode(), records.index(MemoryArgs))


def _records() -> list[type[msgspec.Struct]]:
    return list(dict.fromkeys([*map(record_of, _CATEGORIES), MemoryArgs]))


def _type(annotation: Any) -> int:
    if annotation is msgspec.Raw:
        return _RAW
    marks = {mark for meta in getattr(annotation, "__metadata__", ()) for mark in meta.extra}
    return _LABEL if LABEL in marks else _REAL if REAL in marks else _INTEGER
