"""Records of operators that compute nothing, and operators that compute a tangent, too: products as torch's own counter has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from counted_profiles import of, products, profiled
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)
from torch.utils.flop_counter import FlopCounterMode

from tracekit.analyses.flops import coverage
from tracekit.analyses.flops.coverage import CALLS_OTHERS

# -- checkpoints --------------------------------------------------------------------------------------

ROWS, SEQUENCES, IMAGES = torch.randn(8, 32), torch.randn(2, 5, 32), torch.randn(2, 4, 9, 9)


def _linear(width: int = 32) -> nn.Module:
    return nn.Linear(width, width, bias=False)


def _attention(rows: torch.Tensor) -> torch.Tensor:
    """Ends in a product of a batch, with factors that lie in memory as no product takes them."""
    heads = rows.unflatten(-1, (4, 8)).transpose(1, 2)
    return (heads @ heads.transpose(-2, -1)).softmax(-1) @ heads


class _Frozen(nn.Module):
    """A weight that is not trained is saved as it is: the last record of the recomputation holds nothing at all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = _linear(), _linear()
        self.last.weight.requires_grad_(False)  # type: ignore[union-attr]

    def forward(self, rows: torch.Tensor) -> Any:
        return self.last(self.first(rows).tanh())


BLOCKS: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "two layers": (nn.Sequential(_linear(), nn.GELU(), _linear()), ROWS),
    "sequences": (nn.Sequential(_linear(), nn.SiLU(), _linear()), SEQUENCES),
    "convolutions": (
        nn.Sequential(nn.Conv2d(4, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 4, 3, bias=False)),
        IMAGES,
    ),
    "an attention of products": (_attention, SEQUENCES),
    "an output that is saved": (nn.Sequential(_linear(), nn.Tanh(), _linear(), nn.Tanh()), ROWS),
    "a frozen weight": (_Frozen(), ROWS),
}


def _trained(block: Callable[..., Any], rows: torch.Tensor, **how: Any) -> Callable[[], None]:
    def run() -> None:
        kept = rows.clone().requires_grad_()
        for _ in range(3):
            kept = kept + checkpoint(block, kept, use_reentrant=False, **how).sum()
        kept.pow(2).mean().backward()

    return run


def _truth(run: Callable[[], object]) -> int:
    run()
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", BLOCKS)
def test_the_operator_in_which_a_recomputation_stops_does_not_count(name: str, tmp_path: Path) -> None:
    """torch records it, but leaves it before it computes: 16 of 12 products were counted."""
    run = _trained(*BLOCKS[name])
    assert products(profiled(run, tmp_path / "trace.json")[1]) == _truth(run)


def test_a_recomputation_that_runs_to_its_end_counts_whole(tmp_path: Path) -> None:
    def whole() -> None:
        with set_checkpoint_early_stop(False):
            _trained(*BLOCKS["two layers"])()

    work = profiled(whole, tmp_path / "trace.json")[1]
    assert products(work) == _truth(whole) == 2 * 8 * 32 * 32 * 3 * (2 + 2 + 4)


def test_checkpoints_in_a_checkpoint_stop_more_than_once(tmp_path: Path) -> None:
    inner, rows = BLOCKS["two layers"]

    def outer(rows: torch.Tensor) -> Any:
        return inner(checkpoint(inner, inner(rows), use_reentrant=False))

    run = _trained(outer, rows)
    assert products(profiled(run, tmp_path / "trace.json")[1]) == _truth(run)


def test_gradients_of_gradients_are_no_recomputation(tmp_path: Path) -> None:
    """Their products stand in nodes of the backward pass and have numbers, too."""
    weight = torch.randn(4, 8, 8, requires_grad=True)

    def run() -> None:
        kept = torch.randn(4, 8, 8).transpose(1, 2).requires_grad_()
        out = torch.bmm(torch.bmm(kept, weight).tanh(), weight)
        (first,) = torch.autograd.grad(out.sum(), kept, create_graph=True)
        first.pow(2).sum().backward()

    assert products(profiled(run, tmp_path / "trace.json")[1]) == _truth(run)


