"""The models read each argument where torch's own schemas have it: calls are made by the names of arguments, and counted by hand."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import pytest
import torch
from torch.nn import functional

from tracekit.analyses.flops import Work, operator_work
from tracekit.analyses.flops import attention as attention_models
from tracekit.analyses.flops import convolution as convolution_models
from tracekit.analyses.flops import matmul as matmul_models
from tracekit.analyses.flops import recurrent as recurrent_models

FAMILIES = (attention_models, convolution_models, matmul_models, recurrent_models)


@cache
def schemas() -> dict[str, list[Any]]:
    """By `aten::name` or `aten::name.overload`, the names of the arguments and their types."""
    return {
        f"{schema.name}.{schema.overload_name}".rstrip("."): [(a.name, str(a.type)) for a in schema.arguments]
        for schema in torch._C._jit_get_all_schemas()
    }


def call(overload: str, arguments: dict[str, Any], kinds: dict[str, str] | None = None) -> Work | None:
    """The work of a call by the names of its arguments, written as the profiler does; those that are not named are None."""
    known = schemas()[overload]
    assert arguments.keys() <= {name for name, _ in known}, overload
    shapes: list[Any] = []
    dtypes: list[str] = []
    scalars: list[str] = []
    for name, kind in known:
        value = arguments.get(name)
        tensor = "Tensor" in kind
        several = tensor and "List" in kind
        shape = (
            [] if value is None or not tensor else [list(one) for one in value] if several else list(value)
        )
        shapes.append(shape)
        if value is None:
            dtypes.append("")
        elif tensor:
            dtypes.append("TensorList" if several else (kinds or {}).get(name, "float"))
        else:
            dtypes.append("ScalarList" if isinstance(value, list) else "Scalar")
        scalars.append("" if tensor or value is None or isinstance(value, str) else str(value))
    return operator_work(overload.partition(".")[0], shapes, dtypes, scalars)


# -- products ----------------------------------------------------------------------------------------

M, K, N, B = 3, 5, 7, 4
ADDED = {"self": (N,), "mat1": (M, K), "mat2": (K, N)}
BATCHES = {"batch1": (B, M, K), "batch2": (B, K, N)}
PLAIN = 2 * M * K * N
F8 = "c10::Float8_e4m3fn"

PRODUCTS: list[tuple[str, dict[str, Any], int, int]] = [
    ("aten::mm", {"self": (M, K), "mat2": (K, N)}, PLAIN, 4 * M * N),
    ("aten::mm.out", {"self": (M, K), "mat2": (K, N), "out": (M, N)}, PLAIN, 4 * M * N),
    ("aten::mm.dtype", {"self": (M, K), "mat2": (K, N), "out_dtype": 7}, PLAIN, 8 * M * N),
    ("aten::bmm", {"self": (B, M, K), "mat2": (B, K, N)}, B * PLAIN, 4 * B * M * N),
    ("aten::bmm.dtype", {"self": (B, M, K), "mat2": (B, K, N), "out_dtype": 15}, B * PLAIN, 2 * B * M * N),
    ("aten::addmm", {**ADDED, "beta": 1, "alpha": 1}, PLAIN + M * N, 4 * M * N),
    ("aten::addmm", {**ADDED, "beta": 0, "alpha": 1}, PLAIN, 4 * M * N),
    ("aten::addmm.out", {**ADDED, "beta": 0, "alpha": 1, "out": (M, N)}, PLAIN, 4 * M * N),
    ("aten::addmm.dtype", {**ADDED, "out_dtype": 7, "beta": 1, "alpha": 0}, PLAIN + M * N, 8 * M * N),
    ("aten::addmm_", {**ADDED, "self": (M, N), "beta": 1, "alpha": 1}, PLAIN + M * N, 4 * M * N),
    (
        "aten::_addmm_activation",
        {**ADDED, "beta": 1, "alpha": 0, "use_gelu": False},
        PLAIN + M * N,
        4 * M * N,
    ),
    ("aten::baddbmm", {"self": (N,), **BATCHES, "beta": 1, "alpha": 0}, B * (PLAIN + M * N), 4 * B * M * N),
    ("aten::baddbmm", {"self": (), **BATCHES, "beta": 0, "alpha": 1}, B * PLAIN, 4 * B * M * N),
    ("aten::baddbmm.dtype", {"self": (N,), **BATCHES, "out_dtype": 5, "beta": 0}, B * PLAIN, 2 * B * M * N),
    ("aten::baddbmm_", {"self": (B, M, N), **BATCHES, "beta": 1}, B * (PLAIN + M * N), 4 * B * M * N),
    ("aten::addbmm", {"self": (M, N), **BATCHES, "beta": 1, "alpha": 1}, B * PLAIN + M * N, 4 * M * N),
    ("aten::addbmm_", {"self": (M, N), **BATCHES, "beta": 1, "alpha": 1}, B * PLAIN + M * N, 4 * M * N),
    ("aten::_int_mm", {"self": (M, K), "mat2": (K, N)}, PLAIN, 4 * M * N),
    ("aten::mv", {"self": (M, K), "vec": (K,)}, 2 * M * K, 4 * M),
    ("aten::addmv", {"self": (M,), "mat": (M, K), "vec": (K,)}, 2 * M * K + M, 4 * M),
    ("aten::addmv_", {"self": (M,), "mat": (M, K), "vec": (K,)}, 2 * M * K + M, 4 * M),
    ("aten::addr", {"self": (M, N), "vec1": (M,), "vec2": (N,), "beta": 1}, 2 * M * N, 4 * M * N),
    ("aten::addr_", {"self": (M, N), "vec1": (M,), "vec2": (N,), "beta": 0}, M * N, 4 * M * N),
    ("aten::dot", {"self": (K,), "tensor": (K,)}, 2 * K, 4),
    ("aten::vdot", {"self": (K,), "other": (K,)}, 2 * K, 4),
    (
        "aten::linear",
        {"input": (2, M, K), "weight": (N, K), "bias": (N,)},
        2 * (PLAIN + M * N),
        8 * M * N,
    ),
    ("aten::linear", {"input": (M, K), "weight": (K,)}, 2 * M * K, 4 * M),
    ("aten::mkldnn_linear", {"self": (M, K), "weight": (N, K), "bias": (N,)}, PLAIN + M * N, 4 * M * N),
    ("mkldnn::_linear_pointwise", {"X": (M, K), "W": (N, K), "attr": "relu"}, PLAIN, 4 * M * N),
    (
        "mkldnn::_linear_pointwise.binary",
        {"X": (M, K), "other": (M, N), "W": (N, K), "B": (N,)},
        PLAIN + M * N,
        4 * M * N,
    ),
    ("aten::matmul", {"self": (M, K), "other": (K, N)}, PLAIN, 4 * M * N),
    ("aten::matmul", {"self": (2, 1, M, K), "other": (B, K, N)}, 2 * B * PLAIN, 8 * B * M * N),
    ("aten::matmul", {"self": (K,), "other": (B, K, N)}, 2 * B * K * N, 4 * B * N),
    ("aten::matmul", {"self": (B, M, K), "other": (K,)}, 2 * B * M * K, 4 * B * M),
    ("aten::matmul", {"self": (K,), "other": (K,)}, 2 * K, 4),
    (
        "aten::tensordot",
        {"self": (M, K, B), "other": (B, N, K), "dims_self": [1, 2], "dims_other": [2, 0]},
        2 * M * K * B * N,
        4 * M * N,
    ),
    (
        "aten::_weight_int4pack_mm",
        {"self": (M, 64), "mat2": (1, 4, 32, 4), "qGroupSize": 32, "qScaleAndZeros": (2, N, 2)},
        2 * M * 64 * N,
        4 * M * N,
    ),
    (
        "aten::_weight_int4pack_mm_for_cpu",
        {"self": (M, 64), "mat2": (N, 32), "qGroupSize": 32, "qScaleAndZeros": (2, N, 2)},
        2 * M * 64 * N,
        4 * M * N,
    ),
    ("aten::_weight_int8pack_mm", {"self": (M, K), "mat2": (N, K), "scales": (N,)}, PLAIN, 4 * M * N),
]


@pytest.mark.parametrize(("overload", "arguments", "flops", "written"), PRODUCTS)
def test_products(overload: str, arguments: dict[str, Any], flops: int, written: int) -> None:
    work = call(overload, arguments)
    assert work is not None
    assert (work.flops, work.written) == (flops, written)
    tensors = [
        arguments[name] for name, kind in schemas()[overload] if "Tensor" in kind and name in arguments
    ]
    shapes = [shape for shape in tensors if overload.partition(".")[2] != "out" or shape is not tensors[-1]]
    if arguments.get("beta") == 0:
        shapes = shapes[1:]  # what is multiplied by 0 is not read
    assert work.read == 4 * sum(prod(shape) for shape in shapes if shape)


SCALES = {"scale_a": (), "scale_b": ()}


@pytest.mark.parametrize(
    ("overload", "more", "width"),
    [
        ("aten::_scaled_mm", {**SCALES, "out_dtype": 15, "use_fast_accum": True}, 2),
        ("aten::_scaled_mm", {**SCALES, "out_dtype": 6, "bias": (N,)}, 4),
        ("aten::_scaled_mm", {**SCALES}, 1),
        ("aten::_scaled_mm", {"scale_a": (M, 1), "scale_b": (1, N), "out_dtype": 15, "bias": (N,)}, 2),
        (
            "aten::_scaled_mm_v2",
            {"scale_a": [(M, 1)], "scale_b": [(1, N)], "recipe_a": [1], "out_dtype": 15},
            2,
        ),
        (
            "aten::_scaled_mm_v2",
            {"scale_a": [()], "scale_b": [()], "bias": (N,), "contraction_dim": [0, 1]},
            1,
        ),
    ],
)
@pytest.mark.parametrize(("kind", "packed"), [(F8, 1), ("c10::Float4_e2m1fn_x2", 2)])
def test_scaled_products(overload: str, more: dict[str, Any], width: int, kind: str, packed: int) -> None:
    """Two numbers of 4 bits are one element of the shapes; types of the result are numbers."""
    kinds = {"self": kind, "mat2": kind, "bias": "c10::BFloat16"}
    work = call(overload, {"self": (M, K), "mat2": (K, N), **more}, kinds)
    assert work is not None
    assert work.flops == packed * PLAIN + (M * N if "bias" in more else 0)
    assert work.written == M * N * width
    scales = 0 if "v2" in overload else 4 * sum(prod(more[name]) for name in SCALES if more[name])
    assert work.read == M * K + K * N + (2 * N if "bias" in more else 0) + scales
    assert work.precision == ("fp8" if packed == 1 else "fp4")


def test_scaled_products_of_older_torch() -> None:
    """Up to 2.4 the bias and the type of the result stood before the scales."""
    shapes = [[M, K], [K, N], [N], [], [], [], [], []]
    scalars = ["", "", "", "15", "", "", "", "False"]
    work = operator_work(
        "aten::_scaled_mm",
        shapes,
        [F8, F8, "c10::BFloat16", "Scalar", "float", "float", "", "Scalar"],
        scalars,
    )
    assert work is not None
    assert (work.flops, work.written) == (PLAIN + M * N, 2 * M * N)


GROUPED = {
    "aten::_grouped_mm": {},
    "aten::_scaled_grouped_mm": {"scale_a": (M,), "scale_b": (N,)},
    "aten::_scaled_grouped_mm_v2": {"scale_a": [(M,)], "scale_b": [(N,)]},
}


@pytest.mark.parametrize("overload", GROUPED)
@pytest.mark.parametrize(
    ("one", "other", "elements"),
    [
        ((M, K), (B, K, N), M * N),
        ((B, M, K), (K, N), M * N),
        ((M, K), (K, N), B * M * N),
        ((B, M, K), (B, K, N), B * M * N),
    ],
)
def test_grouped_products(overload: str, one: Any, other: Any, elements: int) -> None:
    both = len(one) == len(other) == 3
    arguments = {"self": one, "mat2": other, **GROUPED[overload], **({} if both else {"offs": (B,)})}
    work = call(overload, arguments, dict.fromkeys(("self", "mat2"), F8))
    assert work is not None
    assert work.flops == PLAIN * (B if both else 1)
    assert work.written == elements * (1 if overload == "aten::_grouped_mm" else 2)
    named = call(overload, {**arguments, "out_dtype": 6}, dict.fromkeys(("self", "mat2"), F8))
    assert named is not None
    assert named.written == 4 * elements


# -- convolutions ------------------------------------------------------------------------------------

HOW: dict[str, Any] = {"stride": [2, 3], "padding": [1, 0], "dilation": [2, 1], "groups": 2}
FORWARD = [
    *("aten::convolution", "aten::_convolution", "aten::convolution_overrideable", "aten::conv2d"),
    *("aten::cudnn_convolution", "aten::cudnn_convolution_relu", "aten::cudnn_convolution_add_relu"),
    *("aten::miopen_convolution", "aten::miopen_convolution_relu", "aten::miopen_convolution_add_relu"),
    *("aten::miopen_depthwise_convolution", "aten::mkldnn_convolution", "aten::_nnpack_spatial_convolution"),
    *("mkldnn::_convolution_pointwise", "mkldnn::_convolution_pointwise.binary"),
    *("mkldnn::_convolution_pointwise_.binary", "aten::thnn_conv2d", "aten::_slow_conv2d_forward"),
    *("aten::slow_conv_dilated2d", "aten::_conv_depthwise2d", "aten::conv1d", "aten::conv3d"),
    *(
        "aten::slow_conv3d",
        "aten::slow_conv3d_forward",
        "aten::slow_conv_dilated3d",
        "aten::conv_depthwise3d",
    ),
]
TRANSPOSED = [
    *("aten::convolution", "aten::_convolution", "aten::convolution_overrideable"),
    *("aten::conv_transpose1d", "aten::conv_transpose2d.input", "aten::conv_transpose3d.input"),
    *("aten::cudnn_convolution_transpose", "aten::miopen_convolution_transpose"),
    *(
        "mkldnn::_convolution_transpose_pointwise",
        "aten::slow_conv_transpose2d",
        "aten::slow_conv_transpose3d",
    ),
]
IMAGE = ("input", "self", "X")
WEIGHT = ("weight", "W")
BIAS = ("bias", "B")


def dimensions_of(overload: str) -> int:
    return next((n for n in (1, 3) if f"{n}d" in overload), 2)


def convolution_call(
    overload: str, *, transposed: bool, bias: bool
) -> tuple[dict[str, Any], torch.Tensor, int, int]:
    """Arguments, and the output of such a convolution by torch; its FLOPs without a bias; how many sums follow each output."""
    names = {name for name, _ in schemas()[overload]}
    dimensions, groups = dimensions_of(overload), 2 if "groups" in names or "depthwise" in overload else 1
    if dimensions != 2:
        groups = 2 if "conv_" in overload and "groups" in names else groups
    how = {key: value for key, value in HOW.items() if key in names and key != "groups"}
    how = {key: (value * 2)[:dimensions] for key, value in how.items()}
    image = (2, 4, *(10, 12, 11)[:dimensions])
    kernel = (3, 1, 2)[:dimensions]
    weight = (4, 6 // groups, *kernel) if transposed else (6, 4 // groups, *kernel)
    tensors = [torch.zeros(shape) for shape in (image, weight)]
    if transposed:
        extra = [1, 0, 1][:dimensions]
        run = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
        output = run[dimensions - 1](*tensors, output_padding=extra, groups=groups, **how)
        how["output_padding"] = extra
    else:
        run = (functional.conv1d, functional.conv2d, functional.conv3d)
        output = run[dimensions - 1](*tensors, groups=groups, **how)
        how["output_padding"] = [0] * dimensions
    given = {name: image for name in IMAGE if name in names} | {
        name: weight for name in WEIGHT if name in names
    }
    if bias:
        given |= {name: (6,) for name in BIAS if name in names}
    given |= {name: tuple(output.shape) for name in ("z", "other") if name in names}
    how |= {"groups": groups, "transposed": transposed, "kernel_size": list(kernel), "alpha": 1}
    given |= {name: value for name, value in how.items() if name in names}
    places = image if transposed else output.shape
    plain = 2 * 2 * prod(places[2:]) * prod(weight)
    more = sum(part in overload for part in ("relu", "add_relu", ".binary"))
    return given, output, plain, more + (bias and bool(names & set(BIAS)))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("overload", "transposed"), [*((o, False) for o in FORWARD), *((o, True) for o in TRANSPOSED)]
)
def test_convolutions(overload: str, transposed: bool, bias: bool) -> None:
    given, output, plain, sums = convolution_call(overload, transposed=transposed, bias=bias)
    work = call(overload, given)
    assert work is not None
    assert (work.flops, work.written) == (plain + sums * output.numel(), 4 * output.numel())
    tensors = [value for value in given.values() if isinstance(value, tuple)]
    assert work.read == 4 * sum(map(prod, tensors))


def test_one_image_without_a_batch() -> None:
    arguments = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
    one = call("aten::conv2d", {"input": (4, 8, 9), "weight": (6, 4, 3, 3), **arguments})
    batch = call("aten::conv2d", {"input": (1, 4, 8, 9), "weight": (6, 4, 3, 3), **arguments})
    assert one == batch is not None


@pytest.mark.parametrize("wanted", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "overload",
    [
        "aten::convolution_backward",
        "aten::convolution_backward_overrideable",
        "aten::_slow_conv2d_backward.output_mask",
    ],
)
def test_convolutions_backward(overload: str, transposed: bool, wanted: tuple[bool, bool]) -> None:
    names = {name for name, _ in schemas()[overload]}
    if transposed and "transposed" not in names:
        return
    forward = "aten::convolution" if "groups" in names else "aten::thnn_conv2d"
    given, output, plain, _ = convolution_call(forward, transposed=transposed, bias=False)
    image, weight = (given.get("input") or given["self"]), given["weight"]
    given = {name: value for name, value in given.items() if name in names and name not in ("self", "input")}
    gradient = tuple(output.shape)
    given |= {"grad_output": gradient, "input" if "input" in names else "self": image}
    work = call(overload, given | {"output_mask": [*wanted, False]})
    of_image, of_weight = wanted
    assert work is not None
    assert work.flops == plain * (of_image + of_weight)
    assert work.read == 4 * (prod(gradient) + of_image * prod(weight) + of_weight * prod(image))
    assert work.written == 4 * (of_image * prod(image) + of_weight * prod(weight))


# -- attention ---------------------------------------------------------------------------------------

QUERIES, KEYS = 5, 7
SDPA = "aten::_scaled_dot_product_"
ATTENTION = [
    *("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"),
    *("fused_attention_overrideable", "flash_attention_backward", "flash_attention_for_cpu_backward"),
    *("efficient_attention_backward", "cudnn_attention_backward", "fused_attention_overrideable_backward"),
]
AT_HEADS = [
    *(SDPA + name for name in ATTENTION),
    *(
        "aten::_cudnn_attention_forward",
        "aten::_cudnn_attention_backward",
        "aten::scaled_dot_product_attention",
    ),
]
AT_ROWS = [
    *("aten::_flash_attention_forward", "aten::_flash_attention_backward"),
    *("aten::_efficient_attention_forward", "aten::_efficient_attention_backward"),
]
MASKS = ("attn_mask", "attn_bias", "bias")


def pairs_of(*, first: int | None = None, last: int | None = None) -> int:
    return sum(
        (first is None or j - i >= first) and (last is None or j - i <= last)
        for i in range(QUERIES)
        for j in range(KEYS)
    )


def attention_arguments(names: set[str], *, rows: bool, batch: int = 2) -> dict[str, Any]:
    """Six heads of queries and three of keys; keys are 8 wide, values 4."""
    shapes = [(batch, 6, QUERIES, 8), (batch, 3, KEYS, 8), (batch, 3, KEYS, 4)]
    order = (0, 2, 1, 3) if rows else (0, 1, 2, 3)
    query, key, value = (tuple(shape[place] for place in order) for shape in shapes)
    given: dict[str, Any] = {"query": query, "key": key, "value": value}
    if {"grad_out", "grad_out_"} & names:
        output = (*query[:-1], 4)
        given |= {"out": output, "logsumexp": (batch, 6, QUERIES)}
        given |= {name: output for name in ("grad_out", "grad_out_") if name in names}
    given |= {"dropout_p": 0.5, "return_debug_mask": True, "compute_log_sumexp": True}
    given |= {"grad_input_mask": [True] * 4, "max_q": 99, "max_k": 98}
    return {name: value for name, value in given.items() if name in names}


def counted(overload: str, arguments: dict[str, Any], pairs: int) -> None:
    work = call(overload, arguments)
    backward = "backward" in overload
    assert work is not None
    assert work.flops == 2 * 2 * 6 * pairs * (3 * 8 + 2 * 4 if backward else 8 + 4)
    tensors = [arguments[name] for name in ("query", "key", "value", *MASKS) if name in arguments]
    output = prod(arguments["query"][:-1]) * 4
    assert work.read == 4 * (sum(map(prod, tensors)) + (2 * output if backward else 0))
    assert work.written == 4 * (sum(map(prod, tensors[:3])) if backward else output)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("overload", [*AT_HEADS, *AT_ROWS[:2]])
def test_attention(overload: str, causal: bool) -> None:
    names = {name for name, _ in schemas()[overload]}
    rows = overload in AT_ROWS
    arguments = attention_arguments(names, rows=rows) | {"is_causal": causal}
    last = (KEYS - QUERIES if rows else 0) if causal else None  # flash-attn aligns the mask at the last pair
    counted(overload, arguments, pairs_of(last=last))
    for mask in names & set(MASKS):
        counted(overload, arguments | {mask: (2, 1, QUERIES, KEYS)}, pairs_of(last=last))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sides", [(2, 1), (-1, 3), (0, -1), (99, 99)])
@pytest.mark.parametrize("overload", AT_ROWS[:2])
def test_windows_of_flash_attention(overload: str, sides: tuple[int, int], causal: bool) -> None:
    left, right = sides
    arguments = attention_arguments({name for name, _ in schemas()[overload]}, rows=True)
    arguments |= {"is_causal": causal, "window_size_left": left, "window_size_right": right}
    shift = KEYS - QUERIES
    last = shift if causal else shift + right if right >= 0 else None
    counted(overload, arguments, pairs_of(first=shift - left if left >= 0 else None, last=last))


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("overload", AT_ROWS[2:])
def test_masks_of_efficient_attention(overload: str, kind: int, window: int | None) -> None:
    arguments = attention_arguments({name for name, _ in schemas()[overload]}, rows=True)
    arguments |= {"custom_mask_type": kind, "window_size": window}
    shift = KEYS - QUERIES if kind == 2 else 0
    first = None if window is None else shift - window + 1
    counted(overload, arguments, pairs_of(first=first, last=shift if kind else None))


@pytest.mark.parametrize(
    "overload", [*AT_ROWS, "aten::_cudnn_attention_forward", "aten::_cudnn_attention_backward"]
)
@pytest.mark.parametrize(("longest", "told"), [((QUERIES, KEYS), True), ((QUERIES + 1, KEYS), False)])
def test_sequences_behind_each_other(overload: str, longest: tuple[int, int], told: bool) -> None:
    """Two sequences, both as long as the longest; or the lengths, which the trace does not have, may be anything."""
    names = {name for name, _ in schemas()[overload]}
    packed = attention_arguments(names, rows=True)
    for name, shape in packed.items():
        if name in ("query", "key", "value"):
            tokens = (shape[0] * shape[1], *shape[2:])
            packed[name] = (1, *tokens) if "efficient" in overload else tokens
    starts = {f"{stem}_{end}": (3,) for stem in ("cum_seq", "cu_seqlens") for end in "qk"}
    longs = {
        f"{stem}_{end}": n for stem in ("max", "max_seqlen") for end, n in zip("qk", longest, strict=True)
    }
    packed |= {name: value for name, value in (starts | longs).items() if name in names}
    work = call(
        overload, packed | ({"is_causal": False} if "is_causal" in names else {"custom_mask_type": 0})
    )
    assert work is not None
    products = 3 * 8 + 2 * 4 if "backward" in overload else 8 + 4
    assert work.flops == (2 * 2 * 6 * QUERIES * KEYS * products if told else None)
    queries, keys, values = 2 * QUERIES * 6 * 8, 2 * KEYS * 3 * 8, 2 * KEYS * 3 * 4
    output = 2 * QUERIES * 6 * 4
    backward = "backward" in overload
    assert work.read == 4 * (queries + keys + values + (2 * output if backward else 0))
    assert work.written == 4 * (queries + keys + values if backward else output)


PACKAGES = {
    "flash_attn::_flash_attn_forward": "q k v dropout_p softmax_scale causal window_size_left window_size_right softcap "
    "alibi_slopes return_softmax",
    "flash_attn::_flash_attn_varlen_forward": "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p "
    "softmax_scale causal window_size_left window_size_right softcap alibi_slopes return_softmax block_table leftpad_k "
    "seqused_k zero_tensors",
    "flash_attn::_flash_attn_backward": "dout q k v out softmax_lse dq dk dv dropout_p softmax_scale causal "
    "window_size_left window_size_right softcap alibi_slopes deterministic rng_state",
    "flash_attn::_flash_attn_varlen_backward": "dout q k v out softmax_lse dq dk dv cu_seqlens_q cu_seqlens_k max_seqlen_q "
    "max_seqlen_k dropout_p softmax_scale causal window_size_left window_size_right softcap alibi_slopes deterministic "
    "rng_state zero_tensors",
    "flash_attn_3::fwd": "q k v k_new v_new q_v out cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q seqused_k "
    "max_seqlen_q max_seqlen_k page_table kv_batch_idx leftpad_k rotary_cos rotary_sin seqlens_rotary q_descale k_descale "
    "v_descale softmax_scale causal window_size_left window_size_right attention_chunk softcap",
    "flash_attn_3::bwd": "dout q k v out softmax_lse dq dk dv cu_seqlens_q cu_seqlens_k seqused_q seqused_k max_seqlen_q "
    "max_seqlen_k softmax_scale causal window_size_left window_size_right softcap",
    "flash_attn_3::_flash_attn_backward": "dout q k v out softmax_lse cu_seqlens_q cu_seqlens_k seqused_q seqused_k "
    "max_seqlen_q max_seqlen_k dq dk dv softmax_scale causal window_size_left window_size_right softcap",
    "xformers_flash::flash_fwd": "q k v cu_seqlens_q cu_seqlens_k seqused_k max_seqlen_q max_seqlen_k p softmax_scale "
    "causal window_size_left window_size_right return_softmax block_table",
}
"""The arguments as the packages publish them; none of them is installed here."""
PAGED = ("block_table", "page_table", "seqused_k", "leftpad_k", "k_new")


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(("name", "arguments"), PACKAGES.items())
def test_attention_of_packages(name: str, arguments: str, ragged: bool) -> None:
    names, backward = arguments.split(), "dout" in arguments
    shapes = [(2, QUERIES, 6, 8), (2, KEYS, 3, 8), (2, KEYS, 3, 4)]
    if ("varlen" in name) > ragged or (ragged and "cu_seqlens_q" not in names):
        return
    if ragged:
        shapes = [(a * b, c, d) for a, b, c, d in shapes]
    tensors: dict[str, Any] = dict(zip("qkv", shapes, strict=True))
    if backward:
        tensors |= {"dout": (*shapes[0][:-1], 4), "out": (*shapes[0][:-1], 4), "softmax_lse": (2, 6, QUERIES)}
        tensors |= dict(zip(("dq", "dk", "dv"), shapes, strict=True))
    if ragged:
        tensors |= {"cu_seqlens_q": (3,), "cu_seqlens_k": (3,)}
    scalars = {"causal": "True", "window_size_left": "2", "window_size_right": "-1", "dropout_p": "0."}
    scalars |= {"max_seqlen_q": str(QUERIES), "max_seqlen_k": str(KEYS)}

    def worked(more: dict[str, Any]) -> Work | None:
        given = tensors | more
        return operator_work(
            name,
            [list(given.get(argument, ())) for argument in names],
            ["c10::BFloat16" if argument in given else "" for argument in names],
            [scalars.get(argument, "") for argument in names],
        )

    shift = KEYS - QUERIES
    pairs = pairs_of(first=shift - 2, last=shift)
    work = worked({})
    assert work is not None
    assert work.flops == 2 * 2 * 6 * pairs * (3 * 8 + 2 * 4 if backward else 8 + 4)
    assert work.precision == "bf16"
    for argument in set(names) & set(PAGED):
        assert worked({argument: (2, 3)}) is None  # which keys are used is not recorded


def test_the_function_of_flash_attention_tells_bytes_only() -> None:
    """Its window is a tuple, which the profiler does not record."""
    shapes = [[2, QUERIES, 6, 8], [2, KEYS, 3, 8], [2, KEYS, 3, 8], *[[]] * 5]
    kinds = ["c10::Half"] * 3 + ["Scalar", "", "Scalar", "", ""]
    work = operator_work("FlashAttnFunc", shapes, kinds, ["", "", "", "0.", "", "True", "", ""])
    assert work is not None
    assert (work.flops, work.read, work.written) == (
        None,
        2 * (2 * QUERIES * 6 * 8 + 2 * 2 * KEYS * 3 * 8),
        2 * 2 * QUERIES * 6 * 8,
    )


# -- recurrent layers --------------------------------------------------------------------------------

LAYERS = [(24, 4), (24, 6), (24,), (24,), (24, 4), (24, 6), (24,), (24,)]
MATRICES = 2 * (24 * 4 + 24 * 6)
STATE = (2, 3, 6)


@pytest.mark.parametrize(
    "overload", ["aten::_cudnn_rnn", "aten::miopen_rnn", "aten::lstm.input", "aten::lstm.data"]
)
@pytest.mark.parametrize("sequence", [(5, 3, 4), (15, 4)])
def test_layers_in_one_call(overload: str, sequence: tuple[int, ...]) -> None:
    names = {name for name, _ in schemas()[overload]}
    whole = overload.startswith("aten::lstm")
    given = {"input": sequence, "data": sequence, "weight": LAYERS, "params": LAYERS, "batch_sizes": (5,)}
    given |= {"hx": [STATE, STATE] if whole else STATE, "cx": STATE, "bidirectional": True, "num_layers": 1}
    given |= {
        "has_biases": True,
        "dropout": 0.5,
        "train": False,
        "batch_first": False,
        "mode": 2,
        "hidden_size": 6,
    }
    if not whole:
        given["batch_sizes"] = []
    work = call(overload, {name: value for name, value in given.items() if name in names})
    assert work is not None
    assert work.flops == 2 * 15 * MATRICES
    states = 2 * prod(STATE)
    assert work.read == 4 * (60 + MATRICES + 4 * 24 + states)
    assert work.written == 4 * (15 * 12 + states)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("overload", ["aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward"])
def test_layers_in_one_call_backward(overload: str, wanted: bool) -> None:
    given = {"input": (5, 3, 4), "weight": LAYERS, "weight_buf": (999,), "hx": STATE, "cx": STATE}
    given |= {"output": (5, 3, 12), "grad_output": (5, 3, 12), "output_mask": [True, True, True, wanted]}
    work = call(overload, given)
    assert work is not None
    assert work.flops == 2 * 15 * MATRICES * (2 if wanted else 1)


def test_cells() -> None:
    gates = {"input_gates": (3, 24), "hidden_gates": (3, 24), "cx": (3, 6)}
    lstm = call("aten::_thnn_fused_lstm_cell", gates)
    biased = call("aten::_thnn_fused_lstm_cell", gates | {"input_bias": (24,), "hidden_bias": (24,)})
    gru = call("aten::_thnn_fused_gru_cell", {"input_gates": (3, 18), "hidden_gates": (3, 18), "hx": (3, 6)})
    assert lstm is not None
    assert biased is not None
    assert gru is not None
    assert (lstm.flops, biased.flops, gru.flops) == (18 * 13, 18 * 21, 18 * 10)


# -- all of them -------------------------------------------------------------------------------------

OTHERS = {  # compared with their products in test_flops.py
    *("aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"),
    *("aten::gru", "aten::rnn_tanh", "aten::rnn_relu"),
}


@pytest.mark.parametrize(
    ("overload", "arguments"),
    [
        ("aten::linear", {"input": (2, M, K), "weight": (N, K), "bias": (N,)}),
        ("aten::matmul", {"self": (B, M, K), "other": (K, N)}),
        (
            "aten::conv2d",
            {"input": (2, 4, 8, 9), "weight": (6, 4, 3, 3), "stride": [1, 2], "padding": [1, 0]},
        ),
    ],
)
def test_torchscript_records_its_stack_before_the_arguments(overload: str, arguments: dict[str, Any]) -> None:
    names = [name for name, _ in schemas()[overload]]
    given = {"dilation": [1, 1], "groups": 1} if "conv" in overload else {}
    alone = call(overload, arguments | given)
    shapes = [list(v) if isinstance(v, tuple) else [] for v in map((arguments | given).get, names)]
    scalars = [
        "" if v is None or isinstance(v, tuple) else str(v) for v in map((arguments | given).get, names)
    ]
    stack = [[2, M, K], [N, K], [3]]
    behind = operator_work(overload, stack + shapes, ["float"] * (3 + len(names)), ["", "", "", *scalars])
    assert alone == behind is not None


def test_composite_operators_have_as_many_arguments_as_their_models_say() -> None:
    """Otherwise they would read another part of the stack."""
    counts = {"linear": 3, "matmul": 2, "tensordot": 4, "scaled_dot_product_attention": 8}
    counts |= {f"conv{n}d": 7 for n in (1, 2, 3)} | {f"conv_transpose{n}d": 8 for n in (1, 2, 3)}
    counts |= dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), 9)
    composite = {n for m in FAMILIES for n, operator in m.FAMILY.operators.items() if operator.composite}
    assert {f"aten::{name}" for name in counts} == composite - {"FlashAttnFunc"}
    for overload, arguments in schemas().items():
        name, _, rest = overload.removeprefix("aten::").partition(".")
        if name in counts and "out" not in rest:
            assert len(arguments) == counts[name], overload


def test_every_model_of_an_operator_that_torch_has_is_called_here() -> None:
    called = {*(overload for overload, *_ in PRODUCTS), *FORWARD, *TRANSPOSED, *AT_HEADS, *AT_ROWS, *GROUPED}
    called |= {"aten::_scaled_mm", "aten::_scaled_mm_v2", "aten::convolution_backward"}
    called |= {"aten::convolution_backward_overrideable", "aten::_slow_conv2d_backward", "aten::_cudnn_rnn"}
    called |= {"aten::_cudnn_rnn_backward", "aten::miopen_rnn", "aten::miopen_rnn_backward", "aten::lstm"}
    called |= {"aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_gru_cell", *OTHERS}
    modelled = {name for module in FAMILIES for name in module.FAMILY.operators}
    of_torch = {overload.partition(".")[0] for overload in schemas()}
    assert modelled & of_torch == {overload.partition(".")[0] for overload in called}
    old = {name for name in modelled - of_torch if name.startswith(("aten::", "mkldnn::"))}
    assert all("_convolution" in name and "_backward_" in name for name in old)
