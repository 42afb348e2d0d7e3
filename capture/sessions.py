"""Recording a training loop of your own: `with session(folder, model=model) as s:` around the loop.

    with session("runs/mine", model=model) as s:
        for batch in loader:
            with s.phase("forward"):
                loss = model(batch).mean()
            with s.phase("backward"):
                loss.backward()
            s.step()
            if s.done:
                break

Phases may be left out, and so may the break: steps after the last recorded one run as they are. The files are written
when the block ends, also when it ends early or by an exception: then with the steps that were recorded until then.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, schedule

from tracekit.capture.device import StepClock, ToolWindow, resolve_device, synchronize
from tracekit.capture.environment import describe_machine
from tracekit.capture.marks.instrument import Instrumentation, describe_layers
from tracekit.capture.marks.layer_table import LayerTable
from tracekit.capture.marks.names import Phase
from tracekit.capture.marks.ranges import Marks, NoMarks, ProfilerMarks, WithNvtx
from tracekit.capture.marks.timed import TimedMarks
from tracekit.capture.nsys import collects, under_nsys
from tracekit.capture.output import forget_older_traces, new_folder, reason_of, trace_file, write_capture
from tracekit.capture.plan import check_numbers
from tracekit.capture.profiler import OneCycle
from tracekit.errors import UsageError
from tracekit.facts.units import count_of
from tracekit.manifest import CaptureOptions, Level, Manifest, Run, Setting

__all__ = ["Recorded", "Session", "ended_early", "recording", "session", "write_session"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recording of a level: `export` writes its trace to a path; `layers` is None if no layers were marked.

    `unfinished` is the number of the step that the end of the recording cut; None if there is none.
    """

    export: Callable[[str], object]
    layers: LayerTable | None = None
    unfinished: int | None = None


class Session:
    """A running capture; made by `session`. Call `step()` at the end of every training step."""

    def __init__(
        self,
        device: torch.device,
        options: CaptureOptions,
        marks: Marks,
        *,
        profiler: OneCycle | None = None,
        instrumentation: Instrumentation | None = None,
        timed: TimedMarks | None = None,
        window: ToolWindow | None = None,
    ) -> None:
        self._profiler, self._instrumentation, self._timed = profiler, instrumentation, timed
        self._device, self._window = device, window
        self._marks = marks
        self._clock = StepClock(device)
        self._first = options.wait + options.warmup
        self._total = self._first + options.steps
        self._step = 0
        self._range = ExitStack()
        self._range.enter_context(marks.step(0))
        self.manifest: Manifest | None = None
        self.recorded: Recorded | None = None

    @property
    def done(self) -> bool:
        """True once all steps are recorded; later steps run without recording."""
        return self._step >= self._total

    @property
    def recorded_steps(self) -> int:
        """The number of steps that were recorded from their beginning to their end."""
        return max(self._step - self._first, 0)

    @property
    def unfinished(self) -> int | None:
        """The number of the step that is being recorded; None while no step is."""
        return self._step if self._first <= self._step < self._total else None

    def phase(self, name: Phase) -> AbstractContextManager[object]:
        """Return a context manager that marks its block as one phase of the step."""
        return self._marks.phase(name)

    def step(self) -> None:
        """End the current training step, and begin the next."""
        if self.done:
            return
        if self._step >= self._first:
            self._clock.stop()
        self._range.close()
        following = self._step + 1
        if following in (self._first, self._total):
            # Work queued before the first recorded step must not run into it, and the work of the last one must
            # be over before recording ends. In between, the host runs ahead as usual.
            synchronize(self._device)
            if self._window is not None:
                self._window.toggle()
        recorded = self._first <= following < self._total
        if self._instrumentation is not None:
            self._instrumentation.step = following if recorded else None
        if self._timed is not None:
            self._timed.recording = recorded
        if self._profiler is not None:
            self._profiler.step()
        self._step = following
        if not self.done:
            self._range.enter_context(self._marks.step(following))
        if recorded:
            self._clock.start()

    def recorded_step_times_ns(self) -> list[int]:
        """Return the duration of each recorded step in ns, without the profiler's own work between steps."""
        return self._clock.durations_ns()

    def require_some(self) -> None:
        """Raise `UsageError` if no step was recorded."""
        if not self.recorded_steps:
            steps = count_of(self._step, "step")
            raise UsageError(
                f"the loop ended after {steps}, and the first recorded one is number {self._first + 1}, so nothing was written",
                remedy="run more steps, calling step() after each, or fewer before them",
            )

    def close(self) -> None:
        """End the range of an unfinished step, and the range that a tool collects."""
        if self._timed is not None:
            self._timed.recording = False
        self._range.close()
        if self._window is not None:
            self._window.close()


