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
when the block ends. If it ends by an exception, nothing is written.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from tracekit.capture.device import StepClock, ToolWindow, resolve_device, synchronize
from tracekit.capture.environment import describe_machine
from tracekit.capture.marks.instrument import Instrumentation, describe_layers
from tracekit.capture.marks.layer_table import LayerTable
from tracekit.capture.marks.names import Phase
from tracekit.capture.marks.ranges import Marks, NoMarks, ProfilerMarks, WithNvtx
from tracekit.capture.marks.timed import TimedMarks
from tracekit.capture.nsys import collects, under_nsys
from tracekit.capture.output import TRACE_FILE, forget_older_traces, new_folder, write_capture
from tracekit.capture.plan import check_numbers
from tracekit.errors import UsageError
from tracekit.manifest import CaptureOptions, Level, Manifest, Run, Setting

__all__ = ["Recorded", "Session", "recording", "session"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recording of a level: `export` writes its trace to a path; `layers` is None if no layers were marked."""

    export: Callable[[str], object]
    layers: LayerTable | None = None


class Session:
    """A running capture; made by `session`. Call `step()` at the end of every training step."""

    def __init__(
        self,
        device: torch.device,
        options: CaptureOptions,
        marks: Marks,
        *,
        profiler: profile | None = None,
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

    def require_done(self) -> None:
        """Raise `UsageError` unless all steps were recorded."""
        if not self.done:
            raise UsageError(
                f"the loop ended after {self._step} of {self._total} steps, so nothing was written",
                remedy="run more steps, calling step() after each, or record fewer",
            )

    def close(self) -> None:
        """End the range of an unfinished step, and the range that a tool collects."""
        self._range.close()
        if self._window is not None:
            self._window.close()


@contextmanager
def recording(
    level: Level, model: nn.Module, device: torch.device, options: CaptureOptions
) -> Iterator[Session]:
    """Record the training loop in the block at a level; then the `Session` has `recorded`, if the level has a trace.

    Raises `UsageError` if a module is compiled in place or the block ends before all steps were recorded.
    """
    timed = TimedMarks() if level == "ML" else None
    plain: Marks = timed or (
        ProfilerMarks(shapes_recorded=options.record_shapes) if level == "MLG" else NoMarks()
    )
    # Under our own nsys, the level M has no ranges: its steps would appear in the profile a second time.
    marks = plain if level == "M" and under_nsys() else WithNvtx.if_attached(plain)
    window = ToolWindow() if collects(level, device.type) else None
    with ExitStack() as stack:
        instrumentation = stack.enter_context(Instrumentation(model, marks)) if level != "M" else None
        profiler = stack.enter_context(_profiler(options, device)) if level == "MLG" else None
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
        yield live
    live.require_done()
    export = timed.export if timed else profiler.export_chrome_trace if profiler else None
    if export is not None and instrumentation is not None:
        live.recorded = Recorded(export, instrumentation.table())


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

    Yields the `Session`, whose `manifest` is set once the block has ended. `workload`, `config`, `seed` and
    `samples_per_step` (for the throughput) only go into the manifest.

    Raises `UsageError` if `out_dir` cannot be written to, the device does not exist, a module is compiled in place, an
    option is out of range, or the block ends before all steps were recorded; `TracekitError` if the
    profiler wrote no events. An exception from the block passes through, and nothing is written. Warns if the loop called
    no module of the model, as when it calls what `torch.compile` made of it.
    """
    options = options or CaptureOptions()
    check_numbers(options)
    where = resolve_device(device)
    parameters = sum(p.numel() for p in model.parameters())
    with new_folder(Path(out_dir)) as folder:
        with recording("MLG", model, where, options) as live:
            yield live
        if live.recorded is None:  # pragma: no cover - `recording` has set it
            raise AssertionError("the recording ended without results")
        if live.recorded.layers is not None and not live.recorded.layers.calls.layer:
            warnings.warn(
                "the loop called no module of the model, so the trace has no layers; give session() the model that the "
                "loop calls, such as what torch.compile returned",
                stacklevel=3,
            )
        run = Run(level="MLG", trace=TRACE_FILE, step_times_ns=live.recorded_step_times_ns())
        manifest = Manifest(
            workload=workload,
            options=options,
            config=dict(config or {}),
            seed=seed,
            parameters=parameters,
            layers=len(describe_layers(model)),
            samples_per_step=samples_per_step,
            layer_ranges=ProfilerMarks(shapes_recorded=options.record_shapes).kind,
            runs=[run],
            **describe_machine(where),
        )
        live.manifest = write_capture(folder, manifest, live.recorded)
        forget_older_traces(folder, live.manifest)


def _profiler(options: CaptureOptions, device: torch.device) -> profile:
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    return profile(
        activities=activities,
        schedule=schedule(wait=options.wait, warmup=options.warmup, active=options.steps, repeat=1),
        record_shapes=options.record_shapes,
        profile_memory=options.profile_memory,
        with_stack=options.with_stack,
    )
