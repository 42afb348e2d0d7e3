"""The host side of a trace as arrays: the nesting of its spans, and which of them bear which names."""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.facts.launch_apis import SYNCHRONISATION
from tracekit.groups import codes_of, groups, or_none, runs
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray, Int64Array, NarrowArray, Nesting, kept_nesting, narrow, nest, take
from tracekit.trace import HOST_KINDS, Trace

__all__ = ["HostStack", "host_stack", "one_begins_in"]


class HostStack(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Row number = `span_id`. `thread` numbers the pairs (process, thread) in the order of the frame."""

    frame: pl.DataFrame
    nesting: Nesting
    kind: npt.NDArray[np.uint8]
    process: Int64Array
    sequence: NarrowArray  # −1 where there is none
    names: NameTable

    @property
    def thread(self) -> Int64Array:
        """The number of each span's thread."""
        return self.nesting.thread

    @property
    def start(self) -> Int64Array:
        """Each span's start in ns."""
        return self.nesting.start

    @property
    def end(self) -> Int64Array:
        """Each span's end in ns."""
        return self.nesting.end

    @cached_property
    def operator(self) -> NarrowArray:
        """The innermost operator around each span, itself included; −1 for none."""
        return narrow(self.nesting.nearest_ancestor(self.of_kind("op")), self.size)

    @property
    def size(self) -> int:
        """How many spans there are."""
        return int(self.start.size)

    def nesting_of(self, rows: Int64Array) -> Nesting:
        """The nesting of some spans among themselves."""
        return nest(self.thread[rows], self.start[rows], self.end[rows])

    def of_kind(self, *kinds: str) -> BoolArray:
        """Which spans are of one of these kinds."""
        mask = np.zeros(self.size, dtype=bool)
        for kind in kinds:
            mask |= self.kind == HOST_KINDS.index(kind)
        return mask

    def awaits_device(self) -> BoolArray:
        """Which spans are calls in which the host waits until the device is done."""
        return self.named(SYNCHRONISATION, "runtime", "sync") | self.of_kind("sync")

    def named(self, pattern: str, *kinds: str) -> BoolArray:
        """Which spans of these kinds (of all, when none is given) have a name that matches."""
        if kinds and self._occurring.isdisjoint(kinds):  # a pattern takes long to compile
            return np.zeros(self.size, dtype=bool)
        named = self.names.matching(pattern)
        return named & self.of_kind(*kinds) if kinds and named.any() else named

    @cached_property
    def _occurring(self) -> frozenset[str]:
        return frozenset(HOST_KINDS[kind] for kind in codes_of(self.kind)[1].tolist())

    def inside(self, pattern: str, spans: Int64Array, *kinds: str) -> BoolArray:
        """Which of these spans (by row, −1 for none) are, or lie in, one of these kinds whose name matches."""
        return take(self.nesting.nearest_ancestor(self.named(pattern, *kinds)), spans) >= 0

    def code_of(self, process: npt.ArrayLike, thread: npt.ArrayLike) -> Int64Array:
        """The number of each thread (process, thread), −1 for one without spans."""
        first = runs(self.thread)
        codes = self.thread[first]
        owners = self.process[first].tolist(), self.frame["thread_id"].to_numpy()[first].tolist()
        numbers = dict(zip(zip(*owners, strict=True), codes.tolist(), strict=True))
        wanted = groups(np.asarray(process, np.int64), np.asarray(thread, np.int64))
        pairs = zip(*(key.tolist() for key in wanted.keys), strict=True)
        return np.array([numbers.get(pair, -1) for pair in pairs], dtype=np.int64)[wanted.of]


def host_stack(trace: Trace) -> HostStack:
    """The spans of a trace; their nesting is that which the frame already holds."""
    host = trace.host
    numbers = or_none(host["sequence"])
    return HostStack(
        frame=host,
        nesting=kept_nesting(host),
        kind=host["kind"].to_physical().cast(pl.UInt8).to_numpy(),
        process=host["process_id"].to_numpy(),
        sequence=narrow(numbers, int(numbers.max(initial=0)) + 1),
        names=NameTable(host["name"]),
    )


def one_begins_in(spans: pl.DataFrame, process: Int64Array, at: Int64Array) -> BoolArray:
    """During which of the spans (`process`, `start`, `end`) one of the given times lies, of the same process."""
    of, start, end = (spans[name].to_numpy() for name in ("process", "start", "end"))
    mask = np.zeros(spans.height, dtype=bool)
    for each in codes_of(of)[1].tolist():
        mine, begins = np.flatnonzero(of == each), np.sort(at[process == each], kind="stable")
        after = np.searchsorted(begins, start[mine])
        mask[mine] = np.append(begins, np.iinfo(np.int64).max)[after] < end[mine]
    return mask
