"""`ssd300`: the detector SSD on 300×300 images, with VGG-16 below it.

Variants are the numbers of classes with the background: 91 and 81 (COCO's categories by their numbers, and without
the gaps), 21 (Pascal VOC).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.checks import (
    refuse_data,
    refuse_max_rows,
    refuse_other_size,
    variant_or_default,
)
from tracekit.capture.workloads.data.boxes import BoxBatch, SyntheticObjects, collate_boxes
from tracekit.capture.workloads.data.images import Normalise
from tracekit.capture.workloads.optimizers import ScheduledOptimizer, linear_warmup
from tracekit.capture.workloads.ssd300.loss import IMAGE_SIDE, PRIORS_PER_CELL, MultiBoxLoss, prior_boxes

__all__ = ["VARIANTS", "Ssd300", "build", "build_model", "example_batch", "predict", "prediction_heads"]

VARIANTS: Final[tuple[str, ...]] = ("91", "81", "21")

_BATCH, _TINY_BATCH = 32, 2
_TINY_DIVISOR = 16
_LEARNING_RATE = 1e-3
_WARMUP_UPDATES = 300  # without it the loss fluctuates, because no layer normalises over the batch
_MOMENTUM = 0.9
_WEIGHT_DECAY = 5e-4
_VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
# For each coarser grid, the width of a 1×1 convolution, and the width, stride and padding of the next 3×3 one.
_EXTRAS = ((256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
_FINE_SCALE = 20.0
_HEAD_DEVIATION = 0.01

Predictions = tuple[torch.Tensor, torch.Tensor]


class ScaledUnitNorm(nn.Module):
    """Features of length 1 at each pixel, times a learned scale of each channel, 20 at first."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((channels,), _FINE_SCALE))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return features of the shape of `features`, (batch, channels, height, width)."""
        return functional.normalize(features, dim=1) * self.scale.view(-1, 1, 1)


def _convolution(
    inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1, padding: int = 0, dilation: int = 1
) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation), nn.ReLU(inplace=True)]


