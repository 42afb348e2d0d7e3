from __future__ import annotations

from planted import MS, US, Planted, finding


def planted(conversion: int) -> Planted:
    made = Planted()
    made.activity(
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(params)", 0, conversion
    )
    made.activity("sm80_xmma_fprop_implicit_gemm_bf16", conversion, 10 * MS - conversion)
    return made


def test_fires_on_conversion_kernels() -> None:
    found = finding(planted(600 * US).trace(), "kernels", "layout_conversions")
    assert found is not None
    assert found.ns_at_stake == 600 * US
    assert found.severity == "warning"
    assert found.title == "Layout conversions take 6.0 % of the time"
    assert found.evidence == "Kernels that convert NCHW to NHWC or back take 600 µs in 1 launch."
    assert "channels_last" in found.advice


def test_silent_below_two_percent() -> None:
    assert finding(planted(190 * US).trace(), "kernels", "layout_conversions") is None


def test_a_device_that_waits_for_its_host_was_promised_all_their_time() -> None:
    """The host launches the next product 3 ms later anyway, so without 2 ms of conversions only their launches are gone."""
    made, name = Planted(), "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(params)"
    for number in range(4):
        at = number * 5 * MS
        made.step(number, at, at + 5 * MS)
        made.activity(name, at + 20 * US, 2 * MS, launch=at, call_ns=10 * US)
        made.activity(
            "sm80_xmma_fprop_implicit_gemm_bf16",
            at + 3 * MS,
            MS,
            launch=at + 3 * MS - 20 * US,
            call_ns=10 * US,
        )
    found = finding(made.trace(), "kernels", "layout_conversions")
    assert found is not None
    assert found.title == "Layout conversions take 40.0 % of the time"
    assert found.ns_at_stake is not None
    assert found.ns_at_stake < 100 * US
