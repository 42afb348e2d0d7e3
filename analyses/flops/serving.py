"""Operators of serving engines (vLLM, SGLang, FlashInfer, AITER), by the schemas under which they register.

FLOPs for each element as in the other families: a norm by the root of the mean square with its weight is 4, with an addition before it
5; SwiGLU 5 for each element of the output; to scale into a narrower type 1. Of an attention over a paged cache neither FLOPs nor bytes
can be told: the lengths of the contexts lie in tensors, whose values are not recorded. The same holds of which experts the tokens
chose: of a layer of experts the FLOPs are known, and the bytes if there is a single token.
"""

from __future__ import annotations

from math import prod
from typing import Final

from tracekit.analyses.flops.tensors import asked_width, bytes_of, is_tensor, made, precision_of, tensors
from tracekit.analyses.flops.work import Family, Inputs, Model, Work

__all__ = ["FAMILY"]

FAMILY: Final = Family("serving")

_ELEMENTWISE: Final[dict[tuple[int, int, tuple[int, ...], tuple[int, ...]], str]] = {
    (
        4,
        1,
        (1, 2),
        (0,),
    ): "_C::rms_norm sgl_kernel::rmsnorm sgl_kernel::gemma_rmsnorm flashinfer::rmsnorm flashinfer::gemma_rmsnorm "
    "aiter::rms_norm_cu aiter::rmsnorm",
    (
        5,
        0,
        (0, 1, 2),
        (0, 1),
    ): "_C::fused_add_rms_norm sgl_kernel::fused_add_rmsnorm sgl_kernel::gemma_fused_add_rmsnorm "
    "flashinfer::fused_add_rmsnorm flashinfer::gemma_fused_add_rmsnorm vllm::rocm_aiter_rmsnorm2d_fwd_with_add",
    (4, 0, (0, 1), (0,)): "aiter::rms_norm aiter::rmsnorm2d_fwd vllm::rocm_aiter_rms_norm",
    (5, 1, (1, 2, 4), (0, 3)): "aiter::rmsnorm2d_fwd_with_add aiter::add_rmsnorm",
    (
        5,
        0,
        (1,),
        (0,),
    ): "_C::silu_and_mul _C::mul_and_silu _C::gelu_quick sgl_kernel::silu_and_mul flashinfer::silu_and_mul aiter::silu_and_mul",
    (
        6,
        0,
        (1,),
        (0,),
    ): "_C::gelu_and_mul sgl_kernel::gelu_and_mul flashinfer::gelu_and_mul aiter::gelu_and_mul",
    (9, 0, (1,), (0,)): "_C::gelu_new _C::gelu_fast",
    (
        10,
        0,
        (1,),
        (0,),
    ): "_C::gelu_tanh_and_mul sgl_kernel::gelu_tanh_and_mul flashinfer::gelu_tanh_and_mul aiter::gelu_tanh_and_mul",
    (1, 1, (1, 2), (0,)): "_C::static_scaled_fp8_quant _C::static_scaled_int8_quant",
    (
        1,
        1,
        (1,),
        (0, 2),
    ): "_C::dynamic_scaled_fp8_quant _C::dynamic_scaled_int8_quant _C::dynamic_per_token_scaled_fp8_quant",
    (
        1,
        0,
        (0,),
        (1, 2),
    ): "_C::per_token_group_fp8_quant _C::per_token_group_quant_int8 sgl_kernel::sgl_per_token_quant_fp8 "
    "sgl_kernel::sgl_per_token_group_quant_fp8 sgl_kernel::sgl_per_token_group_quant_8bit sgl_kernel::sgl_per_token_group_quant_int8 "
    "sgl_kernel::sgl_per_tensor_quant_fp8",
    (4, 3, (3,), (0, 1, 2)): "_moe_C::topk_softmax",
    (4, 2, (2,), (0, 1)): "sgl_kernel::topk_softmax",
    (1, 0, (0,), (1,)): "_moe_C::moe_sum sgl_kernel::moe_sum sgl_kernel::moe_sum_reduce",
    (2, 0, (0, 2, 3), (1,)): "sgl_kernel::apply_shuffle_mul_sum",
    (1, 0, (1,), (0,)): "_C::fatrelu_and_mul",
    (7, 0, (1,), (0,)): "_C::swigluoai_and_mul",
    (6, 0, (1, 2), (0,)): "_C::silu_and_mul_quant",
    (6, 0, (1,), (0, 2)): "_C::silu_and_mul_per_block_quant",
    (3, 1, (1,), (0,)): "_C::rms_norm_weightless",
    (4, 0, (0, 1), (0, 1)): "_C::fused_add_rms_norm_weightless",
    (5, 1, (1, 2, 3), (0,)): "_C::rms_norm_static_fp8_quant",
    (6, 1, (1, 2, 3, 4), (0, 2)): "_C::fused_add_rms_norm_static_fp8_quant",
    (1, 1, (1, 3), (0, 2)): "sgl_kernel::scaled_fp4_quant",
    (3, 0, (2, 3, 4, 5), (0, 1)): "_C::merge_attn_states",
    (3, 4, (0, 1, 2, 3), (4, 5)): "sgl_kernel::merge_state sgl_kernel::merge_state_v2",
    (0, 2, (0, 1), (2,)): "_C_cache_ops::concat_mla_q",
}
"""FLOPs for each element of the tensor at a place; the places that are read; those that are written, or have the result's size."""


