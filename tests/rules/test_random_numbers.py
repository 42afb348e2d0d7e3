from __future__ import annotations

import pytest
from planted import A100, MS, US, Planted, finding

from tracekit.findings import Finding

DROP = "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(int)"
RAND = "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>(int)"


def on_device(
    operator: str, kernel: str, ns: int = 2 * MS, *, steps: bool = True, trains: bool = True
) -> Planted:
    made = Planted()
    if steps:
        made.step(0, 0, 12 * MS)
    made.span("op", operator, 0, 10 * US)
    made.activity(kernel, 20 * US, ns, launch=US, call_ns=US)
    made.span("op", "MmBackward0" if trains else "aten::mm", 10 * US, 20 * US)
    made.activity("gemm", 20 * US + ns, 8 * MS, launch=12 * US, call_ns=US)
    return made


def found(made: Planted, *, device: bool = True) -> Finding | None:
    return finding(made.trace(devices=(A100,) if device else ()), "kernels", "random_numbers")


@pytest.mark.parametrize("steps", [True, False])
def test_fires_on_dropout(steps: bool) -> None:
    one = found(on_device("aten::native_dropout", DROP, steps=steps))
    assert one is not None
    assert one.ns_at_stake == 2 * MS
    assert one.title == f"Dropout takes {16.7 if steps else 20.0} % of the time"
    assert "2.00 ms of it in dropout. at::native::fused_dropout_kernel_vec" in one.evidence
    assert "dropout_p" in one.advice
    assert "model.eval()" not in one.advice


def test_dropout_in_inference_is_a_mistake() -> None:
    one = found(on_device("aten::native_dropout", DROP, trains=False))
    assert one is not None
    assert one.advice == "Call model.eval(): dropout is switched on."


def test_other_random_numbers() -> None:
    one = found(on_device("aten::normal_", RAND))
    assert one is not None
    assert one.title == "Random number generation takes 16.7 % of the time"
    assert "ahead of time" in one.advice
    assert found(on_device("aten::normal_", RAND, steps=False)) is None  # it may fill the weights


def test_without_a_device_all_inside_dropout_counts() -> None:
    made = Planted()
    for number, name in enumerate(("aten::bernoulli_", "aten::div_", "aten::mul")):
        made.span("op", name, number * 100 * US, (number + 1) * 100 * US, sequence=0)
    made.span("op", "aten::dropout", 0, 300 * US, sequence=0)
    made.span("op", "aten::linear", 300 * US, 900 * US, sequence=1)
    made.span("op", "MulBackward0", 900 * US, MS, sequence=0, forward_thread=1)
    one = found(made, device=False)
    assert one is not None
    assert one.ns_at_stake == 300 * US
    assert one.title == "Dropout takes 30.0 % of the time"
    assert "p=0" in one.advice


def test_silent_on_little_and_in_unfused_attention() -> None:
    assert found(on_device("aten::native_dropout", DROP, 400 * US)) is None
    made = on_device("aten::native_dropout", DROP)
    made.span("op", "aten::_scaled_dot_product_attention_math", 0, 10 * US + 1)
    made.host.insert(0, made.host.pop())
    assert found(made) is None


@pytest.mark.parametrize("device", [True, False])
def test_words_are_sampled_among_the_likely_ones(device: bool) -> None:
    """The advice was to draw the numbers ahead of time, where torch.multinomial drew one for each word of a vocabulary."""
    if device:
        made = on_device("aten::exponential_", RAND)
    else:
        made = Planted()
        made.step(0, 0, 12 * MS)
        made.span("op", "aten::exponential_", 0, 2 * MS, sequence=0)
        made.span("op", "aten::mm", 3 * MS, 11 * MS, sequence=1)
    made.span("op", "aten::multinomial", 0, 10 * US + 1 if device else 2 * MS + 1)
    made.host.insert(0, made.host.pop())
    one = found(made, device=device)
    assert one is not None
    assert "of it in torch.multinomial" in one.evidence
    assert "torch.topk" in one.advice
