"""Commands take a folder of traces, and standard input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from commands import ok, run
from paths import ROOT
from synthetic import generate, write
from synthetic.nsys_export import write_parquetdir, write_sqlite
from synthetic.nsys_odd import small

CNN = ROOT / "sample_traces/cnn_cpu"


def paths_of(out: str) -> list[str]:
    document = json.loads(out)
    return [report["trace"]["path"] for report in document.get("reports", [document])]


@pytest.mark.slow
def test_every_trace_below_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(CNN, runs / "b_capture")
    (runs / "a_board").mkdir()
    write(generate(seed=1, steps=1), runs / "a_board" / "host_12.1700000000.pt.trace.json.gz")
    write(generate(seed=2, steps=1), runs / "a_board" / "host_12.1700000001.pt.trace.json.gz")
    write_sqlite(small(), runs / "c.sqlite")
    (runs / "c.nsys-rep").write_bytes(b"?")  # its export lies beside it
    write_parquetdir(small(), runs / "d_export")
    (runs / "settings.json").write_text('{"batch": 8}')
    (runs / "broken.json.gz").write_bytes(b"\x1f\x8b")
    (runs / "e_page").mkdir()
    (runs / "e_page" / "manifest.json").write_text('{"name": "a web page"}')  # of another program
    (runs / ".hidden").mkdir()
    shutil.copy(CNN / "trace.json.gz", runs / ".hidden")
    (runs / "self").symlink_to(runs)
    assert paths_of(ok(capsys, "report", runs, "-f", "json")) == [
        "c.sqlite",
        "host_12.1700000000.pt.trace.json.gz",
        "host_12.1700000001.pt.trace.json.gz",
        "trace.json.gz",
        "d_export",
    ]


def test_a_folder_without_traces_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.json").write_text("{}")
    code, out, err = run(capsys, "report", tmp_path)
    assert (code, out) == (3, "")
    assert err == (
        f"tracekit: error: {tmp_path}: the folder holds no trace; "
        "give a trace (.json, .json.gz, .sqlite, .nsys-rep) or a folder with some\n"
    )


def test_a_folder_that_cannot_be_entered_is_unreadable_not_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", forbidden)
    for command in ("report", "info", "doctor"):
        code, out, err = run(capsys, command, tmp_path)
        assert (code, out) == (3, "")
        assert (
            err
            == f"tracekit: error: {tmp_path}: it cannot be read (Permission denied); check its permissions\n"
        )


@pytest.mark.parametrize("name", ["../trace.json.gz", "/etc/passwd", "", "..", "sub/trace.json.gz"])
def test_a_manifest_leads_to_no_file_outside_its_folder(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(CNN, tmp_path / "capture")
    manifest = tmp_path / "capture/manifest.json"
    shutil.copy(CNN / "trace.json.gz", tmp_path)
    tree = json.loads(manifest.read_text())
    tree["runs"][1]["trace"] = name
    manifest.write_text(json.dumps(tree))
    code, out, err = run(capsys, "report", tmp_path / "capture")
    assert (code, out) == (3, "")
    assert "which is no file of its folder; give the trace itself" in err


@pytest.mark.slow
def test_traces_of_one_name_begin_with_their_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, name in enumerate(("first", "second")):
        (tmp_path / name).mkdir()
        write(generate(seed=seed, steps=1), tmp_path / name / "trace.json")
    heads = [
        line.split(" · ")[0] for line in ok(capsys, "report", tmp_path).splitlines() if line.startswith("══")
    ]
    assert heads == ["══ first/trace.json", "══ second/trace.json"]
    (tmp_path / "first").rename(tmp_path / "third")
    assert "══ third/trace.json" in ok(capsys, "report", tmp_path)


@pytest.mark.parametrize("command", ["info", "doctor"])
def test_commands_about_one_trace_take_a_folder_with_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(generate(seed=1, steps=1), tmp_path / "a.json")
    assert ok(capsys, command, tmp_path) == ok(capsys, command, tmp_path / "a.json")
    write(generate(seed=2, steps=1), tmp_path / "b.json")
    code, _, err = run(capsys, command, tmp_path)
    assert (code, err) == (
        2,
        f"tracekit: error: {tmp_path}: it holds several traces; give one of them, such as {tmp_path / 'a.json'}\n",
    )


def test_standard_input_is_a_trace() -> None:
    with (CNN / "trace.json.gz").open("rb") as file:
        whole = subprocess.run(
            [sys.executable, "-m", "tracekit", "report", "-", "-f", "json"],
            stdin=file,
            capture_output=True,
            check=True,
        )
    assert json.loads(whole.stdout)["trace"]["event_count"] == 8163


def test_a_zip_archive_in_a_pipe_is_its_trace(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.write(CNN / "trace.json.gz", "trace.json.gz")
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", "info", "-", "-f", "json"],
        input=(tmp_path / "t.zip").read_bytes(),
        capture_output=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
    )
    assert b'"events": 8163' in done.stdout
    assert not [*(tmp_path / "temporary").iterdir()]
