"""How fast a captured run is, and which phase of the step takes the time.

This needs the manifest of a capture, which `tracekit capture` writes next to the trace. The step time is that of the run
without recording (level M), so it includes neither the profiler nor the ranges. Without such a run it is that of the
recorded steps. Throughput is the samples of a step over all ranks, divided by the median step time. Model FLOPs
utilisation is the counted FLOPs of a rank's step over the step time and the peak of the device for the precision of the
run (docs/definitions.md §10).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.result import Result, TableView
from tracekit.analyses.scope import Scope, launch_times, once
from tracekit.classes import dataclass
from tracekit.facts.capture_names import PHASE_PREFIX
from tracekit.facts.device_peaks import peak_tflops
from tracekit.facts.units import format_count, format_ns, format_share
from tracekit.groups import at_rows
from tracekit.intervals import IntervalSet, union
from tracekit.manifest import LEVELS, Manifest
from tracekit.statistics import trimmed_mean
from tracekit.trace import Trace

__all__ = ["NO_PHASE", "TABLES", "Workload", "workload"]

NO_PHASE = "(no phase)"
_FELT = 1.05
"""A few steps tell no smaller difference from chance."""

_PHASE_COLUMNS = {
    "phase": pl.String,
    "count": pl.Int64,
    "total_ns": pl.Int64,
    "mean_ns": pl.Float64,
    "share": pl.Float64,
    "device_ns": pl.Int64,
    "mean_device_ns": pl.Float64,
}
_LEVEL_COLUMNS = {
    "level": pl.String,
    "ranks": pl.Int64,
    "count": pl.Int64,
    "median_ns": pl.Float64,
    "trimmed_mean_ns": pl.Float64,
    "min_ns": pl.Int64,
    "overhead": pl.Float64,
}

TABLES: Final = {
    "phases": TableView(
        "Phases of the steps",
        " ".join(_PHASE_COLUMNS),
        short="phase mean_ns share mean_device_ns",
        titles={
            "device_ns": "launched work, in all",
            "mean_device_ns": "launched work",
            "mean_ns": "per step",
        },
        main=True,
    ),
    "levels": TableView(
        "Step times by level of recording",
        " ".join(_LEVEL_COLUMNS),
        short="level count median_ns overhead",
        titles={"count": "steps"},
        main=True,
    ),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Workload(Result):
    """How fast a captured run is. A figure is None if the manifest or the catalogue of devices lacks its data."""

    phases: pl.DataFrame | None
    """For each phase of the step `count`, `total_ns`, `mean_ns` a step and `share` of the steps on the host;
    `device_ns`, the sum of the activities that it launched (without a device, of operators' self time), and
    `mean_device_ns` a step. The last row is the time in no phase, and the rows sum to the steps. None if no phase was
    marked.
    """
    levels: pl.DataFrame | None
    """For each level of the capture the `ranks`, the `count` of steps, their `median_ns`, 20 % `trimmed_mean_ns` and
    `min_ns` (of the slowest rank in each step), and `overhead`, the median over that of level M. None without a
    manifest.
    """
    step_ns: float | None
    """The median step."""
    throughput_per_s: float | None
    """Samples a second, of all ranks."""
    flops_per_step: int | None
    """Of one rank."""
    achieved_tflops: float | None
    """10¹² FLOP/s of one rank."""
    flops_utilisation: float | None
    """Of the device's peak for the precision, 0 to 1."""
    peak_memory_bytes: int | None
    """The highest of all runs."""


def workload(scope: Scope | Trace) -> Workload:
    """Throughput, FLOPs utilisation, phases and what recording cost.

    >>> import tracekit
    >>> found = workload(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> found.levels["level"].to_list(), found.phases["phase"][0]
    (['M', 'MLG'], 'backward')
    """
    return once(scope, _workload)


def _workload(scope: Scope) -> Workload:
    trace = scope.trace
    manifest = trace.manifest
    phases = _phases(scope)
    step_ns = _step_ns(manifest)
    rate = None
    if manifest is not None and manifest.samples_per_step is not None and step_ns:
        rate = manifest.samples_per_step / step_ns * 1e9
    flops = None if manifest is None else manifest.flops_per_step
    achieved = flops / step_ns / 1e3 if flops is not None and step_ns else None
    return Workload(
        answer=_answer(manifest, step_ns, rate, phases),
        not_captured=None
        if manifest is not None
        else "no manifest; record with tracekit run or tracekit capture",
        phases=phases,
        levels=None if manifest is None else _levels(manifest),
        step_ns=step_ns,
        throughput_per_s=rate,
        flops_per_step=flops,
        achieved_tflops=achieved,
        flops_utilisation=_utilisation(manifest, achieved),
        peak_memory_bytes=None if manifest is None else _peak_memory(manifest),
    )


def _step_ns(manifest: Manifest | None) -> float | None:
    times = () if manifest is None else manifest.step_times_ns("M") or manifest.step_times_ns("MLG")
    return float(np.median(times)) if times else None


def _utilisation(manifest: Manifest | None, achieved: float | None) -> float | None:
    if manifest is None or manifest.settings is None or achieved is None:
        return None
    peak = peak_tflops(manifest.device_name, manifest.settings.precision)
    return None if peak is None else achieved / peak


def _peak_memory(manifest: Manifest) -> int | None:
    known = [run.peak_memory_bytes for run in manifest.runs if run.peak_memory_bytes is not None]
    return max(known, default=None)


def _levels(manifest: Manifest) -> pl.DataFrame:
    rows = []
    for level in LEVELS:
        times = manifest.step_times_ns(level)
        if times:
            ranks = sum(run.level == level for run in manifest.runs)
            middle, mean = float(np.median(times)), trimmed_mean(times)
            rows.append((level, ranks, len(times), middle, mean, min(times), manifest.overhead(level)))
    return pl.DataFrame(rows, schema=_LEVEL_COLUMNS, orient="row")


def _phases(scope: Scope) -> pl.DataFrame | None:
    name = pl.col("name").cast(pl.String)
    ranges = (
        scope.host("annotation")
        .filter(name.str.starts_with(PHASE_PREFIX))
        .select(name.str.strip_prefix(PHASE_PREFIX).alias("phase"), "start", "duration")
        .sort("start")
    )
    if not ranges.height or not scope.steps.height:
        return None
    steps = scope.steps.height
    within = IntervalSet.of(scope.steps["start"], scope.steps["end"])
    marked = {
        phase: (part.height, IntervalSet.of(part["start"], part["start"] + part["duration"]) & within)
        for (phase,), part in ranges.group_by("phase")
    }
    whole = within.measure
    rows = [(str(phase), count, times.measure) for phase, (count, times) in marked.items()]
    rows.sort(key=lambda row: (-row[2], row[0]))
    rest = whole - union(times for _, times in marked.values()).measure
    on_device, listed = _device_time(scope, ranges), []
    for phase, count, total in (*rows, (NO_PHASE, steps, rest)):
        launched = on_device.get(phase, 0)
        share = total / whole if whole else None
        listed.append((phase, count, total, total / steps, share, launched, launched / steps))
    return pl.DataFrame(listed, schema=_PHASE_COLUMNS, orient="row")


def _device_time(scope: Scope, ranges: pl.DataFrame) -> dict[str, int]:
    """The time of the activities by the phase in which they were launched, on whatever thread."""
    columns = scope.activities[["step", "launch_id", "start", "duration"]]
    rows = columns.filter(pl.col("step").is_not_null())
    at = launch_times(scope.trace, rows)
    start = ranges["start"].to_numpy()
    index = np.searchsorted(start, at, side="right") - 1
    inside = (index >= 0) & (at < (start + ranges["duration"].to_numpy())[np.maximum(index, 0)])
    phase = at_rows(ranges["phase"], np.maximum(index, 0))
    sums = (
        pl.DataFrame({"phase": phase, "inside": inside, "duration": rows["duration"]})
        .with_columns(pl.when("inside").then("phase").otherwise(pl.lit(NO_PHASE)).alias("phase"))
        .group_by("phase")
        .agg(pl.col("duration").sum())
    )
    return dict(sums.rows())


def _answer(
    manifest: Manifest | None, step_ns: float | None, rate: float | None, phases: pl.DataFrame | None
) -> str:
    if manifest is None:
        return "There is no manifest next to the trace."
    text = f"{manifest.workload} ({', '.join(_traits(manifest))})" if _traits(manifest) else manifest.workload
    if step_ns:
        recorded = "" if manifest.step_times_ns("M") else " with the profiler"
        text += f" takes {format_ns(step_ns)} a step{recorded}"
    if rate is not None:
        text += f", which is {_rate(rate)} samples a second{_over_ranks(manifest)}"
    text += "."
    if phases is not None:
        text += _largest(phases, on_cpu=manifest.device == "cpu")
    if manifest.stopped:
        text += f" The recording ended early: {manifest.stopped}."
    slower = manifest.overhead()
    if slower is None:
        return text
    times = (
        f"{slower:.2f} times as long as without recording"
        if slower >= _FELT
        else "about as long as without recording"
    )
    return f"{text} A recorded step takes {times}."


def _largest(phases: pl.DataFrame, *, on_cpu: bool) -> str:
    """The phase with the most time: on a device, that of the work that it launches, since the host may be ahead of it."""
    marked = phases.filter(pl.col("phase") != NO_PHASE)
    if not marked.height:
        return ""
    total = int(phases["device_ns"].sum())
    if on_cpu or not total:
        return f" The {marked['phase'][0]} phase takes {format_share(marked['share'][0])} of a recorded step."
    first = marked.row(int(marked["device_ns"].arg_max() or 0), named=True)
    return (
        f" The {first['phase']} phase launches {format_share(first['device_ns'] / total)} of the device's work, and takes "
        f"{format_share(first['share'])} of a recorded step on the host."
    )


def _over_ranks(manifest: Manifest) -> str:
    """The origin of the throughput of several ranks, since each trace shows only one rank."""
    ranks = 1 if manifest.settings is None else manifest.settings.ranks
    if ranks == 1:
        return ""
    return f" over all {ranks} ranks ({manifest.samples_per_step} samples in each step of the slowest rank)"


def _traits(manifest: Manifest) -> list[str]:
    """The properties that make the figures of two runs comparable."""
    settings = manifest.settings
    if settings is None:
        return []
    batch = None
    if manifest.samples_per_step is not None:
        batch = manifest.samples_per_step // (settings.ranks * settings.accumulate)
    traits = {
        "tiny": settings.tiny,
        f"batch {batch}": batch is not None,
        f"{settings.accumulate} batches a step": settings.accumulate > 1,
        settings.precision: True,
        "compiled": settings.compile,
        f"{settings.ranks} ranks": settings.ranks > 1,
        "synthetic data": manifest.synthetic is True,
    }
    return [trait for trait, holds in traits.items() if holds]


def _rate(value: float) -> str:
    return format_count(round(value)) if value >= 100 else f"{value:.3g}"
