"""A model on several ranks: replicated (DDP) or sharded (FSDP2). The process group must exist."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tracekit.capture.ranks.blocks import repeated_blocks

__all__ = ["replicate", "shard"]


def shard(model: nn.Module) -> None:
    """Shard the parameters over the ranks, block by block, in place."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - 0.3 s that DDP does not need

    for _, _, block in repeated_blocks(model):
        fully_shard(block)
    fully_shard(model)


def replicate(model: nn.Module, device: torch.device) -> nn.Module:
    """The model in a wrapper that averages gradients, after a backward pass that has left gradients behind.

    Detectors, experts and poolers leave parameters without one, which the wrapper must be told, and only then: to look
    for them costs a walk through the graph in every step.
    """
    missing = any(p.requires_grad and p.grad is None for p in model.parameters())
    anywhere = torch.tensor(int(missing), device=device)
    dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
    places = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=places, find_unused_parameters=bool(anywhere.item()))
