"""`vit`: the Vision Transformer, trained to classify images; `size` is the image's side in pixels."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.checks import import_transformers, refuse_data, variant_or_default
from tracekit.capture.workloads.data.images import ImageBatch, Normalise, SyntheticImages
from tracekit.capture.workloads.optimizers import AdamWWithWarmUp
from tracekit.errors import UsageError

__all__ = ["VARIANTS", "build", "build_model", "example_batch"]

VARIANTS: Final[tuple[str, ...]] = ("b16", "l16")

_PATCH = 16
_CLASSES = 1_000
_SHAPES: Final[dict[str, dict[str, int]]] = {
    "b16": {},  # the defaults of transformers
    "l16": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "tiny": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "image_size": 64,
    },
}
_RATE = 1e-3
_DECAY = 0.1


def build_model(variant: str, *, tiny: bool = False, side: int = 0) -> nn.Module:
    """Return `ViTForImageClassification` of 1000 classes with random weights.

    It takes images of `side` pixels, by default 224 (tiny: 64). Raises `UsageError` for an unknown variant or a
    side that is no multiple of 16, and `MissingDependencyError` without transformers.
    """
    shape = {"image_size": 224, **_SHAPES["tiny" if tiny else variant_or_default("vit", variant, VARIANTS)]}
    shape["image_size"] = side or shape["image_size"]
    if shape["image_size"] % _PATCH:
        raise UsageError(
            f"an image of {shape['image_size']} pixels a side",
            remedy=f"the side must be a multiple of {_PATCH}",
        )
    transformers = import_transformers()
    config = transformers.ViTConfig(**shape, num_labels=_CLASSES)
    model: nn.Module = transformers.ViTForImageClassification(config)
    return model


def example_batch(variant: str, *, tiny: bool = False) -> ImageBatch:
    """Return a batch of one image of 224 pixels a side (tiny: 64) and its class, on the device of the context."""
    variant_or_default("vit", variant, VARIANTS)
    side = 64 if tiny else 224
    return torch.zeros((1, 3, side, side), dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)


def _loss(output: Any, batch: ImageBatch) -> torch.Tensor:
    return functional.cross_entropy(output.logits.float(), batch[1])


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload, by default 64 images of 224×224 pixels a step, trained by AdamW with a warm-up.

    Raises `UsageError` for an unknown variant, a side that is no multiple of 16, or if real data are
    requested; `MissingDependencyError` without transformers.
    """
    variant = variant_or_default("vit", options.variant, VARIANTS)
    refuse_data("vit", options)
    side = options.size or (64 if options.tiny else 224)
    with options.device:
        model = build_model(variant, tiny=options.tiny, side=side).to(options.device)
        normalise = Normalise()  # not a part of the model, which is transformers' own
    training = AdamWWithWarmUp(_RATE, decay=_DECAY, tiny=options.tiny)
    return Recipe(
        model=model,
        dataset=SyntheticImages(side, _CLASSES, options.seed),
        forward=lambda model, batch: model(pixel_values=normalise(batch[0])),
        loss=_loss,
        optimizer=training.optimizer,
        after_update=training.after_update,
        clip_norm=1.0,
        task="image classification",
        batch=options.batch or (2 if options.tiny else 64),
        size=side,
        synthetic=True,
        config={"variant": "tiny" if options.tiny else variant, "classes": _CLASSES, **training.config},
    )
