from __future__ import annotations

from planted import MS, US, Planted, finding


def forward(numbers: list[int | None], *, backward: bool = False) -> Planted:
    """A step with an operator for each of these sequence numbers."""
    made = Planted()
    made.step(0, 0, MS)
    for place, number in enumerate(numbers):
        made.span("op", "aten::addmm", place * 20 * US, place * 20 * US + 10 * US, sequence=number)
    if backward:
        made.span("op", "autograd::engine::evaluate_function: AddmmBackward0", 900 * US, 950 * US)
    return made


def test_fires_on_numbers_that_grow_without_a_backward_pass() -> None:
    found = finding(forward(list(range(7, 27))).trace(devices=()), "kernels", "autograd_in_inference")
    assert found is not None
    assert (found.severity, found.ns_at_stake) == ("info", None)
    assert "20 operators show at least 19 nodes" in found.evidence
    assert "torch.inference_mode()" in found.advice


def test_silent_without_gradients_without_nodes_and_in_training() -> None:
    for made in (
        forward([None] * 20),
        forward([7] * 20),  # gradients are on, but nothing requires one
        forward(list(range(20)), backward=True),
    ):
        assert finding(made.trace(devices=()), "kernels", "autograd_in_inference") is None
