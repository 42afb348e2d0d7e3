from __future__ import annotations

from planted import MS, US, Planted, finding

BMM = "aten::bmm"


def planted(products: int, softmax_ms: int = 4) -> Planted:
    made = Planted()
    rows = [("aten::_softmax", softmax_ms * MS)] + [(BMM, MS)] * products + [("aten::mm", 2 * MS)]
    at = 0
    for operator, duration in rows:
        made.span("op", operator, at, at + 1000)
        made.activity(f"kernel of {operator}", at + 2000, duration, launch=at, call_ns=500)
        at += duration + 2000
    return made


def on_processors(*operators: str, each: int = 100 * US) -> Planted:
    """Operators one after the other; those after a `/` lie in the one before it, for all of its time but 2 µs."""
    made = Planted()
    for number, operator in enumerate(operators):
        at = number * each
        for depth, name in enumerate(operator.split("/")):
            of = {"sequence": 0, "forward_thread": 1} if "Backward" in operator else {"sequence": number}
            made.span("op", name, at + depth * US, at + each - depth * US, **of)
    return made


def test_fires_on_a_softmax_between_batched_products() -> None:
    found = finding(planted(2).trace(), "kernels", "unfused_attention")
    assert found is not None
    assert found.ns_at_stake == 4 * MS
    assert found.severity == "critical"
    assert found.title == "Attention is not fused: its softmax takes 50.0 % of the time"
    assert "1 softmax call takes 4.00 ms, in addition to 2 batched" in found.evidence
    assert "scaled_dot_product_attention" in found.advice


def test_without_a_device_a_call_counts_once() -> None:
    """`aten::softmax` calls `aten::_softmax`, and its backward pass is no call."""
    forward = ("aten::matmul/aten::bmm", "aten::softmax/aten::_softmax", "aten::matmul/aten::bmm")
    backward = ("BmmBackward0/aten::bmm", "SoftmaxBackward0/aten::_softmax_backward_data")
    found = finding(on_processors(*forward, *backward).trace(devices=()), "kernels", "unfused_attention")
    assert found is not None
    assert "1 softmax call takes 198 µs, in addition to 2 batched" in found.evidence
    assert found.ns_at_stake == 198 * US
    assert "takes 39.6 % of the time" in found.title
    assert finding(on_processors(*forward).trace(devices=()), "kernels", "unfused_attention") is not None


def test_advice_knows_whether_other_attention_is_fused() -> None:
    made = planted(2)
    made.span("op", "aten::scaled_dot_product_attention", 20 * MS, 21 * MS)
    found = finding(made.trace(), "kernels", "unfused_attention")
    assert found is not None
    assert "use it here too" in found.advice


def test_silent_on_the_softmax_of_a_classifier_and_on_fused_attention() -> None:
    assert finding(planted(0).trace(), "kernels", "unfused_attention") is None
    assert finding(planted(1).trace(), "kernels", "unfused_attention") is None
    fused = Planted()
    fused.span("op", "aten::_flash_attention_forward", 0, 1000)
    fused.activity("flash_fwd_kernel", 2000, MS, launch=0, call_ns=500)
    assert finding(fused.trace(), "kernels", "unfused_attention") is None


def test_silent_on_attention_in_scaled_dot_product_attention() -> None:
    """Its own rule says why it is not fused."""
    math = "aten::_scaled_dot_product_attention_math"
    rows = (f"{math}/{BMM}", f"{math}/aten::softmax/aten::_softmax", f"{math}/{BMM}")
    assert finding(on_processors(*rows).trace(devices=()), "kernels", "unfused_attention") is None
