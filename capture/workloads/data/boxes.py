"""Made-up objects in images: as many, as large and of as unequal classes as in photographs of everyday scenes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from tracekit.capture.workloads.data.images import noise_image
from tracekit.capture.workloads.data.random import bounded_zipf, numpy_generator

__all__ = ["BoxBatch", "BoxedImage", "SyntheticObjects", "collate_boxes", "random_boxes"]

_SYNTHETIC_IMAGES = 100_000
_EMPTY_SHARE = 0.01
_COUNT_MU, _COUNT_SIGMA, _MOST_BOXES = 1.55, 0.95, 93
_AREA_MU, _AREA_SIGMA = (
    -5.15,
    2.44,
)  # of the image; with it 41, 34 and 25 % are small, medium and large as in COCO
_ASPECT_SIGMA = 0.5
_CLASS_EXPONENT = 1.1

BoxedImage = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
BoxBatch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def random_boxes(random: np.random.Generator, least_side: float) -> NDArray[np.float32]:
    """Return boxes (count, 4) as left, top, right and bottom, in parts of the image; 1 % of images have none.

    Sides are at least `least_side`, and at most the image.
    """
    if random.random() < _EMPTY_SHARE:
        return np.zeros((0, 4), dtype=np.float32)
    count = min(max(int(random.lognormal(_COUNT_MU, _COUNT_SIGMA)), 1), _MOST_BOXES)
    area = random.lognormal(_AREA_MU, _AREA_SIGMA, count)
    aspect = random.lognormal(0, _ASPECT_SIGMA, count)
    sides = np.stack([np.sqrt(area * aspect), np.sqrt(area / aspect)], axis=1).clip(least_side, 1)
    corners = random.random((count, 2)) * (1 - sides)
    boxes: NDArray[np.float32] = np.concatenate([corners, corners + sides], axis=1).astype(np.float32)
    return boxes


class SyntheticObjects(Dataset[BoxedImage]):
    """Random images of bytes with boxes and their classes; a sample depends on its index and the seed alone.

    A sample is an image (3, side, side), boxes (count, 4) and classes (count,) from 1 to `classes` - 1; class 0 is
    the background.
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
        return torch.from_numpy(image), torch.from_numpy(boxes), torch.from_numpy(labels)


def collate_boxes(samples: Sequence[BoxedImage]) -> BoxBatch:
    """Return images (batch, 3, side, side), boxes (batch, most, 4) and labels (batch, most).

    Images with fewer boxes than the `most` of the batch are filled up with boxes and labels of 0.
    """
    most = max(1, *(len(boxes) for _, boxes, _ in samples))
    filled_boxes = torch.zeros(len(samples), most, 4)
    filled_labels = torch.zeros(len(samples), most, dtype=torch.int64)
    for place, (_, boxes, labels) in enumerate(samples):
        filled_boxes[place, : len(boxes)] = boxes
        filled_labels[place, : len(labels)] = labels
    return torch.stack([image for image, _, _ in samples]), filled_boxes, filled_labels
