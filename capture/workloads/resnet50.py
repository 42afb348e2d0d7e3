"""`resnet50`: a residual network that classifies images; `size` is the image's side in pixels.

Variants are the depths. If a block halves the image, its 3×3 convolution does it (so-called v1.5). This costs about
6 % more than the original layout and learns better. The "4.1 GFLOPs" that tables give for 50 layers are
multiply-additions; as operations they are 8.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.checks import refuse_max_rows, variant_or_default
from tracekit.capture.workloads.data.images import ImageBatch, ImageFolder, Normalise, SyntheticImages

__all__ = [
    "CLASSES",
    "VARIANTS",
    "BasicBlock",
    "Bottleneck",
    "ResNet",
    "build",
    "build_model",
    "example_batch",
]

VARIANTS: Final[tuple[str, ...]] = ("50", "18", "34", "101", "152")

CLASSES = 1_000
_WIDTH, _TINY_WIDTH = 64, 8
_SIZE, _TINY_SIZE = 224, 64
_BATCH, _TINY_BATCH = 64, 8
_LEARNING_RATE = 0.1
_MOMENTUM = 0.9
_WEIGHT_DECAY = 5e-5
_LABEL_SMOOTHING = 0.1


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, added to their input."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the block's output features."""
        identity = features if self.downsample is None else self.downsample(features)
        mixed = self.relu(self.bn1(self.conv1(features)))
        activated: torch.Tensor = self.relu(self.bn2(self.conv2(mixed)) + identity)
        return activated


class Bottleneck(nn.Module):
    """A 3×3 convolution between 1×1 convolutions that narrow and widen, added to their input."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, 4 * width, stride)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the block's output features."""
        identity = features if self.downsample is None else self.downsample(features)
        mixed = self.relu(self.bn1(self.conv1(features)))
        mixed = self.relu(self.bn2(self.conv2(mixed)))
        activated: torch.Tensor = self.relu(self.bn3(self.conv3(mixed)) + identity)
        return activated


_LAYOUTS: dict[str, tuple[type[BasicBlock | Bottleneck], tuple[int, ...]]] = {
    "18": (BasicBlock, (2, 2, 2, 2)),
    "34": (BasicBlock, (3, 4, 6, 3)),
    "50": (Bottleneck, (3, 4, 6, 3)),
    "101": (Bottleneck, (3, 4, 23, 3)),
    "152": (Bottleneck, (3, 8, 36, 3)),
}


class ResNet(nn.Module):
    """A stem that quarters the image, four stages of blocks, an average and a linear classifier.

    The modules' names are torchvision's, so that weights made with it can be loaded.
    """

    def __init__(self, block: type[BasicBlock | Bottleneck], counts: Sequence[int], width: int) -> None:
        """Make stages of `counts` blocks; the first is `width` wide, each other twice as wide as its predecessor."""
        super().__init__()
        self.normalise = Normalise()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = width
        for stage, count in enumerate(counts):
            blocks: list[nn.Module] = []
            for place in range(count):
                stride = 2 if stage and not place else 1
                blocks.append(block(channels, width << stage, stride))
                channels = (width << stage) * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.stages = len(counts)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return class scores (batch, 1000) for images of bytes (batch, 3, side, side)."""
        features = self.maxpool(self.relu(self.bn1(self.conv1(self.normalise(images)))))
        for stage in range(1, self.stages + 1):
            features = self.get_submodule(f"layer{stage}")(features)
        scores: torch.Tensor = self.fc(self.avgpool(features).flatten(1))
        return scores


def build_model(variant: str, *, tiny: bool = False) -> ResNet:
    """Return the network of `variant` layers; 50 layers have 25,557,032 parameters.

    A `tiny` one is an eighth as wide. Raises `UsageError` for an unknown variant.
    """
    block, counts = _LAYOUTS[variant_or_default("resnet50", variant, VARIANTS)]
    return ResNet(block, counts, _TINY_WIDTH if tiny else _WIDTH)


def example_batch(variant: str, *, tiny: bool = False) -> ImageBatch:
    """Return a batch of one black image, (1, 3, 224, 224) bytes, or 64 pixels wide if `tiny`, and its class."""
    variant_or_default("resnet50", variant, VARIANTS)
    side = _TINY_SIZE if tiny else _SIZE
    return torch.zeros(1, 3, side, side, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)


def _forward(model: nn.Module, batch: ImageBatch) -> torch.Tensor:
    scores: torch.Tensor = model(batch[0])
    return scores


def _loss(scores: torch.Tensor, batch: ImageBatch) -> torch.Tensor:
    return functional.cross_entropy(scores, batch[1], label_smoothing=_LABEL_SMOOTHING)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY
    )


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload, by default 64 images of 224×224 pixels a step, trained by SGD with momentum.

    `data` is a folder with one folder of images per class, at most 1,000. Raises `UsageError` if it is not.
    """
    variant = variant_or_default("resnet50", options.variant, VARIANTS)
    refuse_max_rows("resnet50", options)
    side = options.size or (_TINY_SIZE if options.tiny else _SIZE)
    batch = options.batch or (_TINY_BATCH if options.tiny else _BATCH)
    dataset = (
        SyntheticImages(side, CLASSES, options.seed)
        if options.data is None
        else ImageFolder(options.data, side, CLASSES, options.seed)
    )
    return Recipe(
        model=build_model(variant, tiny=options.tiny).to(options.device),
        dataset=dataset,
        forward=_forward,
        loss=_loss,
        optimizer=_optimizer,
        task="image classification",
        batch=batch,
        size=side,
        synthetic=options.data is None,
        skipped=dataset.skipped if isinstance(dataset, ImageFolder) else (lambda: 0),
        config={
            "variant": variant,
            "batch": batch,
            "image_side": side,
            "classes": CLASSES,
            "optimizer": "SGD",
            "learning_rate": _LEARNING_RATE,
            "label_smoothing": _LABEL_SMOOTHING,
        },
    )