def _elementwise(flops: int, of: int, read: tuple[int, ...], written: tuple[int, ...]) -> Model:
    def work(inputs: Inputs) -> Work:
        elements = prod(inputs.shape(of))
        return Work(
            flops * elements, bytes_of(inputs, read), bytes_of(inputs, written), precision_of(inputs, read)
        )

    return work


for _how, _names in _ELEMENTWISE.items():
    FAMILY.model(*_names.split())(_elementwise(*_how))


@FAMILY.model("_C::rms_norm_dynamic_per_token_quant", "_C::rms_norm_per_block_quant")
def _norm_and_scale(inputs: Inputs) -> Work:
    """`rms_norm_dynamic_per_token_quant(result, input, weight, scale, epsilon, scale_ub, residual, …)`: 5, and 1 to add the residual."""
    flops = inputs.elements(1) * (5 + is_tensor(inputs, 6))
    return Work(flops, bytes_of(inputs, (1, 2, 5, 6)), bytes_of(inputs, (0, 3, 6)), inputs.precision(1))


# -- products ---------------------------------------------------------------------------------------


def _product(one: int, out: int | None, bias: int | None, dtype: int = -1) -> Model:
    """The model of a product of scaled factors m×k · k×n at `one` and behind it, which are followed by their scales."""

    def work(inputs: Inputs) -> Work:
        m, k = inputs.shape(one, 2)
        inner, n = inputs.shape(one + 1, 2)
        if inner != k:
            raise ValueError
        added = bias is not None and is_tensor(inputs, bias)
        read = bytes_of(inputs, [*range(one, one + 4), *([bias] if bias is not None else [])])
        width = asked_width(inputs, dtype, None) if out is None else inputs.itemsize(out)
        flops = 2 * m * k * n + added * m * n
        return Work(flops, read, made(m * n, width), inputs.precision(one), "matrix")

    return work


FAMILY.model("_C::cutlass_scaled_mm")(_product(1, 0, 5))
FAMILY.model("_C::cutlass_scaled_mm_azp")(_product(1, 0, 7))
FAMILY.model("sgl_kernel::fp8_scaled_mm", "sgl_kernel::int8_scaled_mm")(_product(0, None, 5, 4))
FAMILY.model("sgl_kernel::fp8_blockwise_scaled_mm")(_product(0, None, None, 4))


