"""Running a workload at each level in turn, in one process: a capture, or one rank of it."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import Any, Final

import msgspec
import torch

from tracekit.capture import counters, workloads
from tracekit.capture.device import resolve_device, synchronize, tensor_cores
from tracekit.capture.environment import describe_machine
from tracekit.capture.flops import by_counter, flop_counter
from tracekit.capture.marks.instrument import describe_layers
from tracekit.capture.marks.names import PhaseRange, no_phase
from tracekit.capture.marks.ranges import ProfilerMarks
from tracekit.capture.output import (
    SCRATCH_PREFIX,
    prepare_folder,
    reason_of,
    trace_file,
    without_paths,
    write_capture,
    write_trace,
)
from tracekit.capture.plan import Plan
from tracekit.capture.recipe import Recipe
from tracekit.capture.sessions import Recorded, recording
from tracekit.capture.step_errors import lacks_memory, own_errors
from tracekit.capture.training import Training
from tracekit.capture.watch import Watch
from tracekit.capture.workloads import Workload, WorkloadOptions
from tracekit.errors import UsageError
from tracekit.facts.units import count_of
from tracekit.files import scratch_folder
from tracekit.manifest import Level, Manifest, Run, Settings

__all__ = ["QUIET_SECONDS", "record", "train_step"]

_NO_END: Final = "it did not come to its end"
QUIET_SECONDS: Final = 10
"""A longer level reports its progress at most this often, so that the cost of a line is negligible."""


def record(
    plan: Plan,
    folder: Path,
    progress: Callable[[str], None],
    *,
    rank: int = 0,
    keep: Callable[[Manifest], None] | None = None,
) -> Manifest:
    """Build the workload and run it at each level; return the manifest, with the runs of this rank.

    At the end of each level, its trace goes into `folder`, and for a single rank also the manifest. So finished levels
    survive an interruption or a failure, and the manifest says why the capture stopped. With several ranks, each rank
    passes its manifest to `keep` after each level. Raises OutOfMemoryError if a step does not fit into memory;
    UsageError if a setting does not suit the workload or the device does not exist; WorkloadError if code other than
    tracekit's raised an error; TracekitError if the profiler wrote no events.

    A function that trains by itself runs once, and its steps are recorded at one level.
    """
    settings = plan.settings
    device = resolve_device(_own_device(settings, rank))
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    # The outer one is for an error that a signal brings while the inner one is at work: torch reports so that a loader
    # process has ended.
    with own_errors(plan), tensor_cores(device, settings.precision), own_errors(plan):
        progress(f"building {plan.workload}")
        torch.manual_seed(settings.seed)
        built = _built(plan, device, folder, progress)
        if isinstance(built, Manifest):
            return built
        workload = _workload(built, plan, device)
        capture = _Capture(plan, folder, workload, device, rank, keep)
        try:
            capture.run(progress)
        except BaseException as error:
            capture.stop(error)
            raise
    return capture.manifest


class _Capture:
    def __init__(
        self,
        plan: Plan,
        folder: Path,
        workload: Workload,
        device: torch.device,
        rank: int,
        keep: Callable[[Manifest], None] | None,
    ) -> None:
        self._keep = keep
        self.plan, self.folder, self.workload, self.device, self.rank = plan, folder, workload, device, rank
        self._reported_at = 0.0
        self._ends_here = False
        self._batches: Iterator[Any] = workload.batches()
        recipe = workload.recipe if isinstance(workload, Training) else None
        self._skipped = recipe.skipped if recipe else lambda: 0
        self.manifest = Manifest(
            workload=Path(plan.workload).name if ".py:" in plan.workload else plan.workload,
            task=recipe.task if recipe else "",
            settings=plan.settings,
            options=plan.options,
            config=dict(workload.config),
            seed=plan.settings.seed,
            synthetic=recipe.synthetic if recipe else None,
            parameters=sum(p.numel() for p in workload.model.parameters()),
            layers=len(describe_layers(workload.model)),
            samples_per_step=getattr(workload, "samples_per_step", None),
            layer_ranges=ProfilerMarks(shapes_recorded=plan.options.record_shapes).kind,
            runs=[],
            **describe_machine(device),
        )

    def run(self, progress: Callable[[str], None]) -> None:
        # The very first step allocates memory and chooses algorithms: it does not count as a warm-up step.
        train_step(self.workload, self._batches, no_phase)
        for level in self.plan.levels:
            self._ends_here = level == self.plan.levels[-1]
            progress(_announced(level, self.plan.options.steps))
            self._reported_at = time.monotonic()
            if level == "metrics":
                self._count_flops(progress)
                self._write(None)
                if counters.has_counters(self.device):
                    self._measure_counters()
            else:
                self._run_level(level, progress)

    def stop(self, error: BaseException) -> None:
        """Write into the manifest, if there is one already, why it is incomplete."""
        if self.manifest.runs and self._keep is None:
            self.manifest = msgspec.structs.replace(self.manifest, stopped=reason_of(error))
            write_capture(self.folder, self.manifest)

    def _run_level(self, level: Level, progress: Callable[[str], None]) -> None:
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        losses: list[torch.Tensor] = []
        with recording(level, self.workload.model, self.device, self.plan.options) as live:
            while not live.done:
                losses.append(train_step(self.workload, self._batches, live.phase))
                live.step()
                self._tell_of_slow_steps(len(losses), progress)
        steps = self.plan.options.steps
        run = Run(
            level=level,
            rank=self.rank,
            trace=None if level == "M" else trace_file(level, self.rank, self.plan.settings.ranks),
            step_times_ns=live.recorded_step_times_ns(),
            losses=[float(loss) for loss in losses[-steps:]],
            peak_memory_bytes=torch.cuda.max_memory_allocated(self.device) if on_gpu else None,
        )
        if self._keep is not None and live.recorded is not None:
            run = write_trace(self.folder, run, live.recorded)
        self._add(run, live.recorded)

    def _tell_of_slow_steps(self, done: int, progress: Callable[[str], None]) -> None:
        now, options = time.monotonic(), self.plan.options
        total = options.wait + options.warmup + options.steps
        if now - self._reported_at >= QUIET_SECONDS and done < total:
            self._reported_at = now
            progress(f"{done} of {total} steps are done, {options.wait + options.warmup} of them warm-up")

    def _add(self, run: Run, recorded: Recorded | None) -> None:
        """Write the run; if that fails, the manifest leaves it out, because its trace does not exist."""
        before = self.manifest
        self.manifest = msgspec.structs.replace(before, runs=[*before.runs, run])
        try:
            self._write(recorded)
        except BaseException:
            self.manifest = before
            raise

    def _write(self, recorded: Recorded | None) -> None:
        self.manifest = msgspec.structs.replace(
            self.manifest,
            skipped_samples=self._skipped(),
            stopped=None if self._ends_here else _NO_END,  # a process that is killed says no more
        )
        if self._keep is not None:
            self._keep(self.manifest)
        else:
            self.manifest = write_capture(self.folder, self.manifest, recorded)

    def _count_flops(self, progress: Callable[[str], None]) -> None:
        """Count the FLOPs of one step, except for compiled blocks, which hide their operators.

        If the counter fails, the capture goes on without them; an error of the step itself is raised.
        """
        if self.plan.settings.compile:
            return
        try:
            with flop_counter() as counter:
                train_step(self.workload, self._batches, no_phase)
            synchronize(self.device)
        except Exception as error:
            if lacks_memory(error) or not by_counter(error):
                raise
            progress(f"warning: the FLOPs of a step could not be counted: {reason_of(error)}")
            return
        self.manifest = msgspec.structs.replace(self.manifest, flops_per_step=counter.get_total_flops())

    def _measure_counters(self) -> None:
        """Record the counters of one step as a separate trace; if there are none, the manifest says why."""
        settings = self.plan.settings
        with scratch_folder(prepare_folder(self.folder), prefix=SCRATCH_PREFIX) as scratch:
            exported = Path(scratch) / "counters.json"
            why = counters.measure(
                lambda: train_step(self.workload, self._batches, no_phase),
                self.device,
                exported,
                ranks=settings.ranks,
            )
            if why is not None:
                self.manifest = msgspec.structs.replace(self.manifest, counters_missing=without_paths(why))
                self._write(None)
                return
            name = trace_file("metrics", self.rank, settings.ranks)
            run = Run(level="metrics", rank=self.rank, trace=name, step_times_ns=[])
            self._add(run, Recorded(partial(copyfile, exported)))


def train_step(workload: Workload, batches: Iterator[Any], phase: PhaseRange) -> torch.Tensor:
    """Fetch one batch and train on it; return the loss, on the workload's device."""
    with phase("data"):
        batch = next(batches)
    return workload.step(batch, phase)


