"""How long the steps are, how much they vary, and what runs in them (DEFINITIONS §1, §9).

Step time is the time from the start of one step to the start of the next on the host; for the last step its own
duration. The composition gives every ns of a step to the first that applies of kernel, copy, fill, communication on the
host, runtime call, data loader, operator, other (the order of torch-tb-profiler). For the composition, as in that tool,
a step begins at the end of the step before, or at its own start if that is later, and ends with the last activity that
it launched, or at its own end.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.result import Result, TableView
from tracekit.analyses.scope import Scope, once, step_spans
from tracekit.classes import dataclass
from tracekit.facts.units import format_ns, format_share
from tracekit.groups import kept
from tracekit.intervals import EMPTY, IntervalSet
from tracekit.name_table import NameTable
from tracekit.readers import flag_for
from tracekit.statistics import outliers, trimmed_mean
from tracekit.trace import Trace

__all__ = ["DATA_LOADER", "PARTS", "TABLES", "Steps", "steps"]

PARTS = ("kernel", "memcpy", "memset", "communication", "runtime", "data_loader", "operator", "other")

_COLUMNS = {
    "step": pl.Int64,
    "name": pl.String,
    "start": pl.Int64,
    "duration_ns": pl.Int64,
    "time_ns": pl.Int64,
    "outlier": pl.Boolean,
    "span_start": pl.Int64,
    "span_ns": pl.Int64,
    **{f"{part}_ns": pl.Int64 for part in PARTS},
}
_AHEAD: Final = 0.93
"""If the steps but the last are shorter on the host than this part of them with the device's work, the host is ahead of the device."""
DATA_LOADER = r"^enumerate\(DataLoader\)#|^tracekit\.phase/data$"
_HOST_COMMUNICATION = r"^(nccl|gloo|mpi|ucc):"

