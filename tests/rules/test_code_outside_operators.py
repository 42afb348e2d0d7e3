from __future__ import annotations

from dataclasses import replace

import pytest
from manifests import manifest
from planted import MS, US, Planted, finding

from tracekit.manifest import CaptureOptions, Settings
from tracekit.report.build import build_report

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def logging_steps(pauses: tuple[int, ...] = (4, 4, 4, 4), *, stacks: bool = True) -> Planted:
    """Steps of 10 ms without the pause at their end, in ms."""
    made, clock = Planted(), 0
    for number, pause in enumerate(pauses):
        end = clock + (10 + pause) * MS
        made.step(number, clock, end)
        made.span("annotation", LOADER, clock, clock + 10 * US)
        made.span("op", "aten::mm", clock + 20 * US, clock + 10 * MS)
        if stacks and pause:
            made.span("python", "/home/me/train.py(40): log_metrics", clock + 10 * MS, end)
        clock = end
    return made


def test_silent_where_operators_may_be_missing() -> None:
    """98 % of a truncated trace were "Python code": Do this work less often."""
    made = logging_steps()
    made.log.count("truncated_file", 1, "at byte 100")
    assert finding(made.trace(devices=()), "idle", "code_outside_operators") is None


def test_names_the_line_and_what_to_do() -> None:
    found = finding(logging_steps().trace(devices=()), "idle", "code_outside_operators")
    assert found is not None
    assert found.ns_at_stake == pytest.approx(16 * MS, rel=0.01)
    assert found.severity == "critical"
    assert (
        found.title
        == "Python code outside operators takes 28.6 % of the time, mostly in me/train.py(40): log_metrics"
    )
    assert found.advice.startswith("Log less often")


def test_without_stacks_it_says_between_which_operators() -> None:
    found = finding(logging_steps(stacks=False).trace(devices=()), "idle", "code_outside_operators")
    assert found is not None
    assert found.title.endswith(f", mostly between aten::mm and {LOADER}")
    assert found.advice.startswith("Do this work less often")


@pytest.mark.parametrize(("inner", "place"), [("tokenize", "tokenize"), (None, "prepare")])
def test_the_innermost_range_is_the_place_and_no_range_is_asked_for(inner: str | None, place: str) -> None:
    """The outermost was named, and ranges were asked for that the trace had."""
    made = logging_steps(stacks=False)
    for number in range(4):
        end = (number + 1) * 14 * MS
        made.span("annotation", "prepare", end - 4 * MS, end)
        if inner:
            made.span("annotation", inner, end - 4 * MS + 1, end - MS)
            made.span("annotation", "check", end - MS, end - 1)
    found = finding(made.trace(devices=(), captured=frozenset()), "idle", "code_outside_operators")
    assert found is not None
    assert found.title.endswith(f"of the time, mostly in {place}")
    assert found.advice == "Do this work less often, ahead of time, or in another thread or process."


@pytest.mark.parametrize("recorded", [True, False])
def test_stacks_are_asked_for_only_if_they_were_not_recorded(recorded: bool) -> None:
    """A capture with --stack was told to capture with --stack."""
    trace = logging_steps(stacks=False).trace(devices=())
    about = manifest(settings=Settings(device="cpu"), options=CaptureOptions(with_stack=recorded))
    found = finding(replace(trace, manifest=about), "idle", "code_outside_operators")
    assert found is not None
    assert found.advice.endswith("capture with --stack.") != recorded


def test_a_range_around_everything_is_no_place() -> None:
    made = logging_steps(stacks=False)
    made.span("annotation", "run", 0, 56 * MS)
    found = finding(made.trace(devices=(), captured=frozenset()), "idle", "code_outside_operators")
    assert found is not None
    assert found.advice.endswith("to see which code it is.")


def test_a_verdict_does_not_claim_that_half_of_it_goes_away() -> None:
    advice = build_report(logging_steps().trace(devices=())).verdict.advice
    (mine,) = [one for one in advice if one.finding == "code_outside_operators"]
    assert mine.saves.startswith("up to ")


