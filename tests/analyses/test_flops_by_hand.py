"""Models of operators that vector units and memory serve: calls counted by hand, and what the rest of a trace tells of them."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

import tracekit
from tracekit.analyses.flops import counted, operator_work


def works(name: str, *inputs: tuple[Any, str, str]) -> tuple[int | None, int | None, int | None]:
    """FLOPs, bytes read and written of a call whose inputs are (shape, type, scalar)."""
    shapes, dtypes, concrete = (list(column) for column in zip(*inputs, strict=True))
    work = operator_work(name, shapes, dtypes, concrete)
    return (None, None, None) if work is None else (work.flops, work.read, work.written)


def t(*shape: int, dtype: str = "float") -> tuple[Any, str, str]:
    return list(shape), dtype, ""


def s(value: object) -> tuple[Any, str, str]:
    return [], "ScalarList" if isinstance(value, list) else "Scalar", str(value)


def lists(*shapes: list[int], width: int | None = None) -> tuple[Any, str, str]:
    return list(shapes), "TensorList" if width is None else f"TensorList:{width}", ""


NONE = ([], "", "")
BF16 = "c10::BFloat16"
LONG = "long int"


@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        ("aten::add", [t(3, 4), t(4), s(1)], (12, 64, 48)),
        ("aten::add_", [t(3, 4, dtype=BF16), t(3, 4), s(1)], (12, 72, 24)),
        ("aten::mul", [t(3, 4), t(3, 4, dtype="bool"), t(0, dtype="float")], (12, 60, 48)),
        ("aten::mul", [t(3, dtype=LONG), s(2.5)], (3, 24, None)),
        ("aten::div", [t(3, dtype=LONG), t(3, dtype=LONG)], (3, 48, None)),
        ("aten::gelu", [t(10, dtype=BF16), NONE], (50, 20, 20)),
        ("aten::native_layer_norm", [t(6, 5), s([5]), t(5), t(5), s(1e-5)], (8 * 30, 160, 120 + 48)),
        ("aten::_softmax", [t(6, 5, dtype=BF16), s(1), s(True)], (120, 60, 120)),
        (
            "aten::cudnn_batch_norm",
            [t(2, 3, 4, 4), *[t(3)] * 4, s(True), s(0.1), s(1e-5)],
            (8 * 96, 432, 384 + 48),
        ),
        (
            "aten::cudnn_batch_norm",
            [t(2, 3, 4, 4), *[t(3)] * 4, s(False), s(0.1), s(1e-5)],
            (4 * 96, 432, 384),
        ),
        (
            "aten::native_layer_norm_backward",
            [t(6, 5), t(6, 5), s([5]), t(6, 1), t(6, 1), t(5), t(5), ([], "", "[True, True, False]")],
            (12 * 30, 240 + 48 + 20, 140),
        ),
        ("aten::embedding", [t(100, 8), t(2, 3, dtype=LONG), s(-1), s(False), s(False)], (0, 48 + 192, 192)),
        ("aten::index_select", [t(100, 8, dtype=BF16), s(0), t(6, dtype=LONG)], (0, 48 + 96, 96)),
        (
            "aten::embedding_dense_backward",
            [t(6, 8), t(6, dtype=LONG), s(100), s(-1), s(False)],
            (48, 240, 3200),
        ),
        (
            "aten::_embedding_bag",
            [t(100, 8), t(6, dtype=LONG), t(3, dtype=LONG), s(False), s(0), s(False), t(6), s(True), s(-1)],
            (96, 192 + 48 + 24 + 24, 64),
        ),
        ("aten::gather", [t(9, 9), s(1), t(2, 3, dtype=LONG), s(False)], (0, 48 + 24, 24)),
        ("aten::scatter_add_", [t(9), s(0), t(4, dtype=LONG), t(4)], (4, 32 + 16 + 16, 16)),
        ("aten::cat", [lists([2, 3], [2, 4], width=2), s(1)], (0, 28, 28)),
        ("aten::cat", [lists([2, 3], [2, 4]), s(1)], (None, None, None)),
        ("aten::cat", [([], "TensorList", ""), s(1)], (None, None, None)),
        ("aten::copy_", [t(3, 4, dtype=BF16), t(3, 4), s(False)], (0, 48, 24)),
        ("aten::copy_", [([3, 4], "", ""), ([3, 4], "", "")], (None, None, None)),
        ("aten::fill_", [t(3, 4), s(0)], (0, 0, 48)),
        ("aten::arange", [s(0), s(10), s(3), t(0, dtype=LONG)], (0, 0, 32)),
        ("aten::normal_", [t(3, 4), s(0), s(1), NONE], (None, 0, 48)),
        ("aten::_foreach_add_", [lists([3, 4], [5]), lists([3, 4], [5]), s(1)], (17, None, None)),
        ("aten::_foreach_norm", [lists([3, 4], [5], width=2), s(2)], (34, 34, 4)),
        (
            "aten::_amp_foreach_non_finite_check_and_unscale_",
            [lists([3, 4], width=4), t(), t()],
            (12, 48, 48),
        ),
        ("aten::glu", [t(4, 6), s(-1)], (60, 96, 48)),
        ("aten::nonzero", [t(4, 6, dtype="bool")], (0, 24, None)),
        ("fsdp::chunk_cat", [lists([3, 4]), s(0), s(2), t(2, 6)], (0, None, 48)),
        ("aten::_foreach_addcmul_", [*[lists([3, 4], [5], width=4)] * 3, s(1)], (51, 136, 68)),
        (
            "aten::_fused_adamw_",
            [
                *[lists([3, 4], width=4)] * 4,
                NONE,
                lists([], width=4),
                *map(s, (0.1, 0.9, 0.99, 0.01, 1e-8, False, False)),
            ],
            (14 * 12, 4 * 48, 3 * 48),
        ),
        (
            "aten::_fused_sgd_",
            [*[lists([3, 4], width=4)] * 3, *map(s, (0.0, 0.9, 0.1, 0.0, False, False, False))],
            (5 * 12, 3 * 48, 2 * 48),
        ),
        ("aten::upsample_nearest2d", [t(1, 2, 4, 4), NONE, s([2.0, 2.0])], (0, 128, 512)),
        (
            "aten::_fft_c2c",
            [([4, 8], "c10::complex<float>", ""), s([1]), s(0), s(True)],
            (5 * 4 * 8 * 3, 256, 256),
        ),
        ("c10d::_allgather_base_", [t(64), t(8), NONE], (0, 32, 256)),
        ("c10d::_reduce_scatter_base_", [t(8), t(64), NONE, NONE, s(False), s(-1)], (56, 256, 32)),
        ("_C::silu_and_mul", [t(4, 8, dtype=BF16), t(4, 16, dtype=BF16)], (160, 128, 64)),
        (
            "_C::rms_norm",
            [t(4, 8, dtype=BF16), t(4, 8, dtype=BF16), t(8, dtype=BF16), s(1e-6)],
            (128, 80, 64),
        ),
        ("_C::fused_add_rms_norm", [t(4, 8), t(4, 8), t(8), s(1e-6)], (160, 288, 256)),
        (
            "_C::rotary_embedding",
            [
                t(5, dtype=LONG),
                t(5, 64, dtype=BF16),
                t(5, 16, dtype=BF16),
                s(8),
                t(99, 4, dtype=BF16),
                s(True),
            ],
            (3 * 5 * 40, 40 + 5 * 4 * 2 + 5 * 80, 5 * 80),
        ),
        (
            "_C_cache_ops::reshape_and_cache_flash",
            [
                *[t(7, 2, 8, dtype=BF16)] * 2,
                *[t(9, 16, 2, 8, dtype="unsigned char")] * 2,
                t(5, dtype=LONG),
                NONE,
            ],
            (0, 5 * 32 * 2 + 40, 5 * 32),
        ),
        (
            "_C::cutlass_scaled_mm",
            [
                t(4, 6, dtype=BF16),
                *[([*sizes], "c10::Float8_e4m3fn", "") for sizes in ((4, 8), (8, 6))],
                t(1),
                t(1),
                NONE,
            ],
            (2 * 4 * 8 * 6, 32 + 48 + 8, 48),
        ),
        (
            "_C::gptq_marlin_gemm",
            [t(4, 128, dtype=BF16), NONE, t(8, 512, dtype="int"), NONE, *map(s, (1, 4, 256, 128, True))],
            (2 * 4 * 256 * 128, None, 4 * 256 * 2),
        ),
        (
            "vllm::outplace_fused_experts",
            [
                t(3, 8, dtype=BF16),
                t(9, 20, 8, dtype=BF16),
                t(9, 8, 10, dtype=BF16),
                t(3, 2),
                t(3, 2, dtype="int"),
            ],
            (6 * (2 * 8 * 20 + 50 + 2 * 10 * 8), None, 48),
        ),
        ("vllm::unified_attention", [t(3, 8), t(3, 8), t(3, 8), NONE], (None, None, None)),
        ("triton_poi_fused_add_mul_0", [t(3, 4), t(3, 4), s(12)], (None, 96, 0)),
        ("triton_poi_fused_embedding_0", [t(12, dtype=LONG), t(100, 4), t(12, 4), s(48)], (None, None, None)),
        ("triton_red_fused_slice_sum_0", [t(12, 4), t(12), s(12), s(4)], (None, 240, 0)),
        ("triton_tem_fused_addmm_3", [t(6), t(4, 8), t(8, 6), t(4, 6)], (2 * 4 * 8 * 6, 440, 0)),
        ("triton_tem_fused_mm_relu_3", [t(4, 8), t(9, 6), t(4, 6)], (None, 440, 0)),
        ("fbgemm::FloatToFP8RowwiseQuantized", [t(4, 8), s(True)], (None, 128, 64)),
        ("record_param_comms", [([64], "Float", "allreduce"), ([64], "Float", "4")], (48, 256, 256)),
        ("record_param_comms", [([64], "float", ""), ([], "Scalar", "4")], (None, None, None)),
        ("Torch-Compiled Region: 0/0", [t(3)], (None, None, None)),
    ],
    ids=str,
)
def test_work_by_hand(name: str, inputs: list[Any], expected: tuple[int | None, ...]) -> None:
    assert works(name, *inputs) == expected


WAVES = "c10::complex<float>"


@pytest.mark.parametrize(
    ("name", "inputs", "flops"),
    [
        ("aten::mm", [t(3, 4, dtype=WAVES), t(4, 5, dtype=WAVES)], 8 * 60),
        ("aten::addmm", [t(5, dtype=WAVES), t(3, 4, dtype=WAVES), t(4, 5, dtype=WAVES), s(1), s(1)], 8 * 60 + 2 * 15),
        ("aten::mv", [t(3, 4, dtype=WAVES), t(4, dtype=WAVES)], 8 * 12),
        ("aten::mul", [t(3, 4, dtype=WAVES), t(3, 4, dtype=WAVES)], 6 * 12),
        ("aten::mul", [t(3, 4, dtype=WAVES), t(3, 4)], 2 * 12),
        ("aten::add", [t(3, 4, dtype=WAVES), t(3, 4, dtype=WAVES), s(1)], 2 * 12),
        ("aten::abs", [t(3, 4, dtype=WAVES)], 4 * 12),
        ("aten::tanh", [t(3, 4, dtype=WAVES)], None),  # what it takes is not known
        ("aten::sum", [t(3, 4, dtype=WAVES), NONE], 2 * 12),
        ("aten::index_add_", [t(3, 4, dtype=WAVES), s(0), t(2, dtype=LONG), t(2, 4, dtype=WAVES), s(1)], 2 * 8),
    ],
)  # fmt: skip
def test_complex_numbers_are_counted_as_the_real_ones_of_which_they_consist(name: str, inputs: list[Any], flops: int | None) -> None:  # fmt: skip
    """Against a peak of real operations a complex product reached a quarter of what it did."""
    assert works(name, *inputs)[0] == flops


def test_the_size_of_a_complex_number_is_a_real_one() -> None:
    assert works("aten::abs", t(3, 4, dtype=WAVES))[1:] == (96, 48)
    assert works("aten::norm", t(3, 4, dtype=WAVES), s(2))[1:] == (96, 4)


@pytest.mark.parametrize(
    ("name", "inputs", "flops"),
    [
        ("aten::add", [t(3, 4, dtype=LONG), t(3, 4, dtype=LONG), s(1)], 0),
        ("aten::mul", [t(3, 4, dtype="int"), s(3)], 0),
        ("aten::mul", [t(3, 4, dtype="int"), s(2.5)], 12),
        ("aten::sqrt", [t(3, 4, dtype=LONG)], 12),  # it makes fractions
        ("aten::add_", [t(3, 4), t(3, 4, dtype=LONG), s(1)], 12),
        ("aten::sum", [t(3, 4, dtype="bool"), NONE], 0),
        ("aten::sum", [t(3, 4, dtype=LONG), s([1]), s(False), s(6)], 12),  # as float
        ("aten::cumsum", [t(3, 4, dtype=LONG), s(0), NONE], 0),
        ("aten::scatter_add_", [t(3, 4, dtype=LONG), s(0), t(3, 4, dtype=LONG), t(3, 4, dtype=LONG)], 0),
        ("aten::_foreach_add_", [([[3, 4]], "TensorList:int", ""), s(1)], 0),
        ("aten::_foreach_add_", [([[3, 4]], "TensorList:4", ""), s(1)], 12),
        ("aten::_int_mm", [t(3, 4, dtype="signed char"), t(4, 5, dtype="signed char")], 120),
        ("aten::add", [t(3, 4, dtype="c10::Float8_e3m4"), t(3, 4, dtype="c10::Float8_e3m4"), s(1)], 12),
    ],
)  # fmt: skip
def test_arithmetic_of_integers_is_no_floating_point_operation(name: str, inputs: list[Any], flops: int) -> None:  # fmt: skip
    """An int64 addition had FLOP/s and no roof, while a maximum of the same tensors had that of the memory."""
    assert works(name, *inputs)[0] == flops


def launched(folder: Any, operators: list[tuple[str, dict[str, Any], str]], **of_kernels: Any) -> Any:
    """A trace of operators that launch one kernel of 10 µs each: their names, inputs and the kernels' names."""
    events: list[dict[str, Any]] = []
    for number, (name, inputs, kernel) in enumerate(operators, start=1):
        start, link = 1000 * number, {"correlation": number}
        call = {"ph": "X", "pid": 1, "tid": 1, "ts": start}
        events.append({**call, "dur": 100, "cat": "cpu_op", "name": name, "args": inputs})
        events.append(
            {
                **call,
                "ts": start + 10,
                "dur": 5,
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "args": link,
            }
        )
        where = {"device": 0, "stream": 7, **link, **of_kernels}
        shown = {"ph": "X", "pid": 0, "tid": 7, "ts": start + 50, "dur": 10, "cat": "kernel"}
        events.append({**shown, "name": kernel, "args": where})
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return tracekit.read(path)


