"""The scope of an analysis: which activities, in which window, belonging to which steps (DEFINITIONS §1).

A trace without a device is analysed on the CPU: the self time of operators takes the device's place, one
"stream" a thread, so that every analysis has one path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import field
from typing import Any, Final, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.processors import cpu_activities
from tracekit.analyses.steps_inferred.periods import launch_steps
from tracekit.analyses.steps_inferred.ranges import InferredSteps, inferred_steps
from tracekit.classes import dataclass
from tracekit.classify import ACTIVITY_CLASSES, activity_class
from tracekit.errors import UsageError, not_a_pattern
from tracekit.facts.step_names import STEP_PREFIX
from tracekit.facts.units import format_count
from tracekit.groups import any_known, are_known, at_rows, codes_of, groups, kept, or_none, with_series
from tracekit.intervals import IntervalSet
from tracekit.names import clean
from tracekit.trace import HOST_KINDS, Trace, one_of

__all__ = [
    "Scope",
    "Window",
    "launch_times",
    "once",
    "select",
    "step_at",
    "step_spans",
    "step_table",
    "window_label",
]

Window = Literal["steps", "trace"]
_Made = TypeVar("_Made")

_MOST_NAMED: Final = 6
_LONGEST_NAMED: Final = 40
_LONG_WAIT_NS: Final = 100_000
"""An idle device starts what was launched within some 10 µs; after ten times that it was not idle."""
_LONG_COPY_CALL_NS: Final = 5_000_000
"""Before a copy from pageable memory starts, the host copies some MB of it to the driver's memory."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scope:
    """What is analysed.

    `activities` are the device rows that belong to the scope (columns of DEVICE_SCHEMA plus `class`, `step` and
    `end`); `overlapping` are all rows that touch the window, whoever launched them; `earlier` are those on which a device
    still worked that were launched before the recording, or before the steps: they are left out. `steps` has one row per selected step: `step`, `name`,
    `start`, `duration`, `end`. Times in ns. Where the steps of a trace that marks none
    are inferred, `inferred_from` names what from (a range, or a period of launches), and `inferred` tells it in words;
    None when they were marked or asked for. `periods`: they are periods of launches, each of which ends where another begins. `compared`: for how
    long (ns) its rank waits for others in collectives, by the joint view of its job that stands beside what is said of it; None without one.
    """

    trace: Trace
    window: Window
    label: str
    start: int
    end: int
    steps: pl.DataFrame
    activities: pl.DataFrame
    overlapping: pl.DataFrame
    earlier: pl.DataFrame
    on_cpu: bool
    inferred_from: str | None = None
    inferred: str | None = None
    periods: bool = False
    compared: int | None = None
    _made: dict[Hashable, object] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: its trace, and the part of it."""
        return clean(f"<Scope {self.trace.meta.name}: {self.label}>")

    @property
    def duration(self) -> int:
        """The window's length in ns."""
        return self.end - self.start

    def once(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """What `make` returns, made at the first call with this key and kept as long as the scope."""
        if key not in self._made:
            self._made[key] = make()
        made: Any = self._made[key]
        return cast("_Made", made)

    def forget(self, *keys: Hashable) -> None:
        """Free what was made once with these keys; without any all of it, which is as large as the trace."""
        for key in keys or list(self._made):
            self._made.pop(key, None)

    @property
    def device_ids(self) -> list[int]:
        """The devices that worked in the window, in order."""
        devices = self.overlapping["device_id"].to_numpy()
        return self.once("device ids", lambda: [int(each) for each in codes_of(devices)[1]])

    def intervals(self, device_id: int | None = None, *classes: str) -> IntervalSet:
        """The union of the activities of these classes (all when none is named), clipped to the window."""
        if self.device_ids == [device_id]:
            device_id = None  # each union takes as much memory as two columns of the activities
        some = tuple(name for name in self._classes if name in classes) or classes
        key = device_id, () if some == self._classes else some
        return self.once(("intervals", *key), lambda: self._union(*key))

    @property
    def _classes(self) -> tuple[str, ...]:
        """The classes of the activities that reach into the window."""
        return self.once(
            "classes",
            lambda: tuple(ACTIVITY_CLASSES[at] for at in np.flatnonzero(np.bincount(self._class_numbers()))),
        )

    def _class_numbers(self) -> npt.NDArray[np.unsignedinteger]:
        return self.overlapping["class"].to_physical().to_numpy()

    def _union(self, device_id: int | None, classes: tuple[str, ...]) -> IntervalSet:
        rows = self.overlapping
        starts, ends = rows["start"].to_numpy(), rows["end"].to_numpy()
        wanted = np.ones(rows.height, dtype=bool)
        if device_id is not None:
            wanted &= rows["device_id"].to_numpy() == device_id
        if classes:
            wanted &= _is_one_of(self._class_numbers(), classes, ACTIVITY_CLASSES)
        if not wanted.all():
            starts, ends = starts[wanted], ends[wanted]
        return IntervalSet.of(np.clip(starts, self.start, self.end), np.clip(ends, self.start, self.end))

    def host(self, *kinds: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Host spans of these kinds (all when none is named) that start within the host side of the scope.

        Of a large trace only the `columns` that are needed should be asked for.
        """
        host = self.trace.host if columns is None else self.trace.host[list(columns)]
        kinds = tuple(sorted(kinds))
        rows = self.once(("host rows", kinds), lambda: self._host_rows(kinds))
        return host if rows.size == host.height else host[rows]

    def _host_rows(self, kinds: Sequence[str]) -> npt.NDArray[np.uint32]:
        host = self.trace.host
        kind = self.once("kinds", lambda: host["kind"].to_physical().to_numpy())
        wanted = _is_one_of(kind, kinds, HOST_KINDS) if kinds else np.ones(host.height, dtype=bool)
        if self.window == "steps" and self.steps.height:
            low, high = self.host_window()
            start = host["start"].to_numpy()
            wanted = wanted & (start >= low) & (start < high)
        return np.flatnonzero(wanted).astype(np.uint32)  # as Polars numbers rows

    def host_window(self) -> tuple[int, int]:
        """First start to last end of the steps on the host; without steps, of all host spans."""
        if self.steps.height:
            return int(self.steps["start"][0]), int(self.steps["end"][-1])
        host = self.trace.host[["kind", "start", "duration"]]
        host = kept(host, host["kind"] != "overhead")
        if not host.height:
            return self.start, self.end
        ends = host["start"] + host["duration"]
        return _int(host["start"].min()), _int(ends.max())


def _is_one_of(
    numbers: npt.NDArray[np.unsignedinteger], values: Sequence[str], names: Sequence[str]
) -> npt.NDArray[np.bool_]:
    """Which rows of an Enum of these names, as numbers, have one of the values."""
    mask: npt.NDArray[np.bool_] = np.array([name in values for name in names])[numbers]
    return mask


def once(of: Scope | Trace, analysis: Callable[[Scope], _Made]) -> _Made:
    """The result of an analysis, made once for each scope; of a trace, that of its default scope."""
    scope = of if isinstance(of, Scope) else select(of)
    return scope.once(analysis, lambda: analysis(scope))


def step_table(trace: Trace, pattern: str | None = None) -> pl.DataFrame:
    """One row per step: `step`, `name`, `start`, `duration`, `end` in ns, in order of time.

    Without `pattern` the profiler's own steps; with it, annotations whose name matches. A step's end is its own;
    the time to the next step's start is what `analyses.steps` calls step time.

    Raises UsageError when the pattern matches nothing or is no regular expression.
    """
    host = trace.host[["kind", "name", "process_id", "thread_id", "start", "duration"]]
    name = pl.col("name").cast(pl.String)
    if pattern is None:
        rows = kept(host, host["kind"] == "step")
        number = name.str.strip_prefix(STEP_PREFIX).cast(pl.Int64, strict=False)
    else:
        host = host.filter(one_of("kind", "step", "annotation"))
        try:
            re.compile(pattern)
            rows = host.filter(name.str.contains(pattern))
        except (re.error, pl.exceptions.PolarsError) as error:
            raise not_a_pattern("--step", pattern, error) from error
        if not rows.height:
            raise UsageError(
                f"no annotation matches --step {pattern!r}",
                path=trace.meta.path,
                remedy=_annotations_there(host["name"]),
            )
        rows = _disjoint(rows)
        number = pl.lit(None, dtype=pl.Int64)
    return _numbered(trace, rows.select(number.alias("step"), name.alias("name"), "start", "duration"))


def _disjoint(ranges: pl.DataFrame) -> pl.DataFrame:
    """The ranges that are steps: not those around others of the same name, and not those inside another one that is left."""
    thread, start, end = ["process_id", "thread_id"], pl.col("start"), pl.col("start") + pl.col("duration")
    rows = ranges.sort("start", "duration", descending=[False, True])
    rows = rows.filter((start.shift(-1).over(*thread, "name") >= end).fill_null(value=True))
    return rows.filter((start >= end.cum_max().shift().over(thread)).fill_null(value=True))


def _annotations_there(names: pl.Series) -> str:
    """The most frequent annotations, those that differ in numbers only as one, with `#`; quoted, since a trace may call them anything."""
    alike = names.cast(pl.String).str.replace_all(r"#?\d+", "#").alias("name").to_frame()
    counts = alike.group_by("name").len().sort("len", "name", descending=[True, False])
    if not counts.height:
        return "the trace has none; leave --step out"
    named = ", ".join(repr(name[:_LONGEST_NAMED]) for name in counts["name"].head(_MOST_NAMED).to_list())
    return f"there are {named}{', …' if counts.height > _MOST_NAMED else ''}"


def _numbered(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """The steps in order of time, each with its own number; if not all have one of their own, with the number of its place."""
    table = rows.sort("start", "duration")
    table = table.hstack([(table["start"] + table["duration"]).alias("end")])
    if (excerpt := trace.meta.excerpt) is not None:  # a step at its edge was not read as a whole
        table = table.filter((pl.col("start") >= excerpt.start) & (pl.col("end") <= excerpt.end))
    start = table["start"].to_numpy()
    table = kept(table, np.append(start[1:] != start[:-1], np.True_)[: start.size])
    if table["step"].null_count() or not table["step"].is_unique().all():
        table = with_series(table, pl.Series("step", np.arange(table.height)))
    return table


def select(trace: Trace, *, window: Window = "steps", step: str | None = None) -> Scope:
    """The scope of a trace.

    With `window="steps"` (the default) the window is that of the steps (`_window`). A trace that marks no steps takes a
    range that is repeated and named like one, else a period in its sequence of launches (`analyses.steps_inferred`), and
    without either falls back to the whole. With `window="trace"`: first to last activity of the file, and no steps but
    those that are marked or asked for. An activity belongs to the step in which it was launched; without a recorded
    launch, to the one in which it starts, except before the first activity with a launch: that is work from before the
    recording.

    Raises UsageError for a step pattern that matches nothing.
    """
    if window not in ("steps", "trace"):
        raise UsageError(f"unknown window {window!r}", remedy="use steps or trace")
    on_cpu = not trace.has_device
    rows = cpu_activities(trace) if on_cpu else trace.device
    rows = rows.with_columns(
        (pl.col("start") + pl.col("duration")).alias("end"), activity_class().alias("class")
    )
    steps, inferred = _steps_of(trace, rows, step, infer=window == "steps")
    launched = launch_times(trace, rows)
    earlier = _before_recording(rows) if steps.height else pl.Series(np.zeros(rows.height, dtype=bool))
    of_step = step_at(steps, launched)
    rows = rows.hstack([of_step.set(earlier, None)])
    steps = _without_stub(steps, rows)
    by_step = window == "steps" and steps.height > 0
    stepped = are_known(rows["step"])
    chosen = kept(rows, stepped) if by_step else rows
    if by_step and not chosen.height:
        chosen, by_step = rows, False
    start, end = (_int(chosen["start"].min()), _int(chosen["end"].max())) if chosen.height else (0, 0)
    before = rows.clear()
    if by_step:
        first = steps["start"][0]
        late = (launched < first) & (rows["end"].to_numpy() > first)
        before = kept(rows, ~stepped & (earlier.to_numpy() | late))
        start, end = _window(trace, steps, chosen, before.clear() if on_cpu else before)
    touching = kept(rows, (rows["end"] > start) & (rows["start"] < end)) if chosen.height else rows
    inferred = inferred if by_step else None
    source, words, periods = (
        (inferred.source, inferred.label, inferred.periods) if inferred else (None, None, False)
    )
    label = window_label(trace, steps, words, by_step=by_step, has_activities=chosen.height > 0)
    kind: Window = "steps" if by_step else "trace"
    return Scope(
        trace, kind, label, start, end, steps, chosen, touching, before, on_cpu, source, words, periods
    )


def _before_recording(rows: pl.DataFrame) -> pl.Series:
    """Which activities have no launch and start before the first of their device that has one.

    The device still works on what was launched before the profiler began. A device without any launch tells nothing.
    """
    if any_known(rows["launch_id"]) and not rows["launch_id"].null_count():
        return pl.Series(np.zeros(rows.height, dtype=bool))
    first = pl.col("start").filter(pl.col("launch_id").is_not_null()).min().over("device_id")
    unlaunched = pl.col("launch_id").is_null() & (pl.col("start") < first)
    return rows.select(unlaunched.fill_null(value=False)).to_series()


def _window(trace: Trace, steps: pl.DataFrame, chosen: pl.DataFrame, before: pl.DataFrame) -> tuple[int, int]:
    """Begin and end of the window of these steps, in ns (DEFINITIONS §1), given their activities and those before them.

    It begins with the first step on the host, or at the end of earlier work on the device where that is later; and, if
    the first activity waited long although nothing recorded kept its device busy, with that activity: then the device
    worked on something from before the recording. It ends with the last step on the host, or with its last activity.
    """
    last = _int(chosen["end"].max())
    begin, end = _int(steps["start"].min()), max(_int(steps["end"].max()), last)
    of_these = np.isin(before["device_id"].to_numpy(), chosen["device_id"].to_numpy())
    busy_until = _int(kept(before, of_these)["end"].max())
    first = chosen[chosen["start"].arg_min() or 0]
    starts = int(first["start"][0])
    if busy_until < last:  # else it did not keep them waiting, and nothing of them would be in the window
        begin = max(begin, busy_until)
    launch = first["launch_id"][0]
    if launch is not None:
        called, took = _int(trace.host["start"][launch]), _int(trace.host["duration"][launch])
        # The call of a copy may itself wait until the device is free.
        waited = starts - max(begin, called + took)
        in_call = starts - max(begin, called) if first["kind"][0] == "memcpy" else 0
        begin = starts if waited >= _LONG_WAIT_NS or in_call >= _LONG_COPY_CALL_NS else begin
    return begin, end


def _steps_of(
    trace: Trace, rows: pl.DataFrame, pattern: str | None, *, infer: bool
) -> tuple[pl.DataFrame, InferredSteps | None]:
    """The steps, and what they are inferred from where they are."""
    if pattern is not None or not infer or (trace.host["kind"] == "step").any():
        return step_table(trace, pattern), None
    launched = launch_times(trace, rows)
    inferred = inferred_steps(trace, rows, launched)
    if inferred is None and trace.has_device:
        inferred = launch_steps(trace, rows, launched)
    if inferred is None:
        return step_table(trace, pattern), None
    unnumbered = inferred.spans.select(pl.lit(None, pl.Int64).alias("step"), "name", "start", "duration")
    return _numbered(trace, unnumbered), inferred


def _without_stub(steps: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The steps without one at the end in which nothing ran, when something ran in others: the profiler opens the
    next step before it stops.
    """
    if steps.height < 2 or not any_known(rows["step"]) or (rows["step"] == steps["step"][-1]).any():
        return steps
    return steps.head(-1)


def step_spans(scope: Scope) -> pl.DataFrame:
    """Each step with the device work that it launched: `step`, `span_start`, `span_end` in ns.

    A span begins where the one before it ends (the first: where the window begins), or at the step's own start if that
    is later, and ends with the last activity that the step launched, or with its own end: so spans never overlap
    (torch-tb-profiler's steps).
    """
    return scope.once(step_spans, lambda: _step_spans(scope))


def _step_spans(scope: Scope) -> pl.DataFrame:
    table = scope.steps
    starts = table["start"].to_numpy()
    of_step, known = scope.activities["step"], are_known(scope.activities["step"])
    work = groups(or_none(of_step)[known])
    last = dict(
        zip(
            work.keys[0].tolist(),
            work.greatest(scope.activities["end"].to_numpy()[known]).tolist(),
            strict=True,
        )
    )
    ends = np.array(
        [max(end, last.get(step, end)) for step, end in table[["step", "end"]].rows()], dtype=np.int64
    )
    # Of a step that lies before the window nothing is left.
    first = scope.start if scope.window == "steps" else np.iinfo(np.int64).min
    until = np.maximum.accumulate(np.maximum(ends, first))
    begin = np.maximum(starts, np.append(first, until[:-1])[: starts.size])
    return pl.DataFrame({"step": table["step"], "span_start": begin, "span_end": until})


def window_label(
    trace: Trace, steps: pl.DataFrame, inferred: str | None, *, by_step: bool, has_activities: bool
) -> str:
    """What a window is called: its steps (and from what these are `inferred`), or the whole trace."""
    if not has_activities:
        return "no device activity and no operator was recorded"
    if not by_step:
        what = "the whole trace" if trace.meta.excerpt is None else "the part of the trace that was read"
        return f"{what}, first to last activity"
    told = "" if inferred is None else f" ({inferred})"
    first, last = (f'"{name}"' if " to " in name else name for name in (steps["name"][0], steps["name"][-1]))
    if steps.height == 1:
        return f"{first}{told}"
    return f"{format_count(steps.height)} steps, {first} to {last}{told}"


def launch_times(trace: Trace, rows: pl.DataFrame) -> npt.NDArray[np.int64]:
    """When each activity was launched, in ns from the trace's origin; its own start where no launch is known."""
    launch = or_none(rows["launch_id"])
    called, own = trace.host["start"].to_numpy(), rows["start"].to_numpy()
    return np.where(launch >= 0, called[np.maximum(launch, 0)], own) if called.size else own


def step_at(steps: pl.DataFrame, times: npt.NDArray[np.int64]) -> pl.Series:
    """The number `step` of the one of these steps that is open on the host at each time (ns); null where none is."""
    if not steps.height:
        return pl.Series("step", [None] * times.size, dtype=pl.Int64)
    index = np.maximum(np.searchsorted(steps["start"].to_numpy(), times, side="right") - 1, 0)
    inside = (times >= steps["start"].to_numpy()[index]) & (times < steps["end"].to_numpy()[index])
    return at_rows(steps["step"], np.where(inside, index, -1))


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
