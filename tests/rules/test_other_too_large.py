from __future__ import annotations

from planted import MS, US, Planted, finding


def test_fires_and_names_the_largest() -> None:
    made = Planted()
    made.activity("ampere_sgemm_128x64_nn", 0, 9 * MS)
    made.activity("my_kernel", 9 * MS, 800 * US)
    made.activity("my_second", 9800 * US, 200 * US)
    found = finding(made.trace(), "kernels", "other_too_large")
    assert found is not None
    assert found.title == "10.0 % of the device time has no category"
    assert (
        found.evidence == "2 names take 1.00 ms of 10.0 ms. The largest: my_kernel 800 µs; my_second 200 µs."
    )
    assert (found.severity, found.ns_at_stake) == ("info", None)
    assert found.stretches == ((9 * MS, 9800 * US), (9800 * US, 10 * MS))


def test_silent_up_to_five_percent() -> None:
    made = Planted()
    made.activity("ampere_sgemm_128x64_nn", 0, 9500 * US)
    made.activity("my_kernel", 9500 * US, 500 * US)
    assert finding(made.trace(), "kernels", "other_too_large") is None
    assert finding(Planted().trace(), "kernels", "other_too_large") is None


def test_activation_checkpointing_is_no_kernel_without_a_category() -> None:
    """Without a device, the Python code in its node counts as the node's own time."""
    made = Planted()
    made.span("op", "aten::mm", 0, MS)
    made.span("op", "autograd::engine::evaluate_function: CheckpointFunctionBackward", MS, 3 * MS)
    made.span("op", "CheckpointFunctionBackward", MS + US, 3 * MS - US)
    assert finding(made.trace(devices=()), "kernels", "other_too_large") is None
    made.span("op", "MyFunctionBackward", 3 * MS, 4 * MS)
    found = finding(made.trace(devices=()), "kernels", "other_too_large")
    assert found is not None
    assert found.title == "25.0 % of the operators' self time has no category"
