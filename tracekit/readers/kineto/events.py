"""From bytes to event records: the streaming decoder of Chrome-format JSON.

The file is cut into blocks of whole events, and each block is decoded at once into typed records. A cut is a
guess (the last place in a block that looks like `},{`), and decoding proves it: a prefix of the array that decodes
is balanced, so the guess was right. A block that does not decode is read event by event (`salvage`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from tracekit.classes import dataclass
from tracekit.errors import UnreadableTraceError
from tracekit.limits import Limits
from tracekit.readers.kineto import native
from tracekit.readers.kineto.records import AnyEvent, ExactEvent, decode_array
from tracekit.readers.kineto.salvage import Defects, decode_object, depth_of, end_of_value, salvage
from tracekit.readers.kineto.source import Source

if TYPE_CHECKING:
    from tracekit.readers.kineto.pool import Caller, Pool, Threads

__all__ = ["EventStream", "Events", "plain_bytes"]

_EVENTS_KEY: Final = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_BETWEEN: Final = re.compile(rb"\}\s*,\s*(?=\{)")
_HEADER_LIMIT: Final = 256 << 20
_TAIL_LIMIT: Final = 64 << 20
_EVENT_LIMIT: Final = 64 << 20
"""No real event is this long; a longer one would only fill the memory."""
_GUESSES: Final = 3
_WINDOW: Final = 4 << 10
"""A key and its bracket are never further apart."""
_OPENINGS: Final = 8
"""How many places that look like the event array are tried although the braces say that they are nested deeper."""

Events = list[AnyEvent] | native.Block


class _UnderWay(NamedTuple):
    """A block that is decoded elsewhere: its text up to a cut, and what was read behind that."""

    text: bytearray
    size: int  # of what is there now; behind it may stand what was there before
    fresh: int  # so many bytes at its end are new; those before them were left by the block before
    answer: Future[bytes] | Future[native.Block | bytes]


@dataclass(slots=True)
class EventStream:
    """The events of a file; `header` holds the file's other top-level keys once `batches` is exhausted."""

    source: Source
    as_columns: bool = False
    """Whether blocks may come as columns instead of records."""
    header: dict[str, Any] = field(default_factory=dict)
    defects: Defects = field(default_factory=Defects)

    def batches(self, pool: Pool | Threads | Caller | None) -> Iterator[Events | bytes]:
        """The events of each block; with a `pool` of processes, blocks that these decoded are bytes.

        Cuts are guesses there as well. If a block does not decode, this process reads it and all blocks after it, which are the
        same as without a pool. Raises UnreadableTraceError if the file is not a trace at all.
        """
        blocks = self.source.blocks()
        rest = self._open_array(blocks)
        if pool is None:
            yield from self._one_by_one(rest, blocks)
            return
        under_way: deque[_UnderWay] = deque()
        spare: list[bytearray] = []
        text, size = bytearray(rest), len(rest)
        fresh = 0  # so many bytes at its end were read since the last cut
        while size:
            cut = self._last_cut(text, size)
            if cut is None:
                rest = bytes(text[:size])
                spare.append(text)
                if size > _EVENT_LIMIT:
                    break  # the slow path counts it
            else:
                under_way.append(_UnderWay(text, size, fresh, pool.submit(text, cut)))
                rest, fresh = bytes(text[_skip_comma(text, cut) : size]), 0
            while len(under_way) > pool.depth or (under_way and under_way[0].answer.done()):
                if not (answer := under_way[0].answer.result()):
                    break
                yield answer
                spare.append(under_way.popleft().text)
            if under_way and under_way[0].answer.done() and not under_way[0].answer.result():
                break
            text, size = self.source.behind(rest, blocks, spare)
            if size == len(rest):
                break
            fresh += size - len(rest)
        while under_way and (answer := under_way[0].answer.result()):
            under_way.popleft()
            yield answer
        if under_way:
            read = [bytes(one.text[one.size - one.fresh : one.size]) for one in list(under_way)[1:]]
            blocks = chain(read, (rest[len(rest) - fresh :],), blocks)
            rest = bytes(under_way[0].text[: under_way[0].size])
        under_way.clear()
        yield from self._one_by_one(rest, blocks)

    def opened(self) -> tuple[bytes, Iterator[bytes]]:
        """The plain bytes of the file up to and including the bracket that opens the event array, and the blocks after it.

        Raises UnreadableTraceError if the file is not a trace at all.
        """
        read: list[bytes] = []
        blocks = self.source.blocks()
        beyond = self._open_array(_kept_in(read, blocks))
        head = b"".join(read)
        return head[: len(head) - len(beyond)], chain((beyond,), blocks)

    def _one_by_one(self, pending: bytes, blocks: Iterator[bytes]) -> Iterator[Events]:
        ended = False
        for block in chain((b"",), blocks):
            pending += block
            cut = self._last_cut(pending)
            if cut is None:
                if len(pending) > _EVENT_LIMIT:
                    self.defects.add("oversized_event", pending[:120])
                    return
                continue
            events, used, ended = self._decode(pending, cut)
            pending = pending[used:]
            if events:
                yield events
            if ended:
                break
        if not ended:
            events, used, ended = self._decode_last(pending)
            pending = pending[used:]
            if events:
                yield events
        if self.source.damaged:
            self.defects.add("damaged_gzip", self.source.path.name)
        if not ended or self.source.truncated:
            self.defects.add("truncated_file", pending[:120])
        self._read_tail(pending if ended else b"", blocks)

    def _open_array(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the opening bracket of the event array; returns the bytes after it."""
        head = b""
        searched = counted = depth = tried = 0
        for block in blocks:
            head = head + block if head else block.removeprefix(b"\xef\xbb\xbf").lstrip()
            if head and head[:1] == b"[":
                return head[1:]
            if head and head[:1] != b"{":
                self.source.refuse_foreign(head)
                raise UnreadableTraceError(
                    "it is not a JSON trace", path=self.source.path, remedy="give a PyTorch-profiler trace"
                )
            for match in _EVENTS_KEY.finditer(head, searched):
                depth += depth_of(head[counted : match.start()])
                counted = match.start()
                tried += 1
                if depth != 1 and tried > _OPENINGS:
                    continue
                parsed = decode_object(head[: match.start()] + b'"traceEvents":[]}', self.defects)
                if parsed is not None:
                    parsed.pop("traceEvents", None)
                    self.header.update(parsed)
                    return head[match.end() :]
            searched = max(counted + 1, len(head) - _WINDOW) if counted else max(0, len(head) - _WINDOW)
            if len(head) > _HEADER_LIMIT:
                break
        fault = "it holds no traceEvents"
        if not head:
            fault = "the file is empty"
        elif head and decode_object(head, Defects()) is None:
            fault = "it is truncated or damaged before the first event"
        raise UnreadableTraceError(fault, path=self.source.path, remedy="give a PyTorch-profiler trace")

    @staticmethod
    def _last_cut(text: bytes | bytearray, before: int | None = None) -> int | None:
        """The position just behind the last `}` that is followed by `,` and `{`."""
        high = len(text) if before is None else before
        reach = 1 << 14
        while True:
            low = max(0, high - reach)
            cut = None
            for match in _BETWEEN.finditer(text, low, min(len(text), high + 1)):
                if match.start() + 1 < high:
                    cut = match.start() + 1
            if cut is not None or low == 0:
                return cut
            reach *= 8

    def _decode(self, text: bytes, cut: int) -> tuple[Events, int, bool]:
        """The events of text[:cut], the number of bytes used, and True if the array ended."""
        guess: int | None = cut
        for _ in range(_GUESSES):
            if guess is None:
                break
            block = native.decode(text, guess) if self.as_columns else None
            if block is not None:
                return block, block.used if block.ended else _skip_comma(text, guess), block.ended
            array = b"[" + text[:guess] + b"]"
            try:
                return decode_array(array), _skip_comma(text, guess), False
            except msgspec.ValidationError:
                break  # well-formed, but a field has an odd type: read event by event
            except msgspec.DecodeError as error:
                end = end_of_value(error, array)
                if end is not None:
                    return decode_array(array[:end]), end - 1, True
            except (UnicodeDecodeError, RecursionError):
                break
            guess = self._last_cut(text, guess)
        events, used, ended = _salvage(text[:cut], self.defects, final=False)
        while not ended and text[used : used + 1] in (b",", b" ", b"\n", b"\r", b"\t"):
            used += 1
        return events, used, ended

    def _decode_last(self, text: bytes) -> tuple[Events, int, bool]:
        block = native.decode(text, len(text)) if self.as_columns else None
        if block is not None and block.ended:
            return block, block.used, True
        array = b"[" + text
        end: int | None = len(array)
        try:
            return decode_array(array), len(text), True
        except msgspec.DecodeError as error:
            end = end_of_value(error, array)
        except (UnicodeDecodeError, RecursionError):
            end = None
        if end is not None:
            try:
                return decode_array(array[:end]), end - 1, True
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return _salvage(text, self.defects, final=True)
        return _salvage(text, self.defects, final=True)

    def _read_tail(self, tail: bytes, blocks: Iterator[bytes]) -> None:
        """Keys that follow the event array."""
        for block in blocks:
            if len(tail) < _TAIL_LIMIT:
                tail += block
        text = tail.strip().removeprefix(b"]").strip().removeprefix(b",").strip()
        if text in (b"", b"}"):
            return
        parsed = decode_object(b"{" + text, self.defects)
        if parsed is None:
            self.defects.add("unreadable_tail", text[:120])
            return
        if parsed.pop("traceEvents", None) is not None:
            self.defects.add("unreadable_tail", "a second traceEvents")
        self.header.update(parsed)


@contextmanager
def plain_bytes(path: Path, limits: Limits | None) -> Iterator[tuple[bytes, Iterator[bytes]]]:
    """`EventStream.opened` of a file, which is closed afterwards."""
    with closing(Source(path, limits)) as source:
        yield EventStream(source).opened()


def _kept_in(read: list[bytes], blocks: Iterator[bytes]) -> Iterator[bytes]:
    for block in blocks:
        read.append(block)
        yield block


def _skip_comma(text: bytes | bytearray, cut: int) -> int:
    return text.index(b",", cut) + 1


def _salvage(text: bytes, defects: Defects, *, final: bool) -> tuple[list[AnyEvent], int, bool]:
    events, used, ended = salvage(text, defects, ExactEvent, final=final)
    return cast("list[AnyEvent]", events), used, ended
