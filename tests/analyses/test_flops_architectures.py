"""FLOPs of a training step's trace against torch's own counter, operator by operator: every architecture that can be trained here.

Where torch's formula is not that of DEFINITIONS, the difference stands here: what is added, the pairs that a causal mask leaves out,
the groups of a convolution's weights, and fused attention on processors, for which torch has a formula but does not use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import polars as pl
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils import flop_counter
from torch.utils.data import default_collate

import tracekit
from tracekit.analyses.flops import counted_operators
from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, find
from tracekit.capture.workloads.hf import VARIANTS
from tracekit.spans import kept_nesting

ATEN = torch.ops.aten
Shape = Sequence[int]


def product(_added: Shape, *factors: Shape, out_shape: Shape, beta: float = 1, **__: Any) -> int:
    """Torch leaves out the sums with what is added."""
    plain = flop_counter.mm_flop if len(out_shape) == 2 else flop_counter.bmm_flop
    return plain(*factors) + (prod(out_shape) if beta else 0)


def convolution(image: Shape, weight: Shape, bias: Shape | None, *how: Any, out_shape: Shape) -> int:
    """Torch leaves out the sums with the bias."""
    plain = flop_counter.conv_flop_count(image, weight, out_shape, how[3])
    return plain + (prod(out_shape) if bias is not None else 0)


def convolution_backward(*inputs: Any, out_shape: Any) -> int:
    """Torch lets the gradient of a weight meet the channels of all groups."""
    *most, groups, wanted = inputs
    image, weight = (
        flop_counter.conv_backward_flop(*most, groups, mask, out_val=out_shape)
        for mask in ([wanted[0], False, False], [False, wanted[1], False])
    )
    return image + weight // groups


def seen(flops: int, query: Shape, key: Shape, causal: bool) -> int:
    """Torch counts all pairs."""
    pairs = sum(min(i + 1, key[2]) for i in range(query[2])) if causal else query[2] * key[2]
    return flops * pairs // (query[2] * key[2])


def attention(query: Shape, key: Shape, value: Shape, _p: float = 0, causal: bool = False, **_: Any) -> int:
    return seen(flop_counter.sdpa_flop_count(query, key, value), query, key, causal)


def attention_backward(
    gradient: Shape,
    query: Shape,
    key: Shape,
    value: Shape,
    _out: Shape,
    _sum: Shape,
    _p: float,
    causal: bool,
    **_: Any,
) -> int:
    return seen(flop_counter.sdpa_backward_flop_count(gradient, query, key, value), query, key, causal)


FORMULAS: dict[Any, Callable[..., int]] = {
    ATEN.addmm: product,
    ATEN.baddbmm: product,
    ATEN.convolution: convolution,
    ATEN.convolution_backward: convolution_backward,
    ATEN._scaled_dot_product_flash_attention_for_cpu: attention,
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
}
NO_FORMULA = {"aten::_grouped_mm", "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"}
"""Of torch's, which counts them as nothing; other tests compare them with their products."""

OURS = (
    "cnn",
    "transformer",
    "dlrm",
    "yolov5",
    "resnet50",
    "ssd300",
    "deepspeech2",
    "lstm_translation",
    "encoder",
)
OF_TRANSFORMERS = (
    "bert",
    "gpt2",
    "llama",
    "vit",
    *(f"hf:{name}" for name in VARIANTS if name != "maskformer"),
)
"""Of MaskFormer torch's counter fails."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """So small models wait longer for a second thread than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def step_of(name: str) -> Callable[[], None]:
    """One forward and backward of a tiny model, always the same."""
    factory, variant = find(name)
    small = {"batch": 2, "size": 16} if name in ("cnn", "encoder") else {}
    torch.manual_seed(0)
    recipe = factory.load()(WorkloadOptions(torch.device("cpu"), tiny=True, variant=variant, **small))
    assert isinstance(recipe, Recipe)
    batch = (recipe.collate or default_collate)([recipe.dataset[index] for index in range(recipe.batch)])

    def step() -> None:
        torch.manual_seed(1)
        recipe.loss(recipe.forward(recipe.model, batch), batch).backward()

    return step


def by_torch(step: Callable[[], None]) -> dict[str, int]:
    with flop_counter.FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        step()
    counts = counter.get_flop_counts()["Global"].items()
    return {str(operator).replace("aten.", "aten::"): flops for operator, flops in counts}


def by_trace(step: Callable[[], None], folder: Any) -> dict[str, int]:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        step()
    prof.export_chrome_trace(str(folder / "trace.json"))
    host = tracekit.read(folder / "trace.json").host
    counted = counted_operators(host, kept_nesting(host))
    products = (counted.flops >= 0) & counted.matrix
    rows = host.select(pl.col("name").cast(pl.String), pl.Series("flops", counted.flops)).filter(products)
    return {name: flops for name, flops in rows.group_by("name").sum().rows() if name not in NO_FORMULA}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", [*OURS, *OF_TRANSFORMERS])
@pytest.mark.filterwarnings("ignore")  # of the models' own code
@pytest.mark.sampled(8)
def test_a_training_step_counts_as_torch_counts_it(name: str, tmp_path: Any) -> None:
    if name in OF_TRANSFORMERS:
        pytest.importorskip("transformers")
    step = step_of(name)
    counts = by_torch(step)
    assert sum(counts.values()) > 0
    assert by_trace(step, tmp_path) == counts


def test_there_are_as_many_architectures_as_the_documentation_says() -> None:
    assert len({*OURS, *OF_TRANSFORMERS}) > 150
