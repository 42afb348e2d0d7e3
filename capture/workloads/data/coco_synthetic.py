"""Made-up images with boxes distributed as in COCO, and how samples with boxes become a batch."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import Dataset

from tracekit.capture.workloads.data.random import numpy_generator

__all__ = ["DetectionSample", "SyntheticCoco", "collate"]

DetectionSample = tuple[torch.Tensor, torch.Tensor]
"""An image of bytes (3, side, side) and its boxes (n, 6).

A box is 0 (its image's place in the batch, once there is one), class, centre x, centre y, width and height, as
shares of the side.
"""

_EPOCH = 118_287  # the images of train2017
_EMPTY_SHARE = 0.01
_LOG_COUNT = (1.55, 0.95)
_MOST_BOXES = 93
_LOG_AREA = (-5.15, 2.44)
_PICTURE_SHARE = 480 / 640  # of the square that a picture of 640×480 is fitted into
_LOG_ASPECT = (0.0, 0.5)
_LEAST_SIDE = 1 / 640
_ZIPF_EXPONENT = 1.1


class SyntheticCoco(Dataset[DetectionSample]):
    """Images of random bytes, as many as COCO's training set has, with random boxes.

    At 640 pixels the boxes have the pixel areas of COCO's pictures of 640×480: 41 % are below 32², 25 % above
    96². An image has 6.9 boxes on average. The frequency of class k falls as (k + 1)^−1.1. A sample depends on
    the seed and its index alone.
    """

    def __init__(self, side: int, classes: int, seed: int) -> None:
        self.side = side
        self.seed = seed
        shares = np.arange(1, classes + 1, dtype=np.float64) ** -_ZIPF_EXPONENT
        self.up_to_class = np.cumsum(shares / shares.sum())

    def __len__(self) -> int:
        return _EPOCH

    def __getitem__(self, index: int) -> DetectionSample:
        if not 0 <= index < _EPOCH:
            raise IndexError(index)
        rng = numpy_generator(self.seed, index)
        boxes = torch.from_numpy(self._boxes(rng))
        image = rng.integers(0, 256, (3, self.side, self.side), dtype=np.uint8)
        return torch.from_numpy(image), boxes

    def boxes(self, index: int) -> torch.Tensor:
        """Return the boxes of the sample `index`, without drawing its image."""
        return torch.from_numpy(self._boxes(numpy_generator(self.seed, index)))

    def _boxes(self, rng: np.random.Generator) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        count = (
            0 if rng.random() < _EMPTY_SHARE else max(1, min(int(rng.lognormal(*_LOG_COUNT)), _MOST_BOXES))
        )
        area = rng.lognormal(*_LOG_AREA, count).clip(max=1.0) * _PICTURE_SHARE
        aspect = rng.lognormal(*_LOG_ASPECT, count)
        sides = np.stack((np.sqrt(area * aspect), np.sqrt(area / aspect)), 1).clip(_LEAST_SIDE, 1.0)
        category = np.searchsorted(self.up_to_class, rng.random(count), side="right")
        rows = np.zeros((count, 6), np.float32)
        # The last sum may fall short of 1 by a rounding error.
        rows[:, 1] = category.clip(max=len(self.up_to_class) - 1)
        rows[:, 2:4] = sides / 2 + rng.random((count, 2)) * (1 - sides)
        rows[:, 4:] = sides
        return rows


def collate(samples: list[DetectionSample]) -> DetectionSample:
    """Return images (batch, 3, side, side) and the boxes (n, 6) of all, column 0 naming a box's image."""
    images = torch.stack([image for image, _ in samples])
    boxes = torch.cat([rows for _, rows in samples])
    counts = torch.tensor([len(rows) for _, rows in samples])
    boxes[:, 0] = torch.arange(len(samples)).repeat_interleave(counts)
    return images, boxes
