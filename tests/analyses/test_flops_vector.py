"""Models of operators that vector units and memory serve: bytes against the tensors that torch really handles, FLOPs by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

import tracekit
from tracekit.analyses.flops import counted, operator_work
from tracekit.analyses.flops.pointwise import BACKWARD, COMPARISONS, POINTWISE
from tracekit.analyses.flops.reduction import REDUCTIONS
from tracekit.analyses.flops.tensors import result_width
from tracekit.analyses.flops.work import Inputs, models

ATEN = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
TYPES = [*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
PROFILED = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.int64: "long int",
    torch.int32: "int",
    torch.int16: "short int",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
}


def size(value: Any) -> int:
    """The bytes of the tensors in a value; what repeats (`expand`, overlapping windows) lies in memory once."""
    tensors = [each for each in torch.utils._pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]
    return sum(places(each) * each.element_size() for each in tensors)


def places(tensor: torch.Tensor) -> int:
    """How many elements of the memory a tensor has, one by one."""
    once = tensor[tuple(slice(None if step else 1) for step in tensor.stride())]
    held = {0}
    for size, step in zip(once.shape, once.stride(), strict=True):
        held = {place + index * step for place in held for index in range(size)}
    return len(held) if once.numel() else 0


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return (torch.rand(shape) * 0.8 + 0.1).to(dtype)


def indices(*shape: int, most: int) -> torch.Tensor:
    return torch.randint(most, shape)


def pointwise() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Calls of the operators of the tables, with tensors whose shapes are broadcast."""
    more = {
        "hardtanh": (-1.0, 1.0),
        "threshold": (0.5, 0.0),
        "flip": ([0],),
        "roll": ([1],),
        "threshold_backward": (0.5,),
        "hardtanh_backward": (-1.0, 1.0),
        "hardshrink_backward": (0.5,),
        "softshrink_backward": (0.5,),
        "leaky_relu_backward": (0.1, False),
        "logit_backward": (None,),
        "softplus_backward": (1.0, 20.0),
        "mse_loss_backward": (0,),
        "smooth_l1_loss_backward": (0, 1.0),
        "huber_loss_backward": (0, 1.0),
    }
    one, other = x(3, 1, 5), x(4, 1)
    odd = {
        "tril": (x(4, 5),),
        "triu": (x(4, 5),),
        "where": (one > 0.5, one, other),
        "masked_fill": (x(3, 4, 5), x(4, 5) > 0.5, 0.0),
        "clamp": (one, 0.2, 0.4),
        "native_dropout_backward": (one, one > 0.5, 2.0),
        "elu_backward": (one, 1.0, 1.0, 1.0, False, one),
        "binary_cross_entropy_backward": (one, one, one, None, 0),
    }
    for (operands, _), names in POINTWISE.items():
        for name in names.split():
            whole = "bitwise" in name or name.startswith("__")
            tensors = [each.to(torch.int64) if whole else each for each in (one, other, one)]
            yield name, odd.get(name, (*tensors[:operands], *more.get(name, ())))
    for (operands, _), names in BACKWARD.items():
        for name in names.split():
            yield name, odd.get(name, (*[one] * operands, *more.get(name, ())))
    for count, names in COMPARISONS.items():
        for name in names.split():
            yield name, (x(3, 1, 5), x(4, 1))[:count]


