"""What operators tell on processors, where no kernel's name tells the type of a list: real calls, whose tensors are counted by hand."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from counted_profiles import of, profiled
from torch.profiler import ProfilerActivity, profile

import tracekit
from tracekit.analyses.flops import counted, coverage
from tracekit.analyses.flops.coverage import CALLS_OTHERS

ATEN = torch.ops.aten
TABLE, CUBE = torch.randn(300, 300), torch.randn(64, 64, 8)
FOUND, ALSO = torch.randint(0, 64, (5, 7)), torch.randint(0, 64, (5, 7))
MASK = torch.rand(64, 64) > 0.5
IMAGE = torch.randn(2, 3, 9, 9)
LISTS = [torch.randn(40, 50), torch.randn(30)]
GRADIENTS, BAGS = torch.ones(7, 8), (torch.arange(35) // 5, torch.full((7,), 5), torch.tensor([]).long())
WIDE = torch.randn(2, 3, 11, 11)
LEARNT = torch.randn(7, 9, requires_grad=True)
SHUFFLED = torch.randn(2, 8, 3, 5)
GRID, SAMPLES = torch.rand(2, 4, 5, 2), torch.randn(2, 3, 4, 5)
COLUMNS = ATEN.im2col(IMAGE, [3, 3], [2, 2], [1, 1], [2, 1])
NORMS = torch.ones(300, 1)


def size(*tensors: torch.Tensor) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def sparse_gradient() -> torch.Tensor:
    table = torch.nn.Embedding(1000, 16, sparse=True)
    table(torch.tensor([3, 5, 3, 9])).sum().backward()
    assert table.weight.grad is not None
    return table.weight.grad


DENSE, GRADIENT = torch.zeros(1000, 16), sparse_gradient()
TAKEN = CUBE[FOUND]
ROW = 4 * 8

CASES: dict[str, tuple[Callable[[], Any], Counter[tuple[str, int, int, int]]]] = {
    name: (run, Counter(expected))
    for name, run, expected in [
        ("tensors of one type", lambda: torch.cat([TABLE, TABLE]), [("aten::cat", 0, 720_000, 720_000)]),
        ("of two sizes", lambda: torch.cat([TABLE, TABLE[:2]]), [("aten::cat", 0, 362_400, 362_400)]),
        # What one of them is before it is made a number of the other type is not recorded.
        ("of two types", lambda: torch.cat([TABLE, TABLE.bool()]), [("aten::cat", 0, -1, 720_000)]),
        ("a stack", lambda: torch.stack([TABLE, TABLE], 2), [("aten::cat", 0, 720_000, 720_000)]),
        ("a stack of views", lambda: torch.stack([TABLE, TABLE]), [("aten::cat", 0, 720_000, 720_000)]),
        ("a small stack", lambda: torch.stack([IMAGE, IMAGE]), [("aten::stack", 0, -1, 2 * size(IMAGE))]),
        ("rows", lambda: CUBE[FOUND], [("aten::index", 0, size(TAKEN, FOUND), size(TAKEN))]),
        ("elements", lambda: CUBE[FOUND, ALSO], [("aten::index", 0, 35 * ROW + size(FOUND, ALSO), 35 * ROW)]),
        (
            "around a side",
            lambda: CUBE[:, :, ALSO % 8],
            [("aten::index", 0, 64 * 64 * 35 * 4 + 280, 64 * 64 * 35 * 4)],
        ),
        (
            "a mask",
            lambda: CUBE[MASK],
            [("aten::index", 0, int(MASK.sum()) * (ROW + 16), int(MASK.sum()) * ROW)],
        ),
        (
            "to rows",
            lambda: CUBE.index_put_((FOUND,), TAKEN),
            [("aten::_index_put_impl_", 0, size(TAKEN, FOUND), size(TAKEN))],
        ),
        (
            "one to many",
            lambda: CUBE.index_put_((FOUND,), torch.ones(()), accumulate=True),
            [
                ("aten::_index_put_impl_", TAKEN.numel(), size(TAKEN, FOUND) + 4, size(TAKEN)),
                ("aten::fill_", 0, 0, 4),
            ],
        ),
        ("a sparse sum", lambda: DENSE.add_(GRADIENT, alpha=0.1), [("aten::add", 64, 256 + 32 + 256, 256)]),
        (
            "the gradient of bags",
            lambda: ATEN._embedding_bag_dense_backward(
                GRADIENTS, FOUND.flatten(), *BAGS, 100, False, 0, None
            ),
            [("aten::_embedding_bag_dense_backward", 35 * 8, size(GRADIENTS, FOUND, BAGS[0]), 100 * ROW)],
        ),
        (
            "the gradient of a mirror",
            lambda: ATEN.reflection_pad2d_backward(WIDE, IMAGE, [1, 1, 1, 1]),
            [("aten::reflection_pad2d_backward", WIDE.numel(), size(WIDE), size(IMAGE))],
        ),
        ("a search", lambda: torch.searchsorted(TABLE[0], TABLE[1]), [("aten::searchsorted", 0, -1, 2400)]),
        (
            "a short search",
            lambda: torch.bucketize(IMAGE, TABLE[0], out_int32=True),
            [("aten::bucketize", 0, -1, size(IMAGE))],
        ),
        ("both ends", lambda: torch.aminmax(TABLE, dim=1), [("aten::aminmax", 0, size(TABLE), 2 * 1200)]),
        ("both of all", lambda: torch.aminmax(TABLE), [("aten::aminmax", 0, size(TABLE), 8)]),
        (
            "a log of a sigmoid",
            lambda: torch.nn.functional.logsigmoid(TABLE),
            [("aten::log_sigmoid_forward", 5 * 90_000, 360_000, 360_000)],
        ),
        (
            "a maximum without a gradient",
            lambda: torch.nn.functional.max_pool1d(TABLE, 3),
            [("aten::max_pool1d", 0, size(TABLE), 4 * 300 * 100)],
        ),
        (
            "a maximum with a gradient",
            lambda: torch.nn.functional.max_pool1d(LEARNT, 3),
            [("aten::max_pool2d_with_indices", 0, size(LEARNT), 12 * 7 * 3)],
        ),
        (
            "imitated integers",
            lambda: torch.fake_quantize_per_tensor_affine(TABLE, 0.1, 0, -128, 127),
            [("aten::fake_quantize_per_tensor_affine_cachemask", 5 * 90_000, 360_000, 450_000)],
        ),
        (
            "a log of a sum",
            lambda: torch.logaddexp(TABLE, TABLE[0]),
            [("aten::logaddexp", 6 * 90_000, 360_000 + 1200, 360_000)],
        ),
        ("the middle", lambda: TABLE.median(1), [("aten::median", 0, size(TABLE), 12 * 300)]),
        (
            "channels as pixels",
            lambda: torch.nn.functional.pixel_shuffle(SHUFFLED, 2),
            [("aten::pixel_shuffle", 0, size(SHUFFLED), size(SHUFFLED))],
        ),
        (
            "channels mixed",
            lambda: torch.nn.functional.channel_shuffle(SHUFFLED, 2),
            [("aten::native_channel_shuffle", 0, size(SHUFFLED), size(SHUFFLED))],
        ),
        (
            "one after another",
            lambda: torch._foreach_mul_(LISTS, 2.0),
            [("aten::mul_", each.numel(), size(each), size(each)) for each in LISTS],
        ),
        (
            "lists of zeros",
            lambda: torch._foreach_zero_(LISTS),
            [("aten::zero_", 0, 0, size(each)) for each in LISTS],
        ),
        ("numbers", lambda: torch.arange(7), [("aten::arange", 0, 0, 56)]),
        (
            "samples of a grid",
            lambda: torch.nn.functional.grid_sample(IMAGE, GRID, align_corners=False),
            [("aten::grid_sampler_2d", 7 * 2 * 3 * 20, size(IMAGE, GRID), 4 * 2 * 3 * 20)],
        ),
        (
            "the nearest of a grid",
            lambda: torch.nn.functional.grid_sample(IMAGE, GRID, "nearest", align_corners=False),
            [("aten::grid_sampler_2d", 0, size(IMAGE, GRID), 4 * 2 * 3 * 20)],
        ),
        (
            "gradients of a grid",
            lambda: ATEN.grid_sampler_2d_backward(SAMPLES, IMAGE, GRID, 0, 0, False, [True, True]),
            [("aten::grid_sampler_2d_backward", -1, size(SAMPLES, IMAGE, GRID), size(IMAGE, GRID))],
        ),
        (
            "windows as columns",
            lambda: ATEN.im2col(IMAGE, [3, 3], [2, 2], [1, 1], [2, 1]),
            [("aten::im2col", 0, size(IMAGE), size(COLUMNS))],
        ),
        (
            "columns as an image",
            lambda: ATEN.col2im(COLUMNS, [9, 9], [3, 3], [2, 2], [1, 1], [2, 1]),
            [("aten::col2im", COLUMNS.numel(), size(COLUMNS), size(IMAGE))],
        ),
        ("a histogram", lambda: torch.histc(TABLE, 20), [("aten::histc", 0, size(TABLE), 80)]),
        (
            "distances",
            lambda: torch.cdist(TABLE[:5], TABLE[:7], p=1.0),
            [("aten::_cdist_forward", 3 * 35 * 300, 4 * 12 * 300, 4 * 35)],
        ),
        (
            "distances by a product",
            lambda: torch.cdist(TABLE, TABLE, compute_mode="use_mm_for_euclid_dist"),
            [("aten::mm", 2 * 300 * 300 * 302, 2 * 4 * 300 * 302, size(TABLE))],
        ),
        (
            "a weight by its norm",
            lambda: ATEN._weight_norm_interface(TABLE, NORMS),
            [("aten::_weight_norm_interface", 3 * 90_000, size(TABLE, NORMS), size(TABLE, NORMS))],
        ),
        (
            "the gradient of a weight by its norm",
            lambda: ATEN._weight_norm_interface_backward(TABLE, TABLE, NORMS, NORMS, 0),
            [
                (
                    "aten::_weight_norm_interface_backward",
                    5 * 90_000,
                    size(TABLE, TABLE, NORMS, NORMS),
                    size(TABLE, NORMS),
                )
            ],
        ),
        (
            "a leak by channel",
            lambda: torch.nn.functional.prelu(IMAGE, torch.ones(3)),
            [("aten::_prelu_kernel", IMAGE.numel(), size(IMAGE) + 12, size(IMAGE))],
        ),
        (
            "the gradient of a leak",
            lambda: ATEN._prelu_kernel_backward(IMAGE, IMAGE, torch.ones(1, 3, 1, 1)),
            [("aten::_prelu_kernel_backward", 2 * IMAGE.numel(), 2 * size(IMAGE) + 12, 2 * size(IMAGE))],
        ),
        (
            "the gradient of a gate",
            lambda: ATEN.glu_backward(TABLE[:, :150], TABLE, 1),
            [("aten::glu_backward", 9 * 45_000, 4 * 135_000, size(TABLE))],
        ),
        (
            "the gradient of a log of a sigmoid",
            lambda: ATEN.log_sigmoid_backward(TABLE, TABLE, TABLE),
            [("aten::log_sigmoid_backward", 4 * 90_000, 3 * size(TABLE), size(TABLE))],
        ),
        (
            "draws",
            lambda: torch.multinomial(TABLE.abs(), 5, replacement=True),
            [("aten::multinomial", -1, 360_000, 300 * 5 * 8)],
        ),
    ]
}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """With one thread processors join tensors in a way of which nothing is recorded."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def recorded(run: Callable[[], Any], folder: Path) -> tracekit.Trace:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        run()
    path = folder / "t.json"
    prof.export_chrome_trace(str(path))
    return tracekit.read(path)


