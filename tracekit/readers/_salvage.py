"""Reading what can be read of damaged JSON, one event at a time, and counting what was met."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

__all__ = ["Defects", "decode_object", "end_of_value", "salvage"]

_Record = TypeVar("_Record", bound=msgspec.Struct)

_SPLIT: Final = re.compile(rb"\}\s*,\s*(?=\{)")
_EVENT_BEGINS: Final = re.compile(rb',\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)"\s*:)')
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
_BETWEEN: Final = b" \t\r\n,"
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        parsed = None
        for _, repaired in _repairs(text):
            try:
                parsed = msgspec.json.decode(repaired)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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
        begin += len(text[begin : cuts[index]]) - len(text[begin : cuts[index]].lstrip(_BETWEEN))
        got, joined = _decode_joined(text, begin, cuts, index, decoder, defects)
        if got is None:
            piece = text[begin : cuts[index]]
            skipped = _to_next_event(piece)
            if skipped:
                defects.add("malformed_event", piece[:skipped])
                begin += skipped
                continue
            if index == len(cuts) - 1:
                return _end_of_pieces(text, begin, piece, records, defects, final=final)
            defects.add("malformed_event", piece)
            begin, index = cuts[index], index + 1
            continue
        value, end, ended = got
        records.append(value)
        if ended:
            return records, begin + end, True
        if begin + end < cuts[joined] and text[begin + end : cuts[joined]].strip(_BETWEEN):
            begin, index = begin + end, joined  # the piece holds more than one value
        else:
            begin, index = cuts[joined], joined + 1
    return records, len(text), False


def _decode_joined(
    text: bytes,
    begin: int,
    cuts: list[int],
    index: int,
    decoder: msgspec.json.Decoder[_Record],
    defects: Defects,
) -> tuple[tuple[_Record, int, bool] | None, int]:
    """The event that begins at `begin`; a `},{` inside its arguments or names may have cut it in pieces."""
    for attempt in (_try, _repair):
        joined = index
        while True:
            piece = text[begin : cuts[joined]]
            got = attempt(piece, decoder, defects)
            more = joined + 1 < len(cuts) and joined - index < _JOIN_LIMIT and len(piece) < _JOIN_BYTES
            if got is not None:
                return got, joined
            if not more or not _is_open(piece):
                break
            joined += 1
        if _to_next_event(text[begin : cuts[index]]):
            break  # what looks like a broken name would swallow the event behind it
    return None, index


def _to_next_event(piece: bytes) -> int:
    """How many bytes of a piece that does not decode lie before the next event that begins in it; 0 without one."""
    if piece[:1] not in (b"{", b"]", b""):
        return max(piece.find(b"{"), 0)  # a number, a null or a list between two events
    match = _EVENT_BEGINS.search(piece, 1)
    return match.end() if match else 0


def _end_of_pieces(
    text: bytes, begin: int, piece: bytes, records: list[_Record], defects: Defects, *, final: bool
) -> tuple[list[_Record], int, bool]:
    if not final and _is_open(piece):
        return records, begin, False
    ended = piece[:1] == b"]"
    if piece and not ended and not final:
        defects.add("malformed_event", piece)
    return records, begin if final else len(text), ended


def _repair(
    piece: bytes, decoder: msgspec.json.Decoder[_Record], defects: Defects
) -> tuple[_Record, int, bool] | None:
    """Like `_try`, after ever stronger repairs."""
    for kind, repaired in _repairs(piece):
        got = _try(repaired, decoder, defects)
        if got is None:
            continue
        defects.add(kind, piece)
        value, end, ended = got
        # The end was found in the repaired text; what is behind it is as long as in the original.
        return value, len(piece) - (len(repaired) - end), ended
    return None


def _try(
    piece: bytes, decoder: msgspec.json.Decoder[_Record], _defects: Defects
) -> tuple[_Record, int, bool] | None:
    """The record, where it ended in the piece, and whether the array ended behind it; None when it is unreadable."""
    try:
        return decoder.decode(piece), len(piece), False
    except (msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return None
    except msgspec.DecodeError as error:
        end = end_of_value(error, piece)
    if end is None:
        return None
    rest = piece[end:].lstrip()
    if rest[:1] not in (b"]", b","):
        return None
    try:
        return decoder.decode(piece[:end]), end, rest[:1] == b"]"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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
