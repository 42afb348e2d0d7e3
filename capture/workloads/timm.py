"""`timm:NAME`: an image classifier of timm, where that is installed; `size` is the image's side in pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.adapters import Adapter

__all__ = ["VARIANTS", "build", "build_model", "example_batch"]

VARIANTS: Final[tuple[str, ...]] = ("resnet50",)
"""The default alone: what other names there are is the package's to say."""


def _known(timm: Any) -> Sequence[str]:
    names: Sequence[str] = timm.list_models()
    return names


def _make(timm: Any, name: str, classes: int) -> nn.Module:
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes)
    return model


def _side_of(model: nn.Module) -> tuple[int | None, bool]:
    made_for: Mapping[str, Any] = getattr(model, "default_cfg", None) or {}
    shape = made_for.get("input_size")
    return (int(shape[-1]) if shape else None), bool(made_for.get("fixed_input_size"))


_ADAPTER: Final = Adapter("timm", VARIANTS[0], _known, _make, _side_of)


def build_model(variant: str) -> nn.Module:
    """Return timm's model of that name with random weights; see `Adapter.build_model`."""
    return _ADAPTER.build_model(variant)


def example_batch(variant: str, *, tiny: bool = False) -> dict[str, torch.Tensor]:
    """Return a batch of one image, on the device of the context."""
    return _ADAPTER.example_batch(variant, tiny=tiny)


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload, by default 32 images a step; see `Adapter.build`."""
    return _ADAPTER.build(options)
