"""The runs of a sweep: their settings, the times of their steps, and their work under the ceilings of their device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import hypot, log, sqrt
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.roofline import roofline
from tracekit.analyses.roofline.levels import level
from tracekit.analyses.roofline.rated import device_ceilings, rated_pieces
from tracekit.analyses.scope import Scope, select
from tracekit.analyses.xsp.analysis import RunFiles, find_runs
from tracekit.classes import dataclass
from tracekit.errors import UnreadableTraceError
from tracekit.facts.ceilings import Ceilings
from tracekit.facts.units import count_of
from tracekit.manifest import MANIFEST_FILE, Manifest, Setting, Settings
from tracekit.names import clean
from tracekit.readers.folder import runs_below
from tracekit.scaling.laws import t_quantile
from tracekit.statistics import trimmed_mean
from tracekit.sweep_index import DONE, INDEX_FILE, OUT_OF_MEMORY, read_index
from tracekit.trace import Schema, Trace
from tracekit.trajectory.labels import ASSUMED_ERROR, ASSUMED_SPREAD

__all__ = ["LEVELS", "TYPES", "WORK", "Run", "Swept", "error_of", "pooled", "read_runs", "settings_of"]

LEVELS: Final = ("model", "layer type", "kernel class")
WORK: Final[Schema] = {
    "level": pl.String, "name": pl.String, "time_ns": pl.Float64, "error": pl.Float64, "flops": pl.Float64, "source": pl.String, "bytes": pl.Float64, "bytes_source": pl.String,
    "intensity": pl.Float64, "flops_per_s": pl.Float64, "covered_share": pl.Float64, "precision": pl.String, "unit": pl.String, "share": pl.Float64,
}  # fmt: skip
"""Columns of `Run.work`: of a step and of one rank. `time_ns` of the model is that of the step, else that of the row's activities;
`error` is its standard error, relative to it; `covered_share` is the part of the activities' time of which FLOPs are known, `share`
that of the row in all of it."""

TYPES: Final[Schema] = {"type": pl.String, "time_ns": pl.Float64}
"""Columns of `Run.types`: of a step and of one rank, the summed time of the activities."""

_LEAST_ERROR: Final = 0.01
"""No time is known better, however little the steps scatter."""
_OF_MEDIAN: Final = 1.16
"""So many times the standard error of a mean of three is that of their median."""
_FEW: Final = 12
"""Fewer repetitions, in all settings, may differ by little through luck: they only show that more than the assumed is to be expected."""
_DRAWS: Final = 1000
_LEAST_STEPS: Final = 3
_IGNORED: Final = ("seed", "pin_memory")
"""Settings that make no other program."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Run:
    """A run of a sweep. Times are ns."""

    name: str
    settings: Mapping[str, Setting | None]
    """As in the manifest, with `workload` and `device_name`; the batch and the threads that the workload chose are filled in."""
    chosen: frozenset[str]
    """The settings that are not the workload's own."""
    step_times: tuple[int, ...]
    undisturbed: bool
    """Whether the step times are those without the profiler."""
    samples: int | None
    """Of a step, over all ranks."""
    work: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=WORK))
    """One row for each of the `LEVELS` and names in it, empty if the FLOPs were not captured (`WORK`)."""
    ceilings: Ceilings | None = None
    """Of one of its devices, or of the processors with this number of threads; None if they are not known."""
    devices: int = 1
    """Of a rank."""
    repeats: tuple[tuple[int, ...], ...] = ()
    """The step times of more runs with the same settings."""
    spread: float | None = None
    """The standard error of the time of one run, relative to it, as runs with the same settings show it; None if no settings were run twice."""
    types: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=TYPES))
    """The time of each layer type in a step, with or without known FLOPs (`TYPES`); empty without a trace."""
    parameters: int | None = None
    """Of the model; None if they were not counted."""
    counted_flops: int | None = None
    """Of a step and a rank, as the capture counted them; None if it did not."""

    @property
    def time_ns(self) -> float | None:
        """The trimmed mean of the step times, of several runs that of their times; None without steps."""
        return trimmed_mean([time for each in self._timed if (time := trimmed_mean(each)) is not None])

    @property
    def error(self) -> float:
        """The standard error of the time, relative to it: by the runs, or by the steps where that is more. Where no settings were run
        twice, by the steps and the `ASSUMED_SPREAD` together.
        """
        steps = max(map(error_of, self._timed), default=error_of(()))
        if self.spread is None:
            return hypot(steps, ASSUMED_SPREAD)
        count = max(1, len(self._timed))
        return max(steps, self.spread) / sqrt(count) * (_OF_MEDIAN if count == 3 else 1)

    @property
    def _timed(self) -> list[tuple[int, ...]]:
        return [each for each in (self.step_times, *self.repeats) if each]


@dataclass(frozen=True, slots=True, eq=False)
class Swept:
    """What was found: the runs, those that ran out of memory by their settings, and what was left out, a line each."""

    runs: tuple[Run, ...]
    out_of_memory: tuple[Mapping[str, Setting | None], ...]
    left_out: tuple[str, ...]


