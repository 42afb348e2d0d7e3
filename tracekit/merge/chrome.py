"""One Chrome trace of all ranks: every event of theirs on one clock, with numbers that no two ranks share, and a track of each
rank's collectives, on which arrows lead from the rank that came last to those that waited for it.

The tracks are of a category that tracekit's reader leaves out, so that the figures of a rank stay those of its own file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import field
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from tracekit.classes import dataclass
from tracekit.facts.capture_names import ENRICHED_CATEGORY, MERGED_KEY
from tracekit.files import write_chunks
from tracekit.job import Job
from tracekit.limits import Limits
from tracekit.merge.part import Part
from tracekit.merge.waits import tracks
from tracekit.readers.kineto.columns import times
from tracekit.readers.kineto.events import EventStream
from tracekit.readers.kineto.records import AnyEvent
from tracekit.readers.kineto.source import Source
from tracekit.report.chrome import gzipped, micros

__all__ = ["write_chrome"]

_STRIDE: Final = 1 << 32
"""Numbers of correlations, flows and operators are smaller; those of a rank begin at a multiple of it."""
_DEVICE: Final = (b"device", b"Device Id", b"src device", b"dst device")
_NUMBERED: Final = re.compile(
    rb'"(correlation|[Ee]xternal id|wait_on_cuda_event_record_corr_id|Python (?:parent |module )?id|%b)"(\s*:\s*"?)(\d{1,10})(?=[",}\s])'
    % b"|".join(_DEVICE)
)
"""Arguments that number something of the rank. A quote within a text is escaped, so that no text looks like one."""
_WHO: Final = ("process_name", "process_sort_index")
_HOST: Final = ("", "CPU")
"""Labels that do not tell a process from another."""
_APART: Final = 1_000
"""So far apart are the places of the ranks, among which those of a rank's processes lie."""


class _Written(msgspec.Struct, omit_defaults=True, gc=False):
    """An event as it is written."""

    ph: str
    cat: str | None = None
    name: str | int | float | None = None
    pid: int | None = None
    tid: int | str | float | None = None
    ts: msgspec.Raw | None = None
    dur: msgspec.Raw | None = None
    id: int | str | None = None
    bp: str | None = None
    s: str | None = None
    args: msgspec.Raw | None = None


@dataclass(slots=True)
class _Numbers:
    """The processes and devices of a rank, and what they are in the merged trace."""

    part: Part
    place: int
    fresh: Callable[[], int]
    new: dict[int | str, int] = field(default_factory=dict)
    names: dict[int | str, str] = field(default_factory=dict)
    labels: dict[int | str, str] = field(default_factory=dict)
    """Such as `GPU 0`."""

    def process(self, number: object) -> int:
        """The new number of a process or device."""
        key = _key(number)
        if key not in self.new:
            self.new[key] = self.fresh()
        return self.new[key]

    def args(self, raw: bytes) -> bytes:
        """The arguments with new numbers."""
        return _NUMBERED.sub(self._renumbered, raw)

    def _renumbered(self, found: re.Match[bytes]) -> bytes:
        name, colon, number = found.groups()
        new = self.process(int(number)) if name in _DEVICE else self.link(int(number))
        return b'"%b"%b%d' % (name, colon, new)

    def link(self, number: int) -> int:
        """The new number of a correlation, a flow or an operator."""
        return number + self.place * _STRIDE if 0 <= number < _STRIDE else number

    def flow(self, number: object) -> int | str:
        """The same of the number of a flow, which may be a text."""
        whole = _key(number)
        return self.link(whole) if isinstance(whole, int) else f"{whole}.{self.place}"

    def titles(self) -> Iterator[_Written]:
        """The names of the processes, which begin with the rank, and their order."""
        for place, (key, number) in enumerate(self.new.items()):
            told = (
                " ".join(filter(None, (self.names.get(key), self.labels.get(key, str(key))))) or "no process"
            )
            yield _meta("process_name", number, {"name": f"{self.part.label}: {told}"})
            order = self.place * _APART + min(place, _APART - 2) + 1
            yield _meta("process_sort_index", number, {"sort_index": order})


