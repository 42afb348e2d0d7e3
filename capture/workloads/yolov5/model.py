"""The YOLOv5 detector, versions 6 and 7, for strides 8, 16 and 32.

`layers` holds its 25 modules in the order and with the numbers of the published layer tables.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import nn

__all__ = [
    "ANCHORS_PX",
    "C3",
    "CBS",
    "COCO_CLASSES",
    "SPPF",
    "STRIDES",
    "Bottleneck",
    "Concat",
    "Detect",
    "YoloV5",
]

COCO_CLASSES: Final = 80
STRIDES: Final = (8, 16, 32)
ANCHORS_PX: Final = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
"""Width and height of each level's anchors, in pixels."""

_INPUTS: Final = {12: (11, 6), 16: (15, 4), 19: (18, 14), 22: (21, 10), 24: (17, 20, 23)}
"""The layers whose inputs are not the output of the previous layer, with these inputs."""
_KEPT: Final = frozenset(number for inputs in _INPUTS.values() for number in inputs)

_BOX_VALUES = 5  # x, y, width, height, objectness; the class scores follow
_OBJECTS_PER_IMAGE = 8  # the objects per image of 640 pixels that the first objectness scores expect
_CLASS_PRIOR = 0.6


class CBS(nn.Module):
    """Convolution, batch normalisation, SiLU."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, padding: int | None = None
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, stride, kernel // 2 if padding is None else padding, bias=False
        )
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU(inplace=True)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return features of `outputs` channels."""
        activated: torch.Tensor = self.act(self.bn(self.conv(features)))
        return activated