def works(trace: tracekit.Trace) -> Counter[tuple[str, int, int, int]]:
    """The operators that count, with their FLOPs, bytes read and written; −1 for what is not told."""
    work = counted(trace)
    names = trace.host["name"].cast(str)
    return Counter(
        (names[span], int(work.flops[span]), int(work.read[span]), int(work.written[span]))
        for span in np.flatnonzero(work.figure >= 0).tolist()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(8)
def test_an_operator_on_processors_tells_what_its_tensors_hold(name: str, tmp_path: Path) -> None:
    run, expected = CASES[name]
    found = works(recorded(run, tmp_path))
    assert {
        each: count for each, count in found.items() if each[0] in {name for name, *_ in expected}
    } == expected


def test_the_step_of_an_optimizer_reads_its_gradient_once(tmp_path: Path) -> None:
    """It multiplies the gradient by itself, which is recorded as two tensors; elsewhere two tensors are two."""
    weight = torch.nn.Parameter(torch.randn(50, 20))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], foreach=False)
    found = {"aten::addcmul_": [(3_000, 8_000, 4_000)]}
    assert _of_profile(optimizer.step, found, tmp_path) == found
    once = {"aten::addcmul_": [(3_000, 12_000, 4_000)]}
    sums = torch.zeros(50, 20)
    assert _of_profile(lambda: sums.addcmul_(weight.grad, sums), once, tmp_path) == once


