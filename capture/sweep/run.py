"""`sweep`: run a grid of settings, each in a fresh process, into one index from which an interrupted sweep can resume.

It imports no torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import polars as pl

import tracekit
from tracekit.capture import workloads
from tracekit.capture.output import prepare_folder
from tracekit.capture.plan import DEFAULT_LEVELS, Plan
from tracekit.capture.sweep import process as sweep_process
from tracekit.capture.sweep.grid import Grid, folder_of, label_of, run_key, series_key
from tracekit.capture.sweep.process import Outcome
from tracekit.errors import MissingDependencyError, TracekitError, UsageError
from tracekit.facts.distribution import how_to_install
from tracekit.facts.units import NS_PER_S
from tracekit.files import write_bytes
from tracekit.manifest import MANIFEST_FILE, CaptureOptions, Level, Manifest, Settings, read_manifest
from tracekit.statistics import trimmed_mean
from tracekit.sweep_index import ASKED, DONE, INDEX_FILE, OUT_OF_MEMORY, SKIPPED, index_of, read_index

__all__ = ["Grid", "Progress", "sweep"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a sweep: run `number` of `total`, called `label`, is about to start or, with `row`, has ended.

    `row` is its row of the index. `seconds_left` is the mean time of the runs so far times the number of runs left, None
    before the first has ended.
    """

    number: int
    total: int
    label: str
    row: dict[str, Any] | None
    seconds_left: float | None


def sweep(
    grid: Grid,
    out: Path,
    *,
    settings: Settings | None = None,
    options: CaptureOptions | None = None,
    levels: tuple[Level, ...] = DEFAULT_LEVELS,
    data: Path | None = None,
    retry: bool = False,
    timeout: float | None = None,
    progress: Callable[[Progress], None] = lambda _progress: None,
) -> pl.DataFrame:
    """Run the grid and return its rows of the index, in the order of the grid; columns as in `tracekit.sweep_index`.

    Each run is a separate process, which records as `tracekit.capture.run.run` does, into its own folder in `out`.
    After each run, the whole of `out/index.parquet` is rewritten. A run that it already holds is not repeated, unless
    `retry` is set and the run did not succeed. A run that fails, exceeds `timeout` seconds or runs out of memory is
    recorded, and the sweep goes on; larger batches of a run that was out of memory are skipped, unless `retry` is set.
    `settings` apply to settings without values in the grid. One sweep at a time may write to a folder.

    Raises `UsageError` for an unknown workload, a value out of range, missing data, a folder that cannot be written
    to or an index with other columns; `MissingDependencyError` without torch. After KeyboardInterrupt, the current
    run has been ended and the index holds the runs before it.
    """
    if timeout is not None and timeout <= 0:
        raise UsageError(f"the timeout is {timeout:g} s", remedy="it must be more than 0")
    plans = grid.plans(
        settings=settings or Settings(), options=options or CaptureOptions(), levels=levels, data=data
    )
    _check(plans)
    folder = prepare_folder(Path(out))
    index = _Index(folder)
    queue = [(number, plan) for number, plan in enumerate(plans, 1) if not index.knows(plan, retry=retry)]
    seconds: list[float] = []
    for done, (number, plan) in enumerate(queue):
        stage = partial(Progress, number, len(plans), label_of(plan, grid))
        progress(stage(None, _left(seconds, len(queue) - done)))
        row = _skipped(plan, index, retry=retry) or _run(plan, folder, timeout)
        index.put(row)
        if row["seconds"] is not None:
            seconds.append(row["seconds"])
        progress(stage(row, _left(seconds, len(queue) - done - 1)))
    return index.rows(plans)


