"""What the host did while the device was idle: of which program, in which call of the OS, in which function."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from paths import PUBLIC_NSYS
from synthetic.nsys_export import Program, write_sqlite

import tracekit
from tracekit.analyses.idle import Idle, idle
from tracekit.analyses.program import program
from tracekit.report.build import build_report

TID, OTHER = 7, 8
MAIN = ["work()", "main", "_start"]


def made(*, kernel: str = "saxpy(float*)", stack: list[str] | None = None) -> Program:
    """Two kernels, [200, 300) and [10_300, 10_400); the second is launched at 10_000, so 9_700 ns are the host's."""
    planted = Program()
    planted.device()
    for number, (call, start) in enumerate(((100, 200), (10_000, 10_300)), 1):
        planted.call("cudaLaunchKernel_v7000", call, call + 50, correlation=number, tid=TID)
        planted.kernel(kernel, start, start + 100, correlation=number)
    planted.sample(stack or MAIN, 5_000, tid=TID)
    return planted


def answer_of(planted: Program, tmp_path: Path) -> Idle:
    return idle(tracekit.read(write_sqlite(planted, tmp_path / "t.sqlite")))


def causes(result: Idle) -> dict[str, int]:
    return dict(result.by_cause.select("cause", "total_ns").rows())


def test_a_program_without_python_waits_for_host_code_and_libraries(tmp_path: Path) -> None:
    planted = made()
    planted.domain(3, "MPI", 0, tid=TID)
    planted.push_pop("MPI_Send", 1_000, 3_000, tid=TID, domain=3)
    result = answer_of(planted, tmp_path)
    assert causes(result) == {"host_code": 7_700, "library_call": 2_000, "launch_latency": 300}
    assert result.answer.startswith(
        "The device was idle for 10.0 µs: host code outside recorded calls 77.0 %, "
        "library calls 20.0 % (most in MPI_Send)"
    )
    assert "Python" not in result.answer


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("pytorch", "planted"),
    [
        (False, made(stack=["dtoa", "_PyEval_EvalFrameDefault", "Py_RunMain", "main"])),
        (False, made(kernel="cupy_add__float32_float32_float32")),
        (True, made(kernel="void at::native::vectorized_elementwise_kernel<4>(int)")),
    ],
)
def test_python_shows_in_samples_and_kernels(tmp_path: Path, planted: Program, pytorch: bool) -> None:
    # Kernels of PyTorch run in programs of C++ as well.
    cause = "host_code" if pytorch else "python"
    assert causes(answer_of(planted, tmp_path)) == {cause: 9_700, "launch_latency": 300}
    shown = program(tracekit.read(tmp_path / "t.sqlite"))
    assert (shown.pytorch, shown.python) == (pytorch, not pytorch)


def test_pytorch_shows_in_ranges(tmp_path: Path) -> None:
    planted = made()
    planted.push_pop("aten::add, seq = 1", 1_000, 3_000, tid=TID)
    expected = {"python": 7_700, "operator_dispatch": 2_000, "launch_latency": 300}
    assert causes(answer_of(planted, tmp_path)) == expected


def test_a_function_that_is_only_named_like_python_is_none(tmp_path: Path) -> None:
    planted = made(stack=["PyTables::read", "myPyEval_x", "main"])
    assert "host_code" in causes(answer_of(planted, tmp_path))


def test_calls_of_the_os_by_hand(tmp_path: Path) -> None:
    planted = made()
    planted.os_call("read", 100, 1_300, tid=TID)  # 1000 of it in the gap
    planted.os_call("write", 2_000, 3_000, tid=TID)
    planted.os_call("futex", 2_500, 2_600, tid=TID)  # inside write
    planted.os_call("poll", 0, 20_000, tid=OTHER)  # another thread's
    result = answer_of(planted, tmp_path)
    assert result.by_os_call is not None
    assert result.by_os_call.select("os_call", "total_ns", "calls").rows() == [
        (None, 7_700, None),
        ("read", 1_000, 1),
        ("write", 900, 1),
        ("futex", 100, 1),
    ]
    assert result.by_os_call["share"].sum() == pytest.approx(1)
    assert result.answer.endswith(
        " Outside recorded calls, the host spent 20.6 % of the time in operating-system calls, most of it in read."
    )


@pytest.mark.slow
def test_samples_by_the_function_that_ran(tmp_path: Path) -> None:
    planted = made()
    for at in (300, *range(4_000, 4_017), 9_999):
        planted.sample(["format", "main"], at, tid=TID)
    for at in range(7_000, 7_005):
        planted.sample(["0x7f00", "main"], at, tid=TID)
    planted.sample(["elsewhere"], 7_000, tid=OTHER)
    planted.sample(["too early"], 250, tid=TID)
    planted.sample(["too late"], 10_000, tid=TID)
    result = answer_of(planted, tmp_path)
    assert result.by_function is not None
    assert result.by_function.select("function", "samples").rows() == [
        ("format", 19),
        (None, 5),
        ("work()", 1),
    ]
    assert result.by_function["share"].to_list() == pytest.approx([0.76, 0.2, 0.04])
    assert result.answer.endswith(" Outside recorded calls, 76.0 % of 25 samples show format.")
    headline = build_report(tracekit.read(tmp_path / "t.sqlite")).verdict.headline
    assert headline.endswith(" for host code, mostly in format according to samples.")


