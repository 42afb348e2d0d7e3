"""The repeated blocks of a model, checkpointed, compiled or sharded one by one; and the model on several ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

__all__ = ["checkpoint_blocks", "compile_blocks", "repeated_blocks", "replicate", "shard"]


def repeated_blocks(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Each (parent, name in it, block): the outermost modules of a list or sequence with at least two of one type.

    Blocks have submodules: a row of plain layers is not a row of blocks.

    >>> layer = nn.TransformerEncoderLayer(8, 2)
    >>> [name for _, name, _ in repeated_blocks(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))]
    ['0', '1', '2']
    """
    return list(_repeated(model))


def _repeated(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    children = list(module.named_children())
    types = Counter(type(child) for _, child in children if any(True for _ in child.children()))
    in_a_row = isinstance(module, nn.ModuleList | nn.Sequential)
    for name, child in children:
        if in_a_row and types[type(child)] > 1 and not isinstance(child, nn.Sequential | nn.ModuleList):
            yield module, name, child
        else:
            yield from _repeated(child)


def checkpoint_blocks(model: nn.Module) -> int:
    """Let every block drop its activations and compute them again in backward; returns the number of blocks."""
    blocks = repeated_blocks(model)
    for _, _, block in blocks:
        inner: Callable[..., object] = block.forward
        block.forward = partial(checkpoint, inner, use_reentrant=False)
    return len(blocks)


def compile_blocks(model: nn.Module) -> int:
    """Replace every block by its compiled form; returns the number of blocks.

    Hooks inside a compiled module would break its graph at every layer, so the block is the innermost layer.
    """
    blocks = repeated_blocks(model)
    for parent, name, block in blocks:
        compiled: Any = torch.compile(block)
        parent.register_module(name, compiled)
    return len(blocks)


def shard(model: nn.Module) -> None:
    """Shard the parameters over the ranks of the process group (FSDP2), block by block, in place."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - 0.3 s that DDP does not need

    for _, _, block in repeated_blocks(model):
        fully_shard(block)
    fully_shard(model)


def replicate(model: nn.Module, device: torch.device) -> nn.Module:
    """The model in a wrapper that averages gradients over the ranks of the process group (DDP), after a backward pass that has set gradients.

    Detectors, experts and poolers have parameters without a gradient. Only then is the wrapper told to look for them, because
    the search walks through the graph in every step.
    """
    missing = any(p.requires_grad and p.grad is None for p in model.parameters())
    anywhere = torch.tensor(int(missing), device=device)
    dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
    places = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=places, find_unused_parameters=bool(anywhere.item()))
