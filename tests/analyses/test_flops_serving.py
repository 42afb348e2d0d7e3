"""Operators of serving engines by the schemas under which they register: calls counted by hand."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from tracekit.analyses.flops import operator_work

BF16, F8, INT, LONG, BYTE = "c10::BFloat16", "c10::Float8_e4m3fn", "int", "long int", "unsigned char"
WIDTHS = {BF16: 2, F8: 1, INT: 4, LONG: 8, BYTE: 1, "float": 4}
ROWS, WIDE = 6, 64


def t(*shape: int, of: str = BF16) -> tuple[Any, str, str]:
    return list(shape), of, ""


def s(value: object) -> tuple[Any, str, str]:
    return [], "Scalar", str(value)


NONE = ([], "", "")
X, Y, SCALES, SCALE, WEIGHT = (
    t(ROWS, WIDE),
    t(ROWS, WIDE, of=F8),
    t(ROWS, 1, of="float"),
    t(1, of="float"),
    t(WIDE),
)
N = ROWS * WIDE
EXPERTS = [t(8, 40, 16), t(8, 16, 20)]


def size(*tensors: tuple[Any, str, str]) -> int:
    return sum(prod(shape) * WIDTHS[of] for shape, of, _ in tensors)


@pytest.mark.parametrize(
    ("name", "inputs", "flops", "read", "written"),
    [
        ("_C::silu_and_mul_quant", [Y, t(ROWS, 2 * WIDE), SCALE], 6 * N, size(X, X, SCALE), size(Y)),
        (
            "_C::silu_and_mul_per_block_quant",
            [Y, t(ROWS, 2 * WIDE), SCALES, s(64)],
            6 * N,
            size(X, X),
            size(Y, SCALES),
        ),
        ("_C::swigluoai_and_mul", [X, t(ROWS, 2 * WIDE), s(1.702), s(7.0)], 7 * N, size(X, X), size(X)),
        ("_C::fatrelu_and_mul", [X, t(ROWS, 2 * WIDE), s(0.1)], N, size(X, X), size(X)),
        (
            "_C::rms_norm_static_fp8_quant",
            [Y, X, WEIGHT, SCALE, s(1e-6)],
            5 * N,
            size(X, WEIGHT, SCALE),
            size(Y),
        ),
        (
            "_C::fused_add_rms_norm_static_fp8_quant",
            [Y, X, X, WEIGHT, SCALE, s(1e-6)],
            6 * N,
            size(X, X, WEIGHT, SCALE),
            size(Y, X),
        ),
        (
            "_C::rms_norm_dynamic_per_token_quant",
            [Y, X, WEIGHT, SCALES, s(1e-6), NONE, NONE],
            5 * N,
            size(X, WEIGHT),
            size(Y, SCALES),
        ),
        (
            "_C::rms_norm_per_block_quant",
            [Y, X, WEIGHT, SCALES, s(1e-6), NONE, X, s(64), s(False)],
            6 * N,
            size(X, WEIGHT, X),
            size(Y, SCALES, X),
        ),
        ("_C::rms_norm_weightless", [X, X, s(1e-6)], 3 * N, size(X), size(X)),
        ("_C_cache_ops::concat_mla_q", [t(5, 2, 8), t(5, 2, 4), t(5, 2, 12)], 0, 240, 240),
        (
            "sgl_kernel::merge_state_v2",
            [
                t(5, 2, 8),
                t(5, 2, of="float"),
                t(5, 2, 8),
                t(5, 2, of="float"),
                t(5, 2, 8),
                t(5, 2, of="float"),
            ],
            3 * 80,
            2 * (160 + 40),
            160 + 40,
        ),
        (
            "_C::awq_gemm",
            [t(4, 128), t(128, 32, of=INT), t(1, 256), t(1, 32, of=INT), s(8)],
            2 * 4 * 128 * 256,
            1024 + 16384 + 512 + 128,
            2048,
        ),
        (
            "_C::gptq_gemm",
            [
                t(4, 128),
                t(16, 256, of=INT),
                t(1, 32, of=INT),
                t(1, 256),
                t(128, of=INT),
                s(True),
                s(False),
                s(4),
            ],
            2 * 4 * 128 * 256,
            1024 + 16384 + 128 + 512 + 512,
            2048,
        ),
        (
            "_C::allspark_w8a16_gemm",
            [t(4, 128), t(128, 64, of=BYTE), t(1, 64), NONE, s(64)],
            2 * 4 * 128 * 64,
            1024 + 8192 + 128,
            512,
        ),
        (
            "sgl_kernel::dsv3_router_gemm",
            [t(4, 256, of="float"), t(4, 128), t(256, 128)],
            2 * 4 * 256 * 128,
            1024 + 65536,
            4096,
        ),
        (
            "_C::cutlass_scaled_fp4_mm",
            [t(4, 32), t(4, 64, of=BYTE), t(32, 64, of=BYTE), t(128, 8, of=F8), t(128, 8, of=F8), SCALE],
            2 * 4 * 32 * 128,
            256 + 2048 + 1024 + 1024 + 4,
            256,
        ),
        (
            "_C::cutlass_moe_mm",
            [t(12, 40), t(12, 16, of=F8), t(8, 16, 40, of=F8), SCALES, SCALE],
            2 * 12 * 16 * 40,
            None,
            960,
        ),
        (
            "vllm::rocm_aiter_gemm_a8w8_blockscale",
            [Y, t(32, WIDE, of=F8), SCALES, SCALE, s(15)],
            2 * ROWS * 32 * WIDE,
            size(Y, SCALES, SCALE) + 32 * WIDE,
            2 * ROWS * 32,
        ),
        (
            "vllm::rocm_aiter_gemm_a8w8",
            [Y, t(32, WIDE, of=F8), SCALES, SCALE, t(32), s(15)],
            2 * ROWS * 32 * WIDE + ROWS * 32,
            size(Y, SCALES, SCALE) + 32 * WIDE + 64,
            2 * ROWS * 32,
        ),
        # A token goes to two of the eight experts, whose weights are read. Two tokens may share theirs.
        (
            "vllm::rocm_aiter_fused_moe",
            [t(1, 16), *EXPERTS, t(1, 2, of="float"), t(1, 2, of=INT), NONE, s(0)],
            2 * (2 * 16 * 40 + 100 + 2 * 20 * 16),
            32 + 8 + 8 + 2 * (1280 + 640),
            32,
        ),
        (
            "aiter::fused_moe_",
            [t(2, 16), *EXPERTS, t(2, 2, of="float"), t(2, 2, of=INT), NONE, s(0)],
            4 * (2 * 16 * 40 + 100 + 2 * 20 * 16),
            None,
            64,
        ),
        ("sgl_kernel::shuffle_rows", [t(5, 8), t(12, of=INT), t(12, 8)], 0, 192 + 48, 192),
        (
            "_C::fused_qk_norm_rope",
            [t(5, 8 * 16), s(4), s(2), s(2), s(16), s(1e-6), t(16), t(16), t(99, 8), s(True), t(5, of=LONG)],
            4 * 480 + 3 * 5 * 6 * 8,
            960 + 5 * 8 * 2 + 64 + 40,
            960,
        ),
        (
            "flashinfer::apply_rope_pos_ids_cos_sin_cache",
            [
                t(5, 4, 16),
                t(5, 2, 16),
                t(5, 4, 16),
                t(5, 2, 16),
                t(99, 8, of="float"),
                t(5, of=INT),
                s(False),
            ],
            3 * 5 * 6 * 8,
            960 + 20 + 160,
            960,
        ),
    ],
    ids=str,
)
def test_work_by_hand(
    name: str, inputs: list[Any], flops: int | None, read: int | None, written: int | None
) -> None:
    work = operator_work(name, *map(list, zip(*inputs, strict=True)))
    assert work is not None
    assert (work.flops, work.read, work.written) == (flops, read, written)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        # The experts of other ranks do nothing here: a map tells which are here, and its values are not recorded.
        (
            "vllm::rocm_aiter_fused_moe",
            [t(1, 16), *EXPERTS, t(1, 2, of="float"), t(1, 2, of=INT), t(16, of=INT)],
        ),
        ("_C::awq_gemm", [t(4, 128), t(128, 33, of=INT), t(1, 256), t(1, 32, of=INT), s(8)]),
        ("_C::gptq_gemm", [t(4, 128), t(16, 256, of=INT), NONE, NONE, NONE, s(True), s(8)]),
        ("_C::dsv3_fused_a_gemm", [t(4, 256), t(4, 128), t(128, 99)]),
        (
            "sgl_kernel::apply_rope_pos_ids_cos_sin_cache",
            [*[t(5, 2, 16)] * 4, t(99, 8), t(5, of=INT), *map(s, (False, False, 0)), t(5, 2, 16)],
        ),
    ],
    ids=str,
)
def test_what_the_inputs_do_not_tell(name: str, inputs: list[Any]) -> None:
    assert operator_work(name, *map(list, zip(*inputs, strict=True))) is None
