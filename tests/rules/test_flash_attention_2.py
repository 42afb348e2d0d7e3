from __future__ import annotations

from dataclasses import replace

import pytest
from planted import A100, MS, Planted, finding

FLASH_2 = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>, false>(args)"
BACKWARD = (
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>(args)"
)
FLASH_3 = "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<CollectiveMainloopFwdSm90>>>(args)"
H100 = replace(A100, name="NVIDIA H100 80GB HBM3", compute_capability=(9, 0))
UNNAMED = replace(A100, name="", compute_capability=None)


def planted(name: str, took: int = 4 * MS, product: str = "sm80_xmma_gemm_bf16") -> Planted:
    made = Planted()
    made.activity(name, 0, took)
    made.activity(product, took, 10 * MS - took)
    return made


@pytest.mark.parametrize("name", [FLASH_2, BACKWARD])
def test_fires_on_hopper(name: str) -> None:
    found = finding(planted(name).trace(devices=(H100,)), "kernels", "flash_attention_2")
    assert found is not None
    assert found.title == "FlashAttention 2 kernels take 40.0 % of the time"
    assert found.ns_at_stake == 2 * MS
    assert found.stretches == ((0, 4 * MS),)
    assert "CUDNN_ATTENTION" in found.advice


def test_other_kernels_tell_what_device_it_is() -> None:
    there = planted(FLASH_2, product="nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN").trace(
        devices=(UNNAMED,)
    )
    assert finding(there, "kernels", "flash_attention_2") is not None
    assert finding(planted(FLASH_2).trace(devices=(UNNAMED,)), "kernels", "flash_attention_2") is None


@pytest.mark.parametrize(
    ("name", "took", "device"),
    [(FLASH_2, 4 * MS, A100), (FLASH_3, 4 * MS, H100), (FLASH_2, MS // 4, H100)],
    ids=["Ampere", "FlashAttention 3", "a small part"],
)
def test_silent(name: str, took: int, device: object) -> None:
    assert finding(planted(name, took).trace(devices=(device,)), "kernels", "flash_attention_2") is None  # type: ignore[arg-type]
