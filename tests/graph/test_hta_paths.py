"""HTA's critical path beside tracekit's: equal on most planted steps, and on public traces where HTA ends with a path of the device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from graph.programs import random_program, simulate, write
from paths import PUBLIC

import tracekit
from tracekit.analyses.critical_path import CriticalPath, critical_path
from tracekit.analyses.scope import select

pytestmark = pytest.mark.slow

RUNNER = Path(__file__).with_name("hta_paths.py")
DEVICE_BOUND = {"mi300_qwen"}


def both(paths: list[Path], folder: Path) -> dict[str, list[tuple[dict[str, Any], CriticalPath | None]]]:
    """By file what HTA finds of each step, and tracekit's path of the same step; None where HTA finds none."""
    pytest.importorskip("hta", reason="HolisticTraceAnalysis is not installed")
    out = folder / "out.json"
    command = [sys.executable, "-W", "ignore", str(RUNNER), str(out), *map(str, paths)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[tuple[dict[str, Any], CriticalPath | None]]] = {}
    for path, steps in json.loads(out.read_text()).items():
        trace = tracekit.read(path)
        found[Path(path).name.partition(".")[0]] = [
            (one, critical_path(select(trace, step=f"{one['name']}$")) if "name" in one else None)
            for one in steps
        ]
    return found


def test_kernels_of_planted_paths_are_those_of_hta(tmp_path: Path) -> None:
    files = [write(simulate(random_program(seed, 1)), tmp_path / f"p{seed}.json") for seed in range(12)]
    pairs = [pair for steps in both(files, tmp_path).values() for pair in steps]
    known = [(hta, path) for hta, path in pairs if path is not None]
    equal = [hta["kernels"] == path.device_ns for hta, path in known]
    assert sum(equal) >= 0.8 * len(known) > 10
    for same, (hta, path) in zip(equal, known, strict=True):
        # A call that waits is work of the host to HTA, and no time passes until it returns, or until a first launch arrives.
        assert same or hta["by"].get("cpu_bound", 0) > path.host_ns or hta["kernels"] < path.device_ns
        assert path.length_ns - hta["total"] > 0 or not same


def test_public_traces_are_near_where_the_device_is_the_path(tmp_path: Path) -> None:
    wanted = [path for path in PUBLIC if path.name.partition(".")[0] in DEVICE_BOUND]
    if not wanted:
        pytest.skip("no public traces are at hand")
    for steps in both(wanted, tmp_path).values():
        hta, path = steps[0]
        assert path is not None
        assert hta["kernels"] == pytest.approx(path.device_ns + path.communication_ns, rel=0.03)
