from __future__ import annotations

from pathlib import Path

import pytest
from planted import MS, US, Planted, finding
from synthetic.nsys_export import Program, write_sqlite

import tracekit


def planted(
    *,
    thread: int = 2,
    process: int = 1,
    function: str = "<built-in method append of list object>",
    own: str = "",
) -> Planted:
    """Two kernels of 1 ms with 8 ms between them, in which another thread calls a function 40 times."""
    made = Planted()
    made.span("python", "train.py(20): step", 0, 10 * MS)
    made.activity("a", 100 * US, MS, launch=90 * US)
    made.activity("b", 9_100 * US, MS, launch=9_090 * US)
    if own:
        made.span("python", own, MS, 9 * MS)
    for number in range(40):
        at = 1_100 * US + number * 200 * US
        made.span("python", function, at, at + 150 * US, thread, process_id=process)
    made.span("python", "metrics.py(30): update", 1_000 * US, 9_200 * US, thread, process_id=process)
    return made


def test_fires_when_another_thread_runs_in_a_pause_of_the_launching_one() -> None:
    found = finding(planted().trace(), "idle", "python_threads")
    assert found is not None
    assert found.ns_at_stake == pytest.approx(8 * MS, rel=0.01)
    assert found.title.startswith("Another Python thread runs while the device waits for launches, for 79")
    assert "thread 2 ran Python, mostly <built-in method append of list object>" in found.evidence
    assert "may have been waiting for its turn" in found.evidence
    assert "another process" in found.advice


@pytest.mark.parametrize(
    "made",
    [
        planted(process=2),  # another process has a lock of its own
        planted(function="<built-in method acquire of lock object>"),  # it waits, without the lock
        planted(own="<built-in function dot>"),  # the launching thread is in code that may not need it
        planted(thread=1),  # the launching thread itself
    ],
)
def test_silent_if_the_other_thread_is_not_the_reason(made: Planted) -> None:
    assert finding(made.trace(), "idle", "python_threads") is None


def test_silent_if_the_other_thread_does_nothing_meanwhile() -> None:
    made = planted()
    made.host = [row for row in made.host if row["thread_id"] == 1]
    made.span("python", "metrics.py(30): update", 0, 20 * MS, 2)
    assert finding(made.trace(), "idle", "python_threads") is None


def exported(tmp_path: Path, *, call: str = "pthread_cond_timedwait", other: int = 8) -> Path:
    made = Program()
    made.device()
    for number, start in enumerate((1_000, 9_000_000), 1):
        made.call("cudaLaunchKernel_v7000", start, start + 50, correlation=number, tid=7)
        made.kernel("void at::native::add(int)", start + 200, start + 1_000_200, correlation=number)
    made.os_call(call, 1_100_000, 8_900_000, tid=7)
    for number in range(40):
        made.sample(
            ["PyUnicode_Join", "_PyEval_EvalFrameDefault", "Py_RunMain", "main"],
            1_200_000 + number * 100_000,
            tid=other,
        )
    return write_sqlite(made, tmp_path / "t.sqlite")


def test_calls_of_the_system_and_samples_show_it_too(tmp_path: Path) -> None:
    found = finding(tracekit.read(exported(tmp_path)), "idle", "python_threads")
    assert found is not None
    assert found.ns_at_stake == 7_800_000
    assert [end - start for start, end in found.stretches] == [7_800_000]
    assert "40 samples show Python in other threads of the process" in found.evidence


@pytest.mark.parametrize("changed", [{"call": "read"}, {"other": 7}])
def test_silent_without_such_calls_or_samples(tmp_path: Path, changed: dict[str, object]) -> None:
    trace = tracekit.read(exported(tmp_path, **changed))  # type: ignore[arg-type]
    assert finding(trace, "idle", "python_threads") is None


def test_a_thread_that_waits_for_the_autograd_engine_runs_no_python() -> None:
    """The main thread waited in the backward pass, and was said to keep the thread that launches from running."""
    engine = "torch/autograd/graph.py(815): _engine_run_backward"
    assert finding(planted(function=engine).trace(), "idle", "python_threads") is None
    assert finding(planted(own=engine).trace(), "idle", "python_threads") is None


def test_a_thread_that_is_in_no_function_does_not_wait_for_its_turn() -> None:
    """A thread launched for the second device only when the optimizer of the main thread was done: nothing kept it from running."""
    made = planted()
    made.host = [row for row in made.host if row["name"] != "train.py(20): step"]
    assert finding(made.trace(), "idle", "python_threads") is None
