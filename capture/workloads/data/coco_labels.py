"""The files of a detection dataset on disk: which images there are, and which boxes they hold.

Two layouts: images below a folder `images` with YOLO's text files below `labels`, or images anywhere with a COCO
`instances_*.json`.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tracekit.errors import UsageError

__all__ = ["InstanceLabels", "LabelSource", "Rows", "TextLabels", "find_labels"]

Rows = NDArray[np.float32]
"""Boxes (n, 5): class, centre x, centre y, width, height, the last four as shares of the image."""

_IMAGE_SUFFIXES: Final = frozenset((".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"))
_SLACK = 1e-3  # how far a share may lie beyond the image by rounding
_BOX_VALUES = 4
_LEAST_POLYGON_VALUES = 6
_LAYOUTS = "it takes images/ beside labels/*.txt, or images and an instances_*.json"


class LabelSource(Protocol):
    """The images of a dataset and their boxes.

    `malformed` counts the entries that were left out when the dataset was opened.
    """

    @property
    def images(self) -> Sequence[str]:
        """The paths of the images, in a fixed order."""

    @property
    def malformed(self) -> int:
        """How many entries were left out so far, other than those `rows` tells of."""

    def rows(self, index: int) -> tuple[Rows, int]:
        """Return the boxes of image `index`, and how many of its rows are malformed."""


@dataclass(frozen=True, slots=True)
class TextLabels:
    """Boxes from one text file per image, read when asked for; an image without a file has none."""

    images: Sequence[str]
    labels: Sequence[str]
    classes: int
    malformed: int = 0

    def rows(self, index: int) -> tuple[Rows, int]:
        """Return the boxes of image `index`, and how many rows of its file are malformed."""
        try:
            text = Path(self.labels[index]).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return _as_rows([]), 0
        except OSError:
            return _as_rows([]), 1
        lines = [line.split() for line in text.splitlines()]
        boxes = [_text_box(fields, self.classes) for fields in lines if fields]
        usable = [box for box in boxes if box is not None]
        return _as_rows(usable), len(boxes) - len(usable)


@dataclass(frozen=True, slots=True)
class InstanceLabels:
    """Boxes from a COCO instances file; those of image i are `boxes[starts[i]:starts[i + 1]]`."""

    images: Sequence[str]
    boxes: Rows
    starts: NDArray[np.int64]
    malformed: int

    def rows(self, index: int) -> tuple[Rows, int]:
        """Return the boxes of image `index`; none of its rows is malformed, as `malformed` has them."""
        return self.boxes[self.starts[index] : self.starts[index + 1]], 0


def find_labels(path: Path, classes: int) -> LabelSource:
    """Return the dataset at `path`: a folder in one of the two layouts, or an instances file beside its images.

    A folder that has both kinds of labels is read by its text files; of several instances files, one of
    training images is preferred. Raises `UsageError` when `path` is not there or is no such dataset.
    """
    if not path.exists():
        raise UsageError("no such file or folder", path=path, remedy=_LAYOUTS)
    if path.is_file():
        if path.suffix.lower() != ".json":
            raise UsageError("not a folder and not a JSON file", path=path, remedy=_LAYOUTS)
        root = path.parent.parent if path.parent.name == "annotations" else path.parent
        return _read_instances(path, [file for file in _files_below(root) if _is_image(file)], classes)
    root = path.parent if path.name == "images" and (path.parent / "labels").is_dir() else path
    files = sorted(_files_below(root))
    images = [file for file in files if _is_image(file)]
    if any(file.endswith(".txt") and "labels" in _folders(file, root) for file in files):
        return _text_labels(path, root, images, classes)
    instances = [file for file in files if _is_instances(file)]
    if not instances:
        raise UsageError("holds no labels", path=path, remedy=_LAYOUTS)
    chosen = min(instances, key=lambda file: ("train" not in PurePath(file).name, file))
    return _read_instances(Path(chosen), images, classes)


def _files_below(root: Path) -> Iterator[str]:
    """Paths of all files; folders may be links, even ones that form a ring."""

    def refuse(error: OSError) -> None:
        raise UsageError(f"cannot be read: {error.strerror}", path=error.filename) from error

    seen: set[str] = set()
    for folder, inner, names in os.walk(root, onerror=refuse, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        inner.sort()
        for name in names:
            yield os.path.join(folder, name)  # noqa: PTH118 - a hundred thousand files; Path is ten times slower


def _is_image(file: str) -> bool:
    return os.path.splitext(file)[1].lower() in _IMAGE_SUFFIXES  # noqa: PTH122 - as above


def _is_instances(file: str) -> bool:
    name = PurePath(file).name
    return name.startswith("instances_") and name.endswith(".json")


def _folders(file: str, root: Path) -> tuple[str, ...]:
    return PurePath(file).relative_to(root).parts[:-1]


def _text_labels(path: Path, root: Path, images: list[str], classes: int) -> TextLabels:
    chosen: list[str] = []
    labels: list[str] = []
    for image in images:
        folders = list(_folders(image, root))
        if "images" not in folders:
            continue
        last = len(folders) - 1 - folders[::-1].index("images")
        folders[last] = "labels"
        chosen.append(image)
        labels.append(str(root.joinpath(*folders, PurePath(image).stem + ".txt")))
    if not chosen:
        raise UsageError("holds labels but no images", path=path, remedy="put the images below images/")
    return TextLabels(chosen, labels, classes)


def _text_box(fields: list[str], classes: int) -> tuple[float, ...] | None:
    """A class and a box, or a class and the corners of a polygon; None when the row is neither."""
    try:
        category, *values = (float(field) for field in fields)
    except ValueError:
        return None
    if not (category.is_integer() and 0 <= category < classes):
        return None
    if not all(-_SLACK <= value <= 1 + _SLACK for value in values):  # false of NaN too
        return None
    if len(values) == _BOX_VALUES:
        x, y, width, height = values
    elif len(values) >= _LEAST_POLYGON_VALUES and len(values) % 2 == 0:
        left, right = min(values[::2]), max(values[::2])
        top, bottom = min(values[1::2]), max(values[1::2])
        x, y, width, height = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
    else:
        return None
    return _clipped(category, x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _clipped(
    category: float, left: float, top: float, right: float, bottom: float
) -> tuple[float, ...] | None:
    """The box cut to the image; None when nothing is left of it."""
    left, top, right, bottom = max(left, 0.0), max(top, 0.0), min(right, 1.0), min(bottom, 1.0)
    if not (right > left and bottom > top):
        return None
    return category, (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def _as_rows(boxes: Sequence[tuple[float, ...]]) -> Rows:
    return np.asarray(boxes, np.float32).reshape(-1, 5)


def _read_instances(path: Path, images: list[str], classes: int) -> InstanceLabels:
    document = _load_json(path)
    numbers = _class_numbers(path, document["categories"], classes)
    malformed = 0
    sizes: dict[Any, tuple[str, float, float]] = {}
    for record in document["images"]:
        entry = _image_entry(record)
        if entry is None:
            malformed += 1
        else:
            sizes[entry[0]] = entry[1:]
    boxes: dict[Any, list[tuple[float, ...]]] = defaultdict(list)
    for record in document["annotations"]:
        if isinstance(record, Mapping) and record.get("iscrowd") == 1:
            continue  # a region of many objects, not a box of one
        placed = _instance_box(record, sizes, numbers)
        if placed is None:
            malformed += 1
        else:
            boxes[placed[0]].append(placed[1])
    found, missing = _locate(path, sizes, images)
    if not found:
        raise UsageError(
            "none of its images is there", path=path, remedy="put the images into the folder of the file"
        )
    counts = [len(boxes[key]) for key in found]
    return InstanceLabels(
        images=list(found.values()),
        boxes=_as_rows([box for key in found for box in boxes[key]]),
        starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        malformed=malformed + missing,
    )


def _load_json(path: Path) -> dict[str, list[Any]]:
    try:
        with path.open("rb") as file:
            document = json.load(file)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", path=path) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not valid JSON: {error}", path=path, remedy="download it again") from error
    lists: dict[str, list[Any]] = {}
    for key in ("images", "annotations", "categories"):
        part = document.get(key) if isinstance(document, dict) else None
        if not isinstance(part, list):
            raise UsageError(f"not a COCO instances file: it has no list {key!r}", path=path, remedy=_LAYOUTS)
        lists[key] = part
    return lists


def _class_numbers(path: Path, categories: list[Any], classes: int) -> dict[int, int]:
    """COCO's category ids have gaps; the classes are counted from 0 in order of the id."""
    ids = {record.get("id") for record in categories if isinstance(record, Mapping)}
    numbers = sorted(key for key in ids if isinstance(key, int))
    if not numbers or len(numbers) > classes:
        raise UsageError(
            f"has {len(numbers)} categories",
            path=path,
            remedy=f"the model tells 1 to {classes} classes apart",
        )
    return {key: number for number, key in enumerate(numbers)}