class _Index:
    """The index of a folder, on disk as in memory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / INDEX_FILE
        self._frame = read_index(folder) if self._path.exists() else index_of([])
        # Written even if it is empty, so that a folder without write permission fails before hours of work.
        self._write()

    def knows(self, plan: Plan, *, retry: bool) -> bool:
        """True if the plan need not run: it is done, or it did not succeed and must not be retried.

        A skipped run is checked again: the smaller batch may have succeeded since.
        """
        statuses = self._frame.filter(pl.col("key") == run_key(plan))["status"].to_list()
        return bool(statuses) and (statuses[0] == DONE or (not retry and statuses[0] != SKIPPED))

    def reason_to_skip(self, plan: Plan) -> str | None:
        """A sentence about a smaller batch of otherwise equal settings that was out of memory; None if there is none."""
        smaller = self._frame.filter(
            (pl.col("series") == series_key(plan))
            & (pl.col("status") == OUT_OF_MEMORY)
            & (pl.col("batch") < (plan.settings.batch or 0))
        )["batch"].to_list()
        return f"batch {min(smaller)} is out of memory already" if smaller else None

    def put(self, row: dict[str, Any]) -> None:
        """Add the row, replace an older row with the same key, and write the file."""
        self._frame = pl.concat([self._frame.filter(pl.col("key") != row["key"]), index_of([row])])
        self._write()

    def rows(self, plans: list[Plan]) -> pl.DataFrame:
        """The rows of these plans, in their order."""
        keys = pl.DataFrame({"key": [run_key(plan) for plan in plans]}, schema={"key": pl.String})
        return keys.join(self._frame, on="key", how="inner", maintain_order="left")

    def _write(self) -> None:
        buffer = BytesIO()
        self._frame.write_parquet(buffer)
        write_bytes(self._path, buffer.getvalue())


def _check(plans: list[Plan]) -> None:
    """Raise before the first run if all runs would fail."""
    for name in {plan.workload for plan in plans}:
        workloads.find(name)
    data = plans[0].data
    if data is not None and not Path(data).exists():
        raise UsageError(
            "there is no such file or folder", path=data, remedy="give a file or folder that exists"
        )
    if importlib.util.find_spec("torch") is None:
        raise MissingDependencyError("this command needs torch", remedy=how_to_install("capture"))


def _left(seconds: list[float], runs: int) -> float | None:
    return sum(seconds) / len(seconds) * runs if seconds else None


def _skipped(plan: Plan, index: _Index, *, retry: bool) -> dict[str, Any] | None:
    """The row of a plan that is skipped; None if it should run."""
    reason = None if retry else index.reason_to_skip(plan)
    return None if reason is None else _row(plan, Outcome(status="skipped", error=reason), None)


def _run(plan: Plan, folder: Path, timeout: float | None) -> dict[str, Any]:
    """Run the plan and return its row."""
    own = folder / folder_of(plan)
    outcome = sweep_process.run_plan(plan, own, timeout=timeout)
    manifest = None
    if outcome.status == DONE:
        try:
            manifest = read_manifest(own / MANIFEST_FILE)
        except TracekitError as error:
            outcome = Outcome(status="failed", error=error.fault, seconds=outcome.seconds)
    return _row(plan, outcome, manifest)


def _row(plan: Plan, outcome: Outcome, manifest: Manifest | None) -> dict[str, Any]:
    settings = msgspec.structs.asdict(plan.settings)
    return {
        **{name: value for name, value in settings.items() if name in ASKED},
        "key": run_key(plan),
        "series": series_key(plan),
        "workload": plan.workload,
        "real_data": plan.data is not None,
        "levels": ",".join(plan.levels),
        "steps": plan.options.steps,
        "warmup": plan.options.warmup,
        "status": outcome.status,
        "error": None if outcome.error is None else " ".join(outcome.error.split()),
        "folder": None if outcome.status == SKIPPED else folder_of(plan),
        "seconds": None if outcome.status == SKIPPED else outcome.seconds,
        "tracekit_version": tracekit.__version__,
        **({} if manifest is None else _measured(manifest)),
    }


def _measured(manifest: Manifest) -> dict[str, Any]:
    times = manifest.step_times_ns("M")
    mean = trimmed_mean(times)
    samples = manifest.samples_per_step
    return {
        "device_name": manifest.device_name,
        "step_median_ns": float(median(times)) if times else None,
        "step_trimmed_mean_ns": mean,
        "step_min_ns": min(times, default=None),
        "profiling_overhead": manifest.overhead("MLG"),
        "samples_per_step": samples,
        "throughput_per_s": samples * NS_PER_S / mean if samples is not None and mean else None,
        "flops_per_step": manifest.flops_per_step,
        "peak_memory_bytes": _peak(manifest),
        "parameters": manifest.parameters,
    }


def _peak(manifest: Manifest) -> int | None:
    """The highest peak of any rank, at the level without the profiler if it was run."""
    for level in ("M", *(run.level for run in manifest.runs)):
        peaks = [run.peak_memory_bytes for run in manifest.runs if run.level == level]
        most = max((peak for peak in peaks if peak is not None), default=None)
        if most is not None:
            return most
    return None
