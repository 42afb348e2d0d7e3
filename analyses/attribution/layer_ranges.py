"""The ranges that may be layers, and the selection of a `RangeFilter` among them (DEFINITIONS §5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution.host_stack import HostStack, one_begins_in
from tracekit.errors import UsageError, not_a_pattern
from tracekit.facts.stack_names import FSDP_FORWARD, LIBRARY_DOMAINS, NOT_A_LAYER, WRAPPER_PART
from tracekit.groups import kept, or_none
from tracekit.name_table import NameTable
from tracekit.range_filter import DEFAULT_DOMAIN, RangeFilter
from tracekit.spans import BoolArray, Int64Array, Nesting, nest, take
from tracekit.trace import Trace

__all__ = [
    "Spanning",
    "choose_ranges",
    "counting",
    "fsdp_forwards",
    "named_ranges",
    "spanning_ranges",
    "user_ranges",
    "work_of",
]

_SHOWN: Final = 5
_SHOWN_DOMAINS: Final = 50
_LONGEST: Final = 60


def choose_ranges(trace: Trace, chosen: RangeFilter | None) -> Trace:
    """The same trace, in which only the user ranges that the filter selects count as layers; None: all of them.

    Raises UsageError for a domain that the file does not have, and if the filter leaves no range. A domain of the file of which
    this process has no range leaves none of them as layers.

    >>> import tracekit
    >>> trace = tracekit.read("sample_traces/cnn_cpu/trace.json.gz")
    >>> choose_ranges(trace, None).layer_ranges is None
    True
    """
    if chosen is not None:
        names = user_ranges(trace)
        known = _domains(trace, names)
        unknown = [domain for domain in chosen.domains if domain not in known]
        if unknown:
            fault = f"--nvtx-domain {unknown[0]!r} is not a domain of the file"
            remedy = f"its domains are {_listed(pl.Series(known), _SHOWN_DOMAINS)}"
            raise UsageError(fault, path=trace.meta.path, remedy=remedy)
        there = names.filter(_in_domains(names["domain"], chosen))
        # A domain of the file may have no range in this process.
        if (there.height or not chosen.domains) and not counting(there, chosen).any():
            raise UsageError(f"{chosen.label} leaves no range", path=trace.meta.path, remedy=_choices(there))
    return replace(trace, layer_ranges=chosen)


def user_ranges(trace: Trace) -> pl.DataFrame:
    """The distinct user ranges, without those of tools: `name` and `domain` (null for the default one)."""
    annotations = kept(trace.host[["name", "domain"]], trace.host["kind"] == "annotation")
    distinct = annotations.unique() if annotations.height else annotations
    if trace.ranges is not None:
        spanning = trace.ranges.filter(pl.col("kind") == "start_end")[["name", "domain"]]
        distinct = pl.concat([distinct, spanning.unique()]).unique()
    return kept(distinct, ~NameTable(distinct["name"]).matching(NOT_A_LAYER))


def counting(ranges: pl.DataFrame, chosen: RangeFilter) -> BoolArray:
    """Which rows (`name`, `domain`) the filter selects, without regard to their depth.

    Each distinct pair is matched once. Raises UsageError for a pattern that only Python's own regular expressions
    accept.
    """
    distinct = ranges[["name", "domain"]].unique()
    name = distinct["name"].cast(pl.String)
    wanted = _in_domains(distinct["domain"], chosen)
    if chosen.include:
        wanted &= _matching(name, "include", chosen.include)
    if chosen.exclude:
        wanted &= ~_matching(name, "exclude", chosen.exclude)
    distinct_ranges = distinct.with_columns(wanted.alias("wanted"))
    rows = ranges[["name", "domain"]].join(
        distinct_ranges, on=["name", "domain"], how="left", maintain_order="left", nulls_equal=True
    )
    mask: BoolArray = rows["wanted"].fill_null(value=False).to_numpy()
    return mask


def _in_domains(domains: pl.Series, chosen: RangeFilter) -> pl.Series:
    """Which of the domains (null for the default one) are chosen."""
    if not chosen.domains:
        return pl.Series([True]).new_from_index(0, domains.len())
    return domains.cast(pl.String).fill_null(DEFAULT_DOMAIN).is_in(list(chosen.domains))


def _domains(trace: Trace, ranges: pl.DataFrame) -> list[str]:
    """The domains of the file: those of its user ranges, those that are registered, and the default one."""
    used = ranges["domain"].cast(pl.String).drop_nulls().to_list()
    return sorted({DEFAULT_DOMAIN, *trace.meta.domains, *used})


def _matching(names: pl.Series, flag: str, patterns: tuple[str, ...]) -> pl.Series:
    """Which names one of the patterns matches."""
    mask = pl.Series([False]).new_from_index(0, names.len())
    for pattern in patterns:
        mask |= _matches(names, flag, pattern)
    return mask


def _matches(names: pl.Series, flag: str, pattern: str) -> pl.Series:
    try:
        return names.str.contains(pattern).fill_null(value=False)
    except pl.exceptions.PolarsError as error:
        raise not_a_pattern(f"--nvtx-{flag}", pattern, error) from error


def _choices(ranges: pl.DataFrame) -> str:
    """The names of the ranges."""
    if not ranges.height:
        return "there are no user ranges (record_function, NVTX push and pop)"
    return f"the ranges are {_listed(ranges['name'].cast(pl.String).unique().sort())}"


def _listed(texts: pl.Series, most: int = _SHOWN) -> str:
    shown = [repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…") for text in texts.head(most)]
    return ", ".join(shown) + (f" and {texts.len() - most:,} more" if texts.len() > most else "")


# -- named ranges that are layers -------------------------------------------------------------------
#
# The ranges of a trace that a person named and that are layers, and the forward passes that FSDP's hooks mark.


def named_ranges(
    trace: Trace, stack: HostStack, engine: Int64Array, steps: pl.DataFrame | None
) -> Int64Array:
    """Annotations that are not a tool's own and enclose work: on their thread, or at that time on the engine's."""
    candidate = stack.of_kind("annotation") & ~stack.named(NOT_A_LAYER, "annotation")
    if not candidate.any():
        return np.empty(0, dtype=np.int64)
    rows = np.flatnonzero(candidate)
    if steps is not None and steps.height:
        spans = pl.DataFrame({"start": stack.start[rows], "end": stack.end[rows]}).with_row_index("row")
        others = spans.join(steps[["start", "end"]], on=["start", "end"], how="anti", maintain_order="left")
        rows = rows[others["row"].to_numpy()]
    chosen = trace.layer_ranges
    if chosen is not None:
        rows = rows[counting(stack.frame["name", "domain"][rows], chosen)]
    if not rows.size:
        return rows
    work = work_of(trace, stack)
    before = np.concatenate([[0], np.cumsum(work)])
    last = rows + _spans_below(stack, rows)
    encloses = before[last] > before[rows + 1]
    away = np.flatnonzero(work)
    away = away[np.isin(stack.thread[away], engine)]
    spans = pl.DataFrame({"process": stack.process[rows], "start": stack.start[rows], "end": stack.end[rows]})
    encloses |= one_begins_in(spans, stack.process[away], stack.start[away])
    kept: Int64Array = rows[encloses]
    if chosen is not None and chosen.depth is not None and kept.size:
        kept = kept[stack.nesting_of(kept).depth() < chosen.depth]
    return kept


def work_of(trace: Trace, stack: HostStack) -> BoolArray:
    """Host spans that are work: operators and launches."""
    work = stack.of_kind("op")
    launch = or_none(trace.device["launch_id"])
    work[launch[launch >= 0]] = True
    return work


def _spans_below(stack: HostStack, rows: Int64Array) -> Int64Array:
    """The number of rows from each span on that start before it ends, on its thread, itself included."""
    bounds = np.searchsorted(stack.thread, stack.thread[rows], side="right")
    ends = np.empty(rows.size, dtype=np.int64)
    codes, first = np.unique(stack.thread[rows], return_index=True)  # spans are sorted by thread
    for code, mine in zip(codes.tolist(), np.split(np.arange(rows.size), first[1:]), strict=True):
        low, high = np.searchsorted(stack.thread, [code, code + 1])
        ends[mine] = low + np.searchsorted(stack.start[low:high], stack.end[rows[mine]], side="left")
    return np.maximum(np.minimum(ends, bounds) - rows, 1)


def fsdp_forwards(stack: HostStack) -> tuple[Int64Array, Int64Array, Int64Array, pl.Series] | None:
    """The time between a module's pre-forward hook and its post-forward hook: threads, starts, ends, names."""
    hooks = np.flatnonzero(stack.named(FSDP_FORWARD, "annotation", "op"))
    if not hooks.size:
        return None
    frame = pl.DataFrame(
        {
            "name": stack.frame["name"][hooks].cast(pl.String),
            "thread": stack.thread[hooks],
            "start": stack.start[hooks],
            "end": stack.end[hooks],
        }
    ).with_columns(
        pl.col("name").str.extract(FSDP_FORWARD, 1).alias("side"),
        pl.col("name")
        .str.extract(FSDP_FORWARD, 2)
        .str.replace_all(WRAPPER_PART, "")
        .str.strip_chars(".")
        .replace("", "FSDP")
        .fill_null("FSDP")
        .alias("layer"),
    )
    frame = frame.with_columns(pl.int_range(pl.len()).over("thread", "layer", "side").alias("turn"))
    pre, post = (frame.filter(pl.col("side") == side) for side in ("pre", "post"))
    pairs = pre.join(post, on=["thread", "layer", "turn"], suffix="_post").filter(
        pl.col("start_post") >= pl.col("end")
    )
    if not pairs.height:
        return None
    ends = pairs["start_post"].to_numpy()
    return pairs["thread"].to_numpy(), pairs["end"].to_numpy(), ends, pairs["layer"]


