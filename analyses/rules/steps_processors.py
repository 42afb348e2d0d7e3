"""Without a device: what some steps do that the others do not. A machine that is busy with other programs is no finding."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.attribution.host_stack import host_stack
from tracekit.analyses.call_sizes import elements_in
from tracekit.analyses.flops import json_list
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.idle.span_causes import span_causes, user_frames
from tracekit.analyses.rules.idle_processors import PREEMPTION_NS, remedy_of
from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, bounded, longest
from tracekit.analyses.scope import Scope
from tracekit.analyses.stalls import longest_between, stalled_within
from tracekit.facts.idle_names import cause_name
from tracekit.facts.units import format_ns
from tracekit.intervals import IntervalSet
from tracekit.names import called_from, shorten_name
from tracekit.spans import BoolArray, nesting_of
from tracekit.trace import one_of

__all__ = ["MAIN_PART", "compared", "slow_steps"]

MAIN_PART: Final = 0.5
"""One thing must take half of the difference."""
CHANCE: Final = 2
"""Code whose lines are unknown must take longer than this many times the difference that other programs make."""
_LONGEST: Final = 72
_WORK: Final = "work"

Times = npt.NDArray[np.float64]


def slow_steps(scope: Scope, table: pl.DataFrame, slow: pl.DataFrame) -> Evidence | None:
    """What the `slow` steps of the `table` do more than the others, if that is half or more of the difference.

    That is, they run operators that the others do not run, or more often, or on inputs of another shape; or one cause of time outside
    operators takes longer, in a stretch that no other program on the machine explains: it holds code that no other step runs,
    or is longer than the times of the same operators differ. Steps in which the same operators take longer are no finding.
    """
    median = float(str(table["span_ns"].median()))
    excess = table["span_ns"].to_numpy() - median
    rows = _rows_of(table, slow)
    added, shapes = _added_work(scope, table, rows)
    reasons = {_WORK: np.minimum(added, excess), **_added_idle(scope, table)}
    noise = _noise(scope, table, added)
    best: tuple[int, str, list[int]] = (0, "", [])
    for reason, ns in reasons.items():
        # Steps that something else slows down are not of this kind.
        mine = [row for row in rows if ns[row] >= MAIN_PART * excess[row]]
        best = max(best, (round(float(ns[mine].sum())), reason, mine))
    at_stake, reason, mine = best
    if at_stake < WARNING_SHARE * max(median, scope.duration / 10):
        return None
    place, there = _only_there(scope, table, mine, int(excess[mine].sum()))
    if place:
        mine = there
    elif reason != _WORK:
        mine = [row for row in mine if reasons[reason][row] >= CHANCE * noise]
    if not mine:
        return None
    at_stake, whole = round(float(reasons[reason][mine].sum())), int(excess[mine].sum())
    work = "inputs of different shapes" if shapes else "operators that the other steps do not run"
    what = work if reason == _WORK else cause_name(reason)
    slowest = table[mine].sort("span_ns", descending=True).head(3)
    listed = ", ".join(f"{name} {format_ns(ns)}" for name, ns in slowest[["name", "span_ns"]].rows())
    where = f", in {place}" if place else ""
    return Evidence(
        title=f"{len(mine)} of {table.height} steps {'is' if len(mine) == 1 else 'are'} slow, mostly because of {what}{where}",
        text=f"{compared(median, whole, len(mine))}; {format_ns(min(at_stake, whole))} of that is {what}. The slowest: {listed}.",
        ns_at_stake=bounded(at_stake, scope),
        advice=_advice(place, reason, shapes=shapes),
        stretches=longest(slowest.with_columns(pl.col("span_start").alias("start")), length="span_ns"),
    )


def compared(median: float, excess: int, slow: int) -> str:
    """What a median step takes, and what so many slow ones take more, all in ns."""
    ones = "the slow one takes" if slow == 1 else "the slow ones take"
    return f"The median step takes {format_ns(median)}, and {ones} {format_ns(excess)} more{' in all' if slow > 1 else ''}"


def _advice(place: str, reason: str, *, shapes: bool) -> Advice:
    if reason == "data_loading":
        return _LOADING
    if reason == _WORK and shapes:
        return Advice(
            "Pad or sort the inputs so that steps have similar sizes, or compare steps of the same size (--step)."
        )
    if reason == _WORK:
        return Advice(
            "Run them less often, or outside the loop.\n"
            "[training] If this is an evaluation, take fewer samples, and run it under torch.inference_mode().\n"
            "[!stacks] Record {names} to see which code it is."
        )
    if place:
        return Advice(remedy_of(place))
    return Advice(
        "The usual causes are checkpoints, evaluation, logging and garbage collection. Do them less often, or in another thread "
        "or process.\n[!stacks] Record {names} to see which code it is.",
        flags=("--stack",),
    )


_LOADING: Final = Advice(
    "[!workers] Load data in other processes (DataLoader(num_workers=…)), which work ahead.\n"
    "[workers] Let the workers work further ahead (prefetch_factor), and keep them between epochs (persistent_workers=True)."
)


def _in_steps(rows: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """The rows (`start`) that begin in a step, with the row of this step in the `table`."""
    start, length = table["span_start"].to_numpy(), table["span_ns"].to_numpy()
    at = rows["start"].to_numpy()
    row = np.searchsorted(start, at, side="right") - 1
    inside = (row >= 0) & (at < (start + length)[np.maximum(row, 0)])
    return rows.with_columns(pl.Series("row", row)).filter(pl.Series(inside))


def _noise(scope: Scope, table: pl.DataFrame, added: Times) -> float:
    """By how much the time of the same operators differs between steps, in ns: what other programs on the machine do to a step."""
    start, length = table["span_start"].to_numpy(), table["span_ns"].to_numpy()
    work = scope.intervals().coverage(start, start + length)
    return float(np.ptp(work[added < MAIN_PART * work])) if (added < MAIN_PART * work).any() else 0.0


def _rows_of(table: pl.DataFrame, slow: pl.DataFrame) -> list[int]:
    return np.flatnonzero(table["span_start"].is_in(slow["span_start"].implode()).to_numpy()).tolist()


def _added_work(scope: Scope, table: pl.DataFrame, rows: list[int]) -> tuple[Times, bool]:
    """For each step the time of operators that a median step does not run, in ns; whether only the shapes of inputs differ."""
    ops = scope.host("op", columns=["process_id", "thread_id", "name", "start", "duration", "shapes"])
    ops = ops.filter(pl.Series(nesting_of(ops).depth() == 0))
    ops = _in_steps(ops, table).with_columns(pl.col("name").cast(pl.String), pl.col("shapes").cast(pl.String))
    by_name, by_shape = (_more(ops, table, rows, keys) for keys in (["name"], ["name", "shapes"]))
    by_shape = np.where(_of_larger_inputs(ops, table, rows), by_shape, 0.0)
    # What other shapes replace, other steps run as well; what stood still, no input explains.
    ends = zip(table["span_start"], table["span_start"] + table["span_ns"], strict=True)
    stalled = [stalled_within(scope, IntervalSet.of(*np.array([[start], [end]]))) for start, end in ends]
    took = np.bincount(ops["row"].to_numpy(), ops["duration"].to_numpy(), table.height) - stalled
    others = np.delete(took, rows)
    by_shape = np.minimum(by_shape, np.maximum(took - np.median(others), 0.0)) if others.size else by_shape
    return np.maximum(by_name, by_shape), bool(2 * by_name.sum() < by_shape.sum())


def _of_larger_inputs(ops: pl.DataFrame, table: pl.DataFrame, slow: list[int]) -> BoolArray:
    """Which steps work on more elements than the others usually do, and on other shapes than each of these: else their inputs explain
    no longer time.
    """
    elements = {text: elements_in(json_list(text)) or 0 for text in ops["shapes"].drop_nulls().unique()}
    counts = ops.group_by("row", "name", "shapes").len().sort("name", "shapes", "len", nulls_last=True)
    sizes, kinds = np.zeros(table.height), [()] * table.height
    for (row,), calls in counts.group_by("row", maintain_order=True):
        sizes[row] = sum(elements.get(text, 0) * count for text, count in calls["shapes", "len"].rows())
        kinds[row] = tuple(calls["name", "shapes", "len"].rows())
    others = [row for row in range(table.height) if row not in slow]
    alike = {kinds[row] for row in others}
    usual = float(np.median(sizes[others])) if others else 0.0
    return np.array([size > usual and kind not in alike for size, kind in zip(sizes, kinds, strict=True)])


def _more(ops: pl.DataFrame, table: pl.DataFrame, rows: list[int], keys: list[str]) -> Times:
    counts = ops.group_by(*keys, "row").agg(pl.len().alias("count"), pl.col("duration").sum())
    others = counts.filter(~pl.col("row").is_in(rows))
    steps = max(table.height - len(rows), 1)
    # Where fewer than half of the other steps run it, a median step does not.
    usual = others.group_by(keys).agg(
        pl.when(2 * pl.len() > steps).then(pl.col("count").median()).otherwise(0).alias("usual")
    )
    mine = counts.filter(pl.col("row").is_in(rows)).join(usual, on=keys, how="left", nulls_equal=True)
    more = (1 - pl.col("usual").fill_null(0) / pl.col("count")).clip(lower_bound=0)
    mine = mine.with_columns((pl.col("duration") * more).alias("more"))
    return np.bincount(mine["row"].to_numpy(), mine["more"].to_numpy(), table.height).astype(np.float64)


def _added_idle(scope: Scope, table: pl.DataFrame) -> dict[str, Times]:
    """What each cause of time outside operators takes more in a step than in the median one, in ns.

    Only in the steps where one stretch is longer than another program would make it.
    """
    pieces = idle_causes(scope).pieces.with_columns(pl.col("cause").cast(pl.String))
    stretch = pl.col("duration_ns").sum().over("gap_id", "cause").alias("stretch")
    pieces = _in_steps(pieces.with_columns(stretch), table)
    more, least = {}, max(PREEMPTION_NS, longest_between(scope))
    for (cause,), mine in pieces.group_by("cause"):
        sums = np.bincount(mine["row"].to_numpy(), mine["duration_ns"].to_numpy(), table.height)
        own = mine.filter(pl.col("stretch") >= least)["row"].unique().to_numpy()
        more[str(cause)] = np.where(np.isin(np.arange(table.height), own), sums - np.median(sums), 0.0)
    return more


def _only_there(scope: Scope, table: pl.DataFrame, rows: list[int], excess: int) -> tuple[str, list[int]]:
    """The frame or range that only these steps have, and that takes half of the difference; and the steps that have it.

    That is the innermost line of the user's code, and what it calls; else the outermost range. Empty if there is none.
    """
    stack = host_stack(scope.trace)
    spans = stack.frame[["span_id", "start", "duration", "name", "kind", "depth"]]
    users = pl.Series("user", user_frames(stack))
    spans = _in_steps(spans.with_columns(users).filter(one_of("kind", "python", "annotation")), table)
    spans = spans.with_columns(pl.col("row").is_in(rows).alias("slow"))
    own = spans.group_by("name").agg(
        pl.col("slow").all(), pl.col("duration").filter("slow").sum().alias("ns")
    )
    own = own.filter(pl.col("slow") & (pl.col("ns") >= MAIN_PART * excess))
    if not own.height:
        return "", []
    # Of a name that occurs more than once, the longest.
    found = spans.join(own[["name"]], on="name", how="semi").sort("duration", descending=True)
    found = found.unique("name", keep="first").sort("depth").with_columns(pl.col("name").cast(pl.String))
    user = found.filter("user").tail(1)
    inner = found.filter(pl.col("depth") > int(user["depth"][0])) if user.height else found
    first = (inner.filter(pl.col("kind") == "python") if user.height else inner).head(1)
    first = first if first.height else user
    name = str(first["name"][0])
    there = spans.filter(pl.col("name").cast(pl.String) == name)["row"].unique().sort().to_list()
    if first["kind"][0] == "annotation":
        return f"range {shorten_name(name, _LONGEST)}", there
    frame = int(stack.nesting.nearest_ancestor(users.to_numpy())[int(first["span_id"][0])])
    caller = "" if frame < 0 else str(span_causes(scope).names[frame])
    return called_from(name, caller or None) or "", there
