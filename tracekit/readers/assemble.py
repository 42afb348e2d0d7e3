"""From raw frames of any reader to a `Trace`: order, nesting, links from activities to launches, categories.

Readers deliver unsorted rows with absolute times; what is done here is the same for every format.
"""

from __future__ import annotations

import math
import re
from typing import Final

import numpy as np
import polars as pl

from tracekit.classes import dataclass
from tracekit.classify import categorise
from tracekit.facts.kernel_rules import OPTIMIZER_UPDATE
from tracekit.facts.launch_apis import LAUNCH
from tracekit.groups import (
    Integers,
    any_known,
    are_known,
    at_rows,
    distinct,
    kept,
    none_to_null,
    or_none,
    text_codes,
    with_series,
)
from tracekit.health import HealthLog
from tracekit.missing import ABSURD_NS
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray, Int64Array, Nesting, nesting_of, take
from tracekit.trace import DEVICE_SCHEMA, Schema

__all__ = ["LinkedFrames", "assemble", "at_work", "conform", "lean"]

_INWARD = {"python": 0, "runtime": 2, "sync": 2}
_OUTERMOST_FIRST: Final = (
    pl.col("duration") * -1,
    pl.col("kind").cast(pl.String).replace_strict(_INWARD, default=1, return_dtype=pl.Int8),
    pl.col("external_id").fill_null(0),
)
"""Of two equal intervals of a thread the outer one comes first: a Python frame around ranges and operators around API calls, and
among ranges and operators the one that the profiler numbered first."""


@dataclass(frozen=True, slots=True)
class LinkedFrames:
    """Sorted, nested, linked and categorised frames."""

    host: pl.DataFrame
    device: pl.DataFrame


def assemble(raw: list[pl.DataFrame], health: HealthLog) -> LinkedFrames:
    """Frames that follow HOST_SCHEMA and DEVICE_SCHEMA, from raw host and device rows.

    `raw` holds the two in this order, with these schemas and with times that start at the origin. It is emptied, so
    that the unsorted rows are freed as soon as the sorted ones exist.
    """
    device = _with_blocks(_sorted_device(raw.pop(), health))
    host = _sorted_host(raw.pop(), health)
    nesting = nesting_of(host)
    host = with_series(
        host,
        none_to_null(nesting.parent).cast(pl.Int64).alias("parent_id"),
        pl.Series("depth", nesting.depth()).cast(pl.Int32),
    )
    device = _link(device, host, health)
    device = _operators(device, host, nesting)
    return LinkedFrames(lean(host), lean(device))


