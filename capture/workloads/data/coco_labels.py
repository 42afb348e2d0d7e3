"""The files of a detection dataset on disk: its images and their boxes.

Two layouts: images below a folder `images` with YOLO's text files below `labels`, or images anywhere with a COCO
`instances_*.json`.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tracekit.errors import UsageError

__all__ = ["InstanceLabels", "Rows", "TextLabels", "find_labels"]

Rows = NDArray[np.float32]
"""Boxes (n, 5): class, centre x, centre y, width, height, the last four as shares of the image."""

_IMAGE_SUFFIXES: Final = frozenset((".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"))
_SLACK = 1e-3  # how far a share may lie beyond the image by rounding
_BOX_VALUES = 4
_LEAST_POLYGON_VALUES = 6
_Record = TypeVar("_Record")
_LAYOUTS = "give a folder with images/ and labels/*.txt, or with images and an instances_*.json"


@dataclass(frozen=True, slots=True)
class TextLabels:
    """Images, and boxes from one text file per image, read when they are needed; an image without a file has no boxes.

    `malformed` counts the entries that were left out when the dataset was opened.
    """

    images: Sequence[str]
    labels: Sequence[str]
    classes: int
    malformed: int = 0

    def rows(self, index: int) -> tuple[Rows, int]:
        """Return the boxes of image `index`, and the number of malformed rows in its file."""
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
    """Images and boxes from a COCO instances file; those of image i are `boxes[starts[i]:starts[i + 1]]`.

    `malformed` counts the entries that were left out.
    """

    images: Sequence[str]
    boxes: Rows
    starts: NDArray[np.int64]
    malformed: int

    def rows(self, index: int) -> tuple[Rows, int]:
        """Return the boxes of image `index`, and 0: `malformed` already counts the malformed entries."""
        return self.boxes[self.starts[index] : self.starts[index + 1]], 0


def find_labels(path: Path, classes: int) -> TextLabels | InstanceLabels:
    """Return the dataset at `path`: a folder in one of the two layouts, or an instances file next to its images.

    If a folder has both kinds of labels, the text files are read; among several instances files, one for
    training images is preferred. Raises `UsageError` if `path` does not exist or is not such a dataset.
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
    first = min(instances, key=lambda file: ("train" not in PurePath(file).name, file))
    return _read_instances(Path(first), images, classes)


def _files_below(root: Path) -> Iterator[str]:
    """Paths of all files; folders may be links, even links that form a cycle."""

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
    files: list[str] = []
    labels: list[str] = []
    for image in images:
        folders = list(_folders(image, root))
        if "images" not in folders:
            continue
        last = len(folders) - 1 - folders[::-1].index("images")
        folders[last] = "labels"
        files.append(image)
        labels.append(str(root.joinpath(*folders, PurePath(image).stem + ".txt")))
    if not files:
        raise UsageError("holds labels but no images", path=path, remedy="put the images below images/")
    return TextLabels(files, labels, classes)


def _text_box(fields: list[str], classes: int) -> tuple[float, ...] | None:
    """A class and a box, or a class and the corners of a polygon; None if the row is neither."""
    try:
        category, *values = (float(field) for field in fields)
    except ValueError:
        return None
    if not (category.is_integer() and 0 <= category < classes):
        return None
    if not all(-_SLACK <= value <= 1 + _SLACK for value in values):  # also false for NaN
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
    """The box cut to the image; None if nothing is left of it."""
    left, top, right, bottom = max(left, 0.0), max(top, 0.0), min(right, 1.0), min(bottom, 1.0)
    if not (right > left and bottom > top):
        return None
    return category, (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def _as_rows(boxes: Sequence[tuple[float, ...]]) -> Rows:
    return np.asarray(boxes, np.float32).reshape(-1, 5)


class _Image(msgspec.Struct):
    id: int | str
    file_name: Annotated[str, Meta(min_length=1)]
    width: Annotated[float, Meta(gt=0)]
    height: Annotated[float, Meta(gt=0)]


class _Annotation(msgspec.Struct):
    image_id: int | str
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: Any = 0


def _read_instances(path: Path, images: list[str], classes: int) -> InstanceLabels:
    document = _load_json(path)
    numbers = _class_numbers(path, document["categories"], classes)
    records = _sound(document["images"], _Image)
    annotations = _sound(document["annotations"], _Annotation)
    malformed = sum(len(document[key]) for key in ("images", "annotations")) - len(records) - len(annotations)
    sizes = {record.id: record for record in records}
    boxes: dict[int | str, list[tuple[float, ...]]] = defaultdict(list)
    for annotation in annotations:
        if annotation.iscrowd == 1:
            continue  # a region of many objects, not a box of one
        box = _instance_box(annotation, sizes, numbers)
        if box is None:
            malformed += 1
        else:
            boxes[annotation.image_id].append(box)
    files = _locate(path, sizes.values(), images)
    if not files:
        raise UsageError(
            "none of its images is there", path=path, remedy="put the images into the folder of the file"
        )
    return InstanceLabels(
        images=list(files.values()),
        boxes=_as_rows([box for key in files for box in boxes[key]]),
        starts=np.cumsum([0, *(len(boxes[key]) for key in files)], dtype=np.int64),
        malformed=malformed + len(sizes) - len(files),
    )


def _sound(records: list[Any], kind: type[_Record]) -> list[_Record]:
    """The records that have the fields of this kind."""
    sound = []
    for record in records:
        with suppress(msgspec.ValidationError, OverflowError):
            sound.append(msgspec.convert(record, kind))
    return sound


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
            remedy=f"the model can have 1 to {classes} classes",
        )
    return {key: number for number, key in enumerate(numbers)}


def _instance_box(
    annotation: _Annotation, sizes: Mapping[int | str, _Image], numbers: Mapping[int, int]
) -> tuple[float, ...] | None:
    """The class and the box; None if its image or category is unknown, or no part of it is in the image."""
    image = sizes.get(annotation.image_id)
    if image is None or annotation.category_id not in numbers:
        return None
    left, top, width, height = annotation.bbox
    corners = (
        *(left / image.width, top / image.height),
        *((left + width) / image.width, (top + height) / image.height),
    )
    if not all(map(math.isfinite, corners)):
        return None
    return _clipped(float(numbers[annotation.category_id]), *corners)


def _locate(path: Path, records: Iterable[_Image], images: list[str]) -> dict[int | str, str]:
    """The path of each image of the file that is on disk, by its id."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for image in sorted(images):
        by_name[PurePath(image).name].append(image)
    files: dict[int | str, str] = {}
    for record in records:
        name = PurePath(record.file_name)
        if candidates := by_name.get(name.name):
            rank = partial(_distance, name=name, split=path.stem)
            files[record.id] = min(candidates, key=rank)
    return files


def _distance(image: str, name: PurePath, split: str) -> tuple[bool, bool, str]:
    """A sort key: first the image in the folders of the `name` in the file, then an image in the folder of its split."""
    parts = PurePath(image).parts
    in_split = any(folder and split.endswith(f"_{folder}") for folder in parts[:-1])
    return parts[-len(name.parts) :] != name.parts, not in_split, image
