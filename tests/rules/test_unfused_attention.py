from __future__ import annotations

from planted import MS, Planted, finding


def planted(products: int, softmax_ms: int = 4) -> Planted:
    made = Planted()
    rows = [("aten::_softmax", softmax_ms * MS)] + [("aten::bmm", MS)] * products + [("aten::mm", 2 * MS)]
    at = 0
    for operator, duration in rows:
        made.span("op", operator, at, at + 1000)
        made.activity(f"kernel of {operator}", at + 2000, duration, launch=at, call_ns=500)
        at += duration + 2000
    return made


def test_fires_on_a_softmax_between_batched_products() -> None:
    found = finding(planted(2).trace(), "kernels", "unfused_attention")
    assert found is not None
    assert found.ns_at_stake == 4 * MS
    assert found.severity == "critical"
    assert found.title == "Attention is not fused: its softmax takes 50.0 % of the device time"
    assert "1 softmax call takes 4.00 ms, in addition to 2 batched" in found.evidence
    assert "scaled_dot_product_attention" in found.advice


def test_silent_on_the_softmax_of_a_classifier_and_on_fused_attention() -> None:
    assert finding(planted(0).trace(), "kernels", "unfused_attention") is None
    assert finding(planted(1).trace(), "kernels", "unfused_attention") is None
    fused = Planted()
    fused.span("op", "aten::_flash_attention_forward", 0, 1000)
    fused.activity("flash_fwd_kernel", 2000, MS, launch=0, call_ns=500)
    assert finding(fused.trace(), "kernels", "unfused_attention") is None