# -- ranges that need not nest ----------------------------------------------------------------------
#
# Layers from ranges that need not nest: NVTX start/end ranges, which may begin on one thread and end on another.
#
# Such a range says when something ran in the process, not on which thread. Work belongs to the innermost one that is
# open when it is launched, whatever its thread; where two are open of which neither contains the other, it
# belongs to none (DEFINITIONS §5, *by interval, abstaining when ambiguous*).


class Spanning(msgspec.Struct, frozen=True, eq=False):
    """Start/end ranges, nested by process. `names` are theirs, row by row; `process_of_thread` gives the number of the process of each
    thread of the host stack. `starts` and `ends` are sorted within each process, which `bounds` delimits.
    """

    nesting: Nesting
    names: pl.Series
    depth: Int64Array
    process_of_thread: Int64Array
    ends: Int64Array
    bounds: Int64Array

    def at(self, thread: Int64Array, time: Int64Array) -> Int64Array:
        """For each (thread, time) the innermost open range of the thread's process; −1 for none, and where that is ambiguous."""
        process = self.process_of_thread[thread]
        row = self.nesting.innermost_at(process, time)
        # All ranges around a range are open while it is; if more are open, one of them does not contain it.
        clear = take(self.depth, row) + 1 == self._open(process, time)
        return np.where(clear, row, -1)

    def _open(self, process: Int64Array, time: Int64Array) -> Int64Array:
        """How many ranges are open at each time."""
        count = np.zeros(time.size, dtype=np.int64)
        for code in np.unique(process).tolist():
            rows = np.flatnonzero(process == code)
            low, high = int(self.bounds[code]), int(self.bounds[code + 1])
            begun = np.searchsorted(self.nesting.start[low:high], time[rows], side="right")
            count[rows] = begun - np.searchsorted(self.ends[low:high], time[rows], side="right")
        return count