def test_the_types_of_lists_stand_in_the_names_of_kernels(tmp_path) -> None:
    joined = {
        "Input Dims": [[[2, 3], [2, 4]], []],
        "Input type": ["TensorList", "Scalar"],
        "Concrete Inputs": ["", "1"],
    }
    added = {
        "Input Dims": [[[3, 4], [5]], [[3, 4], [5]], []],
        "Input type": ["TensorList", "TensorList", "Scalar"],
        "Concrete Inputs": ["", "", "1"],
    }
    opaque = "at::native::(anonymous namespace)::OpaqueType<2u>"
    update = "at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<2>"
    trace = launched(
        tmp_path,
        [
            (
                "aten::cat",
                joined,
                f"void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<{opaque}, unsigned int, 3>",
            ),
            (
                "aten::cat",
                joined,
                "void at::native::(anonymous namespace)::CatArrayBatchedCopy<long, unsigned int, 1, 128, 1>(long*)",
            ),
            ("aten::cat", joined, "some_other_kernel"),
            (
                "aten::_foreach_add_",
                added,
                f"void {update}, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<c10::BFloat16, 2>>",
            ),
            ("aten::_foreach_add_", added, "some_other_kernel"),
            ("aten::cat", joined, f"CatArrayBatchedCopy<OpaqueType<{'9' * 30}u>>"),  # damaged
        ],
    )
    work = counted(trace)
    spans = trace.host.filter(trace.host["kind"] == "op")["span_id"].to_list()
    figures = [(work.flops[span], work.read[span], work.written[span]) for span in spans]
    assert figures == [(0, 28, 28), (0, 112, 112), (-1, -1, -1), (17, 68, 34), (17, -1, -1), (-1, -1, -1)]


