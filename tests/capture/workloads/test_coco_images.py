"""Boxes go where their pixels go. The truth is a rectangle of one colour, looked for in the image that comes out."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.data import coco_images
from tracekit.capture.workloads.data.boxes import collate_detections
from tracekit.capture.workloads.data.coco import CocoImages
from tracekit.capture.workloads.data.coco_images import Augmentation, decode, letterbox, look_at
from tracekit.capture.workloads.yolov5 import build
from tracekit.errors import UsageError

COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255)]
STILL = Augmentation(mosaic=0.0, flip=0.0, scale=0.0, shift=0.0, colour=(0.0, 0.0, 0.0))
GREY = 114


def painted(number: int, width: int, height: int, corners: tuple[int, int, int, int]) -> Image.Image:
    image = Image.new("RGB", (width, height), (30, 30, 30))
    image.paste(COLOURS[number], corners)
    return image


def add(
    root: Path, number: int, width: int, height: int, corners: tuple[int, int, int, int], extra: str = ""
) -> None:
    """An image of class `number` with a rectangle of that class's colour, and its label."""
    (root / "images").mkdir(parents=True, exist_ok=True)
    (root / "labels").mkdir(exist_ok=True)
    painted(number, width, height, corners).save(root / f"images/{number}.png")
    left, top, right, bottom = corners
    shares = (
        (left + right) / 2 / width,
        (top + bottom) / 2 / height,
        (right - left) / width,
        (bottom - top) / height,
    )
    row = " ".join(f"{share:.7f}" for share in shares)
    (root / f"labels/{number}.txt").write_text(f"{number} {row}\n{extra}")


def of_colour(image: np.ndarray, number: int, tolerance: int = 60) -> np.ndarray:
    """Where (height, width) an image (3, height, width) has the colour of a class."""
    difference = image.astype(int) - np.array(COLOURS[number])[:, None, None]
    return np.abs(difference).max(0) < tolerance


def extent(mask: np.ndarray) -> tuple[float, float, float, float]:
    rows, columns = np.nonzero(mask)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def corners_px(row: np.ndarray, side: int) -> np.ndarray:
    x, y, width, height = row[2:] * side
    return np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    add(tmp_path, 0, 200, 120, (20, 30, 110, 100))
    add(tmp_path, 1, 90, 160, (10, 40, 70, 120))
    add(tmp_path, 2, 128, 128, (0, 0, 64, 64))
    add(tmp_path, 3, 300, 100, (150, 20, 280, 90))
    add(tmp_path, 4, 64, 64, (30, 4, 60, 60))
    add(tmp_path, 5, 50, 200, (5, 100, 45, 195))
    return tmp_path


def dataset(path: Path, augmentation: Augmentation, side: int = 128, seed: int = 0) -> CocoImages:
    return CocoImages(path, side=side, classes=80, seed=seed, augmentation=augmentation)


@pytest.mark.parametrize(
    ("width", "height", "left", "top", "right", "bottom"),
    [
        (100, 50, 0, 16, 64, 48),
        (50, 100, 16, 0, 48, 64),
        (64, 64, 0, 0, 64, 64),
        (32, 32, 0, 0, 64, 64),
        (640, 480, 0, 8, 64, 56),
        (64, 31, 0, 16, 64, 47),  # of 33 rows left over, the odd one lies below
        (2000, 1, 0, 31, 64, 32),
    ],
)
def test_letterbox_geometry(width: int, height: int, left: int, top: int, right: int, bottom: int) -> None:
    image = Image.new("RGB", (width, height), (200, 10, 60))
    whole = np.array([[7, 0.5, 0.5, 1, 1], [8, 0.25, 0.75, 0.5, 0.5]], np.float32)
    square, boxes = letterbox(image, whole, 64)
    pixels = np.asarray(square)
    expected = np.full((64, 64, 3), GREY)
    expected[top:bottom, left:right] = (200, 10, 60)
    np.testing.assert_array_equal(pixels, expected)
    middle_x, middle_y = (left + right) / 2, (top + bottom) / 2
    np.testing.assert_allclose(boxes, [[7, left, top, right, bottom], [8, left, middle_y, middle_x, bottom]])


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_letterboxed_boxes_bound_their_colour(folder: Path, flip: float) -> None:
    change = Augmentation(mosaic=0.0, flip=flip, scale=0.0, shift=0.0, colour=(0.0, 0.0, 0.0))
    data = dataset(folder, change)
    for number in range(len(data)):
        image, rows = (part.numpy() for part in data[number])
        assert rows[:, 1].tolist() == [number]
        found = extent(of_colour(image, number, tolerance=128))
        np.testing.assert_allclose(corners_px(rows[0], 128), found, atol=1.01)
    assert (dataset(folder, STILL)[0][0] != dataset(folder, change)[0][0]).any() == bool(flip)


