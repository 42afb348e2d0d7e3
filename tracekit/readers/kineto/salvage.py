"""Reads damaged JSON as far as possible, one event at a time, and counts the defects."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any, Final, Generic, TypeVar

import msgspec

from tracekit.classes import dataclass

__all__ = ["Defects", "decode_object", "depth_of", "end_of_value", "salvage"]

_Record = TypeVar("_Record", bound=msgspec.Struct)
_Value = TypeVar("_Value")

_SPLIT: Final = re.compile(rb"\}\s*,\s*(?=\{)")
_EVENT_BEGINS: Final = re.compile(rb',\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id)"\s*:)')
_SEPARATORS: Final = re.compile(rb"[\s,]*")
# Every quote begins a match, closed or not: a search that fails at each of a million quotes would never end.
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_STRING_OR_OPEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(")[^"\\]*(?:\\.[^"\\]*)*\\?\Z', re.DOTALL)
_STRING_ENDS: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BARE: Final = re.compile(rb"(?<![\w.+-])-?(?:Infinity|inf|INF|NaN|nan|NAN|N/A|n/a|undefined|None)(?![\w])")
_STRING_OR_BARE: Final = re.compile(_STRING.pattern + rb"|" + _BARE.pattern, re.DOTALL)
_SCALAR: Final = re.compile(rb'(?:[-+.\w]+|"[^"\\]*(?:\\.[^"\\]*)*")(?=[\s,\]])', re.DOTALL)
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
_NAME_BEGINS: Final = re.compile(rb'"name"\s*:\s*"')
_NAME_ENDS: Final = re.compile(
    rb'"\s*,\s*"(?:ph|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:|"\s*\}\s*\Z', re.DOTALL
)
_LONE_QUOTE: Final = re.compile(rb'(?<!\\)"')
_SURROGATES: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_SURPLUS: Final = "trailing characters"
_TRAILING: Final = re.compile(_SURPLUS + r" \(byte (\d+)\)")
_TRUNCATED: Final = "truncated"
_STRUCTURE: Final = "object keys must be strings"
_BROKEN: Final = -1
_EXAMPLE: Final = 200
_WINDOW: Final = 4 << 10
_SLICE: Final = 1 << 20
_LONGEST: Final = 16 << 20
_JOIN_LIMIT: Final = 64
_JOIN_BYTES: Final = 1 << 20
_REPAIRED_BYTES: Final = 4 << 20
"""The keys around the events hold a few kB and an event hardly more, so what is longer is damaged beyond repair."""
_ALLOWANCE: Final = 4
"""How many times its own size a text may be searched in vain: crafted damage can make each search longer than the last."""

_ANYTHING: Final = msgspec.json.Decoder(msgspec.Raw)


@dataclass(slots=True)
class Defects:
    """Counts of defects by kind, each with one example."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, example: bytes | str = "", count: int = 1) -> None:
        """Count `count` more defects of this kind; keep the first example."""
        if count <= 0:
            return
        self.counts[kind] = self.counts.get(kind, 0) + count
        if kind not in self.examples:
            text = example.decode("utf-8", "replace") if isinstance(example, bytes) else example
            self.examples[kind] = " ".join(text.split())[:160]


def decode_object(text: bytes, defects: Defects) -> dict[str, Any] | None:
    """One JSON object, repaired if possible and not longer than `_REPAIRED_BYTES`; None if it cannot be read."""
    try:
        parsed = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        parsed = None
        for _, repaired in _repairs(text) if len(text) <= _REPAIRED_BYTES else ():
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
    """Decode `text` (events separated by commas) piece by piece, in time that grows with its length alone.

    Returns the records, the number of bytes used, and True if the array ended. With `final` false, an
    incomplete last piece is left for the next block; with `final` true it is dropped.
    """
    text, lone = _without_lone_surrogates(text)
    records, used, ended = _salvage(text, defects, record, final=final)
    mended = [at for at in lone if at < used]
    if mended:
        defects.add("invalid_utf8", _around(text, mended[0]), len(mended))
    return records, used, ended