def _announced(level: Level, steps: int) -> str:
    counted = count_of(steps, "step")
    return {
        "M": f"timing {counted} without the profiler",
        "ML": f"timing the layers of {counted}",
        "MLG": f"recording {counted}",
        "metrics": "counting the FLOPs of a step",
    }[level]


def _own_device(settings: Settings, rank: int) -> str:
    return f"cuda:{rank}" if settings.ranks > 1 and settings.device == "cuda" else settings.device


def _built(plan: Plan, device: torch.device, folder: Path, progress: Callable[[str], None]) -> Any:
    """What the factory of the workload returns; the manifest of the capture if it has trained by itself."""
    loadable, variant = workloads.find(plan.workload)
    settings = plan.settings
    options = WorkloadOptions(
        device=device,
        batch=settings.batch,
        size=settings.size,
        seed=settings.seed,
        variant=variant,
        tiny=settings.tiny,
        data=None if plan.data is None else Path(plan.data),
        max_rows=settings.max_rows,
    )
    factory = loadable.load()
    if not isinstance(loadable, workloads.InFile) or settings.ranks > 1:
        return factory(options)
    level: Level = next((level for level in _RICHEST if level in plan.levels), "MLG")
    watch = Watch(folder, plan.options, Path(plan.workload).name, progress, level=level)
    own_words = sys.argv
    try:
        # A function that parses its command line must not find tracekit's.
        sys.argv = [plan.workload.rpartition(":")[0]]
        with watch:
            built = factory(options)
    except SystemExit as leave:
        if leave.code or watch.manifest is None:
            raise
        built = None
    finally:
        sys.argv = own_words
    if watch.failure is not None:
        raise watch.failure
    if _is_workload(built) or not watch.steps:
        return built
    if watch.manifest is None:
        raise watch.why_nothing()
    ignored = [
        name for name in Settings.__struct_fields__ if getattr(settings, name) != getattr(Settings(), name)
    ]
    if ignored:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in ignored)
        progress(f"warning: {plan.workload} trains by itself, so these had no effect: {flags}")
    return watch.manifest


