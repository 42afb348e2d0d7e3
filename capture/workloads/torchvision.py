"""`torchvision:NAME`: an image classifier of torchvision, where that is installed; `size` is in pixels a side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.adapters import Adapter

__all__ = ["VARIANTS", "build", "build_model", "example_batch"]

VARIANTS: Final[tuple[str, ...]] = ("resnet50",)
"""The default alone: what other names there are is the package's to say."""

_SIDES: Final = {"Inception3": 299}


def _known(torchvision: Any) -> Sequence[str]:
    # Models for other tasks live in modules below this one.
    names: Sequence[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def _make(torchvision: Any, name: str, classes: int) -> nn.Module:
    model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=classes)
    return model


def _side_of(model: nn.Module) -> tuple[int | None, bool]:
    side = getattr(model, "image_size", None)  # of the Vision Transformers
    if isinstance(side, int):
        return side, True
    side = _SIDES.get(type(model).__name__)
    return side, side is not None


_ADAPTER: Final = Adapter("torchvision", VARIANTS[0], _known, _make, _side_of)


def build_model(variant: str) -> nn.Module:
    """Return torchvision's model of that name with random weights; see `Adapter.build_model`."""
    return _ADAPTER.build_model(variant)


def example_batch(variant: str, *, tiny: bool = False) -> dict[str, torch.Tensor]:
    """Return a batch of one image, on the device of the context."""
    return _ADAPTER.example_batch(variant, tiny=tiny)


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload, by default 32 images a step; see `Adapter.build`."""
    return _ADAPTER.build(options)
