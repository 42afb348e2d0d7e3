from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding


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
    assert "mostly in train.py(7): step, entire_frame_compile" in found.evidence


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
