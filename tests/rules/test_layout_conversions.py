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