def test_what_was_not_recorded_is_no_table(tmp_path: Path) -> None:
    planted = Program()
    planted.device()
    for number, at in enumerate((100, 10_000), 1):
        planted.call("cudaLaunchKernel_v7000", at, at + 50, correlation=number, tid=TID)
        planted.kernel("saxpy(float*)", at + 100, at + 200, correlation=number)
    result = answer_of(planted, tmp_path)
    assert (result.by_os_call, result.by_function) == (None, None)
    assert {"by_os_call", "by_function"}.isdisjoint(result.tables())
    assert "Outside recorded calls" not in result.answer


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(5))
def test_against_a_count_of_every_ns(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    planted, kernels, launches = Program(), [], []
    planted.device()
    at = 1_000
    for number in range(1, 30):
        at += rng.randrange(30, 400)
        thread = rng.choice((TID, OTHER))
        planted.call("cudaLaunchKernel_v7000", at, at + 5, correlation=number, tid=thread)
        start = max(at + rng.randrange(1, 9), kernels[-1][1] if kernels else 0)
        kernels.append((start, start + rng.randrange(1, 90)))
        launches.append((at, at + 5, thread))
        planted.kernel("k(int)", *kernels[-1], correlation=number)
    calls = [
        (begin, begin + rng.randrange(1, 120), thread, rng.choice(("read", "write", "poll")))
        for thread in (TID, OTHER)
        for begin in range(900, at, 130)
    ]
    for begin, end, thread, name in calls:
        planted.os_call(name, begin, end, tid=thread)
    expected: Counter[str | None] = Counter()
    for (begin, end), (start, _), (call, _, thread) in zip(kernels, kernels[1:], launches[1:], strict=False):
        for ns in range(end, min(call, start)):
            if not any(a <= ns < b for a, b, of in launches if of == thread):
                expected[next((n for a, b, of, n in calls if of == thread and a <= ns < b), None)] += 1
        assert begin < end
    result = answer_of(planted, tmp_path)
    assert result.by_os_call is not None
    assert dict(result.by_os_call.select("os_call", "total_ns").rows()) == dict(expected)
    assert causes(result)["host_code"] == sum(expected.values())


@pytest.mark.slow
def test_the_public_exports() -> None:
    files = {path.stem: path for path in PUBLIC_NSYS}
    if not files:
        pytest.skip("no public exports beside the checkout")
    cupy, mpi = (tracekit.read(files[name]) for name in ("power_iteration_t4", "saxpy_mpi_a100"))
    assert (program(cupy).python, program(cupy).pytorch) == (True, False)
    assert (program(mpi).python, program(mpi).pytorch) == (False, False)
    assert all(program(trace).pytorch for trace in tracekit.read_all(files["fsdp_2gpu"]))
    # The script turns numbers into text and writes them to a file between its steps.
    answer = idle(cupy).answer
    assert "in operating-system calls, most of it in write" in answer
    assert answer.endswith(" samples show _Py_dg_dtoa.")
    assert build_report(cupy).verdict.headline.endswith(
        ' for Python code, mostly in ranges "IO #" (# stands for a number; samples show _Py_dg_dtoa and other text formatting).'
    )
    for trace in (cupy, mpi):
        said = str(build_report(trace))
        for word in ("torch", "DataLoader", ".item()"):
            assert word not in said.split("glossary", maxsplit=1)[0]


@pytest.mark.slow
def test_the_range_that_is_open_need_not_hold_work(tmp_path: Path) -> None:
    planted = made()
    planted.push_pop("loop", 50, 10_060, tid=TID)
    planted.push_pop("IO 1", 400, 4_000, tid=TID)
    planted.push_pop("IO 2", 4_000, 9_000, tid=TID)
    planted.push_pop("elsewhere", 0, 20_000, tid=OTHER)
    result = answer_of(planted, tmp_path)
    assert result.by_range is not None
    assert result.by_range.select("range", "cause", "total_ns").rows() == [
        ("IO #", "host_code", 8_600),
        ("loop", "host_code", 1_100),
        ("loop", "launch_latency", 300),
    ]
    assert result.device_gaps["range"].to_list() == ["IO 2"]
    headline = build_report(tracekit.read(tmp_path / "t.sqlite")).verdict.headline
    assert headline.endswith(' for host code, mostly in ranges "IO #" (# stands for a number).')


def test_without_ranges_there_is_no_table_of_them(tmp_path: Path) -> None:
    result = answer_of(made(), tmp_path)
    assert result.by_range is None
    assert result.device_gaps["range"].to_list() == [None]
