"""`tracekit roofline`: its levels, and ceilings that were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import ok, run
from paths import ROOT
from planted_machine import machine

import tracekit
from tracekit.machine_file import machine_path

TRACE = ROOT / "sample_traces/cnn_cpu/trace.json.gz"


def failed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    code, out, message = run(capsys, *arguments)
    assert (code > 0, out) == (True, "")
    return message


@pytest.mark.slow
def test_each_level_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    for level, table in (
        ("kernel", "kernels"),
        ("op", "operators"),
        ("layer", "layers"),
        ("type", "types"),
        ("model", "model"),
    ):
        found = json.loads(ok(capsys, "roofline", TRACE, "--level", level, "-f", "json"))
        assert list(found["analyses"]["roofline"]["tables"]) == [table]


def test_measured_ceilings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = ok(capsys, "roofline", TRACE, "--level", "op")
    assert "`tracekit machine` measures the ceilings of processors" in " ".join(plain.split())
    file = tmp_path / "machine.json"
    manifest = tracekit.read(TRACE).manifest
    assert manifest is not None
    file.write_bytes(machine(manifest.device_name))
    text = " ".join(ok(capsys, "roofline", TRACE, "--machine", file).split())
    assert f"of its roofline ({manifest.device_name}, measured on 2026-01-02, 1 thread)" in text
    file.write_bytes(machine("another processor"))  # a kept answer does not outlive the file
    text = " ".join(ok(capsys, "roofline", TRACE, "--machine", file).split())
    told = f"(another processor, measured on 2026-01-02, 1 thread; this ran on {manifest.device_name})"
    assert told in text


def test_ceilings_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "machine.json"
    file.write_bytes(machine("a processor", threads=64))
    assert "it has no rates with 1 thread; measure them with tracekit machine --threads 1" in failed(
        capsys, "roofline", TRACE, "--machine", file
    )
    file.write_bytes(machine("a board", device="cuda"))
    fault = failed(capsys, "roofline", TRACE, "--machine", file)
    assert "it is of a board, and" in fault
    assert "leave --machine out" in fault
    file.write_text("{}")
    assert "not a valid measurement" in failed(capsys, "roofline", TRACE, "--machine", file)


def test_what_was_measured_before_on_the_processor_of_a_capture_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path))
    manifest = tracekit.read(TRACE).manifest
    assert manifest is not None
    assert "roofline (" not in ok(capsys, "roofline", TRACE)
    path = machine_path(manifest.device_name)
    path.parent.mkdir(parents=True)
    path.write_bytes(machine(manifest.device_name))
    assert f"({manifest.device_name}, measured on" in " ".join(ok(capsys, "roofline", TRACE).split())
    path.write_bytes(b"damaged")
    code, out, warning = run(capsys, "roofline", TRACE)
    assert (code, "roofline (" in out) == (0, False)
    assert warning.startswith("warning: ")
    assert "not a valid measurement" in warning
