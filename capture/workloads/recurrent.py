"""Sequences of unequal lengths, packed for recurrent layers."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

__all__ = ["pack", "with_data"]


def pack(features: torch.Tensor, lengths: torch.Tensor) -> PackedSequence:
    """Pack `features` (batch, longest, width), the longest first, without frames after `lengths` (batch,).

    torch needs the lengths on the host, so on a GPU this waits for the device. On the meta device, where lengths
    have no values, all count as the longest.
    """
    if lengths.is_meta:
        lengths = torch.full((features.shape[0],), features.shape[1], device="cpu")
    return pack_padded_sequence(features, lengths.cpu(), batch_first=True)


def with_data(packed: PackedSequence, data: torch.Tensor) -> PackedSequence:
    """Return a sequence packed like `packed`, of the features `data` (frames, width)."""
    return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
