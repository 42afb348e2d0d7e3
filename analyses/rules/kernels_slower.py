"""Rules about kernels that become slower, for good or now and then, although their work stays the same."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attributed
from tracekit.analyses.kernels import Kernels
from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, Rule, bounded_by_host, longest
from tracekit.analyses.scope import Scope, step_spans
from tracekit.facts.units import NS_PER_US, count_of, format_count, format_ns, format_share
from tracekit.groups import are_known, at_rows, codes_of, groups, kept, or_none, text_numbers
from tracekit.spans import BoolArray, Int64Array

__all__ = [
    "INTERRUPTED_KERNELS",
    "KERNELS_SLOW_DOWN",
    "alike_by",
    "become_slower",
    "on_other_grids",
    "with_shapes",
]

KERNELS_SLOW_DOWN_LEAST_STEPS: Final = 3
"""Of two steps, nobody can say whether the second one will be the rule."""
LEAST_SLOWER: Final = 1.10
"""On a steady clock the same kernels take the same time within a few percent."""
NOISE: Final = 1.05
"""Steps within a twentieth of the fastest are as fast as it; kernels that take a twentieth longer are slower."""
LEAST_SLOW: Final = 2
"""A single slow step at the end may be an exception (`step_variability`)."""
SAME_PART: Final = 0.9
"""In steps with the same inputs nearly all of the time belongs to the same kernels."""
ALONE_PART: Final = 0.5
"""If kernels have their device to themselves for less of their time, it is unknown how fast they are."""
OTHERS_PART: Final = 0.5
"""A lower clock slows most kernels; if only one is slower, its work has grown (attention over a longer context)."""
OTHER_GRIDS: Final = 0.01
"""Without recorded shapes, kernels on other grids tell of other inputs, also to those that always fill the device; a rare kernel does not."""

Times = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class Slower(msgspec.Struct, frozen=True, eq=False):
    """The steps, by row, in which kernels are slower than in the fastest; times in ns of the kernels that were compared."""

    slow: Int64Array
    since: int | None
    """From this step on all are slow; None if some later step is fast again."""
    kernels: int
    """How many kernels of a step were compared."""
    usual: float
    """What they take in the fastest steps."""
    own: Times
    """What they take in each step."""
    more_ns: int
    """What all kernels of the slow steps take more."""
    alike: str
    """What was compared of their inputs (`alike_by`)."""


def kernels_slow_down(scope: Scope, _result: Kernels) -> Evidence | None:
    """The same kernels take longer in later steps than in the fastest ones, as when the device lowers its clock.

    Throttling that sets in and stays makes most steps slow, so a median step does not show it. The rule compares the same
    kernels, with the same grid, block and recorded shapes, that run in the same number in each step. They must take
    `SAME_PART` of the time of all kernels: else the inputs change. Where no shapes are recorded, they change as well if `OTHER_GRIDS`
    of the kernels of slow steps, or of their time, have grids that they do not have in the fastest steps. Only kernels count beside which no other stream of their
    device works, and only computation. The fastest steps are those within `NOISE` of the fastest one; slow steps at the
    beginning are a warm-up. If one kernel alone is slower, its work may have grown, so half of the time of the others must
    belong to slower kernels, too. At stake is what the slow steps take more than the fastest; the rule looks at the
    busiest device.

    Fires with `KERNELS_SLOW_DOWN_LEAST_STEPS` steps or more when kernels take `LEAST_SLOWER` times as long in `LEAST_SLOW` or
    more steps up to the last one, or in most steps, and that costs `WARNING_SHARE` of the window.
    """
    found = become_slower(scope)
    if found is None:
        return None
    slow, names = found.slow, scope.steps["name"]
    times = [f"{found.own[slow].min() / found.usual:.1f}", f"{found.own[slow].max() / found.usual:.1f}"]
    factor = times[0] if times[0] == times[1] else " to ".join(times)
    steps = count_of(slow.size, "slow step")
    if found.since is None:
        title = f"Kernels are slower in {slow.size} of {len(names)} steps: the same ones take {factor} times as long"
    else:
        since = names[found.since]
        title = f"Kernels become slower: from {since} on, the same ones take {factor} times as long"
    spans = step_spans(scope)[slow]
    return Evidence(
        title=title,
        text=f"{format_count(found.kernels)} kernels of each step, with {found.alike}, take "
        f"{format_ns(found.usual)} in the fastest steps and {format_ns(float(np.median(found.own[slow])))} in a median slow one. "
        f"Over {steps}, that adds {format_ns(found.more_ns)} ({format_share(found.more_ns / scope.duration)} of the time).",
        ns_at_stake=bounded_by_host(found.more_ns, scope),
        stretches=longest(
            spans.with_columns(
                pl.col("span_start").alias("start"), (pl.col("span_end") - pl.col("span_start")).alias("ns")
            ),
            length="ns",
        ),
    )


def become_slower(scope: Scope) -> Slower | None:
    """In which steps kernels are slower; None if the rule does not fire."""
    return scope.once(become_slower, lambda: _become_slower(scope))


def _become_slower(scope: Scope) -> Slower | None:
    if scope.on_cpu or scope.window != "steps" or scope.steps.height < KERNELS_SLOW_DOWN_LEAST_STEPS:
        return None
    device = max(scope.device_ids, key=lambda each: (scope.intervals(each).measure, -each))
    every = attributed(scope)
    wanted = _computing(every, device) & are_known(every["step"])
    rows = kept(every[["name", "grid", "block", "bytes", "op_id", "step", "duration"]], wanted)
    numbers = scope.steps["step"].to_numpy()
    order = np.argsort(numbers)
    steps = groups(order[np.searchsorted(numbers, rows["step"].to_numpy(), sorter=order)])
    total = steps.sums(rows["duration"].to_numpy())
    # Most traces are steady, which is known without a look at single kernels.
    if total.size < numbers.size or total.max() < SAME_PART * LEAST_SLOWER * total.min():
        return None
    rows = with_shapes(rows, scope)
    own, kernels = _compared(rows, steps.of, _alone(scope, device)[wanted], total)
    time = own.sum(axis=0)
    if not kernels or not time.min():
        return None
    fast = time <= NOISE * time.min()
    usual = float(np.median(time[fast]))
    slow = (time >= LEAST_SLOWER * usual) & (np.arange(time.size) > np.argmax(fast))
    since = int(np.flatnonzero(~slow)[-1]) + 1
    stays = time.size - since >= LEAST_SLOW
    if not (stays or 2 * slow.sum() > time.size) or not _most_are_slower(own, fast, slow):
        return None
    same = not on_other_grids(kept(rows, slow[steps.of]), kept(rows, fast[steps.of]))
    more = round(float(((1 - usual / time) * total)[slow].sum()))
    if not same or bounded_by_host(more, scope) < WARNING_SHARE * scope.duration:
        return None
    return Slower(np.flatnonzero(slow), since if stays else None, kernels, usual, time, more, alike_by(rows))


def _compared(rows: pl.DataFrame, step: Int64Array, alone: BoolArray, total: Int64Array) -> tuple[Times, int]:
    """The time in ns of each kernel that can be compared, by step; the number of them in a step, 0 if they are too few."""
    count, nothing = total.size, (np.zeros((0, total.size)), 0)
    duration, sized = rows["duration"].to_numpy(), rows["sized"].to_numpy()
    cells = groups(rows["like"].to_numpy(), step)
    likes = groups(cells.keys[0])
    counts, unsized = cells.counts, cells.sums(~sized)
    everywhere = (likes.counts == count) & (likes.sums(unsized) == 0)
    same = (everywhere & (likes.least(counts) == likes.greatest(counts)))[likes.of]
    covered = np.zeros(count, dtype=np.int64)
    np.add.at(covered, cells.keys[1][same], cells.sums(duration)[same])
    if not same.any() or (covered < SAME_PART * total).any():
        return nothing
    lonely = cells.sums(alone)
    solo = np.flatnonzero(same & (likes.least(lonely) > 0)[likes.of])
    own = (cells.sums(duration * alone)[solo] / lonely[solo] * counts[solo]).reshape(-1, count)
    enough = own.sum() >= ALONE_PART * total.sum()
    return own, int(counts[solo].sum()) // count if enough else 0


def _most_are_slower(own: Times, fast: BoolArray, slow: BoolArray) -> bool:
    """Whether most of the time belongs to slower kernels, also without the kernel that takes most of the difference."""
    before, after = np.median(own[:, fast], axis=1), np.median(own[:, slow], axis=1)
    others = np.arange(before.size) != np.argmax(after - before)
    slower = after >= NOISE * before
    return bool(others.any() and before[others & slower].sum() >= max(OTHERS_PART * before[others].sum(), 1))


def _computing(rows: pl.DataFrame, device: int) -> BoolArray:
    return ((rows["device_id"] == device) & (rows["class"] == "compute")).to_numpy()


def _alone(scope: Scope, device: int) -> BoolArray:
    """Which activities of the scope compute on a device with no other of its streams beside them, but for a twentieth of their time."""
    return scope.once(("alone", device), lambda: _all_alone(scope, device))


def _all_alone(scope: Scope, device: int) -> BoolArray:
    alone = _computing(scope.activities, device)
    work = kept(
        scope.overlapping[["device_id", "stream_id", "start", "end"]],
        scope.overlapping["device_id"] == device,
    )
    stream, streams = codes_of(work["stream_id"].to_numpy())
    if streams.size < 2:
        return alone
    start, end = work["start"].to_numpy(), work["end"].to_numpy()
    order = np.lexsort((start, stream))
    stream, start, end = stream[order], start[order], end[order]
    # What follows on a stream may begin a little before: that is no other stream's work.
    follows = np.append(stream[1:] == stream[:-1], np.False_)[: stream.size]
    end = np.where(follows, np.minimum(end, np.append(start[1:], 0)[: end.size]), end)
    at = np.concatenate([start, end])
    order = np.argsort(at, kind="stable")
    at, busy = at[order], np.cumsum(np.repeat([1, -1], start.size)[order])
    # The time of all streams together up to each of these points.
    worked = np.concatenate([[0], np.cumsum(busy[:-1] * np.diff(at))])

    def until(time: Int64Array) -> Int64Array:
        index = np.maximum(np.searchsorted(at, time, side="right") - 1, 0)
        passed: Int64Array = worked[index] + busy[index] * (time - at[index])
        return passed

    begin, done, duration = (
        scope.activities[name].to_numpy()[alone] for name in ("start", "end", "duration")
    )
    alone[alone] = until(done) - until(begin) - duration <= (NOISE - 1) * duration
    return alone


def with_shapes(rows: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """The activities with `like`, equal for the same kernel on inputs of the same size, and `sized`, whether that size is known."""
    shapes = at_rows(scope.trace.host["shapes"], rows["op_id"]).alias("shapes")
    texts = (rows["name"], rows["grid"], rows["block"], shapes)
    alike = groups(*(text_numbers(column) for column in texts), or_none(rows["bytes"]))
    sized = are_known(rows["grid"]) | are_known(shapes)
    return rows.hstack([shapes, pl.Series("like", alike.of), pl.Series("sized", sized)])


def alike_by(rows: pl.DataFrame) -> str:
    """What is known to be the same of kernels with the same `like`, as words."""
    return "the same grids and recorded shapes" if rows["shapes"].count() else "the same grids"


def on_other_grids(slow: pl.DataFrame, fast: pl.DataFrame) -> bool:
    """Whether kernels without recorded shapes have grids in the slow steps that they do not have in the fast ones."""
    usual = {name: fast[name].unique().implode() for name in ("name", "like")}
    unknown = pl.col("shapes").is_null() & pl.col("grid").is_not_null()
    new = slow.filter(unknown & pl.col("name").is_in(usual["name"]) & ~pl.col("like").is_in(usual["like"]))
    parts = (new.height, slow.height), (int(new["duration"].sum()), int(slow["duration"].sum()))
    return any(part >= max(OTHER_GRIDS * whole, 1) for part, whole in parts)


KERNELS_SLOW_DOWN = Rule(
    id="kernels_slow_down",
    analysis="kernels",
    evidence=kernels_slow_down,
    runs="device",
    advice=Advice(
        "Find out what slows the device in these steps: its clock, or other programs on it.\n"
        "[amd] amd-smi metric --clock --power --temperature shows clocks and limits.\n"
        "[!amd] nvidia-smi -q -d PERFORMANCE,CLOCK shows whether power or heat limits the clock."
    ),
)


# -- interrupted_kernels ----------------------------------------------------------------------------

LEAST_CALLS: Final = 4
"""Of fewer equal kernels, nobody can say which time is the usual one."""
INTERRUPTED_NS: Final = 500 * NS_PER_US
"""Programs that share a device take turns of a millisecond or more."""
INTERRUPTED: Final = 3
"""A lower clock makes no kernel so many times as long."""
LEAST_KINDS: Final = 4
"""The work of a few kernels may depend on their data; turns interrupt whatever runs."""
ONE_PART: Final = 0.5
"""If one kind of kernel has more of the time, it may be its data."""


def interrupted_kernels(scope: Scope, _result: Kernels) -> Evidence | None:
    """Now and then a kernel takes far longer than others with the same name, grid, block and recorded shapes, whatever it computes.

    So it looks when programs share a device and take turns: a kernel that is interrupted lasts until the program's next turn. Where no
    shapes are recorded, a kernel is compared with those in its place in other steps, since one grid may serve all sizes. Only
    kernels count beside which no other stream of their device works, and of which there are `LEAST_CALLS`. Interrupted ones take
    `INTERRUPTED` times as long as the faster ones of their kind, and `INTERRUPTED_NS` longer. At stake is what they take more.

    Fires when this is `WARNING_SHARE` of the window or more, of `LEAST_KINDS` kinds of kernels, none of which has more than `ONE_PART`
    of it.
    """
    hit = None if scope.on_cpu or not scope.device_ids else _interrupted(scope)
    if hit is None:
        return None
    kinds = hit.group_by("like").agg(pl.col("more").sum())["more"]
    total = int(kinds.sum())
    if kinds.len() < LEAST_KINDS or int(kinds.sort()[-1]) > ONE_PART * total:
        return None
    if total < WARNING_SHARE * scope.duration:
        return None
    each = hit["more"].sort()
    return Evidence(
        title=f"Something interrupts kernels for {format_share(total / scope.duration)} of the time, as happens when programs "
        "share the device",
        text=f"{count_of(hit.height, 'kernel')} of {kinds.len()} kinds take at least {format_ns(each[0])} longer than others "
        f"with {alike_by(hit)}, {format_ns(total)} in all, while no other stream is active.",
        ns_at_stake=bounded_by_host(total, scope),
        stretches=longest(hit),
    )


def _interrupted(scope: Scope) -> pl.DataFrame | None:
    """The interrupted kernels of the busiest device, with what they take `more`, in ns; None without any."""
    device = max(scope.device_ids, key=lambda each: (scope.intervals(each).measure, -each))
    rows = attributed(scope)
    wanted = np.flatnonzero(_computing(rows, device))
    # Most traces have no kernel that takes so much longer than another of its name.
    duration, names = rows["duration"].to_numpy()[wanted], groups(text_numbers(rows["name"])[wanted])
    most = names.greatest(duration)
    wanted = wanted[((most >= INTERRUPTED_NS) & (most >= INTERRUPTED * names.least(duration)))[names.of]]
    if not wanted.size:
        return None
    rows = rows[wanted].hstack([pl.Series("alone", _alone(scope, device)[wanted])])
    shaped, in_step = pl.col("shapes").is_not_null(), pl.col("step").is_not_null() & (scope.window == "steps")
    place = pl.when(~shaped).then(pl.int_range(pl.len()).over("step", "like"))
    rows = with_shapes(rows.sort("start"), scope).with_columns(place.alias("place"))
    equal = ("like", "place")
    usual = pl.col("duration").quantile(0.25, "lower").over(equal).cast(pl.Int64)
    rows = rows.with_columns((pl.col("duration") - usual).alias("more"))
    far = (pl.col("more") >= INTERRUPTED_NS) & (
        INTERRUPTED * pl.col("more") >= (INTERRUPTED - 1) * pl.col("duration")
    )
    known = shaped | (pl.col("sized") & in_step)
    told = rows.select(far & known & (pl.len().over(equal) >= LEAST_CALLS)).to_series()
    return kept(rows, told & rows["alone"]) if told.any() else None


INTERRUPTED_KERNELS = Rule(
    id="interrupted_kernels",
    analysis="kernels",
    evidence=interrupted_kernels,
    runs="device",
    advice=Advice(
        "See whether other programs use the device.\n"
        "[amd] amd-smi process lists them.\n"
        "[!amd] nvidia-smi lists them; if they must share it, MPS lets their kernels run at the same time, and MIG gives each a "
        "part of it.\n"
        "Kernel times say little until one program has the device to itself."
    ),
    explains=frozenset({"far_below_roof"}),
)
