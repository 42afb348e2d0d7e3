"""`run`: record a workload of the registry, as `tracekit capture` does. It imports torch only when called."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tracekit.capture import workloads
from tracekit.capture.manifest import CaptureOptions, Manifest
from tracekit.capture.output import MANIFEST_FILE, TRACE_FILE, prepare_folder
from tracekit.errors import MissingDependencyError, UsageError

__all__ = ["CaptureResult", "run"]


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """Where a capture was written, how large the trace is, and what ran (`manifest`)."""

    trace: Path
    manifest_path: Path
    trace_bytes: int
    manifest: Manifest


def run(
    workload: str,
    out: Path,
    *,
    device: str = "cpu",
    steps: int = 3,
    warmup: int = 1,
    batch: int | None = None,
    size: int | None = None,
    record_shapes: bool = True,
    profile_memory: bool = True,
    with_stack: bool = False,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> CaptureResult:
    """Train `workload` for a few steps and write `trace.json.gz` and `manifest.json` into the folder `out`.

    The same number of steps is first timed without the profiler, so that the manifest tells what it costs.
    `batch` and `size` (what it means is the workload's to say: pixels, tokens) default to the workload's own.
    `progress` receives one line of text per stage. Sets torch's random seed to `seed`.

    Raises `MissingDependencyError` without torch; `UsageError` for an unknown workload, a device that is not
    there, a number out of range or a folder that cannot be written to; `TracekitError` when the profiler
    wrote no events.
    """
    factory_entry = workloads.find(workload)
    if importlib.util.find_spec("torch") is None:
        raise MissingDependencyError("capturing needs torch", remedy="pip install 'tracekit[capture]'")
    for name, value in (("steps", steps), ("warmup", warmup), ("batch", batch), ("size", size)):
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}", remedy="it must be at least 1")
    folder = prepare_folder(Path(out))
    # Kineto reads it when torch is loaded; without it each recording prints two lines about itself.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from tracekit.capture.recorder import record  # noqa: PLC0415 - the import that brings torch

    manifest = record(
        workload,
        factory_entry.load(),
        folder,
        device=device,
        batch=batch,
        size=size,
        seed=seed,
        options=CaptureOptions(
            steps=steps,
            warmup=warmup,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
        ),
        progress=progress or (lambda _line: None),
    )
    trace = folder / TRACE_FILE
    return CaptureResult(trace, folder / MANIFEST_FILE, trace.stat().st_size, manifest)
