"""The launches of a process in the order of the host, and what lies between them: copies, data loading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.program import program
from tracekit.analyses.steps_inferred.repetitions import Symbols
from tracekit.facts.kernel_rules import OPTIMIZER_RANGE
from tracekit.facts.stack_names import HOST_TO_DEVICE, PHASE_MARKERS
from tracekit.spans import BoolArray, Int64Array, take
from tracekit.trace import Trace, one_of

__all__ = ["LaunchSequence", "sequences"]

_NETWORK: Final = (
    "gemm",
    "convolution",
    "attention",
    "normalisation",
    "softmax",
    "embedding",
    "optimizer",
    "rnn",
    "pooling",
)
"""Categories of kernels that show a neural network, unless they compute in double precision."""

_DOUBLE: Final = r"(?i)\bdouble\b|float64|\bdgem|_d884|\bcudaDataType_t\)1\b"

_NO_OPTIMIZER: Final = r"(?i)copy|norm|zero|fill"
"""Kernels over many tensors that are no optimizer's: FSDP copies the weights of each layer so, and norms clip gradients."""

_OPTIMIZER_RANGES: Final = (OPTIMIZER_RANGE, *(p for p, phase, _ in PHASE_MARKERS if phase == "optimizer"))
_LOADER_RANGES: Final = tuple(pattern for pattern, phase, _ in PHASE_MARKERS if phase == "data")
_PASSES: Final = tuple(pattern for pattern, phase, _ in PHASE_MARKERS if phase in ("forward", "backward"))

_LEAST_NETWORK: Final = 0.05
"""Share of the launches from which on they are a network."""

_LEAST_SHARE: Final = 0.1
"""Share of the launches from which on a thread takes part in every step."""

_DEEPEST: Final = 1000
"""Levels of spans that are looked through; what lies deeper counts as part of something."""

_LEAST_PART: Final = 0.5
"""Share of the launches that a single thread or stream must hold to be looked at alone."""


