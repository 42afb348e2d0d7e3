"""FLOPs by the formulas against torch's own counter, and against values computed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import tracekit
from tracekit.analyses.attribution.host_stack import host_stack
from tracekit.analyses.flops import (
    attended_pairs,
    attention_flops,
    convolution_flops,
    counted_operators,
    json_list,
    matmul_flops,
    operator_work,
    product_sizes,
)
from tracekit.analyses.flops.work import DTYPES, models, read_inputs, work_of
from tracekit.spans import kept_nesting, nest


def recorded_host(work: Callable[[], Any], folder) -> pl.DataFrame:
    """The host's spans of some work."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        work()
    path = folder / "trace.json"
    prof.export_chrome_trace(str(path))
    return tracekit.read(path).host


def matrix_flops(host: pl.DataFrame) -> int:
    """The FLOPs of products, of those that count."""
    counted = counted_operators(host, kept_nesting(host))
    return int(counted.flops[(counted.flops >= 0) & counted.matrix].sum())


def recorded(work: Callable[[], Any], folder) -> int:
    """The FLOPs of products that the trace of some work tells."""
    return matrix_flops(recorded_host(work, folder))


def by_torch(work: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_complex_products_are_four_times_what_torch_counts(tmp_path) -> None:
    """It counts 2 · m · n · k of any type; peaks are those of real numbers."""
    one, other = torch.randn(6, 7, dtype=torch.complex64), torch.randn(7, 8, dtype=torch.complex64)
    assert recorded(lambda: one @ other, tmp_path) == 4 * by_torch(lambda: one @ other)


def convolved(
    dimensions: int, *, backward: bool, groups: int = 1, transposed: bool = False
) -> Callable[[], Any]:
    torch.manual_seed(0)
    inputs = torch.randn(2, 4, *[9] * dimensions, requires_grad=True)
    kernel = (4, 6 // groups) if transposed else (6, 4 // groups)
    weight = torch.randn(*kernel, *[3] * dimensions, requires_grad=True)
    plain = [functional.conv1d, functional.conv2d, functional.conv3d]
    back = [functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d]
    call = (back if transposed else plain)[dimensions - 1]

    def work() -> None:
        result = call(inputs, weight, stride=2, padding=1, groups=groups)
        if backward:
            result.sum().backward()

    return work


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_convolutions_count_as_torch_counts_them(
    dimensions: int, backward: bool, transposed: bool, tmp_path
) -> None:
    work = convolved(dimensions, backward=backward, transposed=transposed)
    assert recorded(work, tmp_path) == by_torch(work) > 0


@pytest.mark.slow
def test_grouped_convolutions_meet_only_the_channels_of_their_group(tmp_path) -> None:
    work = convolved(2, backward=True, groups=2)
    forward = 2 * (2 * 6 * 5 * 5) * (4 // 2) * (3 * 3)
    assert recorded(work, tmp_path) == 3 * forward


def test_products_count_as_torch_counts_them(tmp_path) -> None:
    one, two = torch.randn(3, 5, requires_grad=True), torch.randn(5, 7, requires_grad=True)
    many = torch.randn(4, 6, 3, requires_grad=True)

    def work() -> None:
        (many @ one @ two).sum().backward()
        torch.baddbmm(torch.zeros(()), many.detach(), many.detach().transpose(1, 2))

    added = 4 * 6 * 6  # torch's counter leaves out what baddbmm adds
    assert recorded(work, tmp_path) == by_torch(work) + added


def test_a_bias_adds_one_operation_for_each_element_of_the_output(tmp_path) -> None:
    linear, convolution = torch.nn.Linear(5, 7), torch.nn.Conv2d(3, 4, 3)
    rows, images = torch.randn(2, 5), torch.randn(2, 3, 8, 8)

    def work() -> None:
        linear(rows)
        convolution(images)

    with torch.no_grad():
        assert recorded(work, tmp_path) == by_torch(work) + 2 * 7 + 2 * 4 * 6 * 6


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_layers_count_as_their_products(kind: Any, directions: int, tmp_path) -> None:
    """Torch counts a layer that is made of linear ones, as one of 64 bits is; a fused one it does not know."""
    model = kind(4, 6, num_layers=2, bidirectional=directions == 2, bias=False)
    wide = deepcopy(model).double()

    def step(layer: Any, dtype: torch.dtype) -> None:
        sequence = torch.randn(5, 3, 4, dtype=dtype, requires_grad=True)
        # A fused layer makes the gradient of the first state in any case.
        state = torch.randn(2 * directions, 3, 6, dtype=dtype, requires_grad=True)
        layer(sequence, state if kind is torch.nn.GRU else (state, state))[0].sum().backward()

    products = by_torch(lambda: step(wide, torch.float64))
    host = recorded_host(lambda: step(model, torch.float32), tmp_path)
    assert matrix_flops(host) == products > 0
    fused = host["name"].cast(pl.String).str.contains("mkldnn_rnn_layer").any()
    assert fused == (kind is torch.nn.LSTM)


@pytest.mark.parametrize("bias", [False, True])
def test_a_fused_layer_reads_its_weights_once(bias: bool) -> None:
    """Without biases the profiler sees the weights in their places."""
    shapes = [[5, 3, 4], [24, 4], [24, 6], *([[24], [24]] if bias else [[24, 4], [24, 6]]), [3, 6], [3, 6]]
    scalars = ["", "", "", "", "", "", "", "False", "[]", "2", "6", "1", str(bias), "False", "False", "True"]
    work = operator_work("aten::mkldnn_rnn_layer", shapes + [[]] * 9, ["float"] * 7 + ["Scalar"] * 9, scalars)
    assert work is not None
    assert work.flops == 2 * 15 * (24 * 4 + 24 * 6)
    assert work.read == 4 * (60 + 24 * 4 + 24 * 6 + (48 if bias else 0) + 2 * 18)
    assert work.written == 4 * (15 * 6 + 2 * 18)


@pytest.mark.parametrize(
    ("one", "other", "ends"),
    [
        ((8, 16), (2, 16, 24), [3, 8]),
        ((2, 8, 16), (16, 32), [16, 32]),
        ((8, 32), (32, 24), [16, 32]),
        ((2, 8, 16), (2, 16, 24), None),
    ],
)
def test_grouped_products_count_as_the_products_in_them(one: Any, other: Any, ends: Any, tmp_path) -> None:
    """On processors `_grouped_mm` calls a product for each group."""
    factors = [torch.randn(shape).bfloat16() for shape in (one, other)]
    offsets = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    host = recorded_host(lambda: torch._grouped_mm(*factors, offs=offsets), tmp_path)
    inside = host.filter(pl.col("name").cast(pl.String).is_in(["aten::mm", "aten::bmm"]))
    products = [
        operator_work(*row, [], [])
        for row in zip(inside["name"], map(json_list, inside["shapes"]), strict=True)
    ]
    assert matrix_flops(host) == sum(work.flops or 0 for work in products if work is not None) > 0


def test_gradients_of_older_torch_take_the_shapes_of_the_call_around_them() -> None:
    """In 2021 `cudnn_convolution_backward` called an operator for each gradient, and the mask was not recorded."""
    image, weight, gradient = [2, 4, 9, 9], [6, 2, 3, 3], [2, 6, 5, 5]
    outer = "aten::cudnn_convolution_backward"
    calls = [
        (outer, [image, gradient, weight]),
        (f"{outer}_input", [[], gradient, weight]),
        (f"{outer}_weight", [[], gradient, image]),
        (f"{outer}_weight", [[], gradient, image]),
    ]
    shapes = [json.dumps(sizes + [[]] * 8) for _, sizes in calls]
    host = pl.DataFrame(
        {"span_id": range(4), "name": [name for name, _ in calls], "shapes": shapes}
        | {"dtypes": json.dumps(["float"] * 3), "concrete_inputs": None, "strides": None},
        schema_overrides={"concrete_inputs": pl.String, "strides": pl.String},
    )
    counted = counted_operators(host, nest([0] * 4, [0, 1, 5, 20], [10, 4, 9, 30]))  # the last lies alone
    plain = 2 * (2 * 6 * 5 * 5) * 2 * 3 * 3
    assert counted.flops.tolist() == [-1, plain, plain, -1]
    assert counted.written.tolist() == [-1, 4 * 2 * 4 * 81, 4 * 6 * 2 * 9, -1]


def test_convolutions_of_older_torch_take_the_shapes_of_their_backward() -> None:
    """Traces of 2021 have no stride; the backward node has the sequence number of the call, and the gradient is as large as the output."""
    image, weight, gradient = [2, 4, 9, 9], [6, 2, 3, 3], [2, 6, 5, 5]
    rows = [
        ("aten::cudnn_convolution", 7, [image, weight]),
        ("aten::cudnn_convolution", 8, [image, weight]),  # nothing went back through it
        ("CudnnConvolutionBackward", 7, [gradient]),
        ("aten::cudnn_convolution_backward", None, [image, gradient, weight]),
    ]
    host = pl.DataFrame(
        {
            "span_id": range(4),
            "name": [name for name, _, _ in rows],
            "sequence": [number for _, number, _ in rows],
            "shapes": [json.dumps(sizes + [[]] * 6) for _, _, sizes in rows],
            "dtypes": json.dumps(["float"] * 3),
            "concrete_inputs": None,
            "strides": None,
        },
        schema_overrides={"concrete_inputs": pl.String, "strides": pl.String},
    )
    counted = counted_operators(host, nest([0] * 4, [0, 5, 20, 21], [4, 9, 30, 29]))
    assert counted.flops.tolist() == [2 * (2 * 6 * 5 * 5) * 2 * 3 * 3, -1, -1, -1]
    assert counted.read[0] == 4 * (2 * 4 * 81 + 6 * 2 * 9)
    assert counted.written[0] == 4 * 2 * 6 * 25


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_fused_attention(causal: bool, backward: bool, tmp_path) -> None:
    query, key = torch.randn(2, 3, 5, 8, requires_grad=True), torch.randn(2, 3, 5, 8, requires_grad=True)

    def work() -> None:
        mixed = functional.scaled_dot_product_attention(query, key, key, is_causal=causal)
        if backward:
            mixed.sum().backward()

    pairs = sum(1 for i in range(5) for j in range(5) if j <= i or not causal)
    forward = 2 * 2 * 3 * pairs * (8 + 8)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert recorded(work, tmp_path) == forward * (7 if backward else 2) // 2


def test_attention_by_hand() -> None:
    assert attention_flops((2, 8, 10, 64), (2, 2, 7, 64), (2, 2, 7, 32)) == 2 * 2 * 8 * 10 * 7 * (64 + 32)
    for asked, seen in ((4, 4), (3, 6), (6, 3), (1, 5)):
        pairs = attended_pairs(asked, seen, last=0)
        assert pairs == sum(1 for i in range(asked) for j in range(seen) if j <= i)
        shapes = (1, 1, asked, 2), (1, 1, seen, 2), (1, 1, seen, 2)
        assert attention_flops(*shapes, pairs=pairs) == 2 * pairs * 4
        assert attention_flops(*shapes, pairs=pairs, backward=True) == 5 * pairs * 4


@given(*[st.integers(0, 9)] * 2, *[st.one_of(st.none(), st.integers(-12, 12))] * 2)
def test_pairs_are_those_between_the_limits(
    asked: int, seen: int, first: int | None, last: int | None
) -> None:
    pairs = sum(
        (first is None or j - i >= first) and (last is None or j - i <= last)
        for i in range(asked)
        for j in range(seen)
    )
    assert attended_pairs(asked, seen, first=first, last=last) == pairs


def test_products_and_convolutions_by_hand() -> None:
    assert matmul_flops(3, 5, 7, batch=2, bias=True) == 2 * (2 * 3 * 5 * 7 + 3 * 7)
    shapes = (2, 4, 10, 12), (6, 2, 3, 1)
    how = {"stride": (2, 3), "padding": (1, 0), "dilation": (2, 1), "groups": 2}
    rows, columns = (10 + 2 - 2 * 2 - 1) // 2 + 1, (12 - 1) // 3 + 1
    plain = 2 * (2 * 6 * rows * columns) * 2 * 3
    assert convolution_flops(*shapes, **how) == plain
    assert convolution_flops(*shapes, **how, bias=True) == plain + 2 * 6 * rows * columns
    back = (1, 4, 5), (4, 3, 3)
    size = (5 - 1) * 2 - 2 + 2 + 1 + 1
    assert (
        convolution_flops(
            *back, stride=(2,), padding=(1,), output_padding=(1,), transposed=True, groups=2, bias=True
        )
        == 2 * 4 * 5 * 3 * 3 + 3 * 2 * size
    )


@pytest.mark.parametrize(
    ("name", "shapes", "concrete"),
    [
        ("aten::mm", [[2, 3], [4, 5]], []),
        ("aten::mm", [[2, 3]], []),
        ("aten::mm", [[2, -3], [-3, 5]], []),
        ("aten::mm", [["a", "b"], [[], {}]], []),
        ("aten::mm", [[2**40, 2**40], [2**40, 2**40]], []),
        ("aten::mm", None, []),
        ("aten::mm", "mm", []),
        ("aten::mm", [[2, True], [True, 2]], []),
        ("mylib::add", [[2, 3], [2, 3]], []),
        ("aten::convolution", [[1, 3, 8, 8], [16, 3, 3, 3]], []),
        (
            "aten::convolution",
            [[1, 3, 8, 8], [16, 3, 3, 3], []],
            ["", "", "", *["[0]"] * 3, "False", "[0]", "1"],
        ),
        (
            "aten::convolution",
            [[1, 3, 2, 2], [16, 3, 9, 9], []],
            ["", "", "", "[1]", "[0]", "[1]", "False", "[0]", "1"],
        ),
        (
            "aten::convolution",
            [[1, 3, 8, 8], [16, 3, 3, 3], []],
            ["", "", "", "[1]", "[1,1,1]", "[1]", "False", "[0]", "1"],
        ),
        (
            "aten::convolution",
            [[1, 3, 8, 8], [16, 3, 3, 3], []],
            ["", "", "", "[1", "x", "[1]", "no", "[0]", "1"],
        ),
        (
            "aten::convolution",
            [[1, 3, 8, 8], [16, 3, 3, 3], []],
            ["", "", "", "[" * 100_000, "[1]", "[1]", "False", "[0]", "1"],
        ),
        (
            "aten::convolution",
            [[1, 3, 8, 8], [16, 3, 3, 3], []],
            ["", "", "", "[1]", "[1]", "[1]", "False", "[0]", float("inf")],
        ),
        (
            "aten::convolution_backward",
            [[1, 16, 8, 8], [1, 3, 8, 8], [16, 3, 3, 3]],
            ["", "", "", "", "[1]", "[1]", "[1]", "False", "[0]", "1", 5],
        ),
        (
            "aten::convolution",
            [[1] * 65, [1] * 65, []],
            ["", "", "", "[1]", "[0]", "[1]", "False", "[0]", "1"],
        ),
        ("aten::_scaled_dot_product_flash_attention", [[1, 2, 3, 4]] * 3, ["", "", "", "0."]),
        ("aten::_scaled_dot_product_flash_attention", [[1, 2, 3]] * 3, ["", "", "", "0.", "True"]),
    ],
)
def test_damaged_or_missing_inputs_are_not_counted(name: str, shapes: Any, concrete: Any) -> None:
    assert operator_work(name, shapes, [], concrete) is None


SIZES = st.lists(st.integers(0, 9) | st.integers(2**40, 2**63) | st.just(True), max_size=6)
SCALARS = st.sampled_from(
    ["", "0", "1", "-1", "15", "1e999", "nan", "True", "[1, 2]", "[]", "[0]", "[True, False, True]", "x"]
)


@pytest.mark.slow
@given(
    st.sampled_from(sorted(models())),
    st.lists(SIZES | st.lists(SIZES, max_size=4) | st.just("x"), max_size=18),
    st.lists(st.sampled_from([*DTYPES, "", "Scalar", "TensorList"]), max_size=18),
    st.lists(SCALARS, max_size=27),
    st.lists(st.lists(st.sampled_from([0, 1, -1, None, "0", []]), max_size=4) | st.just(0), max_size=18),
)
@settings(max_examples=400, deadline=None)
def test_whatever_the_inputs_are_a_model_does_not_fail(
    name: str, shapes: list[Any], dtypes: list[str], scalars: list[str], strides: list[Any]
) -> None:
    """And it tells the same of the texts of a trace; where elements repeat, no more is read."""
    work = operator_work(name, shapes, dtypes, scalars)
    texts = read_inputs(*map(json.dumps, (shapes, dtypes, scalars)))
    assert work_of(models()[name], texts) == work
    repeated = work_of(models()[name], read_inputs(*map(json.dumps, (shapes, dtypes, scalars, strides))))
    if work is not None and repeated is not None:
        assert (repeated.flops, repeated.written) == (work.flops, work.written)
        assert work.read == repeated.read or (repeated.read or 0) < (work.read or 0)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000])
def test_lists_without_end_are_no_shapes(text: str) -> None:
    columns = dict.fromkeys(("name", "shapes", "dtypes", "concrete_inputs", "strides"), pl.String)
    host = pl.DataFrame([(0, "aten::mm", *[text] * 4)], schema={"span_id": pl.Int64, **columns}, orient="row")
    assert counted_operators(host, nest([0], [0], [1])).flops.tolist() == [-1]


def test_only_the_outermost_operator_counts(tmp_path) -> None:
    """`aten::convolution` and the `aten::_convolution` in it both bear the shapes."""
    images, weight = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        functional.conv2d(images, weight)
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(str(path))
    trace = tracekit.read(path)
    counted = counted_operators(trace.host, host_stack(trace).nesting)
    names = trace.host["name"].cast(pl.String)
    spans = np.flatnonzero(counted.flops >= 0)
    assert [names[int(span)] for span in spans] == ["aten::convolution"]
    inside = names.str.contains("_convolution|conv2d_forward").to_numpy()
    assert inside.any()
    assert set(counted.owner[inside]) == set(spans)
    assert counted.names[counted.precision[spans[0]]] == "fp32"


@pytest.mark.parametrize(
    ("name", "shapes", "sizes"),
    [
        ("aten::mm", [[2, 3], [3, 4]], (1, 2, 3, 4)),
        ("aten::baddbmm", [[1], [5, 2, 3], [5, 3, 4]], (5, 2, 3, 4)),
        ("aten::mm", [[2, 3], [4, 4]], None),
        ("aten::bmm", [[5, 2, 3], [6, 3, 4]], None),
        ("aten::mm", [[2, 3]], None),
        ("aten::mm", [[2, "3"], [3, 4]], None),
        ("aten::mm", [[2, 3], [3, 4, 5]], None),
        ("aten::add", [[2, 3], [3, 4]], None),
    ],
)
def test_sizes_of_products(name: str, shapes: Any, sizes: tuple[int, ...] | None) -> None:
    assert product_sizes(name, shapes) == sizes


def test_files_of_other_tools_name_types_as_torch_does_and_write_tuples() -> None:
    shapes = "[[4, 512, 8, 8], [512, 256, 4, 4], [], [], [], [], [], [], []]"
    as_profiled, as_written = (
        read_inputs(shapes, json.dumps([kind, kind]), json.dumps(["", "", "", *scalars]))
        for kind, scalars in (
            ("c10::Half", ["[2, 2]", "[1, 1]", "[1, 1]", "True", "[0, 0]", "1"]),
            ("Half", ["(2, 2)", "(1,1)", "(1,1)", "True", "(0,0)", "1"]),
        )
    )
    convolution = models()["aten::convolution"]
    work = work_of(convolution, as_profiled)
    assert work is not None
    assert (work.flops, work.precision) == (2 * 4 * 512 * 8 * 8 * 256 * 4 * 4, "fp16")
    assert work_of(convolution, as_written) == work