def read_runs(paths: Sequence[Path], read: Callable[[Path], Trace], *, step: str | None = None) -> Swept:
    """The runs in folders of captures and sweeps, in folders of these, and files of captures, with their traces as `read` gives them.

    A run that cannot be read is left out. Raises UnreadableTraceError if none can.
    """
    runs: list[Run] = []
    left_out: list[str] = []
    failed: list[Mapping[str, Setting | None]] = []
    faults: list[UnreadableTraceError] = []
    for path in dict.fromkeys(each for given in paths for each in _places(given, failed, left_out)):
        run = _run_at(path, read, step)
        if isinstance(run, Run):
            runs.append(run)
        else:
            left_out.append(str(run))
            faults += [run] if isinstance(run, UnreadableTraceError) else []
    if not runs and faults:
        raise faults[0]
    return Swept(tuple(runs), tuple(failed), tuple(left_out))


def settings_of(manifest: Manifest) -> dict[str, Setting | None]:
    """The settings of a run, with what the workload chose where the manifest tells it."""
    if manifest.settings is None:
        return {}
    chosen = manifest.settings
    settings = {"workload": manifest.workload, "device_name": manifest.device_name, **msgspec.structs.asdict(chosen)}  # fmt: skip
    if chosen.batch is None and manifest.samples_per_step is not None:
        settings["batch"] = manifest.samples_per_step // (chosen.ranks * chosen.accumulate)
    if chosen.threads is None:
        settings["threads"] = manifest.cpu_threads or None
    texts = {name: clean(value) for name, value in settings.items() if isinstance(value, str)}
    return {name: texts.get(name, value) for name, value in settings.items() if name not in _IGNORED}


def pooled(runs: Sequence[Run]) -> list[Run]:
    """One run for each combination of settings, with the step times of all that have it, and the spread between such runs."""
    alike: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        alike.setdefault(tuple(sorted(run.settings.items())), []).append(run)
    joined = [_joined(group) for group in alike.values()]
    spread = _spread(joined)
    return [replace(run, spread=spread, work=_timed(replace(run, spread=spread))) for run in joined]


def _joined(group: Sequence[Run]) -> Run:
    """The first run that has points, with the times of the others that were timed like it."""
    first = max(group, key=lambda run: (run.undisturbed, run.work.height > 0))
    others = [run.step_times for run in group if run is not first and run.undisturbed == first.undisturbed]
    return replace(first, repeats=tuple(others))


def _spread(runs: Sequence[Run]) -> float | None:
    """The standard deviation of the logarithms of the times of runs that have the same settings, wider for few of them, and then at
    least the assumed one; None without such runs.
    """
    squares, freedom = 0.0, 0
    for run in runs:
        logs = [log(time) for each in (run.step_times, *run.repeats) if (time := trimmed_mean(each))]
        squares += float(np.var(logs)) * len(logs) if logs else 0.0
        freedom += max(len(logs) - 1, 0)
    if not freedom:
        return None
    shown = sqrt(squares / freedom) * t_quantile(freedom) / t_quantile(10**9)
    return max(shown, ASSUMED_SPREAD) if freedom < _FEW else shown


def _timed(run: Run) -> pl.DataFrame:
    """The work of a run with the time of all runs with its settings, and its error, as that of its model."""
    time = run.time_ns
    if time is None:
        return run.work
    of_step = {
        "time_ns": pl.lit(time),
        "error": pl.lit(run.error),
        "flops_per_s": pl.col("flops") / time * 1e9,
    }
    of_model = pl.col("level") == "model"
    return run.work.with_columns(
        pl.when(of_model).then(to).otherwise(name).alias(name) for name, to in of_step.items()
    )


def error_of(times: Sequence[int]) -> float:
    """The standard error of the trimmed mean of step times, relative to it: by the bootstrap, wider for few steps.

    At least 1 %, and 3 % for fewer than three steps.

    >>> error_of([100, 100, 100, 100]), error_of([100]), round(error_of([100, 110, 90, 105, 95]), 2)
    (0.01, 0.03, 0.06)
    """
    if len(times) < _LEAST_STEPS or min(times) <= 0:
        return ASSUMED_ERROR
    drawn = np.sort(np.random.default_rng(0).choice(np.asarray(times, dtype=np.float64), (_DRAWS, len(times))))  # fmt: skip
    cut = len(times) // 5 if len(times) > _LEAST_STEPS else 1
    means = drawn[:, cut : len(times) - cut].mean(axis=1)
    wider = t_quantile(len(times) - 1) / t_quantile(10**9)
    return max(_LEAST_ERROR, float(means.std() / means.mean()) * wider)


