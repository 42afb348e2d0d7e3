"""A capture that is ended from outside ends its children, keeps what was finished, and says by what it was ended."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_nsys import STAND_IN

from tracekit.cli.ending import EndedBySignalError, ended_by_signals
from tracekit.manifest import read_manifest

OURS = Path(__file__).with_name("recipes_of_ours.py")
SHORT = ("--steps", "1", "--levels", "M,MLG", "--threads", "1")
ENDED = [
    (signal.SIGINT, 130, "interrupted"),
    (signal.SIGTERM, 143, "ended by SIGTERM"),
    (signal.SIGHUP, 129, "ended by SIGHUP"),
]


def started(tmp_path: Path, *more: str, **environment: str) -> subprocess.Popen[str]:
    """A program that has finished the level M and waits while it is being profiled."""
    ready = tmp_path / "ready"
    words = ["capture", f"{OURS}:is_slow_while_profiled", "-o", str(tmp_path / "out"), *SHORT, *more]
    program = subprocess.Popen(
        [sys.executable, "-m", "tracekit", *words],
        env={**os.environ, "TRACEKIT_TEST_READY": str(ready), **environment},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not ready.exists() and program.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return program


def check(program: subprocess.Popen[str], tmp_path: Path, code: int, said: str) -> None:
    try:
        _, text = program.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        columns = "pid,ppid,stat,wchan:20,args"
        left = subprocess.run(
            ["ps", "-ww", "-o", columns, "-s", str(program.pid)], capture_output=True, text=True, check=False
        )
        os.killpg(program.pid, signal.SIGKILL)
        program.communicate()
        pytest.fail(f"these did not end:\n{left.stdout}")
    assert program.returncode == code, text
    assert text.splitlines()[-1] == f"tracekit: error: {said}"
    assert f"finished levels (M) are in {tmp_path / 'out'}" in text
    assert "Traceback" not in text
    manifest = read_manifest(tmp_path / "out" / "manifest.json")
    assert {one.level for one in manifest.runs} == {"M"}
    assert manifest.stopped == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--ranks", "2")])
def test_a_kill_leaves_no_process_and_no_half_capture(tmp_path: Path, more: tuple[str, ...]) -> None:
    program = started(tmp_path, *more)
    program.kill()
    program.communicate()
    deadline = time.monotonic() + 30
    while not none_is_left(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert none_is_left(tmp_path)
    left = {path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".capture-")}
    assert left == (set() if more else {"manifest.json"})
    if not more:
        assert read_manifest(tmp_path / "out" / "manifest.json").stopped == "it did not come to its end"


def none_is_left(mark: Path) -> bool:
    """Whether no process has this path among its arguments."""
    listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return str(mark) not in listed


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--ranks", "2")])
def test_ctrl_c_keeps_what_was_finished(tmp_path: Path, more: tuple[str, ...]) -> None:
    program = started(tmp_path, *more)
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does it: the program and all that it started
    check(program, tmp_path, 130, "interrupted")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]
    assert none_is_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "said", "more"),
    [(*ENDED[1], ()), (*ENDED[2], ("--ranks", "2"))],
)
def test_a_scheduler_s_signal_ends_the_ranks_too(
    tmp_path: Path, number: int, code: int, said: str, more: tuple[str, ...]
) -> None:
    program = started(tmp_path, *more)
    assert not none_is_left(tmp_path)  # else the check below could not fail
    program.send_signal(number)  # it alone: schedulers do not always tell the group
    program.send_signal(number)  # and they repeat themselves
    check(program, tmp_path, code, said)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]
    assert none_is_left(tmp_path)


@pytest.mark.slow
def test_a_signal_that_comes_again_behind_the_message_changes_no_exit_code(tmp_path: Path) -> None:
    program = started(tmp_path)
    program.send_signal(signal.SIGTERM)
    assert program.stderr is not None
    assert any("ended by SIGTERM" in line for line in program.stderr)
    program.send_signal(signal.SIGTERM)
    program.communicate(timeout=60)
    assert program.returncode == 143


@pytest.mark.slow
def test_a_signal_that_loaders_get_as_well_is_not_their_failure(tmp_path: Path) -> None:
    program = started(tmp_path, "--workers", "2")
    os.killpg(program.pid, signal.SIGTERM)  # as a scheduler does that knows the group
    check(program, tmp_path, 143, "ended by SIGTERM")
    assert none_is_left(tmp_path)


@pytest.mark.slow
def test_a_scheduler_s_signal_ends_nsys_too(tmp_path: Path) -> None:
    stand_in = tmp_path / "bin" / "nsys"
    stand_in.parent.mkdir()
    stand_in.write_text(STAND_IN.format(python=sys.executable))
    stand_in.chmod(0o755)
    path = f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}"
    program = started(tmp_path, "--nsys", PATH=path, FAKE_NSYS_NOTE=str(tmp_path / "note.json"))
    program.send_signal(signal.SIGTERM)
    check(program, tmp_path, 143, "ended by SIGTERM")
    assert read_manifest(tmp_path / "out" / "manifest.json").nsys == "profile.nsys-rep"
    assert none_is_left(tmp_path)


def test_signals_are_as_they_were_behind_the_block() -> None:
    before, of_children = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGCHLD)
    with pytest.raises(EndedBySignalError, match="ended by SIGTERM"), ended_by_signals():
        signal.raise_signal(signal.SIGTERM)
    signal.signal(signal.SIGCHLD, of_children)
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        raise KeyboardInterrupt
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_a_destructor_drops_comes_again() -> None:
    class Loader:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    reported, of_children = sys.unraisablehook, signal.getsignal(signal.SIGCHLD)

    def work() -> None:
        with ended_by_signals():
            Loader()
            for _ in range(600):
                time.sleep(0.05)

    with pytest.raises(EndedBySignalError, match="ended by SIGTERM"):
        work()
    signal.signal(signal.SIGCHLD, of_children)
    assert sys.unraisablehook is reported


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with ended_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
