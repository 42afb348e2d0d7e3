"""FLOPs of fused operators: the same as those of the products that they are made of."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from tracekit.capture.flops import _COUNTS, flop_counter
from tracekit.capture.run import run
from tracekit.manifest import CaptureOptions, Settings


def counted(work) -> int:
    with flop_counter() as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.parametrize("backward", [False, True])
def test_fused_attention_counts_as_the_plain_one(backward: bool) -> None:
    query, key = torch.randn(2, 3, 7, 8, requires_grad=True), torch.randn(2, 3, 5, 8, requires_grad=True)

    def work() -> None:
        mixed = functional.scaled_dot_product_attention(query, key, key)
        if backward:
            mixed.sum().backward()

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        fused = counted(work)
    with sdpa_kernel(SDPBackend.MATH):
        plain = counted(work)
    assert plain == (3 if backward else 1) * 2 * (2 * 3 * 7 * 5 * 8) * 2
    # The fused backward computes the scores once more, which saves to keep them.
    assert fused == plain + (2 * 2 * 3 * 7 * 5 * 8 if backward else 0)


@pytest.mark.parametrize("heads", [3, 1], ids=["a key each", "a key for three heads"])
def test_attention_counts_as_in_the_newest_torch(heads: int) -> None:
    """`llama` shares keys among heads, of which torch 2.11 raised "shapes are incompatible": it cost the end of the capture."""
    query, key, value, gradient = (2, 3, 7, 8), (2, heads, 5, 8), (2, heads, 5, 6), (2, 3, 7, 6)
    for name in ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu"):
        count = _COUNTS[f"_scaled_dot_product_{name}"]
        backward = _COUNTS[f"_scaled_dot_product_{name}_backward"]
        assert count(query, key, value) == sdpa_flop_count(query, key, value)
        assert backward(gradient, query, key, value) == sdpa_backward_flop_count(gradient, query, key, value)


def failing(*_: object, **__: object) -> int:
    raise AssertionError("shapes are incompatible")


def test_a_counter_that_fails_costs_the_flops_and_not_the_capture(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(flop_registry, torch.ops.aten.addmm, failing)
    lines: list[str] = []
    manifest = run(
        "cnn",
        tmp_path,
        settings=Settings(batch=1, size=8),
        options=CaptureOptions(steps=1),
        levels=("metrics", "M"),
        progress=lines.append,
    ).manifest
    assert (manifest.flops_per_step, manifest.stopped, len(manifest.runs)) == (None, None, 1)
    assert (
        "warning: the FLOPs of a step could not be counted: AssertionError: shapes are incompatible" in lines
    )


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_fused_lstm_counts_as_its_products(layers: int, directions: int) -> None:
    model = nn.LSTM(4, 6, num_layers=layers, bidirectional=directions == 2)
    inputs = torch.randn(5, 3, 4, requires_grad=True)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    assert counted(lambda: model(inputs)) == 2 * 5 * 3 * matrices
    assert counted(lambda: model(inputs)[0].sum().backward()) == 3 * 2 * 5 * 3 * matrices


def test_the_whole_network_in_one_call_counts_as_layer_by_layer() -> None:
    """What a GPU runs; the arguments are those of `_cudnn_rnn`, as shapes."""
    weights = [(24, 4), (24, 6), (24,), (24,), (24, 6), (24, 6), (24,), (24,)]
    model = nn.LSTM(4, 6, num_layers=2)
    layers = counted(lambda: model(torch.randn(5, 3, 4)))
    assert _COUNTS["_cudnn_rnn"]((5, 3, 4), weights, 4, None, (2, 3, 6)) == layers
    assert _COUNTS["_cudnn_rnn_backward"]((5, 3, 4), weights, 4, None, (2, 3, 6)) == 2 * layers
    assert _COUNTS["_cudnn_rnn"]((15, 4), weights, 4) == layers  # packed
