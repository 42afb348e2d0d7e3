"""Running a workload: first timed without the profiler, then recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tracekit.capture.device import StepClock, resolve_device, synchronize
from tracekit.capture.manifest import CaptureOptions, Manifest
from tracekit.capture.names import PhaseRange, no_phase
from tracekit.capture.session import session
from tracekit.capture.workloads import Workload, WorkloadFactory, WorkloadOptions

__all__ = ["record", "train_step"]


def record(
    name: str,
    factory: WorkloadFactory,
    folder: Path,
    *,
    device: str,
    batch: int | None,
    size: int | None,
    seed: int,
    options: CaptureOptions,
    progress: Callable[[str], None],
) -> Manifest:
    """Build the workload, time it, record it into `folder`; return the manifest that was written.

    Raises what `session` raises.
    """
    where = resolve_device(device)
    progress(f"building {name}")
    torch.manual_seed(seed)
    workload = factory(WorkloadOptions(device=where, batch=batch, size=size, seed=seed))
    batches = workload.batches()
    progress(f"timing {options.steps} steps without the profiler")
    unprofiled = _time_steps(workload, batches, where, warmup=options.warmup, steps=options.steps)
    progress(f"recording {options.steps} steps")
    with session(
        folder,
        model=workload.model,
        options=options,
        device=device,
        workload=name,
        config=workload.config,
        seed=seed,
        unprofiled_step_ns=unprofiled,
    ) as live:
        while not live.done:
            train_step(workload, batches, live.phase)
            live.step()
        progress("writing the trace")
    if live.manifest is None:  # pragma: no cover - `session` sets it whenever its block ends well
        raise AssertionError("the session ended without a manifest")
    return live.manifest


def train_step(workload: Workload, batches: Iterator[Any], phase: PhaseRange) -> torch.Tensor:
    """Fetch one batch and train on it; return the loss, on the workload's device."""
    with phase("data"):
        batch = next(batches)
    return workload.step(batch, phase)


def _time_steps(
    workload: Workload, batches: Iterator[Any], device: torch.device, *, warmup: int, steps: int
) -> list[int]:
    """Durations in ns of `steps` steps after `warmup` untimed ones."""
    # The very first step allocates and chooses algorithms: one more than asked for is never measured.
    for _ in range(warmup + 1):
        train_step(workload, batches, no_phase)
    synchronize(device)
    clock = StepClock(device)
    for _ in range(steps):
        clock.start()
        train_step(workload, batches, no_phase)
        clock.stop()
    return clock.durations_ns()
