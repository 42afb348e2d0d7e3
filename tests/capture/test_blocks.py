"""Which modules are a model's repeated blocks."""

import pytest
import torch
from torch import nn

from tracekit.capture.blocks import checkpoint_blocks, compile_blocks, repeated_blocks
from tracekit.capture.workloads.cnn import ResidualNet


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def names(model: nn.Module) -> list[str]:
    inside = {module: name for name, module in model.named_modules()}
    found = repeated_blocks(model)
    assert all(getattr(parent, name, None) is block for parent, name, block in found)
    return [inside[block] for _, _, block in found]


def test_blocks_of_a_list_and_of_nested_sequences() -> None:
    assert names(nn.ModuleDict({"a": nn.ModuleList([Block(), Block()])})) == ["a.0", "a.1"]
    stages = [f"stages.{stage}.{block}" for stage in range(3) for block in range(2)]
    assert names(ResidualNet()) == stages


def test_plain_layers_single_blocks_and_named_attributes_are_none() -> None:
    assert names(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []
    assert names(nn.Sequential(Block(), nn.Linear(2, 2))) == []
    assert names(nn.ModuleDict({"one": Block(), "two": Block()})) == []
    assert names(nn.Linear(2, 2)) == []


def test_the_outermost_are_taken() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])

    assert names(nn.ModuleList([Outer(), Outer()])) == ["0", "1"]


def test_a_block_that_stands_twice_is_found_at_least_once_and_runs() -> None:
    shared = Block()
    model = nn.Sequential(shared, shared, Block())
    count = checkpoint_blocks(model)
    assert count == len(set(names(model))) == 2
    model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert next(shared.parameters()).grad is not None


@pytest.mark.slow
def test_how_many_blocks_were_changed() -> None:
    model = nn.Sequential(Block(), Block(), Block())
    assert compile_blocks(nn.Linear(2, 2)) == 0
    assert checkpoint_blocks(model) == 3
    assert compile_blocks(model) == 3
    assert all("_orig_mod" in block._modules for block in model)