@pytest.mark.parametrize("saved", [["addmm"], ["mm"], ["mm", "addmm"], ["convolution"]])
def test_products_that_selective_checkpointing_has_stored_do_not_count_again(
    saved: list[str], tmp_path: Path
) -> None:
    """Their records hold a mode that returns the stored result."""
    kept = [getattr(torch.ops.aten, name).default for name in saved]
    block, rows = BLOCKS["convolutions" if saved == ["convolution"] else "two layers"]
    run = _trained(block, rows, context_fn=partial(create_selective_checkpoint_contexts, kept))
    assert products(profiled(run, tmp_path / "trace.json")[1]) == _truth(run)


def test_the_time_of_records_that_compute_nothing_is_no_unknown_work(tmp_path: Path) -> None:
    """It was the largest unknown: a product whose inputs did not tell."""
    kept = [torch.ops.aten.mm.default]
    block, rows = BLOCKS["two layers"]
    for how in ({}, {"context_fn": partial(create_selective_checkpoint_contexts, kept)}):
        trace, work = profiled(_trained(block, rows, **how), tmp_path / "trace.json")
        assert work.without_work.any()
        unknown = coverage(trace).unmodelled.filter(name="aten::mm")
        assert set(unknown["reason"]) == {CALLS_OTHERS}


# -- tensors without data ------------------------------------------------------------------------------


def test_products_of_tensors_without_data_do_not_count(tmp_path: Path) -> None:
    """Their sizes were taken for work."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def step() -> None:
        layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        layers(torch.empty(16, 64)).sum().backward()
        functional.conv2d(torch.empty(2, 4, 9, 9), torch.empty(8, 4, 3, 3))
        torch.baddbmm(torch.empty(2, 3, 5), torch.empty(2, 3, 4), torch.empty(2, 4, 5)).mul(2)

    def on_meta() -> None:
        with torch.device("meta"):
            step()

    def faked() -> None:
        with FakeTensorMode():
            step()

    for run in (on_meta, faked):
        run()
        assert products(profiled(run, tmp_path / "trace.json")[1]) == 0
    assert products(profiled(step, tmp_path / "trace.json")[1]) > 5 * 2 * 16 * 64 * 128


# -- forward mode ---------------------------------------------------------------------------------------


def _with_tangents(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> Callable[[], None]:
    """The function of tensors of which each has a tangent."""

    def run() -> None:
        with forward_ad.dual_level():
            function(*(forward_ad.make_dual(each, torch.ones_like(each)) for each in tensors))

    return run


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (torch.mm, (ROWS, torch.randn(32, 4))),
        (functional.linear, (ROWS, torch.randn(4, 32))),
        (lambda rows: functional.linear(rows, torch.ones(4, 32)), (SEQUENCES,)),
        (functional.conv2d, (IMAGES, torch.randn(8, 4, 3, 3))),
        (_attention, (SEQUENCES,)),
    ],
)
def test_the_products_of_a_tangent_count_beside_that_of_the_result(
    function: Callable[..., torch.Tensor], tensors: tuple[torch.Tensor, ...], tmp_path: Path
) -> None:
    """They stand inside the record of the operator, so two of three products were not counted."""
    plain = _truth(lambda: function(*tensors))
    run = _with_tangents(function, *tensors)
    found = products(profiled(run, tmp_path / "trace.json")[1])
    assert found == _truth(run)
    assert found > 1.5 * plain


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("grad", [True, False])
def test_the_rest_of_a_tangent_counts_beside_the_result(grad: bool, tmp_path: Path) -> None:
    """A sum and a product of numbers whose formulas need different things; without gradients calls have no numbers."""
    rows = torch.randn(6, 16)
    other = torch.randn(6, 16)

    def run() -> None:
        with torch.set_grad_enabled(grad):
            _with_tangents(lambda one, two: one * two, rows, other)()

    ran = profiled(run, tmp_path / "trace.json")
    assert of(ran, "aten::mul") == [(96, 768, 384)] * 3
    assert of(ran, "aten::add") == [(96, 768, 384)]
    sums = profiled(_with_tangents(torch.add, rows, other), tmp_path / "trace.json")
    assert of(sums, "aten::add") == [(96, 768, 384)] * 2