@dataclass(frozen=True, slots=True, eq=False)
class LaunchSequence:
    """One row per launch call that put kernels on the device, in the order of the calls.

    `symbols` stand for the kernels' names, `at` is the start of the call in ns, `activities` and `duration` what it
    launched, `span` its host span (−1 for none). `optimizer`: it belongs to an optimizer. Between the launch before and
    it, `fed`: a copy to the device was launched; `loaded`: the data loader was asked. `pytorch`: the program uses it.
    `neural`: the kernels are a network's. `whole`: these are all launches on the device.
    """

    trace: Trace
    symbols: Symbols
    kernels: Symbols  # of the activities, one by one
    first: Int64Array  # of each launch, its first activity
    at: Int64Array
    activities: Int64Array
    duration: Int64Array
    span: Int64Array
    optimizer: BoolArray
    fed: BoolArray
    loaded: BoolArray
    pytorch: bool
    neural: bool
    whole: bool
    copies: Int64Array  # when copies to the device were launched, in order
    passes: pl.Series  # names of ranges around forward and backward passes
    threads: tuple[Int64Array, ...]  # when each thread launches that makes a large share of all launches

    @property
    def launched(self) -> bool:
        """Whether most launches were recorded."""
        return bool((self.span >= 0).mean() >= _LEAST_PART)

    @property
    def breaks(self) -> Int64Array:
        """The time since the launch before, in ns; 0 for the first."""
        return np.diff(self.at, prepend=self.at[:1])

    def enclosed(self, launches: Int64Array) -> BoolArray:
        """Which of these launches lie in an operator, module or forward or backward pass together with the launch before."""
        host = self.trace.host
        kind, name, parent, since = (host[column] for column in ("kind", "name", "parent_id", "start"))
        before = np.where(launches > 0, self.at[launches - 1], np.iinfo(np.int64).min)
        inside = np.zeros(launches.size, np.bool_)
        which = np.flatnonzero(self.span[launches] >= 0)
        span = self.span[launches][which]
        for _ in range(_DEEPEST):
            larger = pl.DataFrame({"kind": kind.gather(span), "name": name.gather(span)}).select(
                one_of("kind", "op", "module")
                | ((pl.col("kind") == "annotation") & pl.col("name").is_in(self.passes.implode()))
            )
            inside[which] |= larger.to_series().to_numpy() & (since.gather(span).to_numpy() <= before[which])
            span = parent.gather(span).fill_null(-1).to_numpy()
            further = (span >= 0) & ~inside[which]
            which, span = which[further], span[further]
            if not span.size:
                return inside
        inside[which] = True
        return inside

    def names(self, begin: int, end: int) -> Symbols:
        """A symbol for every single activity of these launches: a graph holds many."""
        first, last = self.first[begin], self.first[end] if end < self.first.size else self.kernels.size
        return self.kernels[first:last]

    def times(self, begin: Int64Array, end: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Start and end on the host, in ns, of steps of the launches from `begin` to before `end`.

        A step begins with its first launch, or with the first copy to the device since the launch before. It ends where
        the next one begins, and what follows the last launch has no end.
        """
        until = self._begins(np.minimum(end, self.at.size - 1))
        return self._begins(begin), np.where(end < self.at.size, until, np.iinfo(np.int64).max)

    def _begins(self, at: Int64Array) -> Int64Array:
        own = self.at[at]
        if not self.copies.size:
            return own
        before = np.where(at > 0, self.at[np.maximum(at - 1, 0)], np.iinfo(np.int64).min)
        first = np.searchsorted(self.copies, before, side="right")
        copy = self.copies[np.minimum(first, self.copies.size - 1)]
        return np.where((first < self.copies.size) & (copy > before) & (copy < own), copy, own)


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What all sequences of a trace are made from: its activities, with the time and the thread of their launches."""

    trace: Trace
    rows: pl.DataFrame
    launched: Int64Array
    ranges: pl.DataFrame  # annotations: name, start, duration
    copies: Int64Array
    pytorch: bool

    def sequence(self, order: Int64Array, threads: tuple[Int64Array, ...], *, whole: bool) -> LaunchSequence:
        """That of these rows, which are in the order of their launches."""
        rows, ranges = self.rows, self.ranges
        launch = rows["launch_id"].fill_null(-1).to_numpy()[order]
        first = np.flatnonzero(np.append(True, (launch[1:] != launch[:-1]) | (launch[1:] < 0)))
        activities = np.diff(np.append(first, order.size))
        kernels = _mixed(rows["name"].to_physical().fill_null(0).to_numpy()[order])
        symbols = kernels
        if first.size < order.size:
            symbols = _mixed(np.add.reduceat(kernels, first) + activities.astype(np.uint64))
        at = self.launched[order][first]
        loading = ranges.filter(_named(ranges, _LOADER_RANGES))["start"].to_numpy()
        return LaunchSequence(
            trace=self.trace,
            symbols=_symbols(symbols),
            kernels=_symbols(kernels),
            first=first,
            at=at,
            activities=activities,
            duration=np.add.reduceat(rows["duration"].fill_null(0).to_numpy()[order], first),
            span=launch[first],
            optimizer=self._of_optimizer(order)[first],
            fed=_between(at, self.copies),
            loaded=_between(at, loading),
            pytorch=self.pytorch,
            neural=self.pytorch or _network(rows, order),
            whole=whole,
            copies=self.copies,
            passes=_matching(ranges, _PASSES),
            threads=threads,
        )

    def _of_optimizer(self, order: Int64Array) -> BoolArray:
        """Whether an optimizer launched it: by the ranges around optimizers where there are any, else by category and name."""
        ranges = self.ranges.filter(
            _named(self.ranges, _OPTIMIZER_RANGES) & ~_named(self.ranges, ("zero_grad",))
        )
        if ranges.height:
            ranges = ranges.sort("start")
            start = ranges["start"].to_numpy()
            end = np.maximum.accumulate(start + ranges["duration"].to_numpy())
            at = self.launched[order]
            which = np.searchsorted(start, at, side="right") - 1
            inside: BoolArray = (which >= 0) & (at < end[np.maximum(which, 0)])
            return inside
        chosen = self.rows.select((pl.col("category") == "optimizer") & ~_named(self.rows, (_NO_OPTIMIZER,)))
        return chosen.to_series().fill_null(value=False).to_numpy()[order]


def sequences(trace: Trace, rows: pl.DataFrame, launched: Int64Array) -> Iterator[LaunchSequence]:
    """The sequence of the busiest device; then, where they are not all, that of its busiest thread and stream."""
    kernels = one_of("kind", "kernel", "graph") & (pl.col("category") != "communication")
    frame = rows.select("device_id", kernels.fill_null(value=False).alias("kernel"))
    devices = (
        frame.filter("kernel").group_by("device_id").len().sort("len", "device_id", descending=[True, False])
    )
    if not devices.height:
        return
    own = pl.col("kernel") & pl.col("device_id").eq_missing(devices["device_id"][0])
    order = np.flatnonzero(frame.select(own).to_series().to_numpy())
    order = order[np.argsort(launched[order], kind="stable")]
    thread = take(
        trace.host["thread_id"].fill_null(-1).to_numpy(), rows["launch_id"].fill_null(-1).to_numpy()
    )
    stream = rows["stream_id"].fill_null(-1).to_numpy()
    threads = _shares(launched[order], thread[order])
    known = _Known(
        trace,
        rows,
        launched,
        trace.host.lazy()
        .filter(pl.col("kind") == "annotation")
        .select("name", "start", "duration")
        .collect(),
        np.sort(launched[rows.select(_named(rows, (HOST_TO_DEVICE,))).to_series().to_numpy()]),
        program(trace).pytorch,
    )
    yield known.sequence(order, threads, whole=True)
    for part in (thread, stream):
        numbers, counts = np.unique(part[order], return_counts=True)
        if numbers.size > 1 and counts.max() >= _LEAST_PART * order.size:
            yield known.sequence(order[part[order] == numbers[np.argmax(counts)]], threads, whole=False)


def _mixed(numbers: npt.NDArray[np.generic]) -> npt.NDArray[np.uint64]:
    """Numbers spread over 64 bits, so that sums of them tell which they are sums of."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return mixed ^ (mixed >> np.uint64(32))


def _symbols(mixed: npt.NDArray[np.uint64]) -> Symbols:
    return (mixed >> np.uint64(32)).astype(np.uint32)


def _shares(at: Int64Array, thread: Int64Array) -> tuple[Int64Array, ...]:
    """When each of the threads launched that make a large share of the launches; `at` is in order."""
    numbers, counts = np.unique(thread, return_counts=True)
    return tuple(at[thread == number] for number in numbers[counts >= _LEAST_SHARE * at.size])


def _matching(rows: pl.DataFrame, patterns: tuple[str, ...]) -> pl.Series:
    """The distinct names that match one of the patterns."""
    names = rows["name"].drop_nulls().unique()
    text = names.cast(pl.String)
    wanted = pl.select(pl.any_horizontal(text.str.contains(pattern) for pattern in patterns)).to_series()
    return names.filter(wanted)


def _named(rows: pl.DataFrame, patterns: tuple[str, ...]) -> pl.Expr:
    """Whether the name of a row of these matches one of the patterns."""
    return pl.col("name").is_in(_matching(rows, patterns).implode()).fill_null(value=False)


def _between(at: Int64Array, times: Int64Array) -> BoolArray:
    """For each launch whether one of the times lies after the launch before it, and not after it."""
    marks = np.zeros(at.size + 1, np.bool_)
    marks[np.searchsorted(at, times)] = True
    return marks[:-1]


def _network(rows: pl.DataFrame, order: Int64Array) -> bool:
    """Whether enough of the kernels are those of a neural network, in single precision or less."""
    network = rows.select(one_of("category", *_NETWORK) & ~_named(rows, (_DOUBLE,))).to_series()
    return float(network.fill_null(value=False).to_numpy()[order].mean()) >= _LEAST_NETWORK
