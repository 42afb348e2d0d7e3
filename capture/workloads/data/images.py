"""Images as bytes: made-up, or read from folders, cropped to one size; and their conversion to model inputs."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

from tracekit.capture.workloads.data.samples import SkipCounter, numpy_generator
from tracekit.errors import UsageError

__all__ = [
    "ImageBatch",
    "ImageFolder",
    "LabelledImage",
    "Normalise",
    "SyntheticImages",
    "noise_image",
    "resized_crop_box",
]

_MEAN = (0.485, 0.456, 0.406)  # of the red, green and blue of ImageNet's images, from 0 to 1
_DEVIATION = (0.229, 0.224, 0.225)
_SYNTHETIC_IMAGES = 100_000
_STORED_PER_CROPPED = 256 / 224
_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".tif", ".tiff", ".webp")
_MOST_BAD_IN_A_ROW = 1_000
_CROP_AREA = (0.08, 1.0)
_CROP_ASPECT = (3 / 4, 4 / 3)
_CROP_TRIALS = 10

LabelledImage = tuple[torch.Tensor, int]
ImageBatch = tuple[torch.Tensor, torch.Tensor]


class Normalise(nn.Module):
    """Bytes to numbers of mean 0 and deviation 1, by the usual mean and deviation of ImageNet's channels."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        mean = torch.tensor(_MEAN).view(3, 1, 1) * 255
        scale = 1 / (torch.tensor(_DEVIATION).view(3, 1, 1) * 255)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return floats of the shape of `images`, bytes (batch, 3, height, width)."""
        return (images - self.mean) * self.scale


def noise_image(random: np.random.Generator, side: int) -> NDArray[np.uint8]:
    """Return an image of random bytes, (3, side, side)."""
    return random.integers(256, size=(3, side, side), dtype=np.uint8)


class SyntheticImages(Dataset[LabelledImage]):
    """Random images of bytes, cropped and mirrored like real ones, with random classes.

    A sample is an image (3, side, side), cut from one 8/7 as large, and its class; it depends on its index and the
    seed alone.
    """

    def __init__(self, side: int, classes: int, seed: int) -> None:
        self.side = side
        self.classes = classes
        self.seed = seed

    def __len__(self) -> int:
        return _SYNTHETIC_IMAGES

    def __getitem__(self, index: int) -> LabelledImage:
        random = numpy_generator(self.seed, index)
        stored = round(self.side * _STORED_PER_CROPPED)
        image = noise_image(random, stored)
        top, left = random.integers(stored - self.side + 1, size=2)
        image = image[:, top : top + self.side, left : left + self.side]
        if random.random() < 0.5:
            image = image[:, :, ::-1]
        return torch.from_numpy(image.copy()), int(random.integers(self.classes))


def resized_crop_box(
    random: np.random.Generator, width: int, height: int
) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of a random part of an image, 8 to 100 % of its area.

    The aspect ratio lies between 3:4 and 4:3; if no such part is found in ten trials, it is the largest centred one
    with the nearest ratio.
    """
    for _ in range(_CROP_TRIALS):
        area = width * height * random.uniform(*_CROP_AREA)
        aspect = math.exp(random.uniform(math.log(_CROP_ASPECT[0]), math.log(_CROP_ASPECT[1])))
        part_width, part_height = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if part_width <= width and part_height <= height:
            left, top = random.uniform(0, width - part_width), random.uniform(0, height - part_height)
            return left, top, left + part_width, top + part_height
    part_width = min(width, height * _CROP_ASPECT[1])
    part_height = min(height, width / _CROP_ASPECT[0])
    left, top = (width - part_width) / 2, (height - part_height) / 2
    return left, top, left + part_width, top + part_height


class ImageFolder(Dataset[LabelledImage]):
    """Images in one folder per class; the classes are numbered in the order of the folders' names.

    A sample is a random part of the image, resized to (3, side, side) and mirrored half of the time; it depends
    only on the index and the seed. An image that cannot be decoded is replaced by the next image that can, and
    counted in `skipped`, once for each request.
    """

    def __init__(self, root: Path, side: int, classes: int, seed: int) -> None:
        """List the images under `root`; raises `UsageError` if there are none, or more than `classes` folders."""
        self.root = root
        self.side = side
        self.seed = seed
        self.skipped = SkipCounter()
        self._images: list[tuple[str, int]] = []
        try:
            folders = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
            for label, folder in enumerate(folders):
                names = sorted(entry.name for entry in os.scandir(root / folder))
                images = (name for name in names if name.lower().endswith(_SUFFIXES))
                self._images += [(f"{folder}/{name}", label) for name in images]
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}",
                path=root,
                remedy="name a folder with one folder per class",
            ) from error
        if not self._images:
            raise UsageError("no images in folders", path=root, remedy="lay them out as CLASS/IMAGE.jpg")
        if len(folders) > classes:
            raise UsageError(
                f"{len(folders)} folders, but the model has {classes} classes",
                path=root,
                remedy=f"keep at most {classes} folders",
            )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> LabelledImage:
        index = range(len(self))[index]
        for place in range(index, index + min(len(self), _MOST_BAD_IN_A_ROW)):
            name, label = self._images[place % len(self)]
            image = self._decode(self.root / name, numpy_generator(self.seed, index))
            if image is not None:
                return torch.from_numpy(image), label
            if place == index:
                self.skipped.add()
        raise UsageError(
            f"no image can be decoded from {self._images[index][0]!r} on",
            path=self.root,
            remedy="check that the files are images",
        )

    def _decode(self, path: Path, random: np.random.Generator) -> NDArray[np.uint8] | None:
        try:
            with Image.open(path) as opened:
                image = opened.convert("RGB")
        # Pillow's decoders report damage by any of these, depending on the format.
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            return None
        box = resized_crop_box(random, image.width, image.height)
        pixels = np.asarray(image.resize((self.side, self.side), Image.Resampling.BILINEAR, box=box))
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))
