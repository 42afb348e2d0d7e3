"""`--nsys`, with a program of that name that stands in for it: it notes its arguments and runs what is behind them."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tracekit.capture import nsys, sessions
from tracekit.capture.device import ToolWindow
from tracekit.capture.run import run
from tracekit.capture.sessions import Session, recording
from tracekit.cli.main import main
from tracekit.errors import UsageError
from tracekit.manifest import CaptureOptions, Settings, read_manifest

OURS = Path(__file__).with_name("recipes_of_ours.py")
STAND_IN = """#!{python}
import json, os, pathlib, signal, subprocess, sys
how = os.environ.get("FAKE_NSYS", "")
if how == "fails":
    sys.exit("nsys: no permission")
words = sys.argv[1:]
place = words.index("-o")
note = {{"options": words[:place], "output": words[place + 1], "program": words[place + 2:]}}
pathlib.Path(os.environ["FAKE_NSYS_NOTE"]).write_text(json.dumps(note))
signal.signal(signal.SIGINT, lambda *_: None)  # as nsys does, which then ends what it collects
code = subprocess.call(note["program"])
print("Generating", note["output"])
if how != "writes nothing":
    pathlib.Path(note["output"] + ".nsys-rep").write_bytes(b"profile")
sys.exit(7 if how == "fails at the end" else code)
"""
SHORT = ("--steps", "1", "--batch", "1", "--size", "8")
Note = Callable[[], dict]


@pytest.fixture
def note(tmp_path: Path, monkeypatch) -> Note:
    """Put the stand-in on the PATH; call it for what it noted."""
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("FAKE_NSYS_NOTE", str(tmp_path / "note.json"))
    return lambda: json.loads((tmp_path / "note.json").read_text())


def capture(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["capture", *words])
    return int(left.value.code or 0)


@pytest.mark.slow
def test_the_command_runs_again_below_nsys_and_the_manifest_names_the_profile(
    note: Note, tmp_path: Path, capfd
) -> None:
    out = tmp_path / "out"
    flags = [*SHORT, "--precision", "bf16", "--no-memory", "--channels-last", "--threads", "1"]
    assert capture("cnn", "--nsys", "-o", str(out), *flags) == 0
    noted = note()
    assert noted["options"] == [
        *("profile", "-t", "cuda,nvtx,osrt,cudnn,cublas"),
        *("--cuda-graph-trace=node", "--force-overwrite=true"),
    ]
    assert noted["output"] == str(out / "profile")
    program = noted["program"]
    assert program[:5] == [sys.executable, "-m", "tracekit", "capture", "cnn"]
    assert program[-4:] == ["--output", str(out), "--levels", "M,ML,metrics"]
    given = program[5:-4]
    pairs = [("--steps", "1"), ("--batch", "1"), ("--size", "8"), ("--precision", "bf16"), ("--threads", "1")]
    assert all(given[given.index(name) + 1] == value for name, value in pairs)
    assert {"--no-memory", "--channels-last"} < set(given)
    assert len(given) == 2 * len(pairs) + 2
    manifest = read_manifest(out / "manifest.json")
    assert manifest.nsys == "profile.nsys-rep"
    assert [one.level for one in manifest.runs] == ["M", "ML"]
    assert manifest.settings is not None
    assert manifest.settings.precision == "bf16"
    lines = capfd.readouterr().out.splitlines()
    assert lines == [str(out / n) for n in ("trace-ML.json.gz", "manifest.json", "profile.nsys-rep")]
    assert {path.name for path in out.iterdir()} == {"trace-ML.json.gz", "manifest.json", "profile.nsys-rep"}


def test_on_a_gpu_only_the_recorded_steps_are_collected(tmp_path: Path) -> None:
    words = nsys.command("/bin/nsys", ["python", "x"], tmp_path, on_gpu=True)
    assert words == [
        *("/bin/nsys", "profile", "-t", "cuda,nvtx,osrt,cudnn,cublas"),
        *("--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
        *("--cuda-graph-trace=node", "--force-overwrite=true", "-o", str(tmp_path / "profile")),
        *("python", "x"),
    ]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_told_by_the_capture_itself(note: Note, tmp_path: Path, capfd) -> None:
    assert capture("cnn", "--nsys", "-o", str(tmp_path / "out"), "--device", "cuda") == 2
    assert "--capture-range=cudaProfilerApi" in note()["options"]
    (line,) = [text for text in capfd.readouterr().err.splitlines() if "error" in text]
    assert "sees no GPU" in line


def test_without_nsys_the_error_says_where_to_get_it(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert capture("cnn", "--nsys", "-o", str(tmp_path / "out")) == 2
    text = capsys.readouterr().err
    assert text.startswith("tracekit: error: nsys is not on the PATH; install Nsight Systems")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_exit_code_of_a_failed_capture_is_passed_through(note: Note, tmp_path: Path, capfd) -> None:
    out = tmp_path / "out"
    assert capture(f"{OURS}:raises_while_profiled", "--nsys", "-o", str(out), "--steps", "1") == 1
    lines = capfd.readouterr().err.splitlines()
    assert len([line for line in lines if line.startswith("tracekit: error: ")]) == 1
    assert any(line.startswith("Traceback") for line in lines)
    manifest = read_manifest(out / "manifest.json")
    assert [one.level for one in manifest.runs] == ["M"]
    assert manifest.stopped is not None
    assert manifest.nsys == "profile.nsys-rep"  # nsys has written what it saw until then


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("fails", "nsys ended with exit code 1 before the capture began"),
        ("fails at the end", "nsys ended with exit code 7 after the capture"),
        ("writes nothing", "nsys wrote no profile"),
    ],
)
def test_a_failure_of_nsys_is_told_as_its_own(
    note: Note, tmp_path: Path, monkeypatch, capfd, how: str, message: str
) -> None:
    del note
    monkeypatch.setenv("FAKE_NSYS", how)
    out = tmp_path / "out"
    out.mkdir()
    (out / "profile.nsys-rep").write_text("an older one")
    assert capture("cnn", "--nsys", "-o", str(out), *SHORT) == 1
    text = capfd.readouterr().err
    assert text.splitlines()[-1] == f"tracekit: error: {message}; see its messages above"
    if how != "fails":
        named = read_manifest(out / "manifest.json").nsys
        assert named == ("profile.nsys-rep" if how == "fails at the end" else None)


def test_levels_without_ranges_have_nothing_to_record(note: Note, tmp_path: Path, capsys) -> None:
    del note
    assert capture("cnn", "--nsys", "-o", str(tmp_path / "out"), "--levels", "M,metrics") == 2
    assert "add MLG to --levels" in capsys.readouterr().err
    assert nsys.levels_under_nsys(("MLG", "ML")) == ("ML",)
    with pytest.raises(UsageError):
        nsys.levels_under_nsys(())


@pytest.mark.slow
def test_ctrl_c_reaches_the_capture_once_and_keeps_what_was_finished(note: Note, tmp_path: Path) -> None:
    ready, out = tmp_path / "ready", tmp_path / "out"
    words = [f"{OURS}:is_slow_while_profiled", "--nsys", "-o", str(out), "--steps", "1"]
    program = subprocess.Popen(
        [sys.executable, "-m", "tracekit", "capture", *words],
        env={**os.environ, "TRACEKIT_TEST_READY": str(ready)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not ready.exists() and program.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(program.pid, signal.SIGINT)
    _, text = program.communicate(timeout=60)
    assert program.returncode == 130, text
    lines = text.splitlines()
    assert f"finished levels (M) are in {out}" in lines
    assert lines[-1] == "tracekit: error: interrupted"
    assert "Traceback" not in text
    manifest = read_manifest(out / "manifest.json")
    assert [one.level for one in manifest.runs] == ["M"]
    assert (manifest.stopped, manifest.nsys) == ("interrupted", "profile.nsys-rep")
    assert {path.name for path in out.iterdir()} == {"manifest.json", "profile.nsys-rep"}
    assert note()["output"] == str(out / "profile")


def test_only_the_level_with_layers_is_collected_and_only_on_a_gpu(monkeypatch) -> None:
    assert not nsys.collects("ML", "cuda")
    monkeypatch.setenv("TRACEKIT_UNDER_NSYS", "/x")
    assert [level for level in ("M", "ML", "MLG", "metrics") if nsys.collects(level, "cuda")] == ["ML"]
    assert not nsys.collects("ML", "cpu")


@pytest.fixture
def told(monkeypatch) -> list[str]:
    """What CUDA's profiler API was told, in order; torch is asked for it, and not the GPU that is not there."""
    events: list[str] = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: events.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: events.append("stop"))
    monkeypatch.setattr(sessions, "collects", lambda level, _device: level == "ML")
    return events