@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_of_a_bias_is_written(bias: bool, tmp_path: Path) -> None:
    layer = torch.nn.Conv2d(3, 8, 3, bias=bias)
    out = layer(IMAGE)
    read, written = size(out, IMAGE), size(*layer.parameters())
    flops = 2 * out.numel() * 3 * 9
    expected = {"aten::convolution_backward": [(flops, read, written)]}
    assert _of_profile(lambda: out.backward(torch.ones_like(out)), expected, tmp_path) == expected


def test_a_number_does_not_widen_the_norm_of_all_gradients(tmp_path: Path) -> None:
    """It is recorded as a tensor of fp64 without dimensions, and 8 bytes were written."""
    expected = {"aten::add": [(1, 12, 4)]}
    assert _of_profile(lambda: torch.tensor(2.5) + 1e-6, expected, tmp_path) == expected


def _of_profile(
    run: Callable[[], Any], names: dict[str, Any], folder: Path
) -> dict[str, list[tuple[int, int, int]]]:
    ran = profiled(run, folder / "trace.json")
    return {name: of(ran, name) for name in names}


def test_lists_on_a_device_are_one_piece_of_work(tmp_path: Path) -> None:
    """There a kernel goes through all tensors; the fill of a norm's result does none of its work."""
    norm = {"Input Dims": [[[40, 50], [30]], [], []], "Input type": ["TensorList", "Scalar", ""]}
    fill = {"Input Dims": [[2], []], "Input type": ["float", "Scalar"], "Concrete Inputs": ["", "0"]}
    kernel = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor<float, 1>>(x)"
    where = {"ph": "X", "pid": 1, "tid": 1}
    events = [
        {**where, "cat": "cpu_op", "name": "aten::_foreach_norm", "ts": 0, "dur": 50, "args": {**norm, "Concrete Inputs": ["", "2", ""]}},
        {**where, "cat": "cpu_op", "name": "aten::fill_", "ts": 5, "dur": 9, "args": fill},
        {**where, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 20, "dur": 5, "args": {"correlation": 1}},
        {**where, "pid": 0, "cat": "kernel", "name": kernel, "ts": 30, "dur": 9, "args": {"device": 0, "stream": 7, "correlation": 1}},
    ]  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert works(tracekit.read(path)) == Counter({("aten::_foreach_norm", 4060, 8120, 8): 1})