def spanning_ranges(trace: Trace, stack: HostStack, work: BoolArray) -> Spanning | None:
    """The start/end ranges of a trace that may stand for layers and meanwhile see some of `work` (a mask of the host
    spans) begin in their process; None when there is none.
    """
    if trace.ranges is None or not stack.size:
        return None
    rows = trace.ranges.filter((pl.col("kind") == "start_end") & (pl.col("duration") > 0))
    distinct = rows[["name", "domain"]].unique()
    tools = distinct["name"].cast(pl.String).str.contains(NOT_A_LAYER) | distinct["domain"].cast(
        pl.String
    ).str.contains(LIBRARY_DOMAINS).fill_null(value=False)
    own = distinct.filter(~tools)
    if trace.layer_ranges is not None and own.height:
        own = own.filter(pl.Series(counting(own, trace.layer_ranges)))
    rows = rows.join(own, on=["name", "domain"], how="semi", nulls_equal=True, maintain_order="left")
    codes, process = np.unique(stack.process, return_inverse=True)
    numbers = pl.DataFrame({"process_id": codes, "process": np.arange(codes.size, dtype=np.int64)})
    rows = rows.join(numbers, on="process_id", how="inner", maintain_order="left")
    rows = rows.select("name", "process", "start", (pl.col("start") + pl.col("duration")).alias("end"))
    rows = rows.sort("process", "start", pl.col("end") * -1, maintain_order=True)
    rows = rows.filter(pl.Series(one_begins_in(rows, process.astype(np.int64)[work], stack.start[work])))
    if not rows.height:
        return None
    nesting = nest(rows["process"].to_numpy(), rows["start"].to_numpy(), rows["end"].to_numpy())
    depth = nesting.depth()
    chosen = trace.layer_ranges
    if chosen is not None and chosen.depth is not None and (depth >= chosen.depth).any():
        rows = rows.filter(pl.Series(depth < chosen.depth))
        nesting = nest(rows["process"].to_numpy(), rows["start"].to_numpy(), rows["end"].to_numpy())
        depth = nesting.depth()
    of_thread = np.zeros(int(stack.thread[-1]) + 1, dtype=np.int64)
    of_thread[stack.thread] = process
    return Spanning(
        nesting=nesting,
        names=rows["name"].cast(pl.String),
        depth=depth,
        process_of_thread=of_thread,
        ends=rows.sort("process", "end")["end"].to_numpy(),
        bounds=np.searchsorted(nesting.thread, np.arange(codes.size + 1)),
    )
