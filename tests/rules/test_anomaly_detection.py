from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding

NODE = "autograd::engine::evaluate_function: MulBackward0"


def backward(*, checked: int, nodes: int = 20, device: bool = True, hooks: bool = False) -> Planted:
    """A step whose backward pass has so many nodes of 100 µs; some look for NaN in 50 µs of these, and the host reads the answer."""
    made, clock, free = Planted(), MS, 2 * MS
    for number in range(nodes):
        begin = clock
        made.span("op", NODE, begin, begin + 90 * US, thread=2)
        made.span("op", "MulBackward0", begin + US, begin + 30 * US, thread=2)
        made.span("op", "aten::mul", begin + 2 * US, begin + 28 * US, thread=2)
        where = (30 * US, 80 * US)
        if hooks and number < checked:  # a hook of a program calls its operators inside a function of Python
            made.span("annotation", "hook", begin + 30 * US, begin + 85 * US, thread=2)
        if number < checked:
            for at, name in enumerate(("aten::isnan", "aten::_is_any_true", "aten::item")):
                start = begin + where[0] + at * 17 * US
                made.span("op", name, start, start + 16 * US, thread=2)
        if device:
            start = max(free, begin + 20 * US)
            made.activity("vectorized_elementwise_kernel", start, 10 * US, launch=begin + 10 * US)
            made.host[-1]["thread_id"] = 2
            free = start + 10 * US
            if number < checked:
                for at in (0, 17):
                    made.activity(
                        "reduce_kernel", begin + (45 + at) * US, 2 * US, launch=begin + (32 + at) * US
                    )
                    made.host[-1]["thread_id"] = 2
                free = begin + 64 * US
        clock += 100 * US
    made.span("op", "aten::add", 0, 20 * US)
    made.step(1, 0, clock + MS)
    return made


def test_every_gradient_is_checked_on_a_processor() -> None:
    found = finding(backward(checked=20, device=False).trace(devices=()), "kernels", "anomaly_detection")
    assert found is not None
    assert found.ns_at_stake == 20 * 3 * 16 * US
    assert "20 of 20 nodes of autograd call aten::isnan" in found.evidence
    assert "reads 20 values" in found.evidence
    assert "set_detect_anomaly" in found.advice


def test_stack_traces_of_the_forward_pass_are_at_stake_as_well() -> None:
    """2.3 ms were the most to be saved, of which turning it off saved 9.5."""
    made = backward(checked=20, device=False)
    made.span("op", "aten::linear", 30 * US, 630 * US, sequence=7)
    next(span for span in made.host if span["name"] == "MulBackward0")["sequence"] = 7
    found = finding(made.trace(devices=()), "kernels", "anomaly_detection")
    assert found is not None
    assert found.ns_at_stake == 20 * 3 * 16 * US + 600 * US
    assert (
        "a stack trace in each operator of the forward pass, which may take up to 600 µs." in found.evidence
    )


def test_the_arithmetic_of_the_forward_pass_is_not_at_stake() -> None:
    made = backward(checked=20, device=False)
    made.span("op", "aten::convolution", 10 * MS, 500 * MS, sequence=7)
    next(span for span in made.host if span["name"] == "MulBackward0")["sequence"] = 7
    made.step(2, 10 * MS, 500 * MS)
    found = finding(made.trace(devices=()), "kernels", "anomaly_detection")
    assert found is not None
    assert found.ns_at_stake == 20 * 3 * 16 * US + 20 * 100 * US


def test_a_device_waits_as_well() -> None:
    found = finding(backward(checked=20).trace(), "kernels", "anomaly_detection")
    assert found is not None
    assert "the device is idle for" in found.evidence
    assert found.ns_at_stake is not None
    assert 20 * 2 * 2 * US < found.ns_at_stake <= 20 * 90 * US


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"checked": 0}, {"checked": 9}, {"checked": 5, "nodes": 5}, {"checked": 20, "hooks": True}]
)
def test_hooks_and_few_checks_are_no_anomaly_detection(how: dict[str, int]) -> None:
    for device in (False, True):
        made = backward(**how, device=device).trace()  # type: ignore[arg-type]
        assert finding(made, "kernels", "anomaly_detection") is None
