"""Reading what can be read of damaged JSON, one event at a time, and counting what was met."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

__all__ = ["Defects", "decode_object", "end_of_value", "salvage"]

_Record = TypeVar("_Record", bound=msgspec.Struct)

_SPLIT: Final = re.compile(rb"\}\s*,\s*(?=\{)")
_STRING_OR_BARE: Final = re.compile(
    rb'"(?:[^"\\]|\\.)*"|(?<![\w.+-])-?(?:Infinity|inf|INF|NaN|nan|NAN|N/A|n/a|undefined|None)(?![\w])',
    re.DOTALL,
)
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_QUOTED_NAME: Final = re.compile(
    rb'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:|"\s*\}\s*$)', re.DOTALL
)
_LONE_QUOTE: Final = re.compile(rb'(?<!\\)"')
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_JOIN_LIMIT: Final = 64
_JOIN_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Defects:
    """Counts of what was met, each with one example."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, example: bytes | str = "", count: int = 1) -> None:
        """Count `count` more defects of this kind; the first example is kept."""
        if count <= 0:
            return
        self.counts[kind] = self.counts.get(kind, 0) + count
        if kind not in self.examples:
            text = example.decode("utf-8", "replace") if isinstance(example, bytes) else example
            self.examples[kind] = " ".join(text.split())[:160]


def decode_object(text: bytes, defects: Defects) -> dict[str, Any] | None:
    """One JSON object, repaired where that is possible; None when it cannot be read."""
    try:
        parsed = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        parsed = None
        for _, repaired in _repairs(text):
            try:
                parsed = msgspec.json.decode(repaired)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            defects.add("repaired_header", text[:120])
            break
    return parsed if isinstance(parsed, dict) else None


def salvage(
    text: bytes, defects: Defects, record: type[_Record], *, final: bool
) -> tuple[list[_Record], int, bool]:
    """Decode `text` (events separated by commas) piece by piece.

    Returns the records, how many bytes were used, and whether the array's end was met. With `final` false,
    an incomplete last piece is left for the next block; with `final` true it is dropped.
    """
    decoder = msgspec.json.Decoder(record)
    records: list[_Record] = []
    cuts = [match.start() + 1 for match in _SPLIT.finditer(text)] + [len(text)]
    begin, index = 0, 0
    while index < len(cuts):
        piece = text[begin : cuts[index]].lstrip(b" \t\r\n,")
        got = _decode_piece(piece, decoder, defects)
        joined = index
        # A `},{` inside an event's args or names cut it in two: join until it is whole.
        while got is None and joined + 1 < len(cuts) and _is_open(piece) and joined - index < _JOIN_LIMIT:
            joined += 1
            piece = text[begin : cuts[joined]].lstrip(b" \t\r\n,")
            got = _decode_piece(piece, decoder, defects)
            if len(piece) > _JOIN_BYTES:
                break
        last = (index if got is None else joined) == len(cuts) - 1
        if got is None:
            if last:
                return _end_of_pieces(text, begin, piece, records, defects, final=final)
            defects.add("malformed_event", text[begin : cuts[index]].lstrip(b" \t\r\n,"))
        else:
            value, end = got
            if value is not None:
                records.append(value)
            if end is not None:
                return records, cuts[joined] - len(piece) + end, True
            index = joined
        begin = cuts[index]
        index += 1
    return records, len(text), False


def _end_of_pieces(
    text: bytes, begin: int, piece: bytes, records: list[_Record], defects: Defects, *, final: bool
) -> tuple[list[_Record], int, bool]:
    if not final and _is_open(piece):
        return records, begin, False
    ended = piece[:1] == b"]"
    if piece and not ended and not final:
        defects.add("malformed_event", piece)
    return records, (len(text) - len(piece)) if final else len(text), ended


def _decode_piece(
    piece: bytes, decoder: msgspec.json.Decoder[_Record], defects: Defects
) -> tuple[_Record | None, int | None] | None:
    """The record and, when the array ended behind it, where; None when the piece cannot be read."""
    got = _try(piece, decoder)
    if got is not None:
        return got
    for kind, repaired in _repairs(piece):
        got = _try(repaired, decoder)
        if got is None:
            continue
        defects.add(kind, piece)
        value, end = got
        # The end was found in the repaired text; everything behind it is as long as in the original.
        return value, None if end is None else len(piece) - (len(repaired) - end)
    return None


def _try(piece: bytes, decoder: msgspec.json.Decoder[_Record]) -> tuple[_Record | None, int | None] | None:
    try:
        return decoder.decode(piece), None
    except msgspec.ValidationError:
        return None
    except UnicodeDecodeError:
        return None
    except msgspec.DecodeError as error:
        end = end_of_value(error, piece)
    if end is None or not piece[end:].lstrip().startswith(b"]"):
        return None
    try:
        return decoder.decode(piece[:end]), end
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def end_of_value(error: msgspec.DecodeError, text: bytes) -> int | None:
    """Where the JSON value at the start of `text` ended, when the decoder complains of what follows it."""
    match = _TRAILING.search(str(error))
    if match is None:
        return None
    # The decoder names the byte behind the first that is too much; releases may come to name that byte itself.
    for end in (int(match.group(1)) - 1, int(match.group(1))):
        value = text[:end].rstrip()
        if value[-1:] in (b"]", b"}"):
            return len(value)
    return None


def _repairs(text: bytes) -> list[tuple[str, bytes]]:
    """Ever stronger repairs, each built on the one before, with the defect that it stands for."""
    steps: list[tuple[str, bytes]] = []
    current = text
    for kind, repair in (
        ("invalid_utf8", _mend_encoding),
        ("bare_value", _mend_bare_values),
        ("unescaped_quote", _mend_names),
        ("control_character", _mend_control),
    ):
        mended = repair(current)
        if mended != current:
            steps.append((kind, mended))
            current = mended
    mended = _mend_bare_values(current)
    if mended != current:
        steps.append(("bare_value", mended))
    return steps


def _mend_encoding(text: bytes) -> bytes:
    return text.decode("utf-8", "replace").encode()


def _mend_bare_values(text: bytes) -> bytes:
    """NaN, Infinity and N/A outside of strings become null."""
    return _STRING_OR_BARE.sub(lambda m: m.group() if m.group()[:1] == b'"' else b"null", text)


def _mend_control(text: bytes) -> bytes:
    def escape(match: re.Match[bytes]) -> bytes:
        return _CONTROL.sub(lambda c: b"\\u%04x" % c.group()[0], match.group())

    return _STRING.sub(escape, text)


def _mend_names(text: bytes) -> bytes:
    """Escape quotes inside the event's name, which torch writes as they are."""
    return _QUOTED_NAME.sub(lambda m: m.group(1) + _LONE_QUOTE.sub(b'\\\\"', m.group(2)) + m.group(3), text)


def _is_open(piece: bytes) -> bool:
    """Whether braces or a string are still open at the end of the piece."""
    bare = _STRING.sub(b"", piece)
    return bare.count(b"{") > bare.count(b"}") or bare.count(b'"') % 2 == 1
