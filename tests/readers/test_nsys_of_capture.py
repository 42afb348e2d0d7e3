"""The folder of `tracekit capture --nsys`: its profile is the trace, where it can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from manifests import manifest
from synthetic.nsys_export import Program, write_sqlite

import tracekit
from tracekit.errors import UnreadableTraceError
from tracekit.manifest import CaptureOptions, Run, traces_in

STAND_IN = "#!/bin/sh\nexit 1\n"


def captured(folder: Path, *, with_trace: bool = True) -> Path:
    """A folder as a capture below nsys leaves it, with a profile that no one can read."""
    name = "trace-ML.json.gz" if with_trace else None
    written = manifest(
        workload="cnn",
        options=CaptureOptions(steps=2, warmup=1),
        device="cuda",
        runs=[Run(level="ML", step_times_ns=[1], trace=name)],
        nsys="profile.nsys-rep",
    )
    (folder / "manifest.json").write_bytes(written.to_json())
    (folder / "profile.nsys-rep").write_bytes(b"opaque")
    return folder


def exported(folder: Path) -> Path:
    program = Program()
    program.push_pop("tracekit.layer/stem.0", 0, 50, tid=1)
    program.call("cudaLaunchKernel", 10, 12, correlation=1, tid=1)
    program.kernel("work", 100, 110, correlation=1)
    return write_sqlite(program, folder / "profile.sqlite")


def test_the_export_beside_the_profile_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    folder = captured(tmp_path)
    assert traces_in(folder) == [folder / "trace-ML.json.gz"]  # nobody can read the profile
    made = exported(folder)
    assert traces_in(folder) == [made]
    trace = tracekit.read(folder)
    assert trace.meta.format == "nsys"
    assert trace.manifest is not None
    assert trace.manifest.workload == "cnn"
    assert trace.host["layer"].drop_nulls().to_list() == ["stem.0"]


def test_the_profile_is_read_where_nsys_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = tmp_path / "bin" / "nsys"
    stand_in.parent.mkdir()
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    folder = captured(tmp_path)
    monkeypatch.setenv("PATH", str(stand_in.parent))
    assert traces_in(folder) == [folder / "profile.nsys-rep"]


def test_without_another_trace_the_error_says_how_to_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    folder = captured(tmp_path, with_trace=False)
    with pytest.raises(UnreadableTraceError, match="nsys export"):
        tracekit.read(folder)