def _places(path: Path, failed: list[Mapping[str, Setting | None]], left_out: list[str]) -> Iterator[Path]:
    """The captures of a sweep's folder that are done, those of a folder of runs, or the path itself; what failed is noted."""
    if not path.is_dir() or (path / MANIFEST_FILE).is_file():
        yield path
        return
    if not (path / INDEX_FILE).is_file():
        try:
            below = runs_below(path, lambda fault: left_out.append(str(fault)))
        except UnreadableTraceError:
            below = []
            yield path  # which is told with the others that cannot be read
        for each in below:
            yield from _places(each, failed, left_out)
        return
    index = read_index(path)
    yield from (path / folder for folder in index.filter(pl.col("status") == DONE)["folder"].drop_nulls())
    for status, rows in index.filter(pl.col("status") != DONE).group_by("status", maintain_order=True):
        left_out.append(f"{clean(str(path))}: {count_of(rows.height, 'run')} of the sweep: {status[0]}")
        if status[0] == OUT_OF_MEMORY:
            failed += rows.to_dicts()


def _run_at(path: Path, read: Callable[[Path], Trace], step: str | None) -> Run | UnreadableTraceError | str:
    """The run of a capture, or why there is none."""
    if not path.exists():
        return UnreadableTraceError("no such file", path=path, remedy="check the path")
    try:
        (file,) = find_runs([path])
        if file.manifest is None or file.manifest.settings is None:
            return (
                f"{clean(file.label)}: its settings are not known, since no manifest of a capture tells them"
            )
        return _run(file, file.manifest, read, step)
    except UnreadableTraceError as error:
        return error


def _run(file: RunFiles, manifest: Manifest, read: Callable[[Path], Trace], step: str | None) -> Run:
    settings, plain = settings_of(manifest), manifest.step_times_ns("M")
    profiled = {run.trace for run in manifest.runs if run.level == "MLG"}
    trace = next((read(path) for path in file.traces if path.name in profiled), None)
    scope = None if trace is None else select(trace, step=step)
    times = plain or ([] if scope is None else scope.steps["duration"].to_list())
    own = manifest.settings or Settings()
    return Run(
        name=clean(file.label),
        settings=settings,
        chosen=frozenset(
            name for name in settings if getattr(own, name, None) != getattr(Settings(device=own.device), name, None)
        ),
        step_times=tuple(times),
        undisturbed=bool(plain),
        samples=manifest.samples_per_step,
        work=pl.DataFrame(schema=WORK) if scope is None else _work(scope, times),
        ceilings=None if scope is None else _ceilings(scope),
        devices=1 if scope is None else max(1, scope.activities["device_id"].n_unique()),
        types=pl.DataFrame(schema=TYPES) if scope is None else _types(scope),
        parameters=manifest.parameters,
        counted_flops=manifest.flops_per_step,
    )  # fmt: skip


def _ceilings(scope: Scope) -> Ceilings | None:
    """Those of its devices; None if they differ, or are not known."""
    found = list(device_ceilings(scope).values())
    return found[0] if found and all(one == found[0] for one in found) else None


def _types(scope: Scope) -> pl.DataFrame:
    per_step = pl.col("device_ns") / (scope.steps.height or 1)
    return roofline(scope).types.select(pl.col("type").cast(pl.String), per_step.alias("time_ns"))


def _work(scope: Scope, times: Sequence[int]) -> pl.DataFrame:
    """The rooflines of the scope for one step; the model with these times of the whole step."""
    steps = scope.steps.height or 1
    levels = {
        "model": roofline(scope).model.with_columns(pl.lit("model").alias("name")),
        "layer type": roofline(scope).types.rename({"type": "name"}),
        "kernel class": level(rated_pieces(scope), ["category"]).rename({"category": "name"}),
    }
    figures = {
        "time_ns": pl.col("device_ns") / steps,
        "error": pl.lit(hypot(error_of(scope.steps["duration"].to_list()), ASSUMED_SPREAD)),
        "flops": pl.col("flops") / steps,
        "bytes": pl.col("bytes") / steps,
        # An operator's time stands at its longest activity; others of it may be of another class.
        "covered_share": (pl.col("flops_ns") / pl.col("device_ns")).clip(upper_bound=1.0),
        "share": pl.col("device_ns") / pl.col("device_ns").sum(),
    }
    rows = pl.concat(
        frame.with_columns(pl.lit(name).alias("level"), **figures).select(pl.col(column).cast(kind) for column, kind in WORK.items())
        for name, frame in levels.items()
    )  # fmt: skip
    whole = trimmed_mean(times) or scope.duration / steps
    of_step: dict[str, Any] = {
        "time_ns": whole,
        "error": error_of(times),
        "flops_per_s": pl.col("flops") / whole * 1e9,
        "covered_share": roofline(scope).flops_share,  # without what has no work
    }
    of_model = pl.col("level") == "model"
    rows = rows.with_columns(
        pl.when(of_model).then(to).otherwise(name).alias(name) for name, to in of_step.items()
    )
    known = [
        (pl.col(name) > 0) & pl.col(name).is_finite() for name in ("time_ns", "flops_per_s", "intensity")
    ]
    return rows.filter(*known)