def steps(model: nn.Module, events: list[str], live: Session, count: int) -> None:
    for _ in range(count):
        model(torch.ones(1, 2))
        events.append("step")
        live.step()


def test_the_window_is_open_during_the_recorded_steps(told: list[str]) -> None:
    model = nn.Linear(2, 2)
    for level in ("M", "MLG", "ML"):
        with recording(
            level, model, torch.device("cpu"), CaptureOptions(steps=2, warmup=1, wait=1, profile_memory=False)
        ) as live:
            steps(model, told, live, 5)
    assert told[:10] == 10 * ["step"]
    assert told[10:] == ["step", "step", "start", "step", "step", "stop", "step"]


def test_the_window_is_closed_when_a_step_raises(told: list[str]) -> None:
    model = nn.Linear(2, 2)

    def fail() -> None:
        with recording("ML", model, torch.device("cpu"), CaptureOptions(steps=2)) as live:
            steps(model, told, live, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert told == ["step", "start", "stop"]
    ToolWindow().close()
    assert told == ["step", "start", "stop"]


def test_below_nsys_the_level_m_runs_bare(tmp_path: Path, monkeypatch) -> None:
    opened: list[str] = []

    class Domain:
        def get_event_attributes(self, message: str, category: str) -> str:
            return message

        def push_range(self, message: str) -> None:
            opened.append(message)

        def pop_range(self) -> None:
            pass

    monkeypatch.setattr("nvtx.get_domain", lambda _name: Domain())
    for below in (False, True):
        if below:
            monkeypatch.setenv("TRACEKIT_UNDER_NSYS", str(tmp_path / "note"))
        opened.clear()
        run(
            "cnn",
            tmp_path,
            settings=Settings(batch=1, size=8),
            options=CaptureOptions(steps=1),
            levels=("M",),
        )
        assert bool(opened) is not below
