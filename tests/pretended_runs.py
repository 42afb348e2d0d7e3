"""Processes of a sweep that only pretend to record, so that a test of what becomes of them takes no time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from manifests import manifest

from tracekit.capture.plan import Plan
from tracekit.capture.sweep import Grid, sweep
from tracekit.capture.sweep import process as sweep_process
from tracekit.manifest import CaptureOptions, Run

OPTIONS = CaptureOptions(steps=2, warmup=1)
Command = Callable[[Plan, Path, Path], list[str]]


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-S", "-c", code, *map(str, arguments)]


def succeed(plan: Plan, folder: Path, result: Path) -> list[str]:
    """A process that is done at once; its steps take 1 ms a sample and 2 ms on top."""
    batch = plan.settings.batch or 1
    folder.mkdir(exist_ok=True)
    times = [(batch + 2) * 1_000_000] * plan.options.steps
    written = manifest(
        workload=plan.workload,
        settings=plan.settings,
        options=plan.options,
        parameters=7,
        samples_per_step=batch,
        device_name="a processor",
        runs=[Run(level="M", step_times_ns=times)],
    )
    (folder / "manifest.json").write_bytes(written.to_json())
    return python("import sys; open(sys.argv[1], 'w').write('{\"status\": \"done\"}')", result)


def refuse(_plan: Plan, _folder: Path, result: Path) -> list[str]:
    told = json.dumps({"status": "out of memory", "error": "a step does not fit"})
    return python("import sys; open(sys.argv[1], 'w').write(sys.argv[2])", result, told)


def saying(code: str) -> Command:
    return lambda _plan, _folder, _result: python(code)


def pretend(monkeypatch: pytest.MonkeyPatch, by_batch: Mapping[int | None, Command]) -> list[int | None]:
    """Let runs of these batches start these processes, all others succeed; returns a list that fills with the batches that started."""
    started: list[int | None] = []

    def command(plan: Plan, folder: Path, result: Path) -> list[str]:
        started.append(plan.settings.batch)
        return by_batch.get(plan.settings.batch, succeed)(plan, folder, result)

    monkeypatch.setattr(sweep_process, "command", command)
    return started


def swept(folder: Path, *batches: int | None, **others: Any) -> dict[int | None, dict[str, Any]]:
    """The rows of a sweep over these batches, by batch."""
    grid = Grid(workloads=["cnn"], batch=batches)
    rows = sweep(grid, folder, options=OPTIONS, levels=("M",), **others)
    return {row["batch"]: row for row in rows.iter_rows(named=True)}
