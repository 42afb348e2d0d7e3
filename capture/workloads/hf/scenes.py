"""Images and their content, for the `hf` workload: classes, boxes, masks and depths."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch.nn import functional

__all__ = ["KINDS", "boxes", "pixels"]

_MOST_BOXES = 93  # in an image of COCO
_MOST_MASKS = 20
_IGNORED_CLASS = 255
_TILE = 8


def pixels(side: int, random: torch.Generator, *leading: int) -> torch.Tensor:
    """Return an image (3, side, side) of mean 0 and deviation 1, as an image processor returns it."""
    return torch.randn((*leading, 3, side, side), generator=random, device="cpu")


def boxes(most: int, random: torch.Generator) -> torch.Tensor:
    """Return between 1 and `most` boxes (n, 4) as centre, width and height in shares of the image's sides.

    Their number, area and aspect are distributed about as in COCO.
    """
    normal = torch.randn((), generator=random, device="cpu").item()
    count = min(max(1, int(math.exp(1.55 + 0.95 * normal))), _MOST_BOXES, most)
    area = torch.exp(torch.randn(count, generator=random, device="cpu") * 2.44 - 5.15).clamp(1e-4, 0.9)
    aspect = torch.exp(torch.randn(count, generator=random, device="cpu") * 0.5)
    sides = torch.stack([(area * aspect).sqrt(), (area / aspect).sqrt()], dim=1).clamp(max=1.0)
    centres = sides / 2 + torch.rand((count, 2), generator=random, device="cpu") * (1 - sides)
    return torch.cat([centres, sides], dim=1)


def _classes(config: Any, count: tuple[int, ...], random: torch.Generator) -> torch.Tensor:
    return torch.randint(config.num_labels, count, generator=random, device="cpu")


def _image_and_class(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    return {"pixel_values": pixels(size, random), "labels": _classes(config, (), random)}


def _inputs_and_class(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    return {"inputs": pixels(size, random), "labels": _classes(config, (), random)}


def _image(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:  # noqa: ARG001 - of `Maker`
    return {"pixel_values": pixels(size, random)}


def _video(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    frames = pixels(size, random, config.num_frames)
    return {"pixel_values": frames, "labels": _classes(config, (), random)}


def _tiles(values: torch.Tensor, size: int) -> torch.Tensor:
    grown = functional.interpolate(values[None, None].float(), size=(size, size), mode="nearest")
    return grown[0, 0]


def _image_and_classes(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    count = max(1, size // _TILE)
    classes = _classes(config, (count, count), random)
    unknown = torch.rand((count, count), generator=random, device="cpu") < 0.05
    labels = _tiles(classes.masked_fill(unknown, _IGNORED_CLASS), size).long()
    return {"pixel_values": pixels(size, random), "labels": labels}


def _image_and_depth(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    count = max(1, size // _TILE)
    level = torch.rand((count, count), generator=random, device="cpu")
    depth = 0.1 + _tiles(level, size) * (config.max_depth - 0.1)
    return {"pixel_values": pixels(size, random), "labels": depth}


def _most(config: Any) -> int:
    queries: int | None = getattr(config, "num_queries", None) or getattr(
        config, "num_detection_tokens", None
    )
    return queries or _MOST_BOXES


def _image_and_boxes(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    places = boxes(_most(config), random)
    classes = _classes(config, (len(places),), random)
    return {"pixel_values": pixels(size, random), "labels": {"class_labels": classes, "boxes": places}}


def _image_and_masks(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    places = boxes(_MOST_MASKS, random)
    middle = (torch.arange(size, device="cpu") + 0.5) / size
    low, high = places[:, :2] - places[:, 2:] / 2, places[:, :2] + places[:, 2:] / 2
    within = (middle >= low[..., None]) & (middle <= high[..., None])  # box, x or y, pixel
    masks = within[:, 1, :, None] & within[:, 0, None, :]
    return {
        "pixel_values": pixels(size, random),
        "mask_labels": masks.float(),
        "class_labels": _classes(config, (len(places),), random),
    }


KINDS: Final = {
    "image": _image,
    "image and boxes": _image_and_boxes,
    "image and class": _image_and_class,
    "image and classes": _image_and_classes,
    "image and depth": _image_and_depth,
    "image and masks": _image_and_masks,
    "inputs and class": _inputs_and_class,
    "video and class": _video,
}
"""The makers by the kind of their samples."""
