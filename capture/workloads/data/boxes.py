"""Made-up objects in images, with number, size and class frequencies as in COCO's photographs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from tracekit.capture.workloads.data.images import noise_image
from tracekit.capture.workloads.data.samples import bounded_zipf, numpy_generator

__all__ = [
    "BoxBatch",
    "BoxedImage",
    "DetectionSample",
    "SyntheticCoco",
    "SyntheticObjects",
    "collate_boxes",
    "collate_detections",
    "random_boxes",
]

_SYNTHETIC_IMAGES = 100_000
_COCO_IMAGES = 118_287  # of train2017
_EMPTY_SHARE = 0.01
_COUNT_MU, _COUNT_SIGMA, _MOST_BOXES = 1.55, 0.95, 93
# Of the picture's area; with them 41, 34 and 25 % of the objects are small, medium and large as in COCO.
_AREA_MU, _AREA_SIGMA = -5.15, 2.44
_ASPECT_SIGMA = 0.5
_CLASS_EXPONENT = 1.1
_PICTURE_SHARE = 480 / 640  # of the square that a picture of 640×480 is fitted into

BoxedImage = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
BoxBatch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
DetectionSample = tuple[torch.Tensor, torch.Tensor]
"""An image of bytes (3, side, side) and its boxes (n, 6).

A box is 0 (its image's place in the batch, once there is one), class, centre x, centre y, width and height, as
shares of the side.
"""


def random_boxes(
    random: np.random.Generator, least_side: float, *, picture: float = 1.0
) -> NDArray[np.float64]:
    """Return boxes (count, 4) as left, top, right and bottom, in parts of the image; 1 % of images have none.

    Sides are at least `least_side`, and at most the image, of which `picture` is the share that a picture fills.
    """
    if random.random() < _EMPTY_SHARE:
        return np.zeros((0, 4))
    count = min(max(int(random.lognormal(_COUNT_MU, _COUNT_SIGMA)), 1), _MOST_BOXES)
    area = random.lognormal(_AREA_MU, _AREA_SIGMA, count).clip(max=1) * picture
    aspect = random.lognormal(0, _ASPECT_SIGMA, count)
    sides = np.stack([np.sqrt(area * aspect), np.sqrt(area / aspect)], axis=1).clip(least_side, 1)
    corners = random.random((count, 2)) * (1 - sides)
    return np.concatenate([corners, corners + sides], axis=1)


class SyntheticObjects(Dataset[BoxedImage]):
    """Random images of bytes with boxes and their classes; a sample depends on its index and the seed alone.

    A sample is an image (3, side, side), boxes (count, 4) as `random_boxes` has them, and classes (count,) from 1 to
    `classes` - 1; class 0 is the background.
    """

    def __init__(self, side: int, classes: int, seed: int) -> None:
        self.side = side
        self.classes = classes
        self.seed = seed

    def __len__(self) -> int:
        return _SYNTHETIC_IMAGES

    def __getitem__(self, index: int) -> BoxedImage:
        random = numpy_generator(self.seed, index)
        boxes = random_boxes(random, 2 / self.side)
        labels = 1 + bounded_zipf(random.random(len(boxes)), self.classes - 1, _CLASS_EXPONENT)
        image = noise_image(random, self.side)
        return torch.from_numpy(image), torch.from_numpy(boxes).float(), torch.from_numpy(labels)


def collate_boxes(samples: Sequence[BoxedImage]) -> BoxBatch:
    """Return images (batch, 3, side, side), boxes (batch, most, 4) and labels (batch, most).

    Images with fewer than `most` boxes, the largest number in the batch, are padded with boxes and labels of 0.
    """
    most = max(1, *(len(boxes) for _, boxes, _ in samples))
    filled_boxes = torch.zeros(len(samples), most, 4)
    filled_labels = torch.zeros(len(samples), most, dtype=torch.int64)
    for place, (_, boxes, labels) in enumerate(samples):
        filled_boxes[place, : len(boxes)] = boxes
        filled_labels[place, : len(labels)] = labels
    return torch.stack([image for image, _, _ in samples]), filled_boxes, filled_labels


class SyntheticCoco(Dataset[DetectionSample]):
    """Images of random bytes, as many as COCO's training set has, with random boxes in pictures of 4:3.

    The frequency of class k falls as (k + 1)^−1.1. A sample depends on the seed and its index alone.
    """

    def __init__(self, side: int, classes: int, seed: int) -> None:
        self.side = side
        self.seed = seed
        shares = np.arange(1, classes + 1, dtype=np.float64) ** -_CLASS_EXPONENT
        self.up_to_class = np.cumsum(shares / shares.sum())

    def __len__(self) -> int:
        return _COCO_IMAGES

    def __getitem__(self, index: int) -> DetectionSample:
        random = numpy_generator(self.seed, range(_COCO_IMAGES)[index])
        boxes = self._boxes(random)
        return torch.from_numpy(noise_image(random, self.side)), boxes

    def boxes(self, index: int) -> torch.Tensor:
        """Return the boxes of the sample `index`, without drawing its image."""
        return self._boxes(numpy_generator(self.seed, index))

    def _boxes(self, random: np.random.Generator) -> torch.Tensor:
        left_top, right_bottom = np.split(random_boxes(random, 1 / 640, picture=_PICTURE_SHARE), 2, axis=1)
        category = np.searchsorted(self.up_to_class, random.random(len(left_top)), side="right")
        # The last sum may fall short of 1 by a rounding error.
        category = category.clip(max=len(self.up_to_class) - 1)
        columns = [0 * category, category, (left_top + right_bottom) / 2, right_bottom - left_top]
        return torch.from_numpy(np.column_stack(columns)).float()


def collate_detections(samples: list[DetectionSample]) -> DetectionSample:
    """Return images (batch, 3, side, side) and all their boxes (n, 6); column 0 is the number of the image."""
    images = torch.stack([image for image, _ in samples])
    boxes = torch.cat([rows for _, rows in samples])
    counts = torch.tensor([len(rows) for _, rows in samples])
    boxes[:, 0] = torch.arange(len(samples)).repeat_interleave(counts)
    return images, boxes
