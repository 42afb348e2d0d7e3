"""A model on several ranks: replicated (DDP) or sharded (FSDP2)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tracekit.capture.blocks import repeated_blocks
from tracekit.manifest import Settings

__all__ = ["distributed"]


def distributed(model: nn.Module, settings: Settings, device: torch.device) -> nn.Module:
    """The model as it runs on this rank. The process group must exist."""
    if settings.parallel == "fsdp":
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - 0.3 s that DDP does not need

        for _, _, block in repeated_blocks(model):
            fully_shard(block)
        fully_shard(model)
        return model
    places = [device.index] if device.type == "cuda" else None
    # A model may leave parameters out of a step, as detectors and experts do.
    return DistributedDataParallel(model, device_ids=places, find_unused_parameters=True)
