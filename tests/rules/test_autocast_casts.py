from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding

GEMM = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"
CAST = "void at::native::elementwise_kernel<4, at::native::direct_copy_kernel_cuda>(int)"


def loop(product: int, *, casts: int = 20, kind: str = "kernel", autograd: bool = True) -> Planted:
    """Steps of 10 ms: the host casts for 20 × 100 µs, each with 20 µs of the device, and launches a product of so many ns."""
    made = Planted()
    for number in range(3):
        begin = number * 10 * MS
        made.step(number, begin, begin + 10 * MS)
        made.activity(GEMM, begin + 20 * US, product, launch=begin, call_ns=10 * US)
        ready = begin + 20 * US + product
        for place in range(casts):
            at = begin + 5 * MS + place * 100 * US
            made.span("op", "aten::_to_copy", at, at + 90 * US)
            start = max(at + 40 * US, ready)
            made.activity(CAST, start, 20 * US, kind=kind, launch=at + 20 * US, call_ns=10 * US)
            ready = start + 20 * US
            if autograd:
                made.span(
                    "op",
                    "ToCopyBackward0",
                    begin + 8 * MS + place * 10 * US,
                    begin + 8 * MS + (place * 10 + 5) * US,
                )
        made.activity(GEMM, begin + 9_800 * US, product // 8, launch=begin + 9_780 * US, call_ns=10 * US)
    return made


def test_a_loop_that_its_host_bounds_should_do_without() -> None:
    found = finding(loop(400 * US).trace(), "kernels", "autocast_casts")
    assert found is not None
    assert "20 casts a step take 1.20 ms on the device" in found.evidence
    assert "take 4.5 % of the time." in found.evidence
    assert found.advice.startswith("Train without autocast")
    assert found.ns_at_stake is not None
    assert 0.5 * MS < found.ns_at_stake < 3 * 20 * 100 * US


def test_where_products_take_the_time_casts_should_cost_less() -> None:
    found = finding(loop(4 * MS).trace(), "kernels", "autocast_casts")
    assert found is not None
    assert "torch.compile fuses casts" in found.advice


@pytest.mark.parametrize("how", [{"casts": 5}, {"kind": "memcpy"}, {"autograd": False}])
def test_silent_on_few_casts_copies_to_the_device_and_casts_by_hand(how: dict[str, object]) -> None:
    assert finding(loop(400 * US, **how).trace(), "kernels", "autocast_casts") is None  # type: ignore[arg-type]