def _of_rows(dtype: int, bias: int | None = None) -> Model:
    """The model of a product m×k · (n×k)ᵀ of scaled factors, the first inputs, with their scales behind them."""

    def work(inputs: Inputs) -> Work:
        (m, k), (n, inner) = inputs.shape(0, 2), inputs.shape(1, 2)
        if inner != k:
            raise ValueError
        places = range(4) if bias is None else (*range(4), bias)
        flops = 2 * m * k * n + (m * n if bias is not None and is_tensor(inputs, bias) else 0)
        written = made(m * n, asked_width(inputs, dtype, None))
        return Work(flops, bytes_of(inputs, places), written, inputs.precision(0), "matrix")

    return work


FAMILY.model("vllm::rocm_aiter_gemm_a8w8")(_of_rows(5, bias=4))
FAMILY.model("vllm::rocm_aiter_gemm_a8w8_blockscale", "vllm::rocm_aiter_triton_gemm_a8w8_blockscale")(
    _of_rows(4)
)


def _into(packed: int) -> Model:
    """The model of a product into the first input, m×n, of the two behind it; so many numbers of a row lie in an element."""

    def work(inputs: Inputs) -> Work:
        (m, n), (rows, inner) = inputs.shape(0, 2), inputs.shape(1, 2)
        if rows != m or sorted(inputs.shape(2, 2)) != sorted((n, inner)):
            raise ValueError
        precision = "fp4" if packed > 1 else inputs.precision(1)
        read = bytes_of(inputs, range(1, 6))
        return Work(2 * m * n * inner * packed, read, inputs.size(0), precision, "matrix")

    return work


FAMILY.model(
    *(
        f"{of}::dsv3_{name}"
        for of in ("_C", "_moe_C", "sgl_kernel")
        for name in ("fused_a_gemm", "router_gemm")
    )
)(_into(1))
FAMILY.model("_C::fp32_router_gemm")(_into(1))
FAMILY.model("_C::cutlass_scaled_fp4_mm", "sgl_kernel::cutlass_scaled_fp4_mm")(_into(2))


@FAMILY.model("_C::awq_gemm")
def _awq(inputs: Inputs) -> Work:
    """`awq_gemm(a, packed, scales, zeros, split_k)`: eight weights lie in an element."""
    (m, k), (inner, columns) = inputs.shape(0, 2), inputs.shape(1, 2)
    n = inputs.shape(2, 2)[1]
    if inner != k or columns * 8 != n:
        raise ValueError
    written = made(m * n, inputs.itemsize(0))
    return Work(2 * m * n * k, bytes_of(inputs, range(4)), written, inputs.precision(0), "matrix")


@FAMILY.model("_C::gptq_gemm", "sgl_kernel::gptq_gemm")
def _gptq(inputs: Inputs) -> Work:
    """`gptq_gemm(a, packed, zeros, scales, order, …, bits)`: so many bits of 32 are a weight."""
    (m, k), (rows, n) = inputs.shape(0, 2), inputs.shape(1, 2)
    if rows * 32 != k * inputs.number(len(inputs.shapes) - 1):
        raise ValueError
    written = made(m * n, inputs.itemsize(0))
    return Work(2 * m * n * k, bytes_of(inputs, range(5)), written, inputs.precision(0), "matrix")


@FAMILY.model("_C::allspark_w8a16_gemm")
def _allspark(inputs: Inputs) -> Work:
    """`allspark_w8a16_gemm(a, packed, scales, zeros, n, …)`."""
    (m, k), n = inputs.shape(0, 2), inputs.number(4)
    written = made(m * n, inputs.itemsize(0))
    return Work(2 * m * n * k, bytes_of(inputs, range(4)), written, inputs.precision(0), "matrix")


@FAMILY.model("_C::cutlass_moe_mm")
def _grouped(inputs: Inputs) -> Work:
    """`cutlass_moe_mm(out, rows, weights, …)`: every row is taken to belong to an expert; which have rows is not recorded."""
    (m, n), (rows, k) = inputs.shape(0, 2), inputs.shape(1, 2)
    if rows != m or sorted(inputs.shape(2, 3)[1:]) != sorted((n, k)):
        raise ValueError
    return Work(2 * m * n * k, None, inputs.size(0), inputs.precision(1), "matrix")


