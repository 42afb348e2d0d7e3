from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding

from tracekit.analyses.rules import run
from tracekit.analyses.scope import select
from tracekit.verdict.decide import VERDICT_NEEDS, decide


def compiling(name: str = "entire_frame_compile", kind: str = "op", length: int = 300 * US) -> Planted:
    """A kernel, then something of 300 µs, then the launch of the next kernel; the window is 1 ms."""
    made = Planted()
    made.activity("a", 0, 400 * US, launch=-10 * US)
    made.span("python", "train.py(7): step", -50 * US, 900 * US)
    made.span(kind, name, 450 * US, 450 * US + length)
    made.activity("b", 850 * US, 150 * US, launch=840 * US)
    return made


def test_fires_on_compilation_that_the_device_waits_for() -> None:
    found = finding(compiling().trace(), "idle", "compilation_in_steps")
    assert found is not None
    assert found.ns_at_stake == 300 * US
    assert found.severity == "critical"
    assert found.title == "Tracing and compilation take 30.0 % of the time"
    assert "mostly in train.py: step, entire_frame_compile" in found.evidence


def test_lookups_in_the_cache_compile_nothing() -> None:
    found = finding(compiling("TorchDynamo Cache Lookup").trace(), "idle", "compilation_in_steps")
    assert found is not None
    assert found.ns_at_stake == 300 * US
    assert found.title == "Checks of compiled code take 30.0 % of the time"
    assert "Nothing is compiled" in found.advice


def test_frames_of_the_compiler_tell_it_as_well() -> None:
    made = compiling("torch/_dynamo/convert_frame.py(100): compile_inner", "python")
    found = finding(made.trace(), "idle", "compilation_in_steps")
    assert found is not None
    assert found.ns_at_stake == 300 * US


def test_on_the_cpu_no_operator_runs_meanwhile() -> None:
    made = Planted()
    made.step(0, 0, MS)
    made.span("annotation", "entire_frame_compile", 0, 500 * US)
    made.span("op", "aten::mm", 500 * US, MS)
    found = finding(made.trace(devices=()), "idle", "compilation_in_steps")
    assert found is not None
    assert found.ns_at_stake == 500 * US
    assert "no operator ran" in found.evidence


@pytest.mark.slow
def test_silent_when_hidden_short_or_loading_of_code() -> None:
    hidden = Planted()
    hidden.activity("a", 0, MS, launch=-10 * US)
    hidden.span("op", "TorchDynamo Cache Lookup", 100 * US, 900 * US)
    assert finding(hidden.trace(), "idle", "compilation_in_steps") is None
    assert finding(compiling(length=10 * US).trace(), "idle", "compilation_in_steps") is None
    assert finding(compiling("cuModuleLoadData", "runtime").trace(), "idle", "compilation_in_steps") is None
    assert finding(compiling("aten::mm").trace(), "idle", "compilation_in_steps") is None


def test_without_a_device_operators_that_a_compiler_traces_are_compilation() -> None:
    made = Planted()
    for number in range(2):
        start = number * 10 * MS
        made.step(number, start, start + 10 * MS)
        made.span("op", "dynamo", start, start + 6 * MS)
        made.span("op", "entire_frame_compile (dynamo_timed)", start + MS, start + 5 * MS)
        made.span("op", "aten::convolution", start + 2 * MS, start + 4 * MS)
        made.span("op", "aten::mm", start + 6 * MS, start + 10 * MS)
    found = finding(made.trace(devices=()), "idle", "compilation_in_steps")
    assert found is not None
    assert found.ns_at_stake == 12 * MS


def test_the_backward_pass_compiled_inside_its_operator_is_compilation() -> None:
    made = Planted()
    made.step(0, 0, 10 * MS)
    made.span("op", "CompiledFunctionBackward", 0, 8 * MS)
    made.span("op", "entire_backward_compile", MS, 7 * MS)
    made.span("op", "backward._backward_impl (dynamo_timed)", 2 * MS, 6 * MS)
    made.span("op", "aten::mm", 8 * MS, 10 * MS)
    found = finding(made.trace(devices=()), "idle", "compilation_in_steps")
    assert found is not None
    assert found.ns_at_stake == 6 * MS


def steps_that_compile(*steps: int, count: int = 6, ms: int = 6) -> Planted:
    """Steps of 10 ms, of which these compile for so many ms more before their kernel."""
    made, start = Planted(), 0
    for number in range(count):
        extra = ms * MS if number in steps else 0
        made.step(number, start, start + 10 * MS + extra)
        if extra:
            made.span("op", "_compile.compile_inner (dynamo_timed)", start, start + extra)
        made.activity("k", start + extra, 10 * MS, launch=start + extra)
        start += 10 * MS + extra
    return made


@pytest.mark.parametrize(
    ("steps", "count", "told", "advice"),
    [
        ((1, 4), 6, "2 of 6 steps compile.", "Code is compiled again in later steps"),
        ((0, 1, 2, 3), 4, "4 of 4 steps compile.", "Code is compiled again in later steps"),
        (
            (0,),
            6,
            "1 of 6 steps compiles.",
            "Only the first steps compile: run some steps before you record.",
        ),
        ((0, 1), 2, "", "Run some steps before you record. If compilation remains"),
    ],
)
def test_no_warm_up_ends_compilation_in_later_steps(
    steps: tuple[int, ...], count: int, told: str, advice: str
) -> None:
    """Code that each third step compiled got the advice to run some steps before the recording."""
    found = finding(steps_that_compile(*steps, count=count).trace(), "idle", "compilation_in_steps")
    assert found is not None
    assert found.ns_at_stake == len(steps) * 6 * MS
    assert found.evidence.endswith(f"compile_inner (dynamo_timed)). {told}".rstrip())
    assert found.advice.startswith(advice)
    assert ("TORCH_LOGS=recompiles" in found.advice) == (not advice.startswith("Only"))


def test_a_warm_up_is_not_at_stake_where_later_steps_compile_again() -> None:
    """The time of the first compilation stood beside the advice to look for what is compiled again."""
    trace = steps_that_compile(0, 1, 5, count=8, ms=80).trace()
    found = finding(trace, "idle", "compilation_in_steps")
    assert found is not None
    assert found.title.endswith(" of the time, 160 ms of it in the first steps")
    assert found.ns_at_stake == 80 * MS
    assert found.evidence.endswith("3 of 8 steps compile: the first ones for 160 ms, later ones for 80.0 ms.")
    assert found.advice.startswith("The first steps compile: run some steps before you record. But code is")
    scope = select(trace)
    verdict = decide(scope, {name: run(name, scope) for name in VERDICT_NEEDS})
    assert "Keep the device busy" not in [each.title for each in verdict.advice]


def test_compilation_answers_what_the_device_waits_for() -> None:
    """Below the advice about compilation stood the general advice to keep the device busy, with the same time at stake."""
    scope = select(steps_that_compile(2, 5, 8, count=12, ms=80).trace())
    verdict = decide(scope, {name: run(name, scope) for name in VERDICT_NEEDS})
    assert verdict.bound == "host-bound"
    titles = [each.title for each in verdict.advice]
    assert titles[0].startswith("Tracing and compilation take")
    assert "Keep the device busy" not in titles
