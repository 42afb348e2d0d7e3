"""Which calls and ranges a report names as the place of idle time, and which not: traces planted by hand."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from paths import PUBLIC
from planted import EVERYTHING, MS, US, Planted

import tracekit
from tracekit.analyses.idle import idle
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.scope import select
from tracekit.report.build import build_report
from tracekit.trace import Trace

GEMM = "ampere_sgemm_128x64_nn"


def headline(trace: Trace) -> str:
    return build_report(trace).verdict.headline


def pipeline(walks: dict[str, tuple[int, int]], *, stacks: bool = True) -> Planted:
    """A step of 100 ms in a range and a frame that enclose it, with kernels of 1 ms at its begin, after each walk and at its end.

    A walk (begin and end in ms) is a call of its name, in which `named_modules` takes all time but little.
    """
    made = Planted()
    made.step(0, 0, 100 * MS)
    made.span("annotation", "run", 10 * US, 100 * MS - 10 * US)
    if stacks:
        made.span("python", "runner.py(1): main", 5 * US, 100 * MS - 5 * US)
        made.span("python", "runner.py(114): _run_pipe", 15 * US, 100 * MS - 15 * US)
    made.activity(GEMM, 30 * US, MS, launch=20 * US)
    for name, (begin, end) in walks.items():
        if stacks:
            made.span("python", f"lib/{name}.py(7): {name}", begin * MS, end * MS)
            made.span(
                "python", "torch/nn/modules/module.py(2823): named_modules", begin * MS + 1, end * MS - 1
            )
        made.activity(GEMM, end * MS + 20 * US, MS, launch=end * MS + 10 * US)
    made.activity(GEMM, 98 * MS, 2 * MS - 50 * US, launch=98 * MS - 10 * US)
    return made


WALKS = {"device": (2, 22), "encode": (24, 26), "reset": (30, 50), "context": (60, 75)}


def test_all_calls_of_one_function_are_one() -> None:
    trace = pipeline({**WALKS, "tail": (80, 96)}).trace()
    result = idle(trace)
    python = result.by_cause.row(by_predicate=pl.col("cause") == "python", named=True)
    assert python["call"] == "torch/nn/modules/module.py(2823): named_modules"


def own_walks(walks: dict[str, tuple[int, int]]) -> Trace:
    """The same with a function of its own in each walk."""
    made = pipeline(walks)
    rows = [row for row in made.host if "named_modules" in row["name"]]
    for number, row in enumerate(rows):
        row["name"] = f"lib/deep_{number}.py(9): deep_{number}"
    return made.trace()


def test_few_calls_that_have_most_of_the_time_together_are_named() -> None:
    trace = own_walks(WALKS)
    result = idle(trace)
    python = result.by_cause.row(by_predicate=pl.col("cause") == "python", named=True)
    assert python["call"] is None
    assert result.by_call is not None
    calls = result.by_call.filter(pl.col("cause") == "python")
    assert calls["call"].to_list() == [f"lib/deep_{at}.py(9): deep_{at}" for at in (0, 2, 3)]
    assert sum(calls["share"]) > 0.5
    assert calls["total_ns"].to_list() == [20 * MS - 2, 20 * MS - 2, 15 * MS - 2]
    text = headline(trace)
    assert "for Python code, mostly in lib/deep_0.py(9): deep_0 (" in text
    assert " ms), lib/deep_2.py(9): deep_2 (" in text
    assert " and lib/deep_3.py(9): deep_3 (" in text
    assert "_run_pipe" not in text
    assert "main" not in text


def test_what_encloses_the_window_is_no_place() -> None:
    """Many short calls: none has a part worth naming, and the range and the frame around all say nothing."""
    walks = {f"part{number}": (5 * number + 2, 5 * number + 5) for number in range(18)}
    text = headline(own_walks(walks))
    assert text.endswith("for Python code.")
    bare = headline(pipeline(walks, stacks=False).trace(captured=EVERYTHING - {"stacks"}))
    assert "range run" not in bare
    assert bare.endswith("in Python or other code that is not recorded.")


def simulating(*inside: str) -> Planted:
    """Ten calls of a function in one that encloses all, which fill 98 % of the window but for what they call (`inside`), in turn."""
    made = Planted()
    made.step(0, 0, 100 * MS)
    made.span("python", "main.py(1): rollout", 0, 100 * MS)
    for number in range(10):
        at = 10 * number * MS
        made.activity(GEMM, at + 20 * US, 100 * US, launch=at + 10 * US)
        made.span("python", "envs.py(30): step", at + 130 * US, at + 10 * MS - 10 * US)
        for turn, name in enumerate(inside):
            begin = at + 200 * US + turn * 9 * MS // len(inside)
            made.span("python", name, begin, begin + 9 * MS // len(inside) - US)
    return made


@pytest.mark.parametrize("inside", [(), tuple(f"physics.py({at}): part_{at}" for at in range(10))])
def test_what_is_called_again_and_again_is_a_place_however_long_it_is_open(inside: tuple[str, ...]) -> None:
    """A simulator of 95 % of the window was no place, and the advice was to launch fewer kernels."""
    verdict = build_report(simulating(*inside).trace()).verdict
    assert "for Python code, mostly in envs.py(30): step" in verdict.headline
    title = verdict.advice[0].title
    assert title.startswith("The device waits for Python code ")
    assert title.endswith(", mostly in envs.py(30): step")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "title"),
    [
        ("<built-in function sleep>", "The host sleeps"),
        ("<built-in method acquire of _thread.lock object>", "The host waits for something else"),
    ],
)
@pytest.mark.parametrize("places", [1, 10])
def test_a_host_that_is_blocked_all_the_time_gets_the_advice(call: str, title: str, places: int) -> None:
    """From 95 % of the window on the place was dropped, and the advice with it; without a place it stands as well."""
    made = simulating()
    for number, row in enumerate([row for row in made.host if row["name"] == "envs.py(30): step"]):
        row["name"] = f"lib.py(7): wait_{number % places}"
        made.span("python", call, row["start"] + 1, row["start"] + row["duration"] - 1)
    advice = build_report(made.trace()).verdict.advice[0].title
    assert advice.startswith(title)
    assert advice.endswith("of the time, mostly in lib.py(7): wait_0" if places == 1 else "of the time")


def test_a_range_has_its_time_and_not_the_frame_around_all() -> None:
    """The wait for the data loader was that of `main`."""
    made = simulating()
    for row in made.host:
        if row["name"] == "envs.py(30): step":
            row.update(kind="annotation", name="wait")
    assert "rollout" not in headline(made.trace())


def test_a_range_around_a_part_of_the_window_is_its_place() -> None:
    made = pipeline({"walk": (2, 90)}, stacks=False)
    made.span("annotation", "prepare", 2 * MS, 90 * MS)
    assert 'for Python code, mostly in range "prepare"' in headline(made.trace())


def test_the_innermost_call_is_named_and_the_line_that_led_to_it() -> None:
    made = pipeline({"walk": (2, 90)})
    text = headline(made.trace())
    assert "in modules/module.py(2823): named_modules, called from" in text


def test_parts_of_a_step_share_the_time() -> None:
    made = Planted()
    made.step(0, 0, 90 * MS)
    for name, begin, end in (("forward", 0, 30), ("backward", 31, 60), ("optimizer", 61, 90)):
        made.span("annotation", f"## {name} ##", begin * MS, end * MS)
        for at in range(begin, end, 2):
            made.span("op", f"aten::op{at}", at * MS + 10 * US, at * MS + 990 * US)
            made.activity(GEMM, at * MS + 980 * US, 50 * US, launch=at * MS + 970 * US)
    text = headline(made.trace())
    for part in ("the forward pass (", "the backward pass (", "the optimizer ("):
        assert part in text, text


@pytest.mark.parametrize("before", [0, 500 * US])
def test_calls_before_the_first_launch_are_named(before: int) -> None:
    """The window begins with the step, maybe inside a call; nothing of the host's time before the first activity is lost."""
    made = Planted()
    made.step(0, MS, 40 * MS)
    made.span("python", "train.py(5): prepare", MS - before, 10 * MS)
    made.span("op", "aten::empty", 10 * MS, 14 * MS)
    made.call("cudaMalloc", 10 * MS + 10 * US, 4 * MS - 20 * US)
    made.call("cudaDeviceSynchronize", 14 * MS, 2 * MS)
    made.span("op", "aten::mm", 16 * MS, 17 * MS)
    made.activity(GEMM, 16 * MS + 800 * US, 20 * MS, launch=16 * MS + 790 * US)
    trace = made.trace()
    scope = select(trace)
    pieces = idle_causes(scope).pieces.filter(pl.col("start") < 16 * MS + 800 * US)
    assert scope.start == MS
    assert int(pieces["duration_ns"].sum()) == 15 * MS + 800 * US
    times = dict(pieces.group_by(pl.col("cause").cast(pl.String)).agg(pl.col("duration_ns").sum()).rows())
    assert times == {
        "python": 9 * MS,
        "allocation": 4 * MS - 20 * US,
        "synchronisation": 2 * MS,
        "operator_dispatch": 20 * US + 790 * US,
        "launch_latency": 10 * US,
    }
    assert pieces.filter(pl.col("cause") == "python")["frame"].to_list() == ["train.py(5): prepare"]
    calls = dict(idle(scope).by_cause.select("cause", "call").rows())
    assert calls["python"] == "train.py(5): prepare"
    assert calls["allocation"] == "cudaMalloc"