@FAMILY.model("vllm::rocm_unquantized_gemm", composite=True)
def _linear(inputs: Inputs) -> Work:
    """`rocm_unquantized_gemm(input, weight, bias)`."""
    *rows, k = inputs.shape(0)
    n, inner = inputs.shape(1, 2)
    if inner != k:
        raise ValueError
    size = prod(rows) * n
    flops = 2 * size * k + is_tensor(inputs, 2) * size
    return Work(
        flops, bytes_of(inputs, range(3)), made(size, inputs.itemsize(0)), inputs.precision(0), "matrix"
    )


@FAMILY.model("_C::gptq_marlin_gemm", "_C::marlin_gemm", "_C::fp8_marlin_gemm", "_C::gptq_marlin_24_gemm")
def _packed(inputs: Inputs) -> Work:
    """`gptq_marlin_gemm(a, …, size_m, size_n, size_k, …)`: the places changed over the versions, so that m and k are looked for.

    It reads all its tensors as they are packed, and multiplies in the type of `a`.
    """
    m, k = inputs.shape(0, 2)
    texts = [str(text) for text in inputs.concrete]
    triples = zip(texts, texts[1:], texts[2:], strict=False)
    found = {int(n) for first, n, last in triples if (first, last) == (str(m), str(k))}
    if len(found) != 1:
        raise ValueError
    n = found.pop()
    written = made(m * n, inputs.itemsize(0))
    # The second tensor may be the one that the result is written to, and the last a work space: of those only the packed weight counts.
    return Work(2 * m * n * k, None, written, inputs.precision(0), "matrix")


@FAMILY.model(
    *(f"{engine}::{how}place_fused_experts" for engine in ("vllm", "sglang") for how in ("in", "out")),
    *("vllm::rocm_aiter_fused_moe", "vllm::rocm_aiter_asm_moe_tkw1", "aiter::fused_moe_"),
)
def _experts(inputs: Inputs) -> Work:
    """`fused_experts(hidden, w1, w2, topk_weights, topk_ids, …)`: two products for each token and expert, and the gate between.

    The first has two halves, of which one gates the other, unless the second product takes all that it makes. Packed weights have
    shorter rows, which are not looked at. A single token goes to different experts, so that their weights are known to be read; how
    many experts several tokens share is not recorded. Nor is it how many are on this rank, where a map of experts is given.
    """
    tokens, width = inputs.shape(0, 2)
    experts, up, _ = inputs.shape(1, 3)
    others, down, inner = inputs.shape(2, 3)
    chosen = inputs.elements(4)
    mapped = any(inputs.dtypes[place] in ("int", "long int") for place in tensors(inputs)[5:])
    if experts != others or down != width or chosen % max(tokens, 1) or mapped:
        raise ValueError
    kept = up if inner == up else up // 2
    gate = 0 if inner == up else 5 * kept
    flops = chosen * (2 * width * up + gate + 2 * kept * width)
    weights, given = bytes_of(inputs, (1, 2)), bytes_of(inputs, (0, 3, 4))
    read = None
    if tokens == 1 and weights is not None and given is not None:
        read = given + weights // max(experts, 1) * chosen
    return Work(flops, read, inputs.size(0), inputs.precision(0), "matrix")


@FAMILY.model("sgl_kernel::shuffle_rows")
def _shuffled(inputs: Inputs) -> Work:
    """`shuffle_rows(input, places, output)`: a row of the input for each of the output."""
    size, places = inputs.size(2), inputs.size(1)
    return Work(0, None if size is None or places is None else size + places, size)


# -- positions and caches ---------------------------------------------------------------------------


