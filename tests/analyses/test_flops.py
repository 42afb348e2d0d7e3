"""FLOPs by the formulas against torch's own counter, and against values computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import tracekit
from tracekit.analyses.attribution.host_stack import host_stack
from tracekit.analyses.flops import (
    attention_flops,
    convolution_backward_flops,
    convolution_flops,
    counted_operators,
    matmul_flops,
    operator_work,
    product_sizes,
)
from tracekit.spans import nest


def recorded(work: Callable[[], Any], folder) -> int:
    """The FLOPs that the trace of some work tells."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        work()
    path = folder / "trace.json"
    prof.export_chrome_trace(str(path))
    trace = tracekit.read(path)
    counted = counted_operators(trace.host, host_stack(trace).nesting)
    return int(counted.flops[counted.flops >= 0].sum())


def by_torch(work: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


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
        pairs = sum(1 for i in range(asked) for j in range(seen) if j <= i)
        shapes = (1, 1, asked, 2), (1, 1, seen, 2), (1, 1, seen, 2)
        assert attention_flops(*shapes, causal=True) == 2 * pairs * 4
        assert attention_flops(*shapes, causal=True, backward=True) == 5 * pairs * 4


def test_products_and_convolutions_by_hand() -> None:
    assert matmul_flops(3, 5, 7, batch=2, bias=True) == 2 * (2 * 3 * 5 * 7 + 3 * 7)
    shapes = (2, 4, 10, 12), (6, 2, 3, 1)
    how = {"stride": (2, 3), "padding": (1, 0), "dilation": (2, 1), "groups": 2}
    rows, columns = (10 + 2 - 2 * 2 - 1) // 2 + 1, (12 - 1) // 3 + 1
    plain = 2 * (2 * 6 * rows * columns) * 2 * 3
    assert convolution_flops(*shapes, **how) == plain
    assert convolution_flops(*shapes, **how, bias=True) == plain + 2 * 6 * rows * columns
    assert convolution_backward_flops(*shapes, wanted=(True, False, True), **how) == plain
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
        ("aten::add", [[2, 3], [2, 3]], []),
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


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000])
def test_lists_without_end_are_no_shapes(text: str) -> None:
    columns = dict.fromkeys(("name", "shapes", "dtypes", "concrete_inputs"), pl.String)
    host = pl.DataFrame(
        [(0, "aten::mm", text, text, text)], schema={"span_id": pl.Int64, **columns}, orient="row"
    )
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
