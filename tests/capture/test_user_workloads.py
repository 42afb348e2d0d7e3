"""Workloads named FILE.py:FUNCTION: what goes wrong in them is shown as theirs, and what was finished stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tracekit.capture.run import run
from tracekit.cli.main import main
from tracekit.errors import UsageError, WorkloadError
from tracekit.manifest import CaptureOptions, read_manifest

OURS = Path(__file__).with_name("recipes_of_ours.py")
SHORT = ("--steps", "1", "--levels", "M,MLG")


def capture(function: str, folder: Path, *more: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["capture", f"{OURS}:{function}", "-o", str(folder), *SHORT, *more])
    return int(left.value.code or 0)


@pytest.mark.parametrize("function", ["smooth", "without_options"])
def test_a_function_in_a_file_is_a_workload(tmp_path: Path, capsys, function: str) -> None:
    assert capture(function, tmp_path) == 0
    assert str(tmp_path / "trace.json.gz") in capsys.readouterr().out
    manifest = read_manifest(tmp_path / "manifest.json")
    assert manifest.workload == f"{OURS.name}:{function}"  # without the folder, which is nobody's business
    assert [one.level for one in manifest.runs] == ["M", "MLG"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.py:build", "there is no such file"),
        (str(OURS), "which function makes the workload"),
        (f"{OURS}:no such", "which function makes the workload"),
        (f"{OURS}:absent", "it has no function absent"),
        (f"{OURS}:SIDE", "it has no function SIDE"),
    ],
)
def test_a_name_that_leads_nowhere_is_a_usage_error(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(name, tmp_path)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("raises_in_the_factory", "ZeroDivisionError: in the factory"),
        ("reads_a_missing_file", "FileNotFoundError: "),
        ("exits", "SystemExit: 0"),
        ("raises_in_a_step", 'ValueError: step "four" is one too many'),
    ],
)
def test_an_error_of_theirs_is_a_traceback_and_one_line(
    tmp_path: Path, capsys, function: str, kind: str
) -> None:
    assert capture(function, tmp_path) == 1
    text = capsys.readouterr().err
    assert text.startswith("Traceback")
    assert f'{OURS}", line ' in text
    last = text.splitlines()[-1]
    assert last.startswith(f"tracekit: error: {OURS}:{function} raised {kind}")
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize("content", ["1 / 0\n", "def build(:\n", "raise SystemExit(0)\n"])
def test_a_file_that_cannot_be_imported(tmp_path: Path, capsys, content: str) -> None:
    path = tmp_path / "net.py"
    path.write_text(content)
    with pytest.raises(SystemExit) as left:
        main(["capture", f"{path}:build", "-o", str(tmp_path / "out")])
    assert left.value.code == 1
    text = capsys.readouterr().err
    assert "net.py" in text
    assert text.splitlines()[-1].startswith(f"tracekit: error: {path}:build raised ")


def test_levels_that_were_finished_before_an_error_stay(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="one too many") as caught:
        run(f"{OURS}:raises_while_profiled", tmp_path, options=CaptureOptions(steps=1))
    assert isinstance(caught.value.__cause__, ValueError)
    manifest = read_manifest(tmp_path / "manifest.json")
    assert [one.level for one in manifest.runs] == ["M"]
    assert manifest.stopped == 'ValueError: step "four" is one too many'
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def interrupted(tmp_path: Path, *more: str) -> tuple[int, str]:
    """The exit code and stderr of a program that is sent SIGINT, as by Ctrl-C, while it is being profiled."""
    ready = tmp_path / "ready"
    words = ["capture", f"{OURS}:is_slow_while_profiled", "-o", str(tmp_path / "out"), *SHORT, *more]
    program = subprocess.Popen(
        [sys.executable, "-m", "tracekit", *words],
        env={**os.environ, "TRACEKIT_TEST_READY": str(ready)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not ready.exists() and program.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does it: the program and all that it started
    _, text = program.communicate(timeout=60)
    return program.returncode, text


@pytest.mark.parametrize("more", [(), ("--ranks", "2")])
def test_ctrl_c_keeps_what_was_finished(tmp_path: Path, more: tuple[str, ...]) -> None:
    code, text = interrupted(tmp_path, *more)
    assert code == 130, text
    assert text.splitlines()[-1] == "tracekit: error: interrupted"
    assert f"finished levels (M) are in {tmp_path / 'out'}" in text
    assert "Traceback" not in text
    manifest = read_manifest(tmp_path / "out" / "manifest.json")
    assert {one.level for one in manifest.runs} == {"M"}
    assert manifest.stopped == "interrupted"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]


def test_an_older_manifest_is_not_taken_for_what_was_finished(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "manifest.json").write_text('{"schema_version": 1}')

    def interrupt(*_args: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tracekit.capture.run.run", interrupt)
    assert capture("smooth", tmp_path) == 130
    assert capsys.readouterr().err == "tracekit: error: interrupted\n"
