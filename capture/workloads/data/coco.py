"""Real images with boxes: a COCO folder, decoded and augmented by the loader's processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from tracekit.capture.workloads.data import coco_images as images
from tracekit.capture.workloads.data.boxes import DetectionSample
from tracekit.capture.workloads.data.coco_images import Augmentation, Scene
from tracekit.capture.workloads.data.coco_labels import Rows, find_labels
from tracekit.capture.workloads.data.samples import numpy_generator
from tracekit.errors import UsageError

__all__ = ["CocoImages"]


class CocoImages(Dataset[DetectionSample]):
    """The images at `path` with their boxes, augmented; see `find_labels` for what a dataset looks like.

    A sample depends on the seed, its index and the files. An image that cannot be decoded is replaced by the
    next image that can; a malformed row of labels is left out.

    Raises `UsageError` if `path` is not such a dataset or none of its images can be decoded.
    """

    def __init__(self, path: Path, *, side: int, classes: int, seed: int, augmentation: Augmentation) -> None:
        self.path = path
        self.side = side
        self.seed = seed
        self.augmentation = augmentation
        self.source = find_labels(path, classes)
        # One place per image, so that the loader's processes need no lock: all write the same value.
        self._undecodable = _shared_zeros(len(self.source.images), torch.bool)
        self._malformed_rows = _shared_zeros(len(self.source.images), torch.int32)
        self.load(0)

    def __len__(self) -> int:
        return len(self.source.images)

    def skipped(self) -> int:
        """Return the number of images and rows of labels left out so far, in all processes, each counted once."""
        return self.source.malformed + int(self._undecodable.sum()) + int(self._malformed_rows.sum())

    def load(self, index: int) -> tuple[Image.Image, Rows]:
        """Return image `index`, or the next image that can be decoded, as on disk, and its boxes."""
        for number in range(index, index + len(self)):
            at = number % len(self)
            if self._undecodable[at]:
                continue
            try:
                image = images.decode(self.source.images[at])
            except images.DECODE_FAULTS:
                self._undecodable[at] = True
                continue
            rows, malformed = self.source.rows(at)
            if malformed:
                self._malformed_rows[at] = malformed
            return image, rows
        raise UsageError(
            f"none of its {len(self)} images can be decoded", path=self.path, remedy="download them again"
        )

    def __getitem__(self, index: int) -> DetectionSample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        rng = numpy_generator(self.seed, index)
        scene = self._scene(index, rng)
        if rng.random() < self.augmentation.mixup:
            scene = images.blend(scene, self._scene(self._any(rng), rng), rng)
        pixels, rows = images.finish(scene, self.augmentation, rng)
        return torch.from_numpy(pixels), torch.from_numpy(rows)

    def _any(self, rng: np.random.Generator) -> int:
        return int(rng.integers(len(self)))

    def _scene(self, index: int, rng: np.random.Generator) -> Scene:
        if rng.random() < self.augmentation.mosaic:
            others = [self._any(rng) for _ in range(3)]
            order = rng.permutation([index, *others])
            whole = images.mosaic([self.load(int(number)) for number in order], self.side, rng)
        else:
            whole = images.letterbox(*self.load(index), self.side)
        return images.look_at(whole, self.side, self.augmentation, rng)


def _shared_zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
    zeros = torch.zeros(count, dtype=dtype)
    zeros.share_memory_()  # type: ignore[no-untyped-call]
    return zeros