def _is_workload(built: object) -> bool:
    return isinstance(built, Recipe) or all(
        hasattr(built, name) for name in ("model", "config", "batches", "step")
    )


def _workload(built: Any, plan: Plan, device: torch.device) -> Workload:
    settings = plan.settings
    if isinstance(built, Recipe):
        return Training(built, settings, device)
    if not _is_workload(built):
        remedy = "return a tracekit.capture.Recipe, or train in the function"
        if inspect.iscoroutine(built):
            built.close()  # else Python warns that nobody awaited it
            remedy = "name a plain function that runs it with asyncio.run"
        fault = f"{plan.workload} returned an object of type {type(built).__name__}, which is not a workload"
        raise UsageError(fault, remedy=remedy)
    fixed = [name for name in _OF_THE_LOOP if getattr(settings, name) != getattr(Settings(), name)]
    if fixed:
        raise UsageError(
            f"{plan.workload} has its own loop, which does not support {fixed[0].replace('_', '-')}",
            remedy="return a tracekit.capture.recipe.Recipe instead, so that tracekit's loop trains it",
        )
    workload: Workload = built
    return workload


_RICHEST: Final[tuple[Level, ...]] = ("MLG", "ML", "M")
"""The level at which a function that trains by itself is recorded: it runs only once."""
_OF_THE_LOOP = ("precision", "compile", "channels_last", "accumulate", "checkpoint_activations", "ranks")
"""Settings that only the shared loop supports."""
