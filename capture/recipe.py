"""The parts in which trainings differ. One shared loop runs them, in any precision and on any device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from tracekit.manifest import Setting

__all__ = ["Recipe"]


def _first_part(model: nn.Module, batch: Any) -> Any:
    return model(batch[0])


def _nothing_skipped() -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A model, its data, and how to train the model on the data.

    `dataset` is map-style, and a sample depends only on its index and the seed. `collate` makes a batch: nested
    tuples, lists and dicts of tensors on the host; None uses torch's function. `forward` gets the model and a batch on
    the device (without one the model gets the batch's first part), `loss` the output and the same batch, and returns a scalar. `optimizer` makes the optimizer of a
    model, which may be the one here wrapped for several ranks or compiled. `after_update` runs in the optimizer
    phase after each update and gets the model and the number of updates so far (learning rates, averaged
    weights). `skipped` counts the unusable samples of real data so far, over all loader processes.

    `task` is a short noun ("object detection"). `size` is the size of one sample: pixels of a side, tokens,
    frames. `config` goes into the manifest. `synthetic` is true for synthetic data; None means unknown.
    """

    model: nn.Module
    dataset: Dataset[Any]
    loss: Callable[[Any, Any], torch.Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batch: int
    forward: Callable[[nn.Module, Any], Any] = _first_part
    task: str = ""
    size: int | None = None
    synthetic: bool | None = None
    collate: Callable[[list[Any]], Any] | None = None
    after_update: Callable[[nn.Module, int], None] | None = None
    clip_norm: float | None = None
    skipped: Callable[[], int] = _nothing_skipped
    config: Mapping[str, Setting] = field(default_factory=dict)
