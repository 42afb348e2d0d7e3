from __future__ import annotations

from typing import Any

import pytest
from planted import MS, US, Planted, finding

from tracekit.findings import Finding

ATTENTION = "aten::_cudnn_attention_forward"


def calls(*times: tuple[int, str | None], name: str = ATTENTION, **columns: Any) -> Planted:
    """Steps of 100 ms with one call each that takes so long (in ms, or 50 µs for 0), on inputs of such a shape.

    At its end a call launches a kernel of 10 ms.
    """
    made = Planted()
    for number, (time, shape) in enumerate(times):
        start = number * 100 * MS
        made.step(number, start, start + 100 * MS)
        made.activity("before", start, MS, launch=start)
        end = start + 2 * MS + (time * MS or 50 * US)
        made.span("op", name, start + 2 * MS, end + 5 * US, shapes=shape, **columns)
        made.activity("k", end + 4 * US, 10 * MS, launch=end)
    return made


def long_calls(made: Planted) -> Finding | None:
    return finding(made.trace(), "idle", "long_calls")


def test_a_first_call_on_new_inputs_costs_once() -> None:
    found = long_calls(calls((0, "[[8]]"), (0, "[[8]]"), (60, "[[9]]"), (0, "[[9]]"), (0, "[[8]]")))
    assert found is not None
    assert found.ns_at_stake == pytest.approx(60 * MS, rel=0.01)
    assert found.severity == "warning"  # the run itself may be fine
    assert found.title == f"One call of {ATTENTION} keeps the device idle for 12.0 % of the time"
    assert "The call takes 60.0 ms; the 4 others take 55.0 µs (median)." in found.evidence
    assert "It is the first on its inputs" in found.evidence
    assert "later calls on the same inputs are short" in found.evidence
    assert found.advice.startswith("The run loses this time only once for these inputs.")
    assert "cuDNN builds an execution plan" in found.advice
    assert "Pad" not in found.advice


def test_arguments_make_inputs_new_too() -> None:
    """A call without gradients has the shapes of the others, and a plan of its own."""
    made = calls((0, "[[8]]"), (0, "[[8]]"), (60, "[[8]]"), (0, "[[8]]"))
    for row in made.host:
        if row["kind"] == "op":
            row["concrete_inputs"] = '["False"]' if row["start"] > 200 * MS else '["True"]'
    found = long_calls(made)
    assert found is not None
    assert "It is the first on its inputs" in found.evidence


def test_new_inputs_in_several_steps_are_advised_to_be_padded() -> None:
    made = calls((0, "[[8]]"), (50, "[[9]]"), (0, "[[9]]"), (70, "[[10]]"), (0, "[[10]]"))
    found = long_calls(made)
    assert found is not None
    assert found.severity == "critical"
    assert f"2 calls of {ATTENTION} take 50.0 ms to 70.0 ms; the 3 others take 55.0 µs" in found.evidence
    assert "All of them are the first on their inputs" in found.evidence
    assert found.advice.startswith("Pad inputs to a few sizes")
    assert "torch.backends.cuda.enable_cudnn_sdp(False)" in found.advice


def test_another_operator_is_not_advised_on_as_attention() -> None:
    found = long_calls(
        calls((0, "[[8]]"), (50, "[[9]]"), (70, "[[10]]"), (0, "[[8]]"), (0, "[[8]]"), name="aten::mm")
    )
    assert found is not None
    assert found.advice.startswith("Pad inputs to a few sizes")
    assert "cuDNN" not in found.advice


def test_a_call_on_inputs_that_were_short_before_has_another_reason() -> None:
    """A pause of 466 ms in a call of attention was taken for the plan that cuDNN builds for new inputs."""
    made = calls((0, "[[8]]"), (0, "[[8]]"), (60, "[[8]]"), (0, "[[8]]"))
    made.span("op", "aten::empty", 202 * MS + US, 202 * MS + 9 * US)
    found = long_calls(made)
    assert found is not None
    assert "Other calls on the same inputs (shapes, types and arguments) are short" in found.evidence
    assert "of the wait comes after the operators inside the long call have ended" in found.evidence
    assert "New inputs do not explain this" in found.advice
    assert "cuDNN" not in found.advice


def test_without_shapes_it_is_unknown_whether_the_inputs_are_new() -> None:
    found = long_calls(calls((0, None), (60, None), (0, None), (0, None)))
    assert found is not None
    assert "Shapes were not recorded" in found.evidence
    assert found.advice.startswith("Record with record_shapes=True")


def test_shapes_of_some_operators_only_ended_the_report_with_a_fault() -> None:
    found = long_calls(calls((0, "[[8]]"), (60, "[[9]]"), (0, None), (0, "[[9]]")))
    assert found is not None
    assert "It is the first on its inputs" in found.evidence


def test_silent_if_all_calls_are_as_long_or_it_matters_little() -> None:
    assert long_calls(calls(*[(60, "[[8]]")] * 4)) is None
    assert long_calls(calls(*[(60, f"[[{number}]]") for number in range(4)])) is None
    assert long_calls(calls((0, "[[8]]"), (3, "[[8]]"), (0, "[[8]]"))) is None


def test_nodes_of_autograd_are_no_operators() -> None:
    """Hooks and Python code run in them."""
    made = calls((0, "[[8]]"), (60, "[[9]]"), (0, "[[8]]"), name="autograd::engine::evaluate_function: A")
    assert long_calls(made) is None


def test_a_slow_step_names_the_call() -> None:
    made = calls((0, "[[8]]"), (0, "[[8]]"), (60, "[[9]]"), (0, "[[9]]"), (0, "[[8]]"))
    for row in made.host:  # steps as long as what they do
        if row["kind"] == "step":
            row["duration"] = (80 if row["start"] == 200 * MS else 15) * MS
    found = finding(made.trace(), "steps", "step_variability")
    assert found is not None
    assert found.title == f"1 of 5 steps is slow, mostly because of one call of {ATTENTION}"
    assert "It is the first on its inputs" in found.evidence
    assert found.advice.startswith("The run loses this time only once for these inputs.")


def test_all_idle_time_of_the_calls_is_told() -> None:
    """ "Idle for 1.24 s meanwhile", of 11.9 s."""
    made = calls((0, "[[8]]"), (60, "[[8]]"), (0, "[[8]]"), (0, "[[8]]"))
    made.call("cudaMalloc", 105 * MS, 40 * MS)
    found = long_calls(made)
    assert found is not None
    assert found.ns_at_stake == pytest.approx(20 * MS, rel=0.05)
    assert "The device is idle for 60.0 ms meanwhile, 20.0 ms of it outside API calls" in found.evidence