class Ssd300(nn.Module):
    """VGG-16 with convolutions instead of its dense layers, four coarser grids, and predictions from six of them."""

    def __init__(self, classes: int, divisor: int = 1) -> None:
        """Make a network for `classes` classes, including the background, with widths divided by `divisor`."""
        super().__init__()
        self.classes = classes
        self.normalise = Normalise()
        stages: list[list[nn.Module]] = []
        channels = 3
        for stage, (width, count) in enumerate(_VGG_STAGES):
            # 75 pixels are halved to 38, not to 37.
            layers: list[nn.Module] = [nn.MaxPool2d(2, ceil_mode=stage == 3)] if stage else []
            for _ in range(count):
                layers += _convolution(channels, width // divisor, padding=1)
                channels = width // divisor
            stages.append(layers)
        wide = 1024 // divisor
        dense = [nn.MaxPool2d(3, 1, 1), *_convolution(channels, wide, padding=6, dilation=6)]
        self.fine = nn.Sequential(*(nn.Sequential(*layers) for layers in stages[:-1]))
        self.fine_norm = ScaledUnitNorm(channels)
        coarse = [nn.Sequential(*stages[-1], *dense, *_convolution(wide, wide, 1))]
        widths = [channels, wide]
        for narrow, width, stride, padding in _EXTRAS:
            coarse.append(
                nn.Sequential(
                    *_convolution(widths[-1], narrow // divisor, 1),
                    *_convolution(narrow // divisor, width // divisor, stride=stride, padding=padding),
                )
            )
            widths.append(width // divisor)
        self.coarse = nn.ModuleList(coarse)
        self.boxes = prediction_heads(widths, 4)
        self.scores = prediction_heads(widths, classes)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        # Small, so that training from random weights does not begin with confident wrong scores.
        for head in [*self.boxes, *self.scores]:
            nn.init.normal_(head.weight, std=_HEAD_DEVIATION)

    def forward(self, images: torch.Tensor) -> Predictions:
        """Return box offsets (batch, 8732, 4) and scores (batch, 8732, classes).

        `images` are bytes (batch, 3, 300, 300); the predictions are in the order of the prior boxes.
        """
        features = self.fine(self.normalise(images))
        levels = [self.fine_norm(features)]
        for stage in self.coarse:
            features = stage(features)
            levels.append(features)
        return predict(self.boxes, levels, 4), predict(self.scores, levels, self.classes)


def prediction_heads(widths: Sequence[int], values: int) -> nn.ModuleList:
    """Return a convolution for each level, with `values` outputs for each of its priors."""
    return nn.ModuleList(
        nn.Conv2d(width, priors * values, 3, padding=1)
        for width, priors in zip(widths, PRIORS_PER_CELL, strict=True)
    )


def predict(heads: nn.ModuleList, levels: Sequence[torch.Tensor], values: int) -> torch.Tensor:
    """Return the outputs (batch, priors, values) of the heads for features of each level, in the order of the priors."""
    answers = [head(level).permute(0, 2, 3, 1) for head, level in zip(heads, levels, strict=True)]
    return torch.cat([answer.reshape(answer.shape[0], -1, values) for answer in answers], dim=1)


def build_model(variant: str, *, tiny: bool = False) -> Ssd300:
    """Return the network for `variant` classes; with 91 it has 35,641,826 parameters.

    A `tiny` one is a sixteenth as wide. Raises `UsageError` for an unknown variant.
    """
    classes = int(variant_or_default("ssd300", variant, VARIANTS))
    return Ssd300(classes, _TINY_DIVISOR if tiny else 1)


def example_batch(variant: str, *, tiny: bool = False) -> BoxBatch:
    """Return a batch of one black image without objects: (1, 3, 300, 300), (1, 1, 4) and (1, 1), also if `tiny`."""
    del tiny
    variant_or_default("ssd300", variant, VARIANTS)
    image = torch.zeros(1, 3, IMAGE_SIDE, IMAGE_SIDE, dtype=torch.uint8)
    return image, torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.int64)


def _forward(model: nn.Module, batch: BoxBatch) -> Predictions:
    predictions: Predictions = model(batch[0])
    return predictions


def _sgd(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY)


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload, by default 32 made-up images a step, trained by SGD with momentum and a
    linear warm-up.

    Raises `UsageError` for another size than 300, and for real data, which it does not read.
    """
    variant = variant_or_default("ssd300", options.variant, VARIANTS)
    refuse_data("ssd300", options)
    refuse_max_rows("ssd300", options)
    refuse_other_size("ssd300", options, IMAGE_SIDE, "pixels a side")
    batch = options.batch or (_TINY_BATCH if options.tiny else _BATCH)
    model = build_model(variant, tiny=options.tiny).to(options.device)
    multi_box = MultiBoxLoss(prior_boxes()).to(options.device)

    scheduled = ScheduledOptimizer(_sgd, linear_warmup(_LEARNING_RATE, _WARMUP_UPDATES))

    def loss(predictions: Predictions, batch: BoxBatch) -> torch.Tensor:
        value: torch.Tensor = multi_box(*predictions, batch[1], batch[2])
        return value

    return Recipe(
        model=model,
        dataset=SyntheticObjects(IMAGE_SIDE, model.classes, options.seed),
        forward=_forward,
        loss=loss,
        optimizer=scheduled.optimizer,
        after_update=scheduled.after_update,
        task="object detection",
        batch=batch,
        size=IMAGE_SIDE,
        synthetic=True,
        collate=collate_boxes,
        config={
            "variant": variant,
            "batch": batch,
            "image_side": IMAGE_SIDE,
            "classes": model.classes,
            "priors": len(multi_box.priors),
            "optimizer": "SGD",
            "learning_rate": _LEARNING_RATE,
            "warmup_updates": _WARMUP_UPDATES,
        },
    )