def conform(frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """The frame with exactly the columns and types of `schema`; columns it lacks are null."""
    columns: list[pl.Series] = []
    none: dict[object, pl.Series] = {}
    for name, dtype in schema.items():
        if name in frame.columns:
            column = frame[name]
            columns.append(column if column.dtype == dtype else column.cast(dtype, strict=False))
        else:
            if dtype not in none:
                none[dtype] = pl.Series([None], dtype=dtype).new_from_index(0, frame.height)
            columns.append(none[dtype].alias(name))
    return pl.DataFrame(columns)


def lean(frame: pl.DataFrame) -> pl.DataFrame:
    """The same frame, in which columns of one type without any value share their memory."""
    none: dict[pl.DataType, pl.Series] = {}
    columns = [
        none.setdefault(column.dtype, column).alias(column.name)
        if column.null_count() == column.len()
        else column
        for column in frame.get_columns()
    ]
    return pl.DataFrame(columns)


def _usable(frame: pl.DataFrame, what: str, health: HealthLog) -> pl.DataFrame:
    """Rows that have a start and a sensible duration; what is mended or left out is counted."""
    health.count("event_without_time", frame["start"].null_count(), what)
    negative = int((frame["duration"] < 0).sum())
    health.count("negative_duration", negative, what)
    frame = kept(frame, are_known(frame["start"]))
    missing = frame["duration"].null_count()
    health.count("missing_duration", missing, what)
    if not missing and not negative:
        return frame
    return with_series(frame, pl.Series("duration", np.maximum(or_none(frame["duration"], 0), 0)))


def _sorted_host(host: pl.DataFrame, health: HealthLog) -> pl.DataFrame:
    host = _filled(_usable(host, "host span", health), ("process_id", "thread_id"), -1)
    host = _gathered(host, _in_order(host, ("process_id", "thread_id"), *_OUTERMOST_FIRST))
    return with_series(host, pl.Series("span_id", np.arange(host.height)))


def _filled(frame: pl.DataFrame, names: tuple[str, ...], value: int) -> pl.DataFrame:
    """The frame with a value where these columns have none."""
    lacking = [name for name in names if frame[name].null_count()]
    return with_series(frame, *(frame[name].fill_null(value) for name in lacking)) if lacking else frame


def _gathered(rows: pl.DataFrame, order: pl.Series) -> pl.DataFrame:
    """The rows in this order. Column by column, so that there is never a sorted and an unsorted copy of everything."""
    columns = (rows.drop_in_place(name) for name in rows.columns)
    return pl.DataFrame([at_rows(column, order) if any_known(column) else column for column in columns])


def _in_order(rows: pl.DataFrame, place: tuple[str, str], *settled: pl.Expr) -> pl.Series:
    """The rows by the two numbers of their place and by start; those that start together by what settles it, else as they come.

    Rows come mostly in order of time, which a merge sort of the starts makes use of; the other columns are looked at only
    where two of a place start together.
    """
    start, number = rows["start"].to_numpy(), _place_numbers(*(rows[name].to_numpy() for name in place))
    order = np.lexsort((start, number))
    starts, numbers = start[order], number[order]
    again = (starts[1:] == starts[:-1]) & (numbers[1:] == numbers[:-1])
    if again.any():
        tied = np.flatnonzero(np.append(again, False) | np.append(False, again))
        keys = [*map(pl.col, (*place, "start")), *settled]
        needed = sorted({name for key in keys for name in key.meta.root_names()})
        few = rows[needed][order[tied]].select(pl.arg_sort_by(keys, maintain_order=True)).to_series()
        order[tied] = order[tied][few.to_numpy()]
    return pl.Series(order, dtype=pl.get_index_type())


def _place_numbers(first: Integers, second: Integers) -> Integers:
    """A number per pair, in the order of the pairs; as small ones as can be, which sort faster."""
    change = np.append(True, (first[1:] != first[:-1]) | (second[1:] != second[:-1]))[: first.size]
    begins = np.flatnonzero(change)
    order = np.lexsort((second[begins], first[begins]))
    firsts = begins[order]
    other = np.append(False, (np.diff(first[firsts]) != 0) | (np.diff(second[firsts]) != 0))[: order.size]
    number = np.empty(order.size, dtype=np.int64)
    number[order] = np.cumsum(other)
    small = number.astype(np.min_scalar_type(int(number.max(initial=0))))
    return np.repeat(small, np.diff(begins, append=first.size))


def _sorted_device(device: pl.DataFrame, health: HealthLog) -> pl.DataFrame:
    device = _usable(device, "device activity", health)
    missing = ~(are_known(device["device_id"]) & are_known(device["stream_id"]))
    health.count("activity_without_stream", int(missing.sum()), "device activity")
    device = _filled(device, ("device_id", "stream_id"), 0)
    device = _gathered(device, _in_order(device, ("device_id", "stream_id"), pl.col("duration")))
    absurd = kept(device, device["duration"] > ABSURD_NS)
    health.count("absurd_duration", absurd.height, _example(absurd))
    overlapping = _overlapping(device)
    health.count("overlap_on_stream", overlapping.height, _example(overlapping))
    return with_series(device, pl.Series("activity_id", np.arange(device.height)))


def _overlapping(device: pl.DataFrame) -> pl.DataFrame:
    """The activities, in order, that begin before another one of their stream has ended."""
    number, stream, start, ns = (
        device[name].to_numpy() for name in ("device_id", "stream_id", "start", "duration")
    )
    early = start[1:] < (start + ns)[:-1]
    if not (early & (number[1:] == number[:-1]) & (stream[1:] == stream[:-1])).any():
        return device.clear()
    ends = pl.col("start") + pl.col("duration")
    last = ends.cum_max().shift(1).over("device_id", "stream_id")
    return device.filter((pl.col("start") < last).fill_null(value=False))


def _with_blocks(device: pl.DataFrame) -> pl.DataFrame:
    """`blocks` from the text of the grid, where a reader left it open; distinct grids are few."""
    blocks = device["blocks"]
    if not blocks.null_count() or not any_known(device["grid"]):
        return device
    of, grids = text_codes(device["grid"])
    of_grid = at_rows(pl.Series("blocks", [_extent(grid or "") for grid in grids], dtype=pl.Int64), of)
    return with_series(device, blocks.zip_with(pl.Series(are_known(blocks)), of_grid))


def _extent(grid: str) -> int | None:
    """The product of the numbers in a text; None without any, and of more than a column holds."""
    numbers = [int(number) for number in _NUMBER.findall(grid) if len(number) < _MOST_DIGITS]
    product = math.prod(numbers)
    return product if numbers and product < 1 << 63 else None


_NUMBER: Final = re.compile("[0-9]+")
_MOST_DIGITS: Final = 19


def _example(rows: pl.DataFrame) -> str:
    if not rows.height:
        return ""
    first = rows.row(0, named=True)
    return f"{first['name']} at {first['start']} ns for {first['duration']} ns"


def _link(device: pl.DataFrame, host: pl.DataFrame, health: HealthLog) -> pl.DataFrame:
    """`launch_id` and `process_id` of each activity.

    The key is (process, correlation). Kineto's device rows do not name the process, so a correlation id that
    several processes use is settled by the operator's external id, then by the latest launch before the activity.
    Some tools write files whose calls and activities have an external id in common instead.
    """
    calls = _launch_calls(host, "correlation")
    pairs = _only_pairs(device["correlation"], calls)
    if not any_known(device["correlation"]):
        pairs = _only_pairs(device["external_id"], _launch_calls(host, "external_id"))
    if pairs is None:
        pairs = _settled_pairs(device, _one_of_each(calls), health)
    launch = np.full(device.height, -1, dtype=np.int64)
    process = np.zeros(device.height, dtype=np.int64)
    activities = pairs["activity_id"].to_numpy()
    launch[activities], process[activities] = (
        pairs["launch_id"].to_numpy(),
        pairs["launch_process"].to_numpy(),
    )
    has_launch = launch >= 0
    late = device["start"].to_numpy()[activities] < pairs["launch_start"].to_numpy()
    health.count(
        "activity_before_launch", int(late.sum()), "a device activity starts before its launch call does"
    )
    processes = distinct(host["process_id"].filter(at_work(host["kind"])))
    only = int(processes[0]) if processes.len() == 1 else None
    of_process = pl.Series("process_id", process if only is None else np.where(has_launch, process, only))
    if only is None and not has_launch.all():
        of_process = of_process.set(pl.Series(~has_launch), None)
    linked = with_series(device, none_to_null(launch).alias("launch_id"), of_process)
    if host.height and not has_launch.all():
        first = linked.slice(int(has_launch.argmin()), 1)
        health.count("unlinked_activity", int((~has_launch).sum()), _example(first))
    return linked[list(DEVICE_SCHEMA)]


def at_work(kind: pl.Series) -> pl.Series:
    """Which spans of the host show that a process worked: operators, calls and steps."""
    return (kind == "op") | (kind == "runtime") | (kind == "step")


def _only_pairs(numbers: pl.Series, calls: pl.DataFrame) -> pl.DataFrame | None:
    """Each activity, by its number, with the call of this number, where every one is that of one call, as mostly; else None."""
    ids = calls["correlation"].to_numpy()
    order = np.argsort(ids, kind="stable")  # mostly they rise already
    ids = ids[order]
    if (ids[1:] == ids[:-1]).any():
        return None
    wanted = or_none(numbers, 0)
    at = np.minimum(np.searchsorted(ids, wanted), max(ids.size - 1, 0))
    same = np.flatnonzero((ids[at] == wanted) & (wanted != 0)) if ids.size else at[:0]
    pairs = calls[["launch_id", "launch_process", "launch_start"]][order[at[same]]]
    return pairs.hstack([pl.Series("activity_id", same, dtype=pl.Int64)])


def _settled_pairs(device: pl.DataFrame, calls: pl.DataFrame, health: HealthLog) -> pl.DataFrame:
    """The same where ids are those of several calls."""
    numbered = device.select("activity_id", "correlation", "external_id", "start").filter(
        pl.col("correlation").is_not_null() & (pl.col("correlation") != 0)
    )
    if calls["correlation"].n_unique() < calls.height:
        return _likeliest(numbered, calls, health)
    return numbered.join(calls, on="correlation", how="inner")


def _likeliest(numbered: pl.DataFrame, calls: pl.DataFrame, health: HealthLog) -> pl.DataFrame:
    """One call per activity, of those that several processes offer; never all pairs, which can be any number."""
    offers = calls.group_by("correlation").agg(pl.len().alias("n")).filter(pl.col("n") > 1)
    ambiguous = numbered.join(offers, on="correlation", how="semi").height
    health.count("ambiguous_correlation", ambiguous, "several processes in one file")
    same_op = _latest(numbered, calls, ["correlation", "external_id"])
    others = numbered.join(same_op, on="activity_id", how="anti")
    return pl.concat([same_op, _latest(others, calls, ["correlation"])])


def _latest(numbered: pl.DataFrame, calls: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """For each activity the latest call of its key that began before it, else the latest of all; rows without any
    are left out.
    """
    call = ["launch_id", "launch_process", "launch_start"]
    offers = calls.rename({"launch_external_id": "external_id"}) if "external_id" in key else calls
    offers = offers.select(*key, *call).drop_nulls(key).sort("launch_start", maintain_order=True)
    seekers = numbered.select("activity_id", "start", *key).drop_nulls(key).sort("start")
    early = seekers.join_asof(
        offers, left_on="start", right_on="launch_start", by=key, check_sortedness=False, coalesce=False
    )
    late = early.filter(pl.col("launch_id").is_null()).select("activity_id", "start", *key)
    late = late.join(offers.unique(key, keep="last", maintain_order=True), on=key, how="inner")
    columns = ["activity_id", "start", *call]
    return pl.concat([early.drop_nulls("launch_id").select(columns), late.select(columns)])


def _launch_calls(host: pl.DataFrame, number: str) -> pl.DataFrame:
    """The API calls with such a number, as their `correlation`."""
    names = {
        "correlation": number,
        "launch_id": "span_id",
        "launch_process": "process_id",
        "launch_external_id": "external_id",
        "launch_start": "start",
        "name": "name",
    }
    calls = pl.DataFrame([host[of].alias(name) for name, of in names.items()])
    return kept(calls, (host["kind"] == "runtime").to_numpy() & are_known(calls["correlation"]))


def _one_of_each(calls: pl.DataFrame) -> pl.DataFrame:
    """One row per (process, correlation): the launch call, or the outermost call when none is known as one."""
    return (
        calls.with_columns(pl.Series("is_launch", NameTable(calls["name"]).matching(LAUNCH)))
        .sort(["is_launch", "launch_id"], descending=[True, False])
        .unique(["launch_process", "correlation"], keep="first", maintain_order=True)
    )


def _operators(device: pl.DataFrame, host: pl.DataFrame, nesting: Nesting) -> pl.DataFrame:
    """`op_id` (innermost operator around the launch) and `category`."""
    kind, names = host["kind"], NameTable(host["name"])
    is_op = (kind == "op").to_numpy()
    stepping = names.matching(OPTIMIZER_UPDATE) & (is_op | (kind == "annotation").to_numpy())
    launch = or_none(device["launch_id"])
    op = take(nesting.nearest_ancestor(is_op), launch)
    optimizer = take(nesting.nearest_ancestor(stepping), launch)
    if any_known(device["external_id"]):
        op = np.where(op >= 0, op, _by_external_id(device, host, is_op))
    device = with_series(device, none_to_null(op).alias("op_id"))
    category = categorise(
        device["kind"], device["name"], at_rows(host["name"], device["op_id"]), pl.Series(optimizer >= 0)
    )
    return with_series(device, category.alias("category"))[list(DEVICE_SCHEMA)]


def _by_external_id(device: pl.DataFrame, host: pl.DataFrame, is_op: BoolArray) -> Int64Array:
    """The operator that the profiler itself names, for activities whose launch was not recorded; −1 for none."""
    number, wanted = or_none(host["external_id"], 0), or_none(device["external_id"], 0)
    ops = np.flatnonzero(is_op & (number != 0))
    if not ops.size:
        return np.full(wanted.size, -1, dtype=np.int64)
    numbers, first = np.unique(number[ops], return_index=True)
    place = np.minimum(np.searchsorted(numbers, wanted), numbers.size - 1)
    return np.where(numbers[place] == wanted, ops[first[place]], -1)