TABLES: Final = {
    "table": TableView(
        "Steps",
        " ".join(_COLUMNS),
        short=(
            "name time_ns span_ns kernel_ns communication_ns runtime_ns data_loader_ns operator_ns other_ns"
        ),
        main=True,
    ),
    "composition": TableView("All steps together", "part total_ns share"),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Steps(Result):
    """Step times and the composition of steps. The scalars describe `time_ns` and are None without steps."""

    table: pl.DataFrame
    """One row per step: `step`, `name`, `start`, `duration_ns` (its own range), `time_ns` (to the next step's start),
    `outlier`, `span_start` and `span_ns` (the step with the device work that it launched), and its composition, `kernel_ns` to
    `other_ns`, whose sum is `span_ns`."""
    composition: pl.DataFrame
    """The same parts over all steps together: `part`, `total_ns`, `share`. Empty without steps."""
    mean_ns: float | None
    """The mean."""
    median_ns: float | None
    """The median."""
    trimmed_mean_ns: float | None
    """The 20 % trimmed mean."""
    p95_ns: float | None
    """The 95th percentile."""
    variation: float | None
    """The coefficient of variation: sample standard deviation over mean."""
    inferred_from: str | None
    """The source of inferred steps: a range, or a period of launches. None if the steps are marked."""


def steps(scope: Scope | Trace) -> Steps:
    """Step times and their composition.

    >>> import tracekit
    >>> steps(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")).table.height
    3
    """
    return once(scope, _steps)


def _steps(scope: Scope) -> Steps:
    trace = scope.trace
    table = _table(scope)
    times = table["time_ns"].to_numpy()
    mean = float(times.mean()) if times.size else None
    spread = float(times.std(ddof=1)) if times.size > 1 else None
    return Steps(
        answer=_answer(table, spread, scope.inferred),
        not_captured=None
        if table.height
        else f"no steps; add {flag_for('steps', trace.meta.format)}, or select ranges with --step",
        table=table,
        composition=_composition_of(table),
        mean_ns=mean,
        median_ns=float(np.median(times)) if times.size else None,
        trimmed_mean_ns=trimmed_mean(times),
        p95_ns=float(np.percentile(times, 95)) if times.size else None,
        variation=None if spread is None or not mean else spread / mean,
        inferred_from=scope.inferred_from,
    )


def _table(scope: Scope) -> pl.DataFrame:
    rows = scope.steps
    if not rows.height:
        return pl.DataFrame(schema=_COLUMNS)
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    # Between periods of launches there may be one that differs, and is no step: it counts for none.
    time = end - start if scope.periods else np.append(np.diff(start), end[-1] - start[-1])
    spans = step_spans(scope)
    low, high = spans["span_start"].to_numpy(), spans["span_end"].to_numpy()
    parts = _composition(scope, int(low[0]), int(high[-1]))
    return pl.DataFrame(
        {
            "step": rows["step"],
            "name": rows["name"],
            "start": start,
            "duration_ns": end - start,
            "time_ns": time,
            "outlier": outliers(time),
            "span_start": low,
            "span_ns": high - low,
            **{f"{name}_ns": part.coverage(low, high) for name, part in parts.items()},
        },
        schema=_COLUMNS,
    )


def _composition_of(table: pl.DataFrame) -> pl.DataFrame:
    """The parts of all steps together."""
    sums = {part: int(table[f"{part}_ns"].sum()) for part in PARTS}
    total = sum(sums.values())
    rows = [(part, ns, ns / total if total else None) for part, ns in sums.items() if table.height]
    return pl.DataFrame(
        rows, schema={"part": pl.String, "total_ns": pl.Int64, "share": pl.Float64}, orient="row"
    )


def _composition(scope: Scope, low: int, high: int) -> dict[str, IntervalSet]:
    """For each part the time in [low, high) that belongs to it and to none before it."""

    def touching(frame: pl.DataFrame) -> pl.DataFrame:
        return kept(frame, (frame["start"] < high) & (frame["start"] + frame["duration"] > low))

    def of_kind(frame: pl.DataFrame, kind: str) -> IntervalSet:
        return _union(kept(frame[["start", "duration"]], frame["kind"] == kind))

    host = touching(scope.trace.host[["kind", "name", "start", "duration"]])
    device = touching(scope.trace.device[["kind", "start", "duration"]])
    annotations = kept(host, host["kind"] == "annotation")
    named = NameTable(annotations["name"])
    candidates = {
        "kernel": of_kind(device, "kernel") | of_kind(device, "graph"),
        "memcpy": of_kind(device, "memcpy"),
        "memset": of_kind(device, "memset"),
        "communication": _union(kept(annotations, named.matching(_HOST_COMMUNICATION))),
        "runtime": of_kind(host, "runtime"),
        "data_loader": _union(kept(annotations, named.matching(DATA_LOADER))),
        "operator": of_kind(host, "op"),
        "other": IntervalSet.window(low, high),
    }
    taken, parts = EMPTY, {}
    for part in PARTS:
        inside = candidates[part].clip(low, high)
        parts[part] = inside - taken
        taken = taken | inside
    return parts


def _union(rows: pl.DataFrame) -> IntervalSet:
    start = rows["start"].to_numpy()
    return IntervalSet.of(start, start + rows["duration"].to_numpy())


def _answer(table: pl.DataFrame, spread: float | None, inferred: str | None) -> str:
    if not table.height:
        return "The trace marks no steps."
    times = table["time_ns"]
    source = "" if inferred is None else f" ({inferred})"
    if table.height == 1:
        return f"The trace has 1 step{source} of {format_ns(_number(times[0]))}."
    text = f"The median of {table.height} steps{source} is {format_ns(_number(times.median()))}"
    mean = _number(times.mean())
    times, spans = times[:-1], table["span_ns"][:-1]
    # In a step that waits for the device the host loses all of its lead.
    if int(times.sum()) < _AHEAD * int(spans.sum()) or _median(times) < _AHEAD * _median(spans):
        return _ahead(table, source)
    if spread is not None and mean:
        text += f", and their times vary by {format_share(spread / mean)}"
    outliers = table["name"].filter(table["outlier"]).to_list()
    return text + (f". Outliers: {', '.join(outliers[:5])}." if outliers else ".")


def _ahead(table: pl.DataFrame, source: str) -> str:
    """Where the host is ahead of the device, the starts of its steps say nothing of how long steps take; the last may wait for the device."""
    spans, ahead = table["span_ns"], table["time_ns"][:-1]
    least, most = format_ns(_number(ahead.min())), format_ns(_number(ahead.max()))
    waits = ": its steps before the last take " + (least if least == most else f"{least} to {most}")
    usual = _median(ahead)
    if usual >= _AHEAD * _median(spans):
        waits = ", and waits for it in some steps"
    elif int(ahead.to_numpy().max()) > _median(spans):
        waits = f": its median step before the last takes {format_ns(usual)}"
    text = f"The median of {table.height} steps{source} is {format_ns(_number(spans.median()))}, including the device work that they launch"
    mean, spread = _number(spans.mean()), _number(spans.std())
    if spread is not None and mean:
        text += f", and these times vary by {format_share(spread / mean)}"
    return f"{text}. The host is ahead of the device{waits}."


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _median(values: pl.Series) -> float:
    return float(np.median(values.to_numpy()))
