"""The geometry of training images: letterbox, mosaic, scale and shift, flip; boxes go where their pixels go.

A scene is a picture and its boxes (n, 5): class, left, top, right, bottom, in pixels of the picture.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from tracekit.capture.workloads.data.coco_labels import Rows

__all__ = [
    "DECODE_FAULTS",
    "LEAST_SIDE_PX",
    "LEAST_VISIBLE",
    "Augmentation",
    "Scene",
    "blend",
    "decode",
    "finish",
    "letterbox",
    "look_at",
    "mosaic",
]

Boxes = NDArray[np.float64]
Scene = tuple[Image.Image, Boxes]

DECODE_FAULTS: Final = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""The errors of Pillow's decoders for a file that is damaged or not an image."""

_GREY = (114, 114, 114)
LEAST_SIDE_PX = 2.0
LEAST_VISIBLE = 0.1
_MIXUP_BETA = 32.0


@dataclass(frozen=True, slots=True)
class Augmentation:
    """The strengths of random changes to images; the defaults are those of the smaller models.

    `mosaic`, `mixup` and `flip` are probabilities. `scale` and `shift` are the largest changes of the size and,
    in sides, of the place. `colour` are the largest relative changes of hue, saturation and value.
    """

    mosaic: float = 1.0
    mixup: float = 0.0
    flip: float = 0.5
    scale: float = 0.5
    shift: float = 0.1
    colour: tuple[float, float, float] = (0.015, 0.7, 0.4)


def decode(path: str) -> Image.Image:
    """Return the image at `path` in RGB, upright. Raises one of `DECODE_FAULTS` if it cannot be read."""
    with Image.open(Path(path)) as image:
        ImageOps.exif_transpose(image, in_place=True)
        return image.convert("RGB")


def letterbox(image: Image.Image, rows: Rows, side: int) -> Scene:
    """Return `image` scaled to a longest side of `side` in the middle of a grey square, with its boxes."""
    fitted = _fitted(image, side)
    left, top = (side - fitted.width) // 2, (side - fitted.height) // 2
    square = Image.new("RGB", (side, side), _GREY)
    square.paste(fitted, (left, top))
    return square, _corners(rows, fitted, left, top)


def mosaic(parts: Sequence[tuple[Image.Image, Rows]], side: int, rng: np.random.Generator) -> Scene:
    """Return four images about a random point of a grey square of twice `side`, with the boxes of all.

    The images lie at the top left, top right, bottom left and bottom right of the point, which is at least half
    a `side` from the border. Boxes may reach beyond the border, as images do.
    """
    x, y = (int(at) for at in rng.integers(side // 2, side + side // 2 + 1, 2))
    canvas = Image.new("RGB", (2 * side, 2 * side), _GREY)
    boxes = []
    for number, (image, rows) in enumerate(parts):
        fitted = _fitted(image, side)
        left = x if number % 2 else x - fitted.width
        top = y if number // 2 else y - fitted.height
        canvas.paste(fitted, (left, top))
        boxes.append(_corners(rows, fitted, left, top))
    return canvas, np.concatenate(boxes)


def look_at(scene: Scene, side: int, change: Augmentation, rng: np.random.Generator) -> Scene:
    """Return a window of `side` pixels on the middle of `scene`, changed in scale and shifted at random.

    Boxes with at most a tenth of their area in the window, or at most 2 pixels of width or height there, are
    left out; others are cut at its border.
    """
    image, boxes = scene
    scale = rng.uniform(1 - change.scale, 1 + change.scale)
    shift = side * (0.5 + rng.uniform(-change.shift, change.shift, 2))
    middle = np.array((image.width, image.height)) / 2
    if scale == 1.0 and not change.shift:
        left, top = (int(at) for at in middle - side // 2)
        origin = np.array((left, top), np.float64)
        window = image.crop((left, top, left + side, top + side))
    else:
        origin = middle - shift / scale
        onto = (1 / scale, 0.0, origin[0], 0.0, 1 / scale, origin[1])
        window = image.transform(
            (side, side), Image.Transform.AFFINE, onto, Image.Resampling.BILINEAR, fillcolor=_GREY
        )
    on_canvas = boxes[:, 1:].clip(0, np.tile((image.width, image.height), 2))
    seen = ((on_canvas - np.tile(origin, 2)) * scale).clip(0, side)
    whole = _areas(boxes[:, 1:]) * scale**2
    kept = (seen[:, 2:] - seen[:, :2] > LEAST_SIDE_PX).all(1) & (_areas(seen) > LEAST_VISIBLE * whole)
    return window, np.concatenate((boxes[kept, :1], seen[kept]), 1)


def blend(scene: Scene, other: Scene, rng: np.random.Generator) -> Scene:
    """Return the mixture of two scenes of one size, with the boxes of both."""
    share = rng.beta(_MIXUP_BETA, _MIXUP_BETA)
    return Image.blend(scene[0], other[0], share), np.concatenate((scene[1], other[1]))


def finish(
    scene: Scene, change: Augmentation, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return the square `scene`, coloured and perhaps flipped, as bytes (3, side, side) and rows (n, 6).

    A row is 0, class, centre x, centre y, width, height, as shares of the side.
    """
    image, boxes = scene
    side = image.width
    image = _coloured(image, change, rng)
    flipped = rng.random() < change.flip
    if flipped:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    rows = np.zeros((len(boxes), 6))
    rows[:, 1] = boxes[:, 0]
    rows[:, 2:4] = (boxes[:, 1:3] + boxes[:, 3:5]) / (2 * side)
    rows[:, 4:6] = (boxes[:, 3:5] - boxes[:, 1:3]) / side
    if flipped:
        rows[:, 2] = 1 - rows[:, 2]
    pixels = np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
    return pixels, rows.astype(np.float32)


def _fitted(image: Image.Image, side: int) -> Image.Image:
    scale = side / max(image.size)
    width, height = (max(round(length * scale), 1) for length in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)


def _corners(rows: Rows, fitted: Image.Image, left: int, top: int) -> Boxes:
    extent = np.array((fitted.width, fitted.height), np.float64)
    centres = rows[:, 1:3] * extent + (left, top)
    half = rows[:, 3:5] * extent / 2
    return np.concatenate((rows[:, :1], centres - half, centres + half), 1)


def _areas(corners: Boxes) -> NDArray[np.float64]:
    areas: NDArray[np.float64] = (corners[:, 2:] - corners[:, :2]).prod(1)
    return areas


def _coloured(image: Image.Image, change: Augmentation, rng: np.random.Generator) -> Image.Image:
    hue, saturation, value = 1 + rng.uniform(-1, 1, 3) * change.colour
    if not any(change.colour):
        return image
    levels = np.arange(256)
    turned = (levels * hue) % 256
    table = np.concatenate((turned, (levels * saturation).clip(max=255), (levels * value).clip(max=255)))
    return image.convert("HSV").point(table.astype(np.uint8).tolist()).convert("RGB")