def test_a_sparse_sum_on_a_device_is_that_of_its_values(tmp_path: Path) -> None:
    """There `index_add_` does the work, and the dense tensor is brought to its own type first: it is not the values."""
    dense = {
        "Input Dims": [[1460, 16], [1460, 16], [], [1460, 16]],
        "Input type": ["float", "float", "Scalar", "float"],
    }
    rows = {
        "Input Dims": [[1460, 16], [], [8], [8, 16], []],
        "Input type": ["float", "Scalar", "long int", "float", "Scalar"],
    }

    def brought(*sizes: int) -> dict[str, Any]:
        return {"Input Dims": [list(sizes), *[[]] * 4], "Input type": ["float", *["Scalar"] * 3, ""]}

    calls = [
        ("aten::add_", 0, 90, {key: each[:3] for key, each in dense.items()}),
        ("aten::add", 5, 80, dense),
        ("aten::to", 10, 2, brought(1460, 16)),
        ("aten::_values", 20, 2, {"Input Dims": [[1460, 16]], "Input type": ["float"]}),
        ("aten::to", 30, 2, brought(8, 16)),
        ("aten::index_add_", 40, 20, rows),
    ]
    for inner, expected in (
        (calls, ("aten::index_add_", 128, 64 + 512 + 512, 512)),
        (calls[:-1], ("aten::add", 128, 512 + 64 + 512, 512)),
    ):
        events = [
            {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "args": args}
            for name, ts, dur, args in inner
        ]
        for event in events:
            event["args"]["Concrete Inputs"] = [""] * len(event["args"]["Input Dims"])
        path = tmp_path / "t.json"
        path.write_text(json.dumps({"traceEvents": events}))
        assert works(tracekit.read(path)) == Counter({expected: 1})


def test_quantised_products_have_the_sizes_of_their_results(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = torch.nn.Sequential(torch.nn.Linear(256, 512))
        dynamic = torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear}, dtype=torch.qint8)
    rows = torch.randn(4, 16, 256)
    small = torch.quantize_per_tensor(rows, 0.1, 10, torch.quint8)
    packed = dynamic[0]._packed_params._packed_params

    def run() -> None:
        dynamic(rows)
        other = torch.ops.quantized.linear(small, packed, 0.2, 5)
        torch.ops.quantized.add(other, other, 0.2, 5).dequantize()
        torch.quantize_per_tensor(rows, 0.1, 10, torch.quint8)

    count, made = rows.numel(), 64 * 512
    assert works(recorded(run, tmp_path)) == Counter(
        {
            ("quantized::linear_dynamic", 2 * count * 512, 4 * count + 256 * 512, 4 * made): 1,
            ("quantized::linear", 2 * count * 512, count + 256 * 512, made): 1,
            ("quantized::add", 8 * made, 2 * made, made): 1,
            ("aten::dequantize", 2 * made, made, 4 * made): 1,
            ("aten::quantize_per_tensor", 3 * count, 4 * count, count): 1,
        }
    )


def test_calls_of_another_form_of_themselves_are_overhead(tmp_path: Path) -> None:
    def run() -> None:
        DENSE.add_(GRADIENT, alpha=0.1)
        torch.arange(1000)
        torch._foreach_mul_(LISTS, 2.0)

    missing = coverage(recorded(run, tmp_path)).unmodelled
    reasons = dict(missing[["name", "reason"]].rows())
    assert {reasons[name] for name in ("aten::add_", "aten::arange", "aten::_foreach_mul_")} == {CALLS_OTHERS}