LARGE, BIASES = [[1000, 1000], [300, 300]], [[1000], [70_000]]
"""Of 16 and 2 blocks, and of 1 and 2."""


@pytest.mark.parametrize(
    ("blocks", "passes", "elements"),
    [
        (21, 1, 1_161_000),
        (18, 1, 1_090_000),
        (3, 1, 71_000),
        (20, 1, None),
        (21, 3, 1_161_000),
        (42, 2, 2_322_000),
    ],
)
def test_the_gradients_tell_the_sizes_of_a_list_that_is_too_long(
    blocks: int, passes: int, elements: int | None, tmp_path
) -> None:
    """Of more than 30 tensors the profiler records no sizes, so optimizers of most models had no FLOPs and no bytes."""
    once = [
        ("torch::autograd::AccumulateGrad", {"Input Dims": [shape], "Input type": ["float"]}, "some_kernel")
        for shape in [*LARGE, *BIASES]
    ]
    added = {"Input Dims": [[], [], []], "Input type": ["TensorList", "TensorList", "Scalar"]}
    update = "multi_tensor_apply_kernel<at::native::TensorListMetadata<2>, at::native::BinaryOpListAlphaFunctor<float, 2>>"
    trace = launched(tmp_path, [*once * passes, ("aten::_foreach_add_", added, update)], grid=[blocks, 1, 1])
    work, span = counted(trace), int(trace.host.filter(pl.col("name") == "aten::_foreach_add_")["span_id"][0])
    told = (work.flops[span], work.read[span], work.written[span])
    assert told == ((-1, -1, -1) if elements is None else (elements, 8 * elements, 4 * elements))
    if elements is not None:
        assert work.names[work.precision[span]] == "fp32"


