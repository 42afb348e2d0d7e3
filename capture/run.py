"""`run`: record a workload, as `tracekit capture` does. It imports torch only when called."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tracekit.capture import workloads
from tracekit.capture.output import forget_older_traces, new_folder
from tracekit.capture.plan import DEFAULT_LEVELS, Plan
from tracekit.errors import MissingDependencyError, UsageError
from tracekit.facts.distribution import how_to_install
from tracekit.manifest import MANIFEST_FILE, CaptureOptions, Level, Manifest, Settings

__all__ = ["CaptureResult", "prepare_torch", "run"]


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """A finished capture: its folder, the traces in it, and its `manifest`."""

    folder: Path
    manifest: Manifest

    @property
    def traces(self) -> list[Path]:
        """The traces in the order of levels and ranks."""
        return [self.folder / run.trace for run in self.manifest.runs if run.trace is not None]

    @property
    def trace(self) -> Path:
        """The profiler's trace of the first rank. Raises LookupError if the level MLG was not run."""
        for run in self.manifest.runs:
            if run.level == "MLG" and run.trace is not None:
                return self.folder / run.trace
        raise LookupError("the profiler was not among the levels")

    @property
    def manifest_path(self) -> Path:
        """The manifest's file."""
        return self.folder / MANIFEST_FILE


def run(
    workload: str,
    out: Path,
    *,
    settings: Settings | None = None,
    options: CaptureOptions | None = None,
    levels: tuple[Level, ...] = DEFAULT_LEVELS,
    data: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> CaptureResult:
    """Train `workload` for a few steps at each level and write traces and `manifest.json` into the folder `out`.

    The level M times the same number of steps without the profiler, so that the manifest shows the cost of recording.
    `settings` are those of the training, `options` those of the profiler. `data` is a file or folder of real data; with
    None the workload makes up its data. `progress` receives one line of text per stage. Sets torch's random seed.

    Raises `MissingDependencyError` without torch; `UsageError` for an unknown workload, a missing device, a number
    out of range, a step that does not fit into memory or a folder that cannot be written to; `WorkloadError` if a
    user's own workload raised an error; `TracekitError` if the profiler wrote no events. Levels that were finished
    before stay, and the manifest says why the capture stopped.
    """
    plan = Plan(
        workload=workload,
        settings=settings or Settings(),
        options=options or CaptureOptions(),
        levels=levels,
        data=None if data is None else os.fspath(data),
    )
    plan.check()
    workloads.find(workload)
    prepare_torch()
    if data is not None and not Path(data).exists():
        raise UsageError(
            "there is no such file or folder", path=data, remedy="give a file or folder that exists"
        )
    with new_folder(Path(out)) as folder:
        manifest = _record(plan, folder, progress or (lambda _line: None))
        forget_older_traces(folder, manifest)
    return CaptureResult(folder, manifest)


def prepare_torch() -> None:
    """Set what torch reads when it is loaded. Raises `MissingDependencyError` without torch."""
    if importlib.util.find_spec("torch") is None:
        raise MissingDependencyError("this command needs torch", remedy=how_to_install("capture"))
    # Without them each recording prints lines about itself, and the allocator's warning that memory was in use before.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def _record(plan: Plan, folder: Path, tell: Callable[[str], None]) -> Manifest:
    if plan.settings.ranks > 1:
        from tracekit.capture.ranks import record_ranks  # noqa: PLC0415 - it starts processes of its own

        return record_ranks(plan, folder, tell)
    from tracekit.capture.recorder import record  # noqa: PLC0415 - the import that brings torch

    return record(plan, folder, tell)