def reductions() -> Iterator[tuple[str, tuple[Any, ...]]]:
    for name in REDUCTIONS:
        for dims in ([1], [0, -1]) if name != "prod" else (1, -1):
            between = (2.0,) if name in ("norm", "linalg_vector_norm") else ()
            yield name, (x(3, 4, 5), *between, dims)
    waves = x(3, 4).to(torch.complex64)
    for name in ("abs", "neg", "sgn"):
        yield name, (waves,)
    yield from [("mul", (waves, x(4, 1, 4))), ("sum", (waves, [1])), ("norm", (waves, 2.0, [1]))]
    yield from [("var", (waves, [1])), ("var_mean", (waves, [1])), ("cumsum", (waves, 0))]
    integers = indices(3, 4, most=9)
    yield from [("sum", (x(3, 4),)), ("mean", (x(3, 4),)), ("sum", (integers,)), ("sum", (integers, [1]))]
    yield from [
        ("prod", (x(3, 4),)),
        ("prod", (x(3, 4), 1)),
        ("cumsum", (integers, 0)),
        ("cumsum", (x(4, 5), 1)),
    ]
    yield from [("var_mean", (x(3, 4), [1])), ("std_mean", (x(3, 4), [0, 1]))]
    for name in ("median", "nanmedian"):
        yield from [(name, (x(3, 4),)), (name, (x(3, 4), 1)), (name, (x(3, 4), 0, True))]
    for name in ("max", "min"):
        yield from [(name, (x(3, 4),)), (name, (x(3, 4), 1)), (name, (x(3, 4), x(3, 4)))]
    for name in ("argmax", "argmin", "any", "all"):
        values = x(3, 4) > 0.5 if name in ("any", "all") else x(3, 4)
        yield from [(name, (values,)), (name, (values, 1)), (name, (values, 1, True))]
    yield from [
        ("sort", (x(3, 4),)),
        ("topk", (x(3, 9), 2)),
        ("cummax", (x(3, 4), 0)),
        ("cumprod", (x(3, 4), 0)),
    ]


def images() -> Iterator[tuple[str, tuple[Any, ...]]]:
    for size_, kernel, stride, pad, ceil in itertools.product(
        (8, 9), (2, 3), (1, 2, 3), (0, 1), (False, True)
    ):
        image = x(2, 3, size_, 7)
        yield "max_pool2d_with_indices", (image, [kernel], [stride], [pad], [1], ceil)
        yield "avg_pool2d", (image, [kernel, 2], [stride], [pad], ceil)
    image = x(2, 3, 8, 9)
    yield "max_pool2d_with_indices", (image, [2, 2])
    yield "max_pool3d_with_indices", (x(2, 3, 8, 9, 7), [2, 2, 2])
    yield "_adaptive_avg_pool2d", (image, [3, 2])
    yield "_adaptive_avg_pool2d_backward", (x(2, 3, 3, 2), image)
    yield "adaptive_max_pool2d", (image, [3, 2])
    yield "avg_pool2d_backward", (x(2, 3, 4, 4), image, [2, 2], [2, 2], [0, 0], False, True, None)
    yield "upsample_nearest2d", (image, [16, 20])
    yield "upsample_bilinear2d", (image, [16, 20], False)
    yield "upsample_nearest1d", (x(2, 3, 8), [16])
    yield "upsample_bicubic2d", (image, [16, 20], False)
    yield "upsample_nearest2d_backward", (x(2, 3, 16, 18), [16, 18], [2, 3, 8, 9])
    for ceil in (False, True):
        yield "max_pool1d", (x(2, 3, 10), [3], [2], [1], [1], ceil)
        yield "max_pool1d", (x(3, 11), [3], [], [0], [2], ceil)
    yield "pixel_shuffle", (x(2, 8, 3, 5), 2)
    yield "pixel_unshuffle", (x(2, 2, 6, 4), 2)
    yield "native_channel_shuffle", (x(2, 8, 3, 5), 4)
    yield "constant_pad_nd", (image, [1, 2, 3, 0], 0.0)
    yield "reflection_pad2d", (image, [1, 2, 3, 0])
    yield "_fft_r2c", (x(4, 6), [1], 0, True)
    yield "_fft_r2c", (x(4, 6), [0, 1], 0, False)
    yield "_fft_c2c", (x(4, 6).to(torch.complex64), [0], 0, True)
    yield "_fft_c2r", (x(4, 4).to(torch.complex64), [1], 0, 6)


def norms() -> Iterator[tuple[str, tuple[Any, ...]]]:
    rows, weight = x(6, 4, 5), x(5)
    yield "native_layer_norm", (rows, [5], weight, weight, 1e-5)
    yield "native_layer_norm", (rows, [4, 5], None, None, 1e-5)
    yield "native_group_norm", (x(2, 6, 5), x(6), x(6), 2, 6, 5, 3, 1e-5)
    for kind in FLOATS[:2]:
        yield "_softmax", (x(3, 4, dtype=kind), 1, False)
        yield "_log_softmax", (x(3, 4, dtype=kind), 1, False)
        yield "_softmax_backward_data", (x(3, 4, dtype=kind), x(3, 4, dtype=kind), 1, kind)
    yield "mse_loss", (rows, rows, 0)
    yield "mse_loss", (rows, rows, 1)
    yield "smooth_l1_loss", (rows, rows, 1)
    yield "huber_loss", (rows, rows, 0)
    yield "binary_cross_entropy", (rows, rows, None, 1)


