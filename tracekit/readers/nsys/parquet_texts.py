"""Parquet files whose texts are not all UTF-8, as Nsight Systems writes them: a copy that declares these columns as bytes.

Readers refuse a whole page for one such text. The footer declares the types of columns (Thrift's compact protocol,
https://github.com/apache/parquet-format). It is rewritten; the data are copied unchanged.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tracekit.classes import dataclass

__all__ = ["with_texts_as_bytes"]

_MAGIC: Final = b"PAR1"
_TAIL: Final = 8
_MOST_FOOTER: Final = 1 << 24
_DEEPEST: Final = 16

# Types of Thrift's compact protocol.
_BOOLEANS: Final = (1, 2)
_BINARY, _LIST, _SET, _STRUCT = 8, 9, 10, 12
_FIXED: Final = {1: 1, 2: 1, 3: 1, 7: 8}
"""Bytes of booleans (in lists), bytes and doubles."""
_VARINTS: Final = (4, 5, 6)

# Fields of the footer and of an element of its schema.
_SCHEMA, _KEY_VALUES = 2, 5
_CONVERTED_TYPE, _LOGICAL_TYPE = 6, 10
_UTF8: Final = b"\x00"
"""The converted type UTF8 is 0, whose varint in zigzag is one byte."""
_STRING: Final = 1
"""The field of the union LogicalType that says that it is a text."""


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a struct: its number, its type and the bytes of its value."""

    number: int
    kind: int
    value: bytes


def with_texts_as_bytes(source: Path, target: Path) -> None:
    """Copy a Parquet file to `target` and declare its texts as bytes. Raises ValueError if its footer is invalid."""
    with source.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        tail = file.read(_TAIL)
        if len(tail) < _TAIL or tail[4:] != _MAGIC:
            raise ValueError("it has no Parquet footer")
        length = struct.unpack("<I", tail[:4])[0]
        begin = size - _TAIL - length
        if begin < len(_MAGIC) or length > _MOST_FOOTER:
            raise ValueError("its footer is longer than the file")
        file.seek(begin)
        footer = _rewritten(file.read(length))
        file.seek(0)
        with target.open("wb") as copy:
            shutil.copyfileobj(file, copy)
            copy.truncate(begin)
            copy.seek(begin)
            copy.write(footer + struct.pack("<I", len(footer)) + _MAGIC)


def _rewritten(footer: bytes) -> bytes:
    """The footer with its text columns declared as bytes, and without other declarations of their types."""
    kept = []
    for field in _Reader(footer).fields():
        if field.number == _SCHEMA and field.kind == _LIST:
            kept.append(_Field(field.number, field.kind, _with_bytes(field.value)))
        elif field.number != _KEY_VALUES:  # these hold Arrow's own schema
            kept.append(field)
    return _written(kept)


def _with_bytes(schema: bytes) -> bytes:
    reader = _Reader(schema)
    kind, count = reader.list_head()
    if kind != _STRUCT:
        raise ValueError("its schema is not a list of columns")
    head = schema[: reader.at]
    return head + b"".join(_written(_without_text_types(list(reader.fields()))) for _ in range(count))


def _without_text_types(column: list[_Field]) -> list[_Field]:
    texts = any(field.number == _CONVERTED_TYPE and field.value == _UTF8 for field in column)
    for field in column:
        if field.number == _LOGICAL_TYPE and field.kind == _STRUCT:
            texts |= any(part.number == _STRING for part in _Reader(field.value).fields())
    return [field for field in column if not texts or field.number not in (_CONVERTED_TYPE, _LOGICAL_TYPE)]


def _written(fields: list[_Field]) -> bytes:
    """A struct of these fields. Their numbers rise; a small step to the next number fits into half a byte, a larger one follows."""
    encoded, before = bytearray(), 0
    for field in fields:
        step = field.number - before
        encoded += (
            bytes([step << 4 | field.kind]) if 0 < step <= 15 else bytes([field.kind]) + _zigzag(field.number)
        )
        encoded += field.value
        before = field.number
    return bytes(encoded) + b"\x00"


def _zigzag(number: int) -> bytes:
    value, encoded = number << 1 ^ number >> 63, bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(encoded) + bytes([value])


class _Reader:
    """Walks through a value of Thrift's compact protocol. Raises ValueError if the bytes end too early or are invalid."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def fields(self) -> Iterator[_Field]:
        """The fields of the struct that begins here."""
        number = 0
        while head := self._byte():
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._number()
            begin = self.at
            if kind not in _BOOLEANS:  # their value is in their type
                self._skip(kind, 0)
            yield _Field(number, kind, self._data[begin : self.at])

    def list_head(self) -> tuple[int, int]:
        """The type and the count of the elements of the list that begins here."""
        head = self._byte()
        return head & 15, self._varint() if head >> 4 == 15 else head >> 4

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError("its footer is nested too deeply")
        if kind in _FIXED:
            self._forward(_FIXED[kind])
        elif kind in _VARINTS:
            self._varint()
        elif kind == _BINARY:
            self._forward(self._varint())
        elif kind in (_LIST, _SET):
            of, count = self.list_head()
            for _ in range(count):
                self._skip(of, depth + 1)
        elif kind == _STRUCT:
            while head := self._byte():
                if not head >> 4:
                    self._varint()
                if head & 15 not in _BOOLEANS:
                    self._skip(head & 15, depth + 1)
        else:
            raise ValueError("its footer is damaged")  # Parquet has no maps there

    def _byte(self) -> int:
        self._forward(1)
        return self._data[self.at - 1]

    def _forward(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise ValueError("its footer ends too early")

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise ValueError("its footer is damaged")

    def _number(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