def write_chrome(
    job: Job, parts: Sequence[Part], output: str | os.PathLike[str], *, limits: Limits | None = None
) -> int:
    """Write the trace, gzipped if `output` ends in `.gz`, whole or not at all; equal input gives equal bytes.

    Returns the number of arrows. Raises UnreadableTraceError for a trace that cannot be read, and UsageError if the file cannot be
    written or is one of the traces.
    """
    fresh = count().__next__
    lines, arrows = tracks(job, parts[0].zero_ns, {part.at: fresh() for part in parts})
    chunks = _chunks(job, parts, lines, fresh, limits or Limits())
    write_chunks(output, gzipped(chunks) if Path(output).suffix == ".gz" else chunks)
    return arrows


def _chunks(
    job: Job, parts: Sequence[Part], lines: Iterator[bytes], fresh: Callable[[], int], limits: Limits
) -> Iterator[bytes]:
    yield b'{"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": [\n'
    yield from lines
    tail: dict[str, Any] = {}
    devices: list[Any] = []
    for place, part in enumerate(parts):
        numbers = _Numbers(part, place, fresh)
        with closing(Source(part.path, limits)) as source:
            stream = EventStream(source)
            for batch in stream.batches(None):
                assert isinstance(batch, list)  # noqa: S101 - nothing else was asked for
                yield _encoded(_moved(batch, numbers))
        found = stream.header.get("deviceProperties")
        devices += [
            {**one, "id": numbers.process(one["id"])}
            for one in (found if isinstance(found, list) else [])
            if isinstance(one, dict) and isinstance(one.get("id"), int)
        ]
        if part.offset_ns == 0 and isinstance(base := stream.header.get("baseTimeNanoseconds"), int):
            tail["baseTimeNanoseconds"] = base
        yield _encoded(list(numbers.titles()), last=place == len(parts) - 1)
    size, backend = job.ranks.world_size, job.ranks.members[0].summary.facts.backend
    known = {"backend": backend, "world_size": size}
    tail["distributedInfo"] = {name: value for name, value in known.items() if value is not None}
    tail["deviceProperties"] = devices
    tail[MERGED_KEY] = len(parts)
    yield b"],\n" + msgspec.json.encode(tail)[1:]


def _encoded(events: Sequence[_Written], *, last: bool = False) -> bytes:
    text = msgspec.json.encode(events)[1:-1]
    return text if last or not text else text + b",\n"


def _moved(batch: Sequence[AnyEvent], numbers: _Numbers) -> list[_Written]:
    """The events on the clock of the merged trace, with the numbers of the merged trace."""
    starts = _texts(times([event.ts for event in batch]) + numbers.part.offset_ns)
    durations = _texts(times([event.dur for event in batch]))
    made = []
    for event, start, duration in zip(batch, starts, durations, strict=True):
        if event.ph == "M" and event.name in _WHO:
            if event.name == "process_name":
                numbers.names.setdefault(_key(event.pid), _text_in(event.args, "name"))
            continue
        if (
            event.ph == "M"
            and event.name == "process_labels"
            and (label := _text_in(event.args, "labels")) not in _HOST
        ):
            numbers.labels.setdefault(_key(event.pid), label)
        args = bytes(event.args)
        made.append(
            _Written(
                event.ph,
                event.cat,
                event.name,
                numbers.process(event.pid),
                event.tid,
                None if start is None or event.ph == "M" else msgspec.Raw(start.encode()),
                None if duration is None else msgspec.Raw(duration.encode()),
                None if event.id is None else numbers.flow(event.id),
                "e" if event.ph == "f" else None,
                "t" if event.ph in ("i", "I") else None,
                msgspec.Raw(numbers.args(args)) if event.ph != "M" and args != b"{}" else event.args,
            )
        )
    return made


def _texts(ns: pl.Series) -> list[str | None]:
    return ns.alias("ns").to_frame().select(micros("ns")).to_series().to_list()


def _key(number: object) -> int | str:
    if isinstance(number, int):
        return number
    text = "" if number is None else str(number)
    return int(text) if re.fullmatch(r"\d{1,10}", text) else text


def _text_in(args: msgspec.Raw, key: str) -> str:
    try:
        found = msgspec.json.decode(args)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return str(found.get(key, "")) if isinstance(found, dict) else ""


def _meta(name: str, process: int, args: dict[str, object]) -> _Written:
    raw = msgspec.Raw(msgspec.json.encode(args))
    return _Written("M", ENRICHED_CATEGORY, name, process, 0, args=raw)
