"""Figures over many runs as a section: with which runs the step time changed, tables, and a curve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from tracekit.diff.runs import date_of
from tracekit.diff.trend import FEWEST, LevelChange, Trend
from tracekit.facts.idle_names import cause_name
from tracekit.facts.units import count_of, format_change, format_ns, format_share
from tracekit.names import category_name, clean
from tracekit.report.model import Figure, Section, Table, Unit, table_of

__all__ = ["trend_section"]

_MOST_TOLD: Final = 4
_ORDERS: Final = {
    "recorded": "of the time at which they were recorded",
    "changed": "of the time at which their files were last changed",
    "name": "of their names",
    "given": "in which they were given",
}
_SCALES: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_TITLES: Final = {
    "throughput_per_s": "samples/s",
    "idle_share": "idle",
    "communication_share": "exposed comm.",
    "peak_memory_bytes": "peak memory",
    "step_low_ns": "from",
    "step_high_ns": "to",
    "ratio": "×",
    "parts": "most changed",
    "told": "differs",
}
_UNITS: Final[dict[str, Unit]] = dict.fromkeys(("ratio", "low", "high"), "number")
_CHANGES: Final = "since recorded before_ns after_ns ratio low high parts"
_RUNS: Final = "run recorded step_ns change step_low_ns step_high_ns throughput_per_s idle_share communication_share peak_memory_bytes"


def trend_section(trend: Trend) -> Section:
    """The section: tables `changes`, `runs` and `categories`, and the step times as a curve."""
    return Section(
        "trend",
        "With which runs did the step time change?",
        clean(" ".join(_answer(trend))),
        tables=tuple(_tables(trend)),
        figures=(_figure(trend),),
    )


# -- the answer ------------------------------------------------------------------------------------


def _answer(trend: Trend) -> Iterator[str]:
    size, noise = trend.table.height, trend.levels.noise
    first, last = trend.table["level_ns"][0], trend.table["level_ns"][-1]
    if noise is None:
        few = f"{count_of(size, 'run')} {'is' if size == 1 else 'are'} too few to tell a change from noise; {FEWEST} are needed."
        yield f"A step takes {format_ns(first)}: {few}" if size == 1 else f"{few[:1].upper()}{few[1:]}"
    elif not trend.changes:
        yield f"Over {size} runs, the step time shows no lasting change; on average it is {format_ns(first)}."
    else:
        times = count_of(len(trend.changes), "change")
        yield f"Over {size} runs, the step time goes from {format_ns(first)} to {format_ns(last)}, with {times}."
    for change in trend.changes[-_MOST_TOLD:]:
        yield from _told(trend, change)
    if len(trend.changes) > _MOST_TOLD:
        yield "The table has the changes before these."
    for at in trend.levels.lone:
        run = trend.table.row(at, named=True)
        off = run["step_ns"] / run["level_ns"]
        beside = "before" if at == size - 1 else "after" if at == 0 else "around"
        yield f"{run['run']} alone is {_by(off)} than the runs {beside} it; run it again to see whether that persists."
    if noise is not None:
        yield f"Between runs, the step time varies by {format_share(noise)}."
    how = "without the profiler" if trend.plain else "of the recorded steps"
    yield f"Times are medians {how}. The runs are in order {_ORDERS[trend.order]}."


def _told(trend: Trend, change: LevelChange) -> Iterator[str]:
    run = trend.table.row(change.at, named=True)
    ends = sorted(abs(end - 1) for end in (change.low, change.high))
    since = "" if run["when_ns"] is None else f" ({date_of(run['when_ns'])})"
    parts = "" if not change.parts else f"; most changed: {_parts(change)}"
    yield f"Since {run['run']}{since} a step is {_by(change.ratio)} ({' to '.join(map(format_share, ends))}){parts}."
    if change.told:
        yield f"That run differs from the one before it in {_differs(change)}."


def _by(ratio: float) -> str:
    return f"{format_share(abs(ratio - 1))} {'slower' if ratio > 1 else 'faster'}"


def _parts(change: LevelChange) -> str:
    return ", ".join(f"{_part(name)} ({format_change(ns)})" for name, ns in change.parts)


def _part(name: str) -> str:
    return f"idle time ({cause_name(name[5:])})" if name.startswith("idle ") else category_name(name)


def _differs(change: LevelChange) -> str:
    told = [f"{name} ({before} → {after})" for name, before, after in change.told]
    more = [f"{len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []
    return ", ".join([*told[:_MOST_TOLD], *more])


# -- tables ----------------------------------------------------------------------------------------


def _tables(trend: Trend) -> Iterator[Table]:
    rows = [
        {"since": trend.table["run"][one.at], "recorded": _when(trend)[one.at], "ratio": one.ratio, "low": one.low, "high": one.high,
         "before_ns": trend.table["level_ns"][one.at - 1], "after_ns": trend.table["level_ns"][one.at],
         "parts": _parts(one) or None, "told": _differs(one) or None, "noise_share": trend.levels.noise}
        for one in trend.changes
    ]  # fmt: skip
    if rows:
        yield table_of("changes", "Changes", pl.DataFrame(rows, infer_schema_length=None), _CHANGES, _TITLES, _UNITS)  # fmt: skip
    marks = dict.fromkeys(trend.levels.lone, "alone")
    marks |= {one.at: f"{'+' if one.ratio > 1 else '−'}{format_share(abs(one.ratio - 1))}" for one in trend.changes}  # fmt: skip
    change = pl.Series("change", [marks.get(at) for at in range(trend.table.height)], dtype=pl.String)
    recorded = pl.Series("recorded", _when(trend), dtype=pl.String)
    frame = trend.table.drop("when_ns").insert_column(1, recorded).with_columns(change)
    yield table_of("runs", "Runs, the last first", frame.reverse(), _RUNS, _TITLES, _UNITS)
    parts = trend.categories.reverse()
    titles = {name: _part(clean(name).removesuffix("_ns")) for name in parts.columns}
    yield table_of("categories", "Mean time in a step", parts, titles=titles)


def _when(trend: Trend) -> list[str | None]:
    return [None if ns is None else date_of(ns) for ns in trend.table["when_ns"]]


# -- figure ----------------------------------------------------------------------------------------


def _figure(trend: Trend) -> Figure:
    """The medians with their intervals, and the levels, from run to run."""
    table = trend.table
    scale, unit = next(each for each in _SCALES if table["step_ns"].max() >= each[0] or each[0] == 1)  # type: ignore[operator]
    x = list(range(1, table.height + 1))
    y, low, high, level = (
        (table[name].fill_null(table["step_ns"]) / scale).to_list()
        for name in ("step_ns", "step_low_ns", "step_high_ns", "level_ns")
    )
    names = [f"{clean(run)}: {format_ns(ns)}" for run, ns in table[["run", "step_ns"]].rows()]
    series: list[dict[str, Any]] = [
        {"label": "step time", "style": "line", "x": x, "y": y, "low": low, "high": high},
        {"label": "runs", "style": "dots", "x": x, "y": y, "names": names},
    ]
    if trend.levels.noise is not None:
        edges = [at + end for at in x for end in (-0.5, 0.5)]
        series.append({"label": "level", "style": "dashes", "x": edges, "y": [each for each in level for _ in (0, 1)]})  # fmt: skip
    data = {"base": 0, "x_title": "run", "y_title": f"step time in {unit}", "series": series}
    return Figure("step_time", "Step time of each run", "curve", data)
