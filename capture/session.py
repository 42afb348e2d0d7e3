"""Recording a training loop of your own: `with session(folder, model=model) as s:` around the loop.

    with session(Path("runs/mine"), model=model, steps=3) as s:
        for batch in loader:
            with s.phase("forward"):
                loss = model(batch).mean()
            with s.phase("backward"):
                loss.backward()
            s.step()
            if s.done:
                break

The files are written when the block ends. If it ends by an exception, nothing is written.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import tracekit
from tracekit.capture.device import StepClock, device_name, resolve_device, synchronize
from tracekit.capture.instrument import Instrumentation
from tracekit.capture.manifest import CaptureOptions, Manifest, Setting, StepTimes
from tracekit.capture.names import Phase, phase_range_name
from tracekit.capture.output import TRACE_FILE, prepare_folder, write_capture
from tracekit.errors import UsageError

__all__ = ["Session", "session"]


class Session:
    """A capture under way; made by `session`. Call `step()` at the end of every training step."""

    def __init__(
        self,
        profiler: profile,
        instrumentation: Instrumentation,
        device: torch.device,
        options: CaptureOptions,
    ) -> None:
        self._profiler = profiler
        self._instrumentation = instrumentation
        self._device = device
        self._clock = StepClock(device)
        self._first = options.wait + options.warmup
        self._total = self._first + options.steps
        self._step = 0
        self.manifest: Manifest | None = None

    @property
    def done(self) -> bool:
        """Whether all the steps have been recorded; later steps run unrecorded."""
        return self._step >= self._total

    def phase(self, name: Phase) -> AbstractContextManager[object]:
        """Return a context manager that marks its block as one phase of the step."""
        return record_function(phase_range_name(name))

    def step(self) -> None:
        """End the current training step, and begin the next."""
        if self.done:
            return
        if self._step >= self._first:
            self._clock.stop()
        following = self._step + 1
        if following in (self._first, self._total):
            # Work queued before the first recorded step must not run into it, and the work of the last one
            # must
            # be over before recording ends. In between the host runs ahead as it always does.
            synchronize(self._device)
        recorded = self._first <= following < self._total
        self._instrumentation.step = following if recorded else None
        self._profiler.step()
        self._step = following
        if recorded:
            self._clock.start()

    def recorded_step_times_ns(self) -> list[int]:
        """Return the duration of each recorded step in ns, the profiler's own work between steps left out."""
        return self._clock.durations_ns()

    def require_done(self) -> None:
        """Raise `UsageError` unless all the steps were recorded."""
        if not self.done:
            raise UsageError(
                f"the loop ended after {self._step} of {self._total} steps, so nothing was written",
                remedy="run more steps, calling step() after each, or record fewer",
            )


@contextmanager
def session(
    out_dir: Path,
    *,
    model: nn.Module,
    options: CaptureOptions | None = None,
    device: str = "cpu",
    workload: str = "custom",
    config: Mapping[str, Setting] | None = None,
    seed: int | None = None,
    unprofiled_step_ns: Sequence[int] = (),
) -> Iterator[Session]:
    """Record the training loop in the block, and write `trace.json.gz` and `manifest.json` into `out_dir`.

    Yields the `Session`, whose `manifest` is set once the block has ended. `workload`, `config`, `seed` and
    `unprofiled_step_ns` (durations of steps run without the profiler, in ns) only go into the manifest.

    Raises `UsageError` when `out_dir` cannot be written to, the device is not there, a module is compiled, an
    option is out of range, or the block ends before all the steps were recorded; `TracekitError` when the
    profiler wrote no events. An exception from the block passes through, and nothing is written.
    """
    options = options or CaptureOptions()
    _check(options)
    where = resolve_device(device)
    folder = prepare_folder(out_dir)
    with Instrumentation(model, shapes_recorded=options.record_shapes) as instrumentation:
        profiler = _profiler(options, where)
        live = Session(profiler, instrumentation, where, options)
        with profiler:
            yield live
    live.require_done()
    manifest = Manifest(
        tracekit_version=tracekit.__version__,
        workload=workload,
        config=dict(config or {}),
        seed=seed,
        parameters=sum(p.numel() for p in model.parameters()),
        layers=len(instrumentation.layers),
        device=where.type,
        device_name=device_name(where),
        platform=f"{platform.system()} {platform.machine()}",
        cpu_threads=torch.get_num_threads(),
        python_version=platform.python_version(),
        torch_version=str(torch.__version__),
        accelerator_version=torch.version.cuda or torch.version.hip,
        options=options,
        layer_ranges=instrumentation.range_kind,
        step_times_ns=StepTimes(profiled=live.recorded_step_times_ns(), unprofiled=list(unprofiled_step_ns)),
        trace=TRACE_FILE,
    )
    live.manifest = write_capture(folder, profiler.export_chrome_trace, instrumentation.table(), manifest)


def _check(options: CaptureOptions) -> None:
    for name, least in (("steps", 1), ("warmup", 1), ("wait", 0)):
        value = getattr(options, name)
        if value < least:
            raise UsageError(f"{name} is {value}", remedy=f"it must be at least {least}")


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