@pytest.mark.parametrize(("queued", "named"), [(800 * US, True), (50 * US, False)])
def test_a_busy_device_that_idles_a_tenth_of_the_time_has_its_main_cause_named(
    queued: int, named: bool
) -> None:
    """The host is late for some 9 ms of 100, and in two gaps a kernel waits although it is queued."""
    made = Planted()
    made.step(0, 0, 100 * MS)
    made.activity(GEMM, 30 * US, 30 * MS, launch=20 * US)
    made.activity(GEMM, 30 * MS + 30 * US + queued, 20_700 * US, launch=40 * US)
    made.span("python", "train.py(9): log", 51 * MS, 60 * MS)
    made.activity(GEMM, 60 * MS + 130 * US, 20 * MS, launch=60 * MS + 120 * US)
    last = 80 * MS + 130 * US + queued
    made.activity(GEMM, last, 100 * MS - last, launch=60 * MS + 130 * US)
    assert ("train.py(9): log" in headline(made.trace())) is named


PACKAGES = "/home/me/env/lib/python3.7/site-packages"
USERS = f"{PACKAGES}/torch/nn/functional.py(10): conv2d;net/model.py(7): forward;train.py(3): main"
LOADER = f"{PACKAGES}/torch/utils/data/dataloader.py(5): __next__;train.py(2): main"
ENTER = f"{PACKAGES}/torch/autograd/profiler.py(6): __enter__"