@contextmanager
def recording(
    level: Level, model: nn.Module | Mapping[str, nn.Module], device: torch.device, options: CaptureOptions
) -> Iterator[Session]:
    """Record the training loop in the block at a level, whose layers are the modules of one model or of several with names.

    Behind the block, however it ends, the `Session` has `recorded` if the level has a trace and a step was recorded.
    Raises `UsageError` if a module is compiled in place.
    """
    timed = TimedMarks() if level == "ML" else None
    plain: Marks = timed or (
        ProfilerMarks(shapes_recorded=options.record_shapes) if level == "MLG" else NoMarks()
    )
    # Under our own nsys, the level M has no ranges: its steps would appear in the profile a second time.
    marks = plain if level == "M" and under_nsys() else WithNvtx.if_attached(plain)
    window = ToolWindow() if collects(level, device.type) else None
    instrumentation = Instrumentation(model, marks) if level != "M" else None
    profiler = _profiler(options, device) if level == "MLG" else None
    with ExitStack() as stack:
        if instrumentation is not None:
            stack.enter_context(instrumentation)
        if profiler is not None:
            stack.enter_context(profiler)
        live = Session(
            device,
            options,
            marks,
            profiler=profiler,
            instrumentation=instrumentation,
            timed=timed,
            window=window,
        )
        stack.callback(live.close)
        try:
            yield live
        finally:
            stack.close()
            export = timed.export if timed else profiler.export_chrome_trace if profiler else None
            if export is not None and instrumentation is not None and live.recorded_steps:
                live.recorded = Recorded(export, instrumentation.table(), live.unfinished)


@contextmanager
def session(
    out_dir: str | os.PathLike[str],
    *,
    model: nn.Module,
    options: CaptureOptions | None = None,
    device: str = "cpu",
    workload: str = "custom",
    config: Mapping[str, Setting] | None = None,
    seed: int | None = None,
    samples_per_step: int | None = None,
) -> Iterator[Session]:
    """Record the training loop in the block, and write `trace.json.gz` and `manifest.json` into `out_dir`.

    Yields the `Session`, whose `manifest` is set once the files are written. `workload`, `config`, `seed` and
    `samples_per_step` (for the throughput) only go into the manifest.

    If the block ends early, the steps that were recorded are written, and a warning says how many they are. So they are
    if it ends by an exception, which passes through.

    Raises `UsageError` if `out_dir` cannot be written to, the device does not exist, a module is compiled in place, an
    option is out of range, or the block ends before one step was recorded; `TracekitError` if the
    profiler wrote no events. Warns if the loop called no module of the model, as when it calls what `torch.compile` made
    of it.
    """
    options = options or CaptureOptions()
    check_numbers(options)
    where = resolve_device(device)
    about: dict[str, Any] = {
        "workload": workload,
        "config": dict(config or {}),
        "seed": seed,
        "samples_per_step": samples_per_step,
    }
    live = None
    with new_folder(Path(out_dir)) as folder:
        try:
            with recording("MLG", model, where, options) as live:
                yield live
        except BaseException as error:
            if live is not None and live.recorded_steps:
                write_session(folder, live, model, where, options, stopped=reason_of(error), **about)
            raise
        live.require_some()
        early = None if live.done else ended_early(live.recorded_steps, options.steps)
        if early is not None:
            warnings.warn(f"{early}; they are in {folder}", stacklevel=3)
        if (
            live.recorded is not None
            and live.recorded.layers is not None
            and not live.recorded.layers.calls.layer
        ):
            warnings.warn(
                "the loop called no module of the model, so the trace has no layers; give session() the model that the "
                "loop calls, such as what torch.compile returned",
                stacklevel=3,
            )
        write_session(folder, live, model, where, options, stopped=early, **about)


def ended_early(steps: int, wanted: int) -> str:
    """What a recording says that ended before its last step.

    >>> ended_early(1, 3)
    '1 of 3 steps was recorded before the end'
    """
    return f"{steps} of {wanted} steps {'was' if steps == 1 else 'were'} recorded before the end"


def write_session(
    folder: Path,
    live: Session,
    model: nn.Module | Mapping[str, nn.Module],
    device: torch.device,
    options: CaptureOptions,
    *,
    level: Level = "MLG",
    stopped: str | None = None,
    **about: Any,
) -> None:
    """Write what a session has recorded, and set its manifest; `about` are more fields of that.

    Raises `TracekitError` if the profiler wrote no events.
    """
    layers = [module for _, module in describe_layers(model)]
    parameters = {id(p): p.numel() for module in layers for p in module.parameters()}
    run = Run(
        level=level,
        trace=None if live.recorded is None else trace_file(level, 0, 1),
        step_times_ns=live.recorded_step_times_ns(),
    )
    manifest = Manifest(
        options=options,
        parameters=sum(parameters.values()),
        layers=len(layers),
        layer_ranges=ProfilerMarks(shapes_recorded=options.record_shapes).kind,
        runs=[run],
        stopped=stopped,
        **about,
        **describe_machine(device),
    )
    live.manifest = write_capture(folder, manifest, live.recorded)
    forget_older_traces(folder, live.manifest)


def _profiler(options: CaptureOptions, device: torch.device) -> OneCycle:
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    return OneCycle(
        activities=activities,
        schedule=schedule(wait=options.wait, warmup=options.warmup, active=options.steps, repeat=1),
        record_shapes=options.record_shapes,
        profile_memory=options.profile_memory,
        with_stack=options.with_stack,
    )