def copies() -> Iterator[tuple[str, tuple[Any, ...]]]:
    for kind in (*TYPES, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64):
        yield "_to_copy", (x(3, 4), kind)
    yield "clone", (x(3, 4),)
    yield "fake_quantize_per_tensor_affine_cachemask", (x(3, 4), 0.1, 0, -128, 127)
    whole = torch.zeros(3, dtype=torch.int32)
    yield "fake_quantize_per_channel_affine_cachemask", (x(3, 4), x(3), whole, 0, -128, 127)
    yield "addr", (x(3, 4), x(3), x(4))
    yield "scatter", (x(3, 4), 0, indices(2, 4, most=3), x(2, 4))
    yield "index_add", (x(3, 4), 0, indices(2, most=3), x(2, 4))
    yield "native_dropout", (x(3, 4), 0.5, True)
    yield "nll_loss_backward", (x(), x(4, 5), indices(4, most=5), None, 1, -100, x())


UNREAD = {"nll_loss_backward": (1, 6), "avg_pool2d_backward": (1,), "_adaptive_avg_pool2d_backward": (1,)}
"""Inputs of which only the shape matters."""

OVERLOADS = {
    "scatter": ATEN.scatter.src,
    "clamp_min": ATEN.clamp_min.Tensor,
    "clamp_max": ATEN.clamp_max.Tensor,
    "lerp": ATEN.lerp.Tensor,
}
"""Where torch cannot tell from tensors which is meant without a long look at them."""


def repeated() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """As a gradient of a sum, or a mask of all heads."""
    rows, of_one = x(1, 5).expand(4, 5), x().expand(4, 5)
    yield "mul", (rows, x(4, 5))
    yield "add", (of_one, rows)
    yield "relu", (rows,)
    yield "sum", (rows,)
    yield "bmm", (x(1, 4, 5).expand(3, 4, 5), x(3, 5, 6))
    yield "_softmax", (rows, 1, False)
    yield "_to_copy", (rows, torch.float16)
    yield "clone", (rows,)
    yield "threshold_backward", (of_one, x(4, 5), 0.5)