@pytest.mark.parametrize(
    ("name", "stack", "cause", "frame"),
    [
        ("aten::conv2d", USERS, "operator_dispatch", "net/model.py(7): forward"),
        ("aten::stack", LOADER, "data_loading", "train.py(2): main"),
        # A range has the stack of its begin: what a library opens is one call of it, what the user's code opens is not.
        (
            "Optimizer.step#SGD.step",
            f"{ENTER};{PACKAGES}/torch/optim/sgd.py(8): step;train.py(4): main",
            "python",
            "train.py(4): main",
        ),
        ("my range", f"{ENTER};train.py(5): main", "python", None),
    ],
)
def test_the_stacks_that_profiles_of_2021_give_operators_are_places(
    name: str, stack: str, cause: str, frame: str | None
) -> None:
    made = Planted()
    made.step(0, 0, 40 * MS)
    made.host[-1]["call_stack"] = f"{ENTER};{PACKAGES}/torch/profiler/profiler.py(9): step;train.py(9): main"
    made.activity(GEMM, 30 * US, MS, launch=20 * US)
    made.span("op" if "::" in name else "annotation", name, 2 * MS, 38 * MS, call_stack=stack)
    made.activity(GEMM, 38 * MS, MS, launch=37 * MS)
    largest = idle_causes(made.trace()).pieces.sort("duration_ns").row(-1, named=True)
    assert (largest["cause"], largest["frame"]) == (cause, frame)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in PUBLIC if path.name.startswith("v100")], ids=lambda path: path.name
)
def test_a_public_profile_of_2021_names_its_lines(path: Path) -> None:
    trace = tracekit.read(path)
    assert "stacks" in trace.meta.captured
    assert re.search(
        r"for the data loader [\d.]+ % of the time, mostly in resnet50_profiler_api.py\(42\): <module>",
        headline(trace),
    )
