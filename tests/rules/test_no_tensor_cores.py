from __future__ import annotations

from dataclasses import replace

import pytest
from planted import A100, MS, Planted, finding

from tracekit.analyses.what_if.replay import USUAL_SLOWING
from tracekit.trace import DeviceInfo

V100 = DeviceInfo(0, "Tesla V100", (7, 0), 80, None, 2048, 32)
P100 = DeviceInfo(0, "Tesla P100", (6, 0), 56, None, 2048, 32)
MI250 = DeviceInfo(0, "AMD Radeon Graphics", (9, 0), 104, None, 2048, 64)
SGEMM = "ampere_sgemm_128x64_nn"
FFMA = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute"
)
"""As in BERT in fp32 on an H100, of which less than half of the products were said to do without tensor cores."""
SCUDNN = "cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1"


def planted(name: str, operator: str = "aten::mm", category_ms: int = 4) -> Planted:
    made = Planted()
    made.span("op", operator, -MS, -MS + 100)
    made.activity(name, 0, category_ms * MS, launch=-MS + 10, call_ns=50)
    made.activity("other", category_ms * MS, (10 - category_ms) * MS)
    return made


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("device", "name", "operator", "advice"),
    [
        (A100, SGEMM, "aten::mm", "set_float32_matmul_precision"),
        (A100, SCUDNN, "aten::cudnn_convolution", "channels_last"),
        (A100, FFMA, "aten::mm", "set_float32_matmul_precision"),
        (V100, "volta_sgemm_64x64_nt", "aten::mm", "torch.float16"),
        (
            V100,
            "void cudnn::detail::dgrad_engine<float, 512, 6, 5>(int)",
            "aten::cudnn_convolution",
            "torch.float16",
        ),
        (
            V100,
            "void implicit_convolve_sgemm<float, float, 1024>(int)",
            "aten::cudnn_convolution",
            "torch.float16",
        ),
    ],
)
def test_fires_with_what_the_peak_of_tensor_cores_saves(
    device: DeviceInfo, name: str, operator: str, advice: str
) -> None:
    found = finding(planted(name, operator).trace(devices=(device,)), "kernels", "no_tensor_cores")
    assert found is not None
    peaks = 312 / 19.5 if device is A100 else 125 / 15.7
    assert found.ns_at_stake == pytest.approx(4 * MS * (1 - 1 / peaks), rel=0.01)
    assert found.severity == "critical"
    assert found.title == "Matrix work without tensor cores takes 40.0 % of the time"
    assert name[:20] in found.evidence
    assert advice in found.advice


def test_kernel_names_prove_the_device_when_the_file_does_not() -> None:
    unknown = (DeviceInfo(0),)
    assert finding(planted(SGEMM).trace(devices=unknown), "kernels", "no_tensor_cores") is not None
    assert (
        finding(planted("volta_sgemm_64x64_nt").trace(devices=unknown), "kernels", "no_tensor_cores") is None
    )


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("device", "name"),
    [
        (
            A100,
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>(Params)",
        ),
        (A100, "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16"),
        (A100, "ampere_dgemm_128x64_nn"),
        (A100, "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(params)"),
        (P100, "maxwell_sgemm_128x64_nn"),
        (MI250, "Cijk_Ailk_Bjlk_SB_MT64x16x16_SN"),
        (MI250, SGEMM),
    ],
)
def test_silent_where_a_name_proves_nothing(device: DeviceInfo, name: str) -> None:
    assert finding(planted(name).trace(devices=(device,)), "kernels", "no_tensor_cores") is None


def test_silent_below_a_twentieth() -> None:
    made = planted(SGEMM, category_ms=1)
    made.activity("other", 20 * MS, 15 * MS)
    assert finding(made.trace(devices=(replace(A100),)), "kernels", "no_tensor_cores") is None


def test_at_stake_is_at_most_what_a_usual_host_leaves_of_it() -> None:
    """The device waits for operators of 1.5 ms before each product of 1 ms. Without recording, they usually take 0.88 ms, so that
    0.12 ms of each product is not hidden behind the next one, and all of the last. Of operators of 4 ms, nothing else is.
    """
    found = finding(between_operators(1500).trace(devices=(A100,)), "kernels", "no_tensor_cores")
    assert found is not None
    assert found.ns_at_stake == pytest.approx((1 + 9 * (1 - 1.5 / USUAL_SLOWING)) * MS, rel=0.01)
    assert finding(between_operators(4000).trace(devices=(A100,)), "kernels", "no_tensor_cores") is None


def between_operators(us: int) -> Planted:
    """Ten products of 1 ms, each launched at the end of an operator."""
    made = Planted()
    for end in range(us, 11 * us, us):
        made.span("op", "aten::mm", (end - us) * 1000, end * 1000)
        made.activity(SGEMM, end * 1000, MS, launch=end * 1000 - 100, call_ns=50)
    return made
