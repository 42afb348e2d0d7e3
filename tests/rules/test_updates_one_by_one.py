from __future__ import annotations

from planted import MS, US, Planted, finding

MUL = "void at::native::vectorized_elementwise_kernel<4, BinaryFunctor<float>>(int)"


def planted(updates: int, operator: str = "aten::mul_", *, inside: str = "") -> Planted:
    """A step of 10 ms: 5 ms of a backward pass, then updates of 5 µs, one every 20 µs."""
    made = Planted()
    made.step(0, 0, 10 * MS)
    made.span("op", "autograd::engine::evaluate_function: MmBackward0", 0, 100 * US)
    made.activity("gemm", 0, 5 * MS, launch=10 * US)
    if inside:
        made.span("annotation", inside, 5 * MS, 9 * MS)
    for number in range(updates):
        at = 5 * MS + number * 20 * US
        made.span("op", operator, at, at + 15 * US)
        made.activity(MUL, at + 10 * US, 5 * US, launch=at + 1 * US)
    return made


def test_fires_from_a_hundred_kernels_a_step() -> None:
    found = finding(planted(120).trace(), "kernels", "updates_one_by_one")
    assert found is not None
    # 5 µs each, and 15 µs of waiting before each but the first, before which 10 µs.
    assert found.ns_at_stake == 120 * 20 * US - 5 * US
    assert found.title == (
        "120 kernels a step update single tensors outside the optimizer (23.9 % of the time with the waits for them)"
    )
    assert found.evidence.startswith(
        "120 kernels of aten::mul_ take 600 µs. Before them, the device is idle for "
    )
    assert "AveragedModel" in found.advice


def test_silent_on_few_of_an_optimizer_and_of_a_list() -> None:
    for made in (
        planted(99),
        planted(120, "aten::_foreach_mul_"),
        planted(120, inside="Optimizer.step#SGD.step"),
        planted(120, inside="## forward ##"),
    ):
        assert finding(made.trace(), "kernels", "updates_one_by_one") is None


def test_cleared_gradients_have_advice_of_their_own() -> None:
    found = finding(
        planted(120, "aten::zero_", inside="Optimizer.zero_grad#SGD.zero_grad").trace(),
        "kernels",
        "updates_one_by_one",
    )
    assert found is not None
    assert found.title.startswith("120 kernels a step set single tensors to zero (")
    assert "zero_grad(set_to_none=True)" in found.advice
