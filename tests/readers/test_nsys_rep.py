"""Reports of Nsight Systems, with a program named nsys that stands in for it: it notes its arguments and copies an export."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tracekit
from tracekit.cli.main import main
from tracekit.errors import UnreadableTraceError
from tracekit.readers.nsys.report import export_report

STAND_IN = """#!{python}
import json, os, pathlib, shutil, sys, time
note = pathlib.Path(os.environ["FAKE_NSYS_NOTE"])
with note.open("a") as file:
    file.write(json.dumps([sys.argv[1:], os.getcwd(), os.getpid()]) + "\\n")
how = os.environ.get("FAKE_NSYS", "")
flags = dict(word[2:].split("=", 1) for word in sys.argv[2:] if word.startswith("--"))
if how == "fails":
    print("Processing...")
    print("first line\\n\\x1b[31mthe report is of a newer version\\n", file=sys.stderr)
    sys.exit(3)
if how == "says it on stdout":
    print("no licence")
    sys.exit(1)
if how == "writes nothing":
    sys.exit(0)
if how == "writes rubbish":
    pathlib.Path(flags["output"]).write_text("rubbish")
    sys.exit(0)
if how == "is slow":
    time.sleep(60)
shutil.copyfile(os.environ["FAKE_NSYS_EXPORT"], flags["output"])
"""


def tiny_export(path: Path) -> None:
    """An export with two kernels of one process."""
    pid = 77 << 24
    with sqlite3.connect(path) as file:
        file.executescript(
            "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER, "
            "contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, "
            "shortName INTEGER);"
            "INSERT INTO StringIds VALUES (1, 'gemm');"
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 250, 0, 1, 7, 1, {pid}, 1, 1),"
            f"(300, 350, 0, 1, 7, 2, {pid}, 1, 1);"
        )
    file.close()


Calls = Callable[[], list[tuple[list[str], str, int]]]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Put the stand-in on the PATH; call it for what it noted: arguments, folder, process of each run."""
    program, note = tmp_path / "bin" / "nsys", tmp_path / "note"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    tiny_export(tmp_path / "made.sqlite")
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_NSYS_NOTE", str(note))
    monkeypatch.setenv("FAKE_NSYS_EXPORT", str(tmp_path / "made.sqlite"))
    return lambda: (
        [tuple(json.loads(line)) for line in note.read_text().splitlines()] if note.exists() else []
    )


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "profile_rank3.nsys-rep"
    path.write_bytes(b"a format that is not public")
    return path


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(words)
    return int(left.value.code or 0)


def test_the_export_is_read_as_the_report(calls: Calls, report: Path) -> None:
    trace = tracekit.read(report)
    assert trace.device["duration"].to_list() == [150, 50]
    assert trace.meta.path == str(report)
    assert trace.meta.size_bytes == report.stat().st_size
    assert trace.meta.format == "nsys"
    assert trace.meta.rank == 3
    ((words, folder, _),) = calls()
    assert words[:2] == ["export", "--type=sqlite"]
    assert words[2] == f"--output={folder}/profile_rank3.sqlite"
    assert words[3:] == ["--force-overwrite=true", str(report)]
    assert not Path(folder).exists()


@pytest.mark.slow
def test_a_second_look_needs_no_export(
    calls: Calls, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("info", str(report)) == 0
    first = capsys.readouterr().out
    assert len(calls()) == 1
    assert run("info", str(report)) == 0
    assert capsys.readouterr().out == first
    assert run("kernels", str(report)) == 0
    assert len(calls()) == 1
    assert run("info", str(report), "--no-cache") == 0
    assert len(calls()) == 2
    report.write_bytes(b"another recording under the same name")
    assert run("info", str(report)) == 0
    assert len(calls()) == 3


def test_the_suffix_of_old_reports(calls: Calls, report: Path) -> None:
    old = report.rename(report.with_name("OLD.QDREP"))
    assert tracekit.read(old).device.height == 2
    assert calls()[0][0][-1] == str(old)


@pytest.mark.parametrize("name", ["-rf.nsys-rep", "--output=x.nsys-rep", "a b;$(touch x)%h'\".nsys-rep"])
def test_any_name_is_one_word_that_is_no_flag(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(b"x")
    before = set(tmp_path.iterdir())
    assert tracekit.read(name).device.height == 2
    ((words, _, _),) = calls()
    assert words[-1] == str(tmp_path / name)
    assert "%" not in words[2]
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "note"}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("fails", "nsys ended with exit code 3 ([31mthe report is of a newer version)"),
        ("says it on stdout", "nsys ended with exit code 1 (no licence)"),
        ("writes nothing", "nsys wrote no export"),
        ("writes rubbish", "nsys wrote no export"),
    ],
)
def test_what_went_wrong_is_one_line(
    calls: Calls,
    report: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: str,
    told: str,
) -> None:
    monkeypatch.setenv("FAKE_NSYS", how)
    assert run("report", str(report)) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tracekit: error: {report}: it could not be exported: {told}; use the nsys")
    assert not Path(calls()[0][1]).exists()


def test_without_nsys_the_line_says_how_to_export(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert run("report", str(report)) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "nsys is not on the PATH" in line
    assert line.endswith("export it on a machine with nsys: nsys export --type sqlite profile_rank3.nsys-rep")


@pytest.mark.parametrize(("content", "fault"), [(None, "no such file"), (b"", "the file is empty")])
def test_nothing_is_run_for_a_file_that_is_not_there(
    calls: Calls, tmp_path: Path, content: bytes | None, fault: str
) -> None:
    path = tmp_path / "gone.nsys-rep"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableTraceError, match=fault):
        tracekit.read(path)
    assert calls() == []


def test_an_export_under_the_name_of_a_report_is_read_as_it_is(calls: Calls, tmp_path: Path) -> None:
    path = tmp_path / "named.nsys-rep"
    tiny_export(path)
    assert tracekit.read(path).device.height == 2
    assert calls() == []


def test_the_export_can_be_used_until_the_block_ends(calls: Calls, report: Path) -> None:
    seen: list[tuple[int, int]] = []
    with export_report(report, lambda *told: seen.append(told)) as export:
        assert export.stat().st_mode & 0o777 <= 0o644
        assert stat.S_IMODE(export.parent.stat().st_mode) == 0o700
        assert export.name == "profile_rank3.sqlite"
    assert not export.parent.exists()
    assert all(size == report.stat().st_size for _, size in seen)
    assert len(calls()) == 1


@pytest.mark.slow
def test_ctrl_c_ends_nsys_and_leaves_nothing(
    calls: Calls, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NSYS", "is slow")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    program = subprocess.Popen(
        [sys.executable, "-m", "tracekit", "info", str(report)], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not calls() and program.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    _, text = program.communicate(timeout=30)
    assert program.returncode == 130, text
    assert text.splitlines()[-1] == "tracekit: error: interrupted"
    assert list((tmp_path / "scratch").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(calls()[0][2], 0)
