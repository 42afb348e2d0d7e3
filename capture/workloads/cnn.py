"""`cnn`: a small residual network that classifies images; `size` is the image's side in pixels."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions

__all__ = ["ResidualBlock", "ResidualNet", "SyntheticImages", "build"]

Pair = tuple[torch.Tensor, torch.Tensor]

_CLASSES = 10
_WIDTH = 16
_STAGES = 3
_BLOCKS_PER_STAGE = 2
_LEARNING_RATE = 0.05
_EPOCH = 50_000


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with batch normalisation, added to their input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the block's output features."""
        features: torch.Tensor = self.relu(self.bn1(self.conv1(image)))
        features = self.bn2(self.conv2(features)) + self.shortcut(image)
        activated: torch.Tensor = self.relu(features)
        return activated


class ResidualNet(nn.Module):
    """A stem, stages of residual blocks that halve the image and double the channels, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, _WIDTH, 3, 1, 1, bias=False), nn.BatchNorm2d(_WIDTH), nn.ReLU(inplace=True)
        )
        stages: list[nn.Module] = []
        channels = _WIDTH
        for stage in range(_STAGES):
            outputs = _WIDTH << stage
            blocks = [ResidualBlock(channels, outputs, 1 if stage == 0 else 2)]
            blocks += [ResidualBlock(outputs, outputs, 1) for _ in range(_BLOCKS_PER_STAGE - 1)]
            stages.append(nn.Sequential(*blocks))
            channels = outputs
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, _CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return class scores (batch, classes) for images of bytes (batch, 3, side, side)."""
        features = self.stages(self.stem(image.float() / 255))
        scores: torch.Tensor = self.classifier(self.pool(features).flatten(1))
        return scores


class SyntheticImages(Dataset[Pair]):
    """Random images of bytes with random classes; a sample depends on its index and the seed alone."""

    def __init__(self, side: int, seed: int) -> None:
        self.side = side
        self.seed = seed

    def __len__(self) -> int:
        return _EPOCH

    def __getitem__(self, index: int) -> Pair:
        random = torch.Generator().manual_seed(self.seed * _EPOCH + index)
        image = torch.randint(256, (3, self.side, self.side), generator=random, dtype=torch.uint8)
        return image, torch.randint(_CLASSES, (), generator=random)


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload, by default 16 images of 64×64 pixels a step, trained by SGD with momentum."""
    batch, side = options.batch or (4 if options.tiny else 16), options.size or (32 if options.tiny else 64)
    return Recipe(
        model=ResidualNet().to(options.device),
        dataset=SyntheticImages(side, options.seed),
        forward=lambda model, pair: model(pair[0]),
        loss=lambda scores, pair: functional.cross_entropy(scores, pair[1]),
        optimizer=lambda model: torch.optim.SGD(
            model.parameters(), lr=_LEARNING_RATE, momentum=0.9, weight_decay=5e-4
        ),
        task="image classification",
        batch=batch,
        size=side,
        synthetic=True,
        config={
            "batch": batch,
            "image_side": side,
            "classes": _CLASSES,
            "width": _WIDTH,
            "stages": _STAGES,
            "blocks_per_stage": _BLOCKS_PER_STAGE,
            "optimizer": "SGD",
        },
    )