def windows() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Views whose elements are those of their neighbours, too; and one with gaps, which has all its own."""
    yield "sum", (x(40).unfold(0, 8, 1),)
    yield "mul", (x(40).unfold(0, 8, 2), x(17, 8))
    yield "mm", (x(40).unfold(0, 8, 3), x(8, 2))
    yield "clone", (x(3, 12).unfold(1, 4, 1),)
    yield "relu", (x(9, 9).unfold(0, 3, 1).unfold(1, 3, 1),)
    yield "relu", (x(9, 9)[::2, ::3],)


CASES = [*pointwise(), *reductions(), *images(), *norms(), *copies(), *repeated(), *windows()]


def test_bytes_are_those_of_the_tensors_that_torch_reads_and_makes(tmp_path) -> None:
    """One profile of all cases: the outermost operator of each, as tracekit reads it, against the very tensors."""
    truth = []
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        for name, arguments in CASES:
            with torch.profiler.record_function(f"case {len(truth)}"):
                if name == "_to_copy":
                    made = ATEN._to_copy(arguments[0], dtype=arguments[1])
                else:
                    made = OVERLOADS.get(name, getattr(ATEN, name))(*arguments)
            read = [each for place, each in enumerate(arguments) if place not in UNREAD.get(name, ())]
            truth.append((size(read), size(made)))
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(str(path))
    trace = tracekit.read(path)
    work = counted(trace)
    names, parents = trace.host["name"].cast(str), trace.host["parent_id"]
    found: dict[int, list[tuple[int, int]]] = {}
    for span in (work.owner == range(len(work.owner))).nonzero()[0].tolist():
        around = names[parents[span]] if parents[span] is not None else ""
        if around.startswith("case "):
            found.setdefault(int(around[5:]), []).append((int(work.read[span]), int(work.written[span])))
    wrong = {
        f"{number} {CASES[number][0]}": (found.get(number), expected)
        for number, expected in enumerate(truth)
        if found.get(number) != [expected]
    }
    assert not wrong


def test_the_gradient_of_an_index_adds_its_values() -> None:
    """Of a list of indices the profiler writes no sizes."""
    inputs = (
        [[2048, 27, 27], [], [2048, 351], [], []],
        ["float", "", "float", "Scalar", "Scalar"],
        ["", "", "", "True", "True"],
    )
    work = operator_work("aten::_index_put_impl_", *inputs)
    assert work is not None
    count = 2048 * 351
    assert (work.flops, work.read, work.written) == (count, 8 * count, 4 * count)
    written = operator_work("aten::_index_put_impl_", *inputs[:2], ["", "", "", "False", "True"])
    assert written is None or written.flops is None


def test_an_update_by_a_sparse_gradient_is_not_that_of_the_whole_table(tmp_path) -> None:
    """An optimizer of DLRM was said to reach 19 times what the memory allows: the profiler writes the sizes of the dense table."""
    table = torch.nn.Embedding(10_000, 16, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    table(torch.arange(8)).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        optimizer.step()
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(str(path))
    trace = tracekit.read(path)
    update = trace.host["name"].cast(str) == "aten::add_"
    assert update.any()
    work = counted(trace)
    assert max(work.read[update.to_numpy()]) < 4 * 10_000 * 16
    assert max(work.read.sum(), work.written.sum()) < 4 * 10_000 * 16


def test_types_are_promoted_as_torch_promotes_them() -> None:
    told = 0
    for one, other in itertools.product(TYPES, TYPES):
        for first, second in itertools.product(([2, 3], []), repeat=2):
            inputs = Inputs([first, second], [PROFILED[one], PROFILED[other]], ["", ""])
            width = result_width(inputs, range(2))
            kind = torch.result_type(torch.ones(first, dtype=one), torch.ones(second, dtype=other))
            expected = [None, kind.itemsize]
            if not first and not second and torch.float64 in (one, other):
                # So a Python number is recorded, too, which does not widen a tensor of fp32.
                tensor = one if other == torch.float64 else other
                expected = [None, torch.result_type(torch.ones([], dtype=tensor), 2.5).itemsize]
            assert width in expected, (one, other, first, second)
            told += width is not None
    assert told > 350
    for kind, number, text in itertools.product(TYPES, (True, 7, 2.5), ("True", "7", "2.5")):
        if str(number) == text:
            width = result_width(Inputs([[2], []], [PROFILED[kind], "Scalar"], ["", text]), range(2))
            assert width in (None, torch.result_type(torch.ones(2, dtype=kind), number).itemsize)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)
SIZES = st.lists(st.integers(0, 9), max_size=4)
SCALARS = st.sampled_from(
    ["", "0", "2", "-1", "1.5", "True", "[]", "[1]", "[2, 2]", "[True, False]", "nan", "9" * 30]
)
KINDS = st.sampled_from(
    [
        "float",
        "c10::BFloat16",
        "long int",
        "bool",
        "Scalar",
        "ScalarList",
        "TensorList",
        "TensorList:4",
        "",
        "c10::complex<float>",
    ]
)


@given(
    st.sampled_from([*models(), "triton_poi_fused_x_0", "triton_red_fused_slice_0", "triton_tem_fused_mm_0"]),
    JSON | st.lists(SIZES | st.lists(SIZES, max_size=3), max_size=12),
    JSON | st.lists(KINDS, max_size=12),
    JSON | st.lists(SCALARS, max_size=12),
)
def test_no_inputs_break_a_model(name: str, shapes: Any, dtypes: Any, concrete: Any) -> None:
    work = operator_work(name, shapes, dtypes, concrete)
    if work is not None:
        assert all(
            figure is None or (type(figure) is int and figure >= 0)
            for figure in (work.flops, work.read, work.written)
        )
