from __future__ import annotations

from dataclasses import replace

from planted import MS, US, Planted, finding


def planted() -> Planted:
    made = Planted()
    made.span("op", "aten::mm", 0, 20 * US)
    made.activity("gemm", 10 * US, MS, launch=5 * US)
    return made


def test_names_the_flags_of_what_lacks() -> None:
    trace = planted().trace(captured=frozenset({"device", "launches", "ops"}))
    found = finding(trace, "breakdown", "incomplete_capture")
    assert found is not None
    assert (found.severity, found.ns_at_stake) == ("info", None)
    assert found.title == "The profile lacks steps, shapes, layers and allocator events"
    for flag in ("prof.step()", "record_shapes=True", "with_stack=True", "profile_memory=True"):
        assert flag in found.advice
    assert "ProfilerActivity" not in found.advice


def test_stacks_of_old_profilers_name_no_modules() -> None:
    trace = planted().trace(
        captured=frozenset({"device", "launches", "ops", "steps", "shapes", "memory", "stacks"})
    )
    found = finding(trace, "breakdown", "incomplete_capture")
    assert found is not None
    assert found.advice == "Profile again with a newer PyTorch, whose stacks name the modules."


def test_launches_without_device_activity_ask_for_the_device() -> None:
    made = Planted()
    made.span("op", "aten::mm", 0, 20 * US)
    made.call("cudaLaunchKernel", 5 * US, 5 * US)
    trace = made.trace(captured=frozenset({"ops", "steps", "shapes", "layers", "memory"}))
    found = finding(trace, "breakdown", "incomplete_capture")
    assert found is not None
    assert found.title == "The profile lacks device activity"
    assert "ProfilerActivity.CUDA" in found.advice


def test_device_activity_without_host_asks_for_the_cpu() -> None:
    made = Planted()
    made.activity("gemm", 0, MS)
    found = finding(made.trace(captured=frozenset({"device"})), "breakdown", "incomplete_capture")
    assert found is not None
    assert found.title == "The profile lacks operators, launch calls, steps and allocator events"
    assert found.advice.count("ProfilerActivity.CPU") == 1


def test_silent_when_all_is_there_on_a_pure_cpu_run_and_on_other_formats() -> None:
    assert finding(planted().trace(), "breakdown", "incomplete_capture") is None
    made = Planted()
    made.span("op", "aten::mm", 0, 20 * US)
    cpu = made.trace(captured=frozenset({"ops", "steps", "shapes", "layers"}), devices=())
    assert finding(cpu, "breakdown", "incomplete_capture") is None
    other = replace(cpu, meta=replace(cpu.meta, format="nsys", captured=frozenset()))
    assert finding(other, "breakdown", "incomplete_capture") is None