def _around(text: bytes, at: int) -> bytes:
    """What stands around this place, up to braces: no more of it depends on where the block begins and ends."""
    least, most = max(0, at - _EXAMPLE // 2), at + _EXAMPLE // 2
    begin, end = text.rfind(b"{", least, at), text.find(b"}", at, most)
    return text[least if begin < 0 else begin : most if end < 0 else end + 1]


def _salvage(
    text: bytes, defects: Defects, record: type[_Record], *, final: bool
) -> tuple[list[_Record], int, bool]:
    pieces = _Pieces(text, msgspec.json.Decoder(record), defects, final=final)
    records: list[_Record] = []
    begin = 0
    while True:
        begin = _end_of(_SEPARATORS, text, begin)
        if begin == len(text):
            return records, begin, False
        if text[begin : begin + 1] == b"]":
            return records, begin, True
        value, end = pieces.at(begin)
        if value is not None:
            records.append(value)
        elif end > begin:
            defects.add("malformed_event", text[begin : min(end, begin + _EXAMPLE)])
        else:
            return records, begin, False
        begin = end


class _Pieces(Generic[_Record]):
    """One text, the likely ends of its events, and the number of bytes that may still be searched in vain."""

    def __init__(
        self, text: bytes, decoder: msgspec.json.Decoder[_Record], defects: Defects, *, final: bool
    ) -> None:
        self.text = text
        self.decoder = decoder
        self.defects = defects
        self.final = final
        self.cuts = [match.start() + 1 for match in _SPLIT.finditer(text)] + [len(text)]
        self.index = 0
        self.allowance = _ALLOWANCE * len(text) + _JOIN_BYTES

    def at(self, begin: int) -> tuple[_Record | None, int]:
        """The event that begins here and its end; without an event, the end of the text to leave out.

        That end is `begin` itself if it is not known yet: the rest of the text belongs to the next block.
        """
        while self.cuts[self.index] <= begin:
            self.index += 1
        is_object = self.text[begin : begin + 1] == b"{"
        other, end = None, _BROKEN
        if is_object:
            value, end = self._decode(begin, self.decoder)
            if value is not None:
                return value, end
        if not is_object or end != _BROKEN:
            # Well-formed, but not an event: text that is not UTF-8, a field of an odd type, a number between two events.
            other, end = self._decode(begin, _ANYTHING)
        if other is not None:
            return self._with_mended_encoding(self.text[begin:end]), end
        if end > begin and not self.final:
            return None, begin
        if not is_object:
            return None, self._junk(begin)
        following = _EVENT_BEGINS.search(self.text, begin + 1, self.cuts[self.index])
        if following:
            # No repair: it would take the next event for a part of a broken name.
            return None, following.end()
        return self._repair(begin)

    def _decode(self, begin: int, decoder: msgspec.json.Decoder[Any]) -> tuple[Any, int]:
        """A value and its end; without a value, the end of the text if it is still open there, `_BROKEN`, or else `begin`."""
        first = self.cuts[self.index] - begin
        size = first if first <= _WINDOW else _WINDOW
        spent = 0
        while True:
            piece = self.text[begin : begin + size]
            got, failure = _try(piece, decoder)
            if got is not None:
                self.allowance += spent
                return got[0], begin + got[1]
            if failure != _TRUNCATED:
                return None, _BROKEN if failure == _STRUCTURE else begin
            if begin + size >= len(self.text):
                return None, len(self.text) if size <= _LONGEST else begin
            if size >= min(_LONGEST, max(self.allowance, _WINDOW)):
                return None, begin
            spent += size
            self.allowance -= size
            size = max(2 * size, _WINDOW)

    def _with_mended_encoding(self, piece: bytes) -> _Record | None:
        """The event in a well-formed piece; a repair of quotes would change its meaning."""
        mended = _mend_encoding(piece)
        got = None if mended == piece else _try(mended, self.decoder)[0]
        if got is None:
            return None
        self.defects.add("invalid_utf8", piece[:_EXAMPLE])
        return got[0]

    def _junk(self, begin: int) -> int:
        """The end of a bare number or text, else of the text before the next brace."""
        if scalar := _SCALAR.match(self.text, begin):
            return scalar.end()
        brace = self.text.find(b"{", begin)
        return brace if brace > 0 else len(self.text)

    def _repair(self, begin: int) -> tuple[_Record | None, int]:
        """The event after stronger and stronger repairs; a `},{` in its arguments or name may have cut it into pieces."""
        text, cuts, index = self.text, self.cuts, self.index
        for joined in range(index, min(index + _JOIN_LIMIT, len(cuts))):
            piece = text[begin : cuts[joined]]
            if len(piece) > (_JOIN_BYTES if joined > index else _REPAIRED_BYTES):
                break
            self.allowance -= len(piece)
            if self.allowance < 0:
                break
            value, end = self._repaired(begin, piece)
            if end > begin:
                return value, end
            if not _is_open(piece):
                break
            if joined == len(cuts) - 1 and not self.final and len(piece) < _LONGEST:
                return None, begin
        if index == len(cuts) - 1 and self.final:
            return None, begin
        return None, cuts[index]

    def _repaired(self, begin: int, piece: bytes) -> tuple[_Record | None, int]:
        """The event at the start of this piece and its end, after stronger and stronger repairs.

        Without an event, the end of the value if the repairs gave a well-formed value, else `begin`.
        """
        repaired = piece
        for kind, repaired in _repairs(piece):
            got, _ = _try(repaired, self.decoder)
            if got is not None:
                self.defects.add(kind, piece[:_EXAMPLE])
                # This end is in the repaired text; the text after it is as long as in the original.
                return got[0], begin + len(piece) - (len(repaired) - got[1])
        other, _ = _try(repaired, _ANYTHING)
        return None, begin if other is None else begin + len(piece) - (len(repaired) - other[1])


def _end_of(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _try(piece: bytes, decoder: msgspec.json.Decoder[_Value]) -> tuple[tuple[_Value, int] | None, str]:
    """The value at the start of a piece and its end; without a value, how it failed.

    That is `_TRUNCATED` if more text could complete it, `_STRUCTURE` if no decoder can read it, or else nothing.
    """
    try:
        return (decoder.decode(piece), len(piece)), ""
    except (msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return None, ""
    except msgspec.DecodeError as error:
        message = str(error)
        end = end_of_value(error, piece) if _SURPLUS in message else None
        if end is None:
            if _STRUCTURE in message:
                return None, _STRUCTURE
            # Of a number whose last byte is missing the decoder says that this byte is wrong.
            is_open = _TRUNCATED in message or message.endswith(f"(byte {len(piece)})")
            return None, _TRUNCATED if is_open else ""
    try:
        return (decoder.decode(piece[:end]), end), ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, ""


def end_of_value(error: msgspec.DecodeError, text: bytes) -> int | None:
    """The end of the JSON value at the start of `text`, if the error is about the text after it."""
    match = _TRAILING.search(str(error))
    if match is None:
        return None
    # The decoder names the byte after the first surplus byte; later releases may name the surplus byte itself.
    for end in (int(match.group(1)) - 1, int(match.group(1))):
        value = text[:end].rstrip()
        if value[-1:] in (b"]", b"}"):
            return len(value)
    return None


def _repairs(text: bytes) -> list[tuple[str, bytes]]:
    """Stronger and stronger repairs, each based on the one before, with the kind of its defect."""
    steps: list[tuple[str, bytes]] = []
    current = text
    for kind, repair in (
        ("invalid_utf8", _mend_encoding),
        ("invalid_utf8", _mend_surrogates),
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
    if not _BARE.search(text):  # most texts, and every string of them would be a call
        return text
    return _STRING_OR_BARE.sub(lambda m: m.group() if m.group()[:1] == b'"' else b"null", text)


def _mend_control(text: bytes) -> bytes:
    if not _CONTROL.search(text):
        return text

    def escape(match: re.Match[bytes]) -> bytes:
        return _CONTROL.sub(lambda c: b"\\u%04x" % c.group()[0], match.group())

    return _STRING.sub(escape, text)


def _mend_surrogates(text: bytes) -> bytes:
    return _without_lone_surrogates(text)[0]


def _without_lone_surrogates(text: bytes) -> tuple[bytes, list[int]]:
    """The text, of the same length, and the places of lone surrogates, which Python writes for odd file names.

    They are valid JSON, but not characters, and the decoder refuses them everywhere.
    """
    lone = [match.start(1) for match in _SURROGATES.finditer(text) if match.group(1)]
    if not lone:
        return text, lone
    mended = bytearray(text)
    for at in lone:
        mended[at : at + 6] = b"\\ufffd"
    return bytes(mended), lone


def _mend_names(text: bytes) -> bytes:
    """Escape the quotes inside an event's name, which torch writes without escapes."""
    parts = []
    done = 0
    while begins := _NAME_BEGINS.search(text, done):
        ends = _NAME_ENDS.search(text, begins.end())
        if ends is None:
            break
        parts += [text[done : begins.end()], _LONE_QUOTE.sub(b'\\"', text[begins.end() : ends.start()])]
        done = ends.start()
    return b"".join([*parts, text[done:]])


def _is_open(piece: bytes) -> bool:
    """True if a brace or a string is still open at the end of the piece."""
    bare, is_open = _without_strings(piece)
    return is_open or bare.count(b"{") > bare.count(b"}")


def _without_strings(text: bytes) -> tuple[bytes, bool]:
    """What stands outside of strings, and True if one is still open at the end."""
    parts = _STRING_OR_OPEN.split(
        text
    )  # between two texts the quote that opens a string without an end, or None
    return b"".join(parts[::2]), b'"' in parts[1::2]


def depth_of(text: bytes) -> int:
    """The number of opened minus closed braces and brackets outside strings.

    Taken in slices, since a regular expression remembers each of its matches: 40 MB of quotes would take 2 GB.
    """
    depth = begin = 0
    is_open = False
    while begin < len(text):
        piece = text[begin : begin + _SLICE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = text[begin : begin + _SLICE + 1]  # what is escaped belongs to its backslash
        begin += len(piece)
        if is_open:
            rest = _STRING_ENDS.match(piece)
            if rest is None:
                continue
            piece = piece[rest.end() :]
        bare, is_open = _without_strings(piece)
        depth += bare.count(b"{") + bare.count(b"[") - bare.count(b"}") - bare.count(b"]")
    return depth
