"""The launches of a process in the order of the host, with the copies to the device and the data loading between them."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.program import program
from tracekit.facts.kernel_rules import OPTIMIZER_RANGE
from tracekit.facts.stack_names import DEVICE_TO_HOST, HOST_TO_DEVICE, PHASE_MARKERS
from tracekit.groups import groups, kept, or_none, text_codes
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray, Int64Array, take
from tracekit.trace import Trace

__all__ = ["FEW", "LaunchSequence", "launch_sequence", "passes"]

FEW: Final = 0.1
"""A share that may be ignored, or that must at least be there."""

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
    "quantisation",
)
"""Categories of kernels that show a neural network, unless they compute in double precision."""

_DOUBLE: Final = r"(?i)\bdouble\b|float64|\bdgem|_d884|\bcudaDataType_t\)1\b"

_NO_OPTIMIZER: Final = r"(?i)copy|norm|zero|fill"
"""Kernels over many tensors that do not belong to an optimizer: FSDP copies the weights of each layer with them, and
norms clip gradients.
"""


_STREAM: Final = ("device_id", "stream_id")


def _markers(*phases: str) -> tuple[str, ...]:
    return tuple(pattern for pattern, phase, layer in PHASE_MARKERS if phase in phases and layer != "<loss>")


class LaunchSequence(msgspec.Struct, frozen=True, eq=False):
    """One row per launch call that put kernels on the device, in the order of the calls.

    `symbols` number the launches by what they launch, `at` is the start of the call in ns, `thread` its thread (−1 where it
    was not recorded), `activities` and `duration` what it launched, `kernels` the names of all these activities, of which
    `first` is each launch's first one. `optimizer`: it belongs to an optimizer. Between the launch before and it, `fed`: a
    copy to the device was launched (all of them: `copies`, in ns); `read`: one to the host was; `loaded`: the data loader was at
    work. `pytorch`: the program uses it. `neural`: the kernels are a network's.
    """

    trace: Trace
    symbols: Int64Array
    at: Int64Array
    thread: Int64Array
    activities: Int64Array
    duration: Int64Array
    kernels: Int64Array
    first: Int64Array
    optimizer: BoolArray
    fed: BoolArray
    read: BoolArray
    loaded: BoolArray
    copies: Int64Array
    pytorch: bool
    neural: bool

    @property
    def threads(self) -> list[Int64Array]:
        """The launches of each thread that makes a large share of them."""
        numbers, counts = np.unique(self.thread, return_counts=True)
        return [np.flatnonzero(self.thread == number) for number in numbers[counts >= FEW * self.thread.size]]

    def enclosed(self, launches: Int64Array) -> BoolArray:
        """Which of these launches lie in the same operator, module, forward pass or backward pass as the launch before."""
        host = self.trace.host
        wanted = ((host["kind"] == "op") | (host["kind"] == "module")).to_numpy() | _ranges_of_passes(host)
        end = pl.col("start") + pl.col("duration")
        larger = (
            kept(host[["thread_id", "start", "duration"]], wanted)
            .sort("start")
            .select(pl.col("thread_id").cast(pl.Int64), "start", end.cum_max().over("thread_id").alias("end"))
        )
        places = np.flatnonzero(launches > 0)
        later = launches[places]
        queries = pl.DataFrame(
            {
                "index": places,
                "start": self.at[later - 1],
                "at": self.at[later],
                "thread_id": self.thread[later],
            }
        ).sort("start")
        joined = queries.join_asof(larger, on="start", by="thread_id", check_sortedness=False)
        inside = np.zeros(launches.size, np.bool_)
        inside[joined["index"].filter(joined["end"] > joined["at"]).to_numpy()] = True
        return inside

    def times(self, launches: Int64Array) -> Int64Array:
        """The start of each of these launches on the host, in ns, or of the first copy to the device since the launch
        before.
        """
        own = self.at[launches]
        before = np.where(launches > 0, self.at[launches - 1], np.iinfo(np.int64).min)
        copies = np.append(self.copies, np.iinfo(np.int64).max)
        times: Int64Array = np.minimum(own, copies[np.searchsorted(self.copies, before, side="right")])
        return times


def launch_sequence(trace: Trace, rows: pl.DataFrame, launched: Int64Array) -> LaunchSequence | None:
    """The sequence of the stream with the most kernels, less collectives; None without any.

    `rows` are all activities, `launched` the time at which each was launched.
    """
    kind, names_of_rows = rows["kind"], NameTable(rows["name"])
    kernels = ((kind == "kernel") | (kind == "graph")) & (rows["category"] != "communication")
    order = np.flatnonzero(kernels.to_numpy())
    if not order.size:
        return None
    streams = groups(*(rows[name].to_numpy()[order] for name in _STREAM))
    order = order[streams.of == streams.counts.argmax()]
    order = order[np.argsort(launched[order], kind="stable")]
    launch = or_none(rows["launch_id"])[order]
    first = np.flatnonzero(np.append(True, (launch[1:] != launch[:-1]) | (launch[1:] < 0)))
    names = or_none(rows["name"].to_physical(), 0)[order].astype(np.int64)
    activities = np.diff(np.append(first, order.size))
    own = names[first] * (int(activities.max()) + 1) + activities
    at = launched[order][first]
    ranges = kept(trace.host[["name", "start", "duration"]], trace.host["kind"] == "annotation")
    names_of_ranges = NameTable(ranges["name"])
    copies = np.sort(launched[names_of_rows.matching(HOST_TO_DEVICE)])
    loading = ranges["start"].to_numpy()[names_of_ranges.matching(_any(_markers("data")))]
    pytorch = program(trace).pytorch
    return LaunchSequence(
        trace=trace,
        symbols=np.unique(own, return_inverse=True)[1].astype(np.int64),
        at=at,
        thread=take(or_none(trace.host["thread_id"]), launch[first]).astype(np.int64),
        activities=activities,
        duration=np.add.reduceat(or_none(rows["duration"], 0)[order], first),
        kernels=names,
        first=first,
        optimizer=_of_optimizer(rows, names_of_rows, launched, ranges, names_of_ranges)[order][first],
        fed=_between(at, copies),
        read=_between(at, launched[names_of_rows.matching(DEVICE_TO_HOST)]),
        loaded=_between(at, loading),
        copies=copies,
        pytorch=pytorch,
        neural=pytorch or _network(rows, names_of_rows, order),
    )


def passes(host: pl.DataFrame) -> Int64Array:
    """The starts of operators with sequence numbers and of ranges named forward or backward."""
    numbered = (host["kind"] == "op").to_numpy() & (or_none(host["sequence"]) >= 0)
    return np.sort(host["start"].to_numpy()[numbered | _ranges_of_passes(host)])


def _ranges_of_passes(host: pl.DataFrame) -> BoolArray:
    """Which spans are ranges of a forward or backward pass."""
    found = (host["kind"] == "annotation").to_numpy().copy()
    if found.any():
        names = NameTable(host["name"].filter(pl.Series(found)))
        found[found] = names.matching(_any(_markers("forward", "backward")))
    return found


def _of_optimizer(
    rows: pl.DataFrame,
    names_of_rows: NameTable,
    launched: Int64Array,
    ranges: pl.DataFrame,
    names_of_ranges: NameTable,
) -> BoolArray:
    """Whether an optimizer launched each row: by the ranges around optimizers if there are any, else by category and
    name.
    """
    stepping = names_of_ranges.matching(_any((OPTIMIZER_RANGE, *_markers("optimizer"))))
    ranges = kept(ranges, stepping & ~names_of_ranges.matching("zero_grad"))
    if not ranges.height:
        return (rows["category"] == "optimizer").to_numpy() & ~names_of_rows.matching(_NO_OPTIMIZER)
    ranges = ranges.sort("start")
    start = ranges["start"].to_numpy()
    end = np.maximum.accumulate(start + ranges["duration"].to_numpy())
    which = np.searchsorted(start, launched, side="right") - 1
    inside: BoolArray = (which >= 0) & (launched < end[np.maximum(which, 0)])
    return inside


def _any(patterns: tuple[str, ...]) -> str:
    """A pattern that matches where one of these does."""
    return "|".join(f"(?:{pattern})" for pattern in patterns)


def _between(at: Int64Array, times: Int64Array) -> BoolArray:
    """For each launch whether one of the times lies after the launch before it, and not after it."""
    marks = np.zeros(at.size + 1, np.bool_)
    marks[np.searchsorted(at, times)] = True
    return marks[:-1]


def _network(rows: pl.DataFrame, names: NameTable, order: Int64Array) -> bool:
    """Whether enough of the kernels are those of a neural network, in single precision or less."""
    category, categories = text_codes(rows["category"])
    of_networks = np.array([name in _NETWORK for name in categories])[category]
    return float((of_networks & ~names.matching(_DOUBLE))[order].mean()) >= FEW
