"""What the machine does to a capture is one line: a full disk, loaders and ranks that are killed, no shared memory."""

import gc
import signal
from collections.abc import Iterator
from multiprocessing import connection
from pathlib import Path

import pytest

from tracekit.capture import output, step_errors
from tracekit.capture.plan import Plan
from tracekit.capture.run import run
from tracekit.capture.sessions import Recorded
from tracekit.capture.step_errors import own_errors
from tracekit.cli.main import main
from tracekit.errors import OutOfMemoryError, TracekitError, UsageError
from tracekit.manifest import CaptureOptions, Settings, read_manifest

OURS = Path(__file__).with_name("recipes_of_ours.py")
ONE_STEP = CaptureOptions(steps=1)
SMALL = Settings(batch=1, size=8)


def capture(
    capfd: pytest.CaptureFixture[str], workload: str, folder: Path, *more: str
) -> tuple[int, list[str]]:
    """The exit code, and the lines on stderr that are no progress.

    Nor the profiler's own, which a capture silences only in a process that has not imported torch before.
    """
    words = ["capture", workload, "-o", str(folder), "--steps", "1", "--levels", "M,MLG", *more]
    with pytest.raises(SystemExit) as left:
        main(words)
    lines = capfd.readouterr().err.splitlines()
    told = ("USDT:", "building ", "timing ", "recording ", "finished levels (M) are in ")
    return int(left.value.code or 0), [line for line in lines if not line.startswith(told)]


@pytest.fixture
def no_collector_callbacks() -> Iterator[None]:
    """Torch raises from a signal handler; what it raises inside a callback of the garbage collector, as Hypothesis has one, is lost."""
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    yield
    gc.callbacks[:] = callbacks


@pytest.mark.usefixtures("no_collector_callbacks")
@pytest.mark.parametrize(
    "more", [(), pytest.param(("--ranks", "2", "--threads", "1"), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("function", "code", "text"),
    [
        ("loses_a_killed_loader", 2, "the system killed a loader process, as it does when memory runs out"),
        ("loses_a_crashed_loader", 1, "a loader process ended with exit code 3; --workers 0 shows where"),
    ],
)
def test_a_loader_that_ends_is_one_line(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    function: str,
    code: int,
    text: str,
) -> None:
    found, lines = capture(capfd, f"{OURS}:{function}", tmp_path, "--workers", "1", *more)
    assert found == code
    assert len(lines) == 1, lines
    assert text in lines[0]


@pytest.mark.parametrize(
    "more", [(), pytest.param(("--ranks", "2", "--threads", "1"), marks=pytest.mark.slow)]
)
def test_a_full_disk_is_one_line_and_keeps_what_was_finished(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    code, lines = capture(capfd, f"{OURS}:finds_the_disk_full", tmp_path, *more)
    assert code == 2
    assert len(lines) == 1, lines
    assert lines[0].endswith("the disk is full; make room, or write elsewhere")
    assert {one.level for one in read_manifest(tmp_path / "manifest.json").runs} == {"M"}


def test_a_disk_that_fills_while_a_trace_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output, "copy_part", full)
    with pytest.raises(UsageError, match="the disk is full"):
        run("cnn", tmp_path, settings=SMALL, options=ONE_STEP, levels=("M", "ML"))
    manifest = read_manifest(tmp_path / "manifest.json")
    assert ([one.level for one in manifest.runs], [*tmp_path.iterdir()]) == (
        ["M"],
        [tmp_path / "manifest.json"],
    )


def test_a_profiler_that_could_not_write_says_nothing_so_we_do(tmp_path: Path, captured) -> None:
    with pytest.raises(UsageError, match="could not write its trace; make room on the disk"):
        output.write_trace(tmp_path, captured.manifest.runs[-1], Recorded(lambda _path: None))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (signal.SIGKILL, OutOfMemoryError, "rank 1: the system killed it, as it does when memory runs out"),
        (signal.SIGSEGV, TracekitError, r"rank 1: it crashed \(SIGSEGV\)"),
    ],
)
def test_a_rank_that_a_signal_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[TracekitError], text: str
) -> None:
    monkeypatch.setenv("TRACEKIT_TEST_SIGNAL", str(int(number)))
    settings = Settings(ranks=2, threads=1)
    with pytest.raises(kind, match=text):
        run(f"{OURS}:is_killed_by_a_signal", tmp_path, settings=settings, options=ONE_STEP)
    assert {one.level for one in read_manifest(tmp_path / "manifest.json").runs} == {"M"}


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        (
            "unable to allocate shared memory(shm) for file </torch_1_2_0>: No space",
            UsageError,
            "no shared memory",
        ),
        ("DataLoader worker (pid(s) 1, 2) exited unexpectedly", TracekitError, "a loader process ended; "),
        ("DataLoader worker (pid 3) is killed by signal: Killed. ", OutOfMemoryError, "killed a loader"),
        ("DataLoader worker (pid 3) is killed by signal: Aborted. ", TracekitError, r"crashed \(Aborted\)"),
        ("DefaultCPUAllocator: not enough memory: you tried", OutOfMemoryError, "a step of cnn does not fit"),
    ],
)
def test_texts_of_torch(text: str, kind: type[TracekitError], line: str) -> None:
    with pytest.raises(kind, match=line) as caught, own_errors(Plan(workload="cnn")):
        raise RuntimeError(text)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("heard", "kind", "line"),
    [
        (None, TracekitError, "a loader process ended; --workers 0"),
        ("DataLoader worker (pid 3) is killed by signal: Killed. ", OutOfMemoryError, "killed a loader"),
    ],
)
def test_a_loader_that_is_gone_before_torch_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: str | None, kind: type[TracekitError], line: str
) -> None:
    def hear(_seconds: float) -> None:
        if heard is not None:
            raise RuntimeError(heard)

    monkeypatch.setattr("tracekit.capture.step_errors.time.sleep", hear)
    gone = str(tmp_path / "gone")
    plan = Plan(workload="cnn", settings=Settings(workers=1))
    with pytest.raises(kind, match=line), own_errors(plan):
        connection.Client(gone, family="AF_UNIX")
    with pytest.raises(FileNotFoundError), own_errors(Plan(workload="cnn")):  # no loader is there to be lost
        connection.Client(gone, family="AF_UNIX")


def test_a_loader_of_which_torch_hears_while_an_error_is_looked_at(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, heard = step_errors._of_machine, []

    def hear(error: BaseException, plan: Plan) -> TracekitError | None:
        if not heard:
            heard.append(error)
            raise RuntimeError("DataLoader worker (pid 3) is killed by signal: Killed. ")
        return real(error, plan)

    monkeypatch.setattr(step_errors, "_of_machine", hear)
    code, lines = capture(capfd, f"{OURS}:finds_the_disk_full", tmp_path)
    assert heard
    assert code == 2
    assert ["killed a loader" in line for line in lines] == [True]


def test_an_error_of_ours_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="anything else"), own_errors(Plan(workload="cnn")):
        raise RuntimeError("anything else")