def check_scene(image: np.ndarray, rows: np.ndarray, side: int) -> int:
    """Each box is full of its class's colour, and all of that colour is in a box; the number of boxes."""
    for number in range(len(COLOURS)):
        outside = of_colour(image, number)
        for row in rows[rows[:, 1] == number]:
            left, top, right, bottom = corners_px(row, side)
            rows_within = slice(int(top) + 3, max(int(bottom) - 2, 0))
            columns_within = slice(int(left) + 3, max(int(right) - 2, 0))
            assert of_colour(image, number)[rows_within, columns_within].all()
            outside[max(int(top) - 2, 0) : int(bottom) + 3, max(int(left) - 2, 0) : int(right) + 3] = False
        assert not outside.any()
    return len(rows)


@pytest.fixture
def _keep_slivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes that are hardly in view would be dropped, and their colour found outside all boxes."""
    monkeypatch.setattr(coco_images, "LEAST_VISIBLE", 0.0)
    monkeypatch.setattr(coco_images, "LEAST_SIDE_PX", 0.0)


@pytest.mark.quick(1)
@pytest.mark.usefixtures("_keep_slivers")
@pytest.mark.parametrize("scale", [0.0, 0.5, 0.9])
def test_boxes_of_mosaics_cover_their_colour(folder: Path, scale: float) -> None:
    change = Augmentation(scale=scale, shift=0.1 if scale else 0.0, colour=(0.0, 0.0, 0.0))
    boxes = sum(
        check_scene(*(part.numpy() for part in dataset(folder, change, seed=seed)[number]), side=128)
        for seed in range(8)
        for number in range(6)
    )
    assert boxes > 48  # more than one of an image's four is usually in view


@pytest.mark.usefixtures("_keep_slivers")
def test_boxes_of_scaled_letterboxes_cover_their_colour(folder: Path) -> None:
    change = Augmentation(mosaic=0.0, colour=(0.0, 0.0, 0.0))
    for seed in range(8):
        data = dataset(folder, change, seed=seed)
        assert sum(check_scene(*(x.numpy() for x in data[number]), side=128) for number in range(6)) >= 5


def test_a_mosaic_meets_in_a_random_point(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "labels").mkdir()
    for number in range(4):
        Image.new("RGB", (32, 32), COLOURS[number]).save(tmp_path / f"images/{number}.png")
        (tmp_path / f"labels/{number}.txt").write_text(f"{number} 0.5 0.5 1 1\n")
    change = Augmentation(flip=0.0, scale=0.0, shift=0.0, colour=(0.0, 0.0, 0.0))
    met = set()
    for seed in range(6):
        image, rows = (part.numpy() for part in dataset(tmp_path, change, side=64, seed=seed)[0])
        assert not (image == GREY).all(0).any()  # squares fill their quarter
        corners = np.array([corners_px(row, 64) for row in rows]).round(3)
        for row, (left, top, right, bottom) in zip(rows, corners.astype(int), strict=True):
            assert of_colour(image, int(row[1]))[top:bottom, left:right].all()
        areas = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
        assert areas.sum() > 0.8 * 64**2
        met.add(tuple(corners.ravel()))
    assert len(met) == 6


def test_a_mosaic_has_the_image_and_three_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset(folder, Augmentation())
    loaded: list[int] = []
    load = data.load

    def remember(index: int) -> Any:
        loaded.append(index)
        return load(index)

    monkeypatch.setattr(data, "load", remember)
    places, partners = set(), set()
    for data.seed in range(12):
        loaded.clear()
        data[2]
        assert len(loaded) == 4
        places.add(loaded.index(2))
        partners.update(loaded)
    assert len(places) > 2
    assert partners == set(range(6))


@pytest.mark.parametrize(
    ("box", "kept"),
    [
        ((-89, 10, 11, 40), True),  # 11 % in view
        ((-91, 10, 9, 40), False),
        ((10, -18, 40, 2.5), True),
        ((10, -18, 40, 1.5), False),
        ((20, 20, 23, 23), True),
        ((20, 20, 22, 30), False),
        ((70, 10, 90, 40), False),
    ],
)
def test_slivers_are_dropped(box: tuple[float, ...], kept: bool) -> None:
    scene = (Image.new("RGB", (64, 64)), np.array([[3.0, *box]]))
    _, boxes = look_at(scene, 64, STILL, np.random.default_rng(0))
    expected = [[3.0, *np.clip(box, 0, 64)]] if kept else []
    assert boxes.tolist() == expected


def test_boxes_lie_within(folder: Path) -> None:
    dropped = 0
    for seed in range(10):
        data = dataset(folder, Augmentation(), seed=seed)
        for number in range(6):
            image, rows = data[number]
            assert (image.shape, image.dtype) == ((3, 128, 128), torch.uint8)
            assert rows.dtype == torch.float32
            assert (rows[:, 4:] * 128 > 2).all()
            assert (rows[:, 2:4] - rows[:, 4:] / 2 > -1e-6).all()
            assert (rows[:, 2:4] + rows[:, 4:] / 2 < 1 + 1e-6).all()
            dropped += 4 - len(rows)
    assert dropped > 0


def test_tiny_boxes_are_dropped(tmp_path: Path) -> None:
    add(tmp_path, 0, 640, 640, (10, 10, 20, 20), extra="1 0.5 0.5 0.5 0.5\n")
    assert dataset(tmp_path, STILL, side=128)[0][1][:, 1].tolist() == [1]
    assert dataset(tmp_path, STILL, side=640)[0][1][:, 1].tolist() == [0, 1]


def test_mixup_has_the_boxes_of_both(folder: Path) -> None:
    change = Augmentation(mosaic=0.0, mixup=1.0, flip=0.0, scale=0.0, shift=0.0, colour=(0.0, 0.0, 0.0))
    image, rows = dataset(folder, change, seed=1)[0]
    assert len(rows) == 2
    assert rows[0, 1] == 0
    plain = dataset(folder, STILL)[0][0].int()
    other = dataset(folder, STILL)[int(rows[1, 1])][0].int()
    share = (image.int() - plain).abs().sum() / (other - plain).abs().sum()
    assert 0.3 < float(share) < 0.7  # of Beta(32, 32), one draw in 1500 is outside


def test_colours_change_and_boxes_do_not(folder: Path) -> None:
    change = Augmentation(mosaic=0.0, flip=0.0, scale=0.0, shift=0.0)
    coloured, rows = dataset(folder, change)[0]
    plain, same_rows = dataset(folder, STILL)[0]
    assert torch.equal(rows, same_rows)
    assert not torch.equal(coloured, plain)
    # Value is scaled by at most 40 %, hue turned by at most 1.5 %: red remains the greatest part of red.
    inside = coloured[:, 50:60, 30:60].float()
    assert (inside[0] > 255 * 0.55).all()
    assert (inside[0] > inside[1:].amax(0)).all()


def test_a_sample_depends_on_seed_and_index_alone(folder: Path) -> None:
    first = dataset(folder, Augmentation(), seed=5)
    expected = [first[number] for number in range(6)]
    again = dataset(folder, Augmentation(), seed=5)
    for number in (3, 0, 5, 1):
        assert torch.equal(again[number][0], expected[number][0])
        assert torch.equal(again[number][1], expected[number][1])
    assert not torch.equal(dataset(folder, Augmentation(), seed=6)[0][0], expected[0][0])
    with pytest.raises(IndexError):
        first[6]


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_images_of_any_mode_become_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new(mode, (8, 6)).save(path)
    image = decode(str(path))
    assert (image.mode, image.size) == ("RGB", (8, 6))


def test_an_image_is_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.new("RGB", (8, 6)).save(tmp_path / "a.jpg", exif=exif)
    assert decode(str(tmp_path / "a.jpg")).size == (6, 8)


def a_text(path: Path) -> None:
    path.write_text("no image")


def cut_short(path: Path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    image.save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:2000])


def broken_png(path: Path) -> None:
    Image.new("RGB", (64, 64)).save(path, "PNG")
    content = bytearray(path.read_bytes())
    content[20:60] = b"\xff" * 40
    path.write_bytes(content)


def bomb(path: Path) -> None:
    header = b"BM" + struct.pack("<IHHI", 54, 0, 0, 54)
    path.write_bytes(header + struct.pack("<IiiHHIIiiII", 40, 60_000, 60_000, 1, 24, 0, 0, 0, 0, 0, 0))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def no_file(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere.jpg")


@pytest.mark.parametrize("spoil", [a_text, cut_short, broken_png, bomb, empty, no_file])
def test_an_image_that_cannot_be_decoded_is_replaced_by_the_next(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    (folder / "images/2.png").unlink()
    spoil(folder / "images/2.png")
    data = dataset(folder, STILL)
    assert data.skipped() == 0
    image, rows = data[2]
    assert rows[:, 1].tolist() == [3]
    assert torch.equal(image, data[3][0])
    assert data.skipped() == 1
    assert data[2][1][:, 1].tolist() == [3]
    assert data.skipped() == 1  # counted once


def test_the_last_image_is_replaced_by_the_first(folder: Path) -> None:
    a_text(folder / "images/5.png")
    assert dataset(folder, STILL)[5][1][:, 1].tolist() == [0]


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_faults_are_counted_over_the_processes_of_the_loader(folder: Path) -> None:
    a_text(folder / "images/1.png")
    cut_short(folder / "images/4.png")
    with (folder / "labels/3.txt").open("a") as file:
        file.write("80 0.5 0.5 0.1 0.1\nnonsense\n")
    data = dataset(folder, Augmentation(), side=64)
    assert data.skipped() == 0
    seen = 0
    for images, targets in DataLoader(data, batch_size=2, num_workers=2, collate_fn=collate_detections):
        assert images.shape == (2, 3, 64, 64)
        assert set(targets[:, 0].tolist()) <= {0.0, 1.0}
        assert not set(targets[:, 1].tolist()) & {1.0, 4.0}
        seen += len(images)
    assert seen == 6
    assert data.skipped() == 4


def test_a_folder_without_a_usable_image(folder: Path) -> None:
    for number in range(6):
        a_text(folder / f"images/{number}.png")
    with pytest.raises(UsageError) as caught:
        dataset(folder, STILL)
    assert str(caught.value) == f"{folder}: none of its 6 images can be decoded; download them again"


def test_a_real_dataset_trains(folder: Path) -> None:
    a_text(folder / "images/1.png")
    torch.manual_seed(0)
    recipe = build(WorkloadOptions(device=torch.device("cpu"), tiny=True, data=folder))
    assert not recipe.synthetic
    batch = next(iter(DataLoader(recipe.dataset, batch_size=recipe.batch, collate_fn=recipe.collate)))
    loss = recipe.loss(recipe.forward(recipe.model, batch), batch)
    loss.backward()
    assert loss.isfinite()
    [recipe.dataset[number] for number in range(6)]
    assert recipe.skipped() == 1


def test_an_instances_file_as_data(folder: Path) -> None:
    document = {
        "images": [{"id": 1, "file_name": "0.png", "width": 200, "height": 120}],
        "annotations": [{"image_id": 1, "category_id": 7, "bbox": [20, 30, 90, 70]}],
        "categories": [{"id": 7}],
    }
    path = folder / "images/instances_mine.json"
    path.write_text(json.dumps(document))
    expected = dataset(folder, STILL)[0]
    got = dataset(path, STILL)[0]
    assert torch.equal(got[0], expected[0])
    torch.testing.assert_close(got[1], expected[1])


def test_data_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        build(WorkloadOptions(device=torch.device("cpu"), tiny=True, data=tmp_path / "missing"))