class Bottleneck(nn.Module):
    """A 1×1 and a 3×3 CBS of equal width, added to their input with `shortcut`."""

    def __init__(self, channels: int, *, shortcut: bool) -> None:
        super().__init__()
        self.cv1 = CBS(channels, channels, 1)
        self.cv2 = CBS(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return features of the input's shape."""
        mixed: torch.Tensor = self.cv2(self.cv1(features))
        return features + mixed if self.shortcut else mixed


class C3(nn.Module):
    """A cross-stage partial block: one half of the channels goes through bottlenecks, the other half bypasses them."""

    def __init__(self, inputs: int, outputs: int, repeats: int, *, shortcut: bool = True) -> None:
        super().__init__()
        hidden = outputs // 2
        self.cv1 = CBS(inputs, hidden)
        self.cv2 = CBS(inputs, hidden)
        self.cv3 = CBS(2 * hidden, outputs)
        self.m = nn.Sequential(*(Bottleneck(hidden, shortcut=shortcut) for _ in range(repeats)))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return features of `outputs` channels and the input's height and width."""
        halves = torch.cat((self.m(self.cv1(features)), self.cv2(features)), 1)
        merged: torch.Tensor = self.cv3(halves)
        return merged


class SPPF(nn.Module):
    """Spatial pyramid pooling: three chained 5×5 maxima, concatenated with their input."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 5) -> None:
        super().__init__()
        hidden = inputs // 2
        self.cv1 = CBS(inputs, hidden)
        self.cv2 = CBS(4 * hidden, outputs)
        self.m = nn.MaxPool2d(kernel, 1, kernel // 2)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return features of `outputs` channels and the input's height and width."""
        pooled = [self.cv1(features)]
        for _ in range(3):
            pooled.append(self.m(pooled[-1]))
        merged: torch.Tensor = self.cv2(torch.cat(pooled, 1))
        return merged


class Concat(nn.Module):
    """Joins feature maps along their channels."""

    def forward(self, maps: list[torch.Tensor]) -> torch.Tensor:
        """Return one map with the channels of all."""
        return torch.cat(maps, 1)


class Detect(nn.Module):
    """A 1×1 convolution per level, to a box, an objectness and the class scores for each of three anchors.

    The buffer `anchors` (3, 3, 2) holds each level's anchors in cells of that level.
    """

    anchors: torch.Tensor

    def __init__(self, classes: int, inputs: tuple[int, int, int]) -> None:
        super().__init__()
        self.values = _BOX_VALUES + classes
        per_level = len(ANCHORS_PX[0])
        self.m = nn.ModuleList(nn.Conv2d(channels, per_level * self.values, 1) for channels in inputs)
        in_cells = [
            [[side / stride for side in anchor] for anchor in level]
            for level, stride in zip(ANCHORS_PX, STRIDES, strict=True)
        ]
        self.register_buffer("anchors", torch.tensor(in_cells))
        self._expect_few_objects(classes)

    @torch.no_grad()
    def _expect_few_objects(self, classes: int) -> None:
        # With equal scores at first, the many empty cells would dominate the first hundred steps.
        for conv, stride in zip(self.m, STRIDES, strict=True):
            bias = conv.get_parameter("bias")
            if bias.is_meta:
                return
            scores = bias.view(-1, self.values)
            scores[:, 4] += math.log(_OBJECTS_PER_IMAGE / (640 / stride) ** 2)
            scores[:, _BOX_VALUES:] += math.log(_CLASS_PRIOR / (classes - 0.99999))

    def forward(self, maps: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return a level's raw predictions (batch, 3, height, width, 5 + classes) for each map."""
        levels = []
        for conv, features in zip(self.m, maps, strict=True):
            raw = conv(features)
            batch, _, height, width = raw.shape
            split = raw.view(batch, -1, self.values, height, width)
            levels.append(split.permute(0, 1, 3, 4, 2).contiguous())
        return levels

    def decode(self, levels: list[torch.Tensor]) -> torch.Tensor:
        """Return predictions (batch, boxes, 5 + classes) of raw `levels`.

        The values are centre x, centre y, width and height in pixels, then objectness and class
        probabilities. The boxes of the finest level come first; within a level the order is anchor, row, column.
        """
        decoded = []
        for level, anchors, stride in zip(levels, self.anchors, STRIDES, strict=True):
            batch, _, height, width, values = level.shape
            scores = level.float().sigmoid()
            rows, columns = torch.meshgrid(
                torch.arange(height, device=level.device),
                torch.arange(width, device=level.device),
                indexing="ij",
            )
            cells = torch.stack((columns, rows), -1)
            centres = (scores[..., :2] * 2 - 0.5 + cells) * stride
            sides = (scores[..., 2:4] * 2) ** 2 * anchors.view(1, -1, 1, 1, 2) * stride
            decoded.append(torch.cat((centres, sides, scores[..., 4:]), -1).view(batch, -1, values))
        return torch.cat(decoded, 1)


class YoloV5(nn.Module):
    """Backbone, path-aggregation head and `Detect`, scaled by a `depth` and a `width` multiple."""

    def __init__(self, depth: float, width: float, classes: int = COCO_CLASSES) -> None:
        super().__init__()

        def channels(base: int) -> int:
            return math.ceil(base * width / 8) * 8

        def repeats(base: int) -> int:
            return max(round(base * depth), 1)

        c64, c128, c256, c512, c1024 = (channels(base) for base in (64, 128, 256, 512, 1024))
        few, many = repeats(3), repeats(6)
        self.layers = nn.ModuleList(
            [
                CBS(3, c64, 6, 2, 2),
                CBS(c64, c128, 3, 2),
                C3(c128, c128, few),
                CBS(c128, c256, 3, 2),
                C3(c256, c256, many),
                CBS(c256, c512, 3, 2),
                C3(c512, c512, repeats(9)),
                CBS(c512, c1024, 3, 2),
                C3(c1024, c1024, few),
                SPPF(c1024, c1024),
                CBS(c1024, c512),
                nn.Upsample(scale_factor=2.0, mode="nearest"),
                Concat(),
                C3(2 * c512, c512, few, shortcut=False),
                CBS(c512, c256),
                nn.Upsample(scale_factor=2.0, mode="nearest"),
                Concat(),
                C3(2 * c256, c256, few, shortcut=False),
                CBS(c256, c256, 3, 2),
                Concat(),
                C3(2 * c256, c512, few, shortcut=False),
                CBS(c512, c512, 3, 2),
                Concat(),
                C3(2 * c512, c1024, few, shortcut=False),
                Detect(classes, (c256, c512, c1024)),
            ]
        )

    @property
    def detect(self) -> Detect:
        """The last layer."""
        last: Detect = self.layers[-1]  # type: ignore[assignment] # no isinstance: it may be compiled
        return last

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Return raw predictions for images (batch, 3, height, width) of values from 0 to 1.

        One tensor (batch, 3, height / stride, width / stride, 5 + classes) for each of the strides 8, 16
        and 32. Height and width must be multiples of 32.
        """
        kept: dict[int, torch.Tensor] = {}
        features = images
        for number, layer in enumerate(self.layers):
            inputs = _INPUTS.get(number)
            features = layer(features if inputs is None else [kept[source] for source in inputs])
            if number in _KEPT:
                kept[number] = features
        levels: list[torch.Tensor] = features  # type: ignore[assignment] # what Detect returns
        return levels