def test_the_only_call_may_take_a_list_whose_type_no_kernel_tells(tmp_path) -> None:
    """Polars refuses a replacement that is null where it has one row, and the report ended with a fault."""
    joined = {
        "Input Dims": [[[2, 3], [2, 4]], []],
        "Input type": ["TensorList", "Scalar"],
        "Concrete Inputs": ["", "1"],
    }
    work = counted(launched(tmp_path, [("aten::cat", joined, "some_kernel")]))
    assert (work.flops.tolist().count(0), work.read.max()) == (0, -1)


def test_a_product_is_not_lost_in_a_copy_inside_its_operator(tmp_path) -> None:
    """`aten::linear` counts where no product stands in it, also if a copy does."""
    inner = {"Input Dims": [[4, 8], [4, 8]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
    outer = {
        "Input Dims": [[4, 8], [6, 8], []],
        "Input type": ["float", "float", ""],
        "Concrete Inputs": ["", "", ""],
    }
    call = {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op"}
    events = [
        {**call, "name": "aten::linear", "ts": 0, "dur": 100, "args": outer},
        {**call, "name": "aten::copy_", "ts": 10, "dur": 10, "args": inner},
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    work = counted(tracekit.read(path))
    assert work.flops[work.flops >= 0].tolist() == [2 * 4 * 8 * 6]