@FAMILY.model("_C::rotary_embedding", "sgl_kernel::rotary_embedding")
def _rotary(inputs: Inputs) -> Work:
    """`rotary_embedding(positions, query, key, head_size, cos_sin_cache, …)`: 3 FLOPs for each element that is turned."""
    turned, width = inputs.shape(4, 2)[1], inputs.itemsize(1)
    elements = inputs.elements(1) + (inputs.elements(2) if is_tensor(inputs, 2) else 0)
    part = elements * turned // inputs.number(3)
    angles = made(inputs.elements(0) * turned, inputs.itemsize(4))
    places, size = inputs.size(0), made(part, width)
    read = None if angles is None or places is None or size is None else angles + places + size
    return Work(3 * part, read, size, inputs.precision(1))


@FAMILY.model("_C::fused_qk_norm_rope")
def _normed_and_turned(inputs: Inputs) -> Work:
    """`fused_qk_norm_rope(qkv, heads_q, heads_k, heads_v, head_dim, eps, q_weight, k_weight, cos_sin_cache, is_neox, positions)`."""
    tokens, heads, turned = inputs.shape(0)[0], inputs.number(1) + inputs.number(2), inputs.shape(8, 2)[1]
    size = tokens * heads * inputs.number(4)
    own, angles = made(size, inputs.itemsize(0)), made(tokens * turned, inputs.itemsize(8))
    beside = bytes_of(inputs, (6, 7, 10))
    read = None if own is None or angles is None or beside is None else own + angles + beside
    return Work(4 * size + 3 * tokens * heads * turned, read, own, inputs.precision(0))


@FAMILY.model("sgl_kernel::apply_rope_pos_ids_cos_sin_cache", "flashinfer::apply_rope_pos_ids_cos_sin_cache")
def _turned(inputs: Inputs) -> Work:
    """`apply_rope_pos_ids_cos_sin_cache(q, k, q_rope, k_rope, cos_sin_cache, pos_ids, …)`, whose heads may be turned in part.

    With values and caches (SGLang) it writes these, too, of which nothing is told.
    """
    if is_tensor(inputs, 9):
        raise ValueError
    places, turned = inputs.elements(5), inputs.shape(4, 2)[1]
    heads = sum(inputs.elements(place) // max(inputs.shape(place)[-1], 1) for place in (0, 1))
    own, angles = bytes_of(inputs, (0, 1, 5)), made(places * turned, inputs.itemsize(4))
    read = None if own is None or angles is None else own + angles
    return Work(3 * heads * turned, read, bytes_of(inputs, (2, 3)), inputs.precision(0))


def _cached(keys: int, cache: int) -> Model:
    """The model of a copy of the tokens' keys and values, the first inputs, to their slots, which follow the caches."""

    def work(inputs: Inputs) -> Work:
        slots = cache + keys if cache > 1 else 0
        tokens = inputs.elements(slots)
        each = sum(prod(inputs.shape(place, 2)[1:]) for place in range(2))
        own, wide = made(tokens * each, inputs.itemsize(0)), inputs.size(slots)
        read = None if own is None or wide is None else own + wide
        return Work(0, read, made(tokens * each, inputs.itemsize(cache)))

    return work


FAMILY.model("_C_cache_ops::reshape_and_cache", "_C_cache_ops::reshape_and_cache_flash")(_cached(2, 2))
FAMILY.model("_C_cache_ops::concat_and_cache_mla")(_cached(1, 2))

_UNTOLD: Final = (
    "vllm::unified_attention vllm::unified_attention_with_output vllm::unified_mla_attention vllm::unified_mla_attention_with_output "
    "_C::paged_attention_v1 _C::paged_attention_v2 _rocm_C::paged_attention _vllm_fa2_C::varlen_fwd _vllm_fa2_C::fwd_kvcache "
    "_vllm_fa3_C::fwd sgl_kernel::fwd aiter::pa_fwd_asm aiter::paged_attention_rocm vllm::moe_forward vllm::moe_forward_shared"
)
"""Their inputs hold neither the lengths of the contexts nor the weights."""


@FAMILY.model(*_UNTOLD.split())
def _untold(_: Inputs) -> Work:
    """What cannot be told."""
    return Work(None)