@pytest.mark.slow
def test_silent_on_what_one_step_does_on_short_code_and_on_devices() -> None:
    one = logging_steps((0, 0, 12, 0, 0), stacks=False)
    assert finding(one.trace(devices=()), "idle", "code_outside_operators") is None
    assert finding(logging_steps((0, 0, 0)).trace(devices=()), "idle", "code_outside_operators") is None
    on_device = logging_steps()
    on_device.activity("k", 0, MS, launch=0)
    assert finding(on_device.trace(), "idle", "code_outside_operators") is None


def test_the_code_of_an_optimizer_is_not_meant() -> None:
    made = Planted()
    for number in range(4):
        start = number * 10 * MS
        made.step(number, start, start + 10 * MS)
        made.span("op", "aten::mm", start, start + 5 * MS)
        made.span("annotation", "Optimizer.step#SGD.step", start + 5 * MS, start + 10 * MS)
    assert finding(made.trace(devices=()), "idle", "code_outside_operators") is None


@pytest.mark.parametrize(("pause", "fires"), [(130, True), (60, False)])
def test_a_checkpoint_in_one_of_three_steps_was_in_no_finding(pause: int, fires: bool) -> None:
    """Three steps are too few to say which of them is unusual; other programs take tens of ms from one."""
    made = logging_steps((0, pause, 0), stacks=False)
    found = finding(made.trace(devices=()), "idle", "code_outside_operators")
    assert (found is not None) == fires


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "title", "advice"),
    [
        ("<built-in function sleep>", "The program sleeps 28.6 % of the time", "remove the pause"),
        ("<built-in method acquire of _thread.lock object at 0x7f>", "The program waits for something else 28.6 %", "further ahead"),
        ("<built-in method recv_into of _socket.socket object at 0x7f>", "The program waits for something else", "a service"),
        ("<built-in function collect>", "Garbage collection takes 28.6 % of the time", "gc.freeze()"),
    ],
)  # fmt: skip
def test_what_runs_nothing_is_no_work_to_do_less_often(call: str, title: str, advice: str) -> None:
    """A pause was "Python code": Do this work less often, and so were a wait for a server and gc.collect()."""
    made = logging_steps(stacks=False)
    for number in range(4):
        end = (number + 1) * 14 * MS
        made.span("python", "/home/me/train.py(40): fetch", end - 4 * MS, end)
        made.span("python", call, end - 4 * MS + 1, end - 1)
    found = finding(made.trace(devices=()), "idle", "code_outside_operators")
    assert found is not None
    assert found.title.startswith(title)
    assert found.title.endswith(", mostly in me/train.py(40): fetch")
    assert advice in found.advice
    assert "less often, ahead of time" not in found.advice


@pytest.mark.parametrize("pauses", [(0, 4, 0, 4, 0, 4), (4, 0, 4, 0, 4, 0), (4, 0, 0, 4)])
def test_half_of_the_steps_are_enough_wherever_they_stand(pauses: tuple[int, ...]) -> None:
    """A pause at the end of the last step, which no operator ends, was none: of every second step that slept, a third."""
    found = finding(logging_steps(pauses).trace(devices=()), "idle", "code_outside_operators")
    assert found is not None
    assert found.ns_at_stake == pytest.approx(sum(pauses) * MS, rel=0.02)


@pytest.mark.parametrize(("paused", "fires"), [((0, 1), False), ((0, 1, 2), True)])
def test_what_a_busy_machine_makes_stand_still_is_not_the_code_of_the_program(
    paused: tuple[int, ...], fires: bool
) -> None:
    """In two of three steps the machine took the processor at one place, and it was "Python code outside operators"."""
    made, clock = Planted(), 0
    for number in range(3):
        begin = clock
        for name in ("aten::mm", "aten::relu", "aten::add", "aten::sum"):
            pause = 3 * MS if name == "aten::add" and number in paused else 0
            long = 7 * MS if number == 0 and name != "aten::sum" else 2 * MS
            made.span("op", name, clock + pause, clock + pause + long, shapes="[[8, 8]]")
            clock += pause + long + 5 * US
        made.step(number, begin, clock)
    found = finding(made.trace(devices=()), "idle", "code_outside_operators")
    assert (found is not None) == fires