def _image_entry(record: Any) -> tuple[int | str, str, float, float] | None:
    if not isinstance(record, Mapping):
        return None
    key, name = record.get("id"), record.get("file_name")
    width, height = _number(record.get("width")), _number(record.get("height"))
    if isinstance(key, int | str) and isinstance(name, str) and name and width > 0 and height > 0:
        return key, name, width, height
    return None


def _instance_box(
    record: Any, sizes: Mapping[Any, tuple[str, float, float]], numbers: Mapping[int, int]
) -> tuple[Any, tuple[float, ...]] | None:
    if not isinstance(record, Mapping):
        return None
    key, category, box = record.get("image_id"), record.get("category_id"), record.get("bbox")
    if not isinstance(key, int | str) or key not in sizes:
        return None
    if not isinstance(category, int) or category not in numbers:
        return None
    if not isinstance(box, list) or len(box) != _BOX_VALUES:
        return None
    _, width, height = sizes[key]
    left, top, box_width, box_height = (_number(value) for value in box)
    corners = left / width, top / height, (left + box_width) / width, (top + box_height) / height
    if not all(map(math.isfinite, corners)):
        return None
    placed = _clipped(float(numbers[category]), *corners)
    return None if placed is None else (key, placed)


def _number(value: Any) -> float:
    """The value as a float; NaN, which is never greater than anything, when it is not a number."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e9 else math.nan


def _locate(
    path: Path, sizes: Mapping[Any, tuple[str, float, float]], images: list[str]
) -> tuple[dict[Any, str], int]:
    """The path of each image of the file that is on disk, and how many are not."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for image in sorted(images):
        by_name[PurePath(image).name].append(image)
    found: dict[Any, str] = {}
    for key, (name, _, _) in sizes.items():
        wanted = PurePath(name)
        candidates = by_name.get(wanted.name, [])
        if candidates:
            found[key] = min(candidates, key=lambda image: _distance(PurePath(image), wanted, path.stem))
    return found, len(sizes) - len(found)


def _distance(image: PurePath, wanted: PurePath, split: str) -> tuple[bool, bool, str]:
    """Sorts first the image whose folders are those named in the file, then one in the folder of its split."""
    named = image.parts[-len(wanted.parts) :] == wanted.parts
    in_split = any(folder and split.endswith(f"_{folder}") for folder in image.parts[:-1])
    return not named, not in_split, str(image)
