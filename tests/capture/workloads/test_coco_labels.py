"""Finding images and reading both kinds of labels; every way in which they can be wrong."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracekit.capture.workloads.data.coco_labels import InstanceLabels, TextLabels, find_labels
from tracekit.errors import UsageError

CATEGORIES = [
    {"id": number} for number in (90, 1, 3, 17)
]  # in order of the id: 0 is 1, 1 is 3, 2 is 17, 3 is 90


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def image(number: int, name: str, width: Any = 200, height: Any = 100) -> dict[str, Any]:
    return {"id": number, "file_name": name, "width": width, "height": height}


def box(number: Any, category: Any, *values: Any, **more: Any) -> dict[str, Any]:
    return {"image_id": number, "category_id": category, "bbox": list(values), **more}


def instances(path: Path, images: list[Any], annotations: list[Any], categories: Any = CATEGORIES) -> Path:
    return put(path, json.dumps({"images": images, "annotations": annotations, "categories": categories}))


def fault(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        find_labels(path, 80)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text or str(path.parent) in text
    return text


def test_text_labels_of_images_at_any_depth(tmp_path: Path) -> None:
    put(tmp_path / "images/a.jpg")
    put(tmp_path / "images/train/deep/b.PNG")
    put(tmp_path / "images/train/none.jpg")
    put(tmp_path / "elsewhere/c.jpg")
    put(tmp_path / "labels/a.txt", "3 0.5 0.25 0.5 0.5\n\n0 0.1 0.1 0.1 0.1\n")
    put(tmp_path / "labels/train/deep/b.txt", "79 0.5 0.5 1 1")
    for path in (tmp_path, tmp_path / "images"):
        source = find_labels(path, 80)
        assert isinstance(source, TextLabels)
        assert [Path(file).name for file in source.images] == ["a.jpg", "b.PNG", "none.jpg"]
        rows, malformed = source.rows(0)
        np.testing.assert_allclose(rows, [[3, 0.5, 0.25, 0.5, 0.5], [0, 0.1, 0.1, 0.1, 0.1]], rtol=1e-6)
        assert malformed == 0
        assert source.rows(1)[0].tolist() == [[79, 0.5, 0.5, 1, 1]]
        assert source.rows(2)[0].shape == (0, 5)


def test_a_folder_named_images_above_the_dataset_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "images" / "set"
    put(root / "images/a.jpg")
    put(root / "labels/a.txt", "3 0.5 0.5 0.5 0.5")
    assert find_labels(root, 80).rows(0)[0].tolist() == [[3, 0.5, 0.5, 0.5, 0.5]]


def test_a_polygon_becomes_its_box(tmp_path: Path) -> None:
    put(tmp_path / "images/a.jpg")
    put(tmp_path / "labels/a.txt", "7 0.25 0.5 0.75 0.25 0.5 0.75")
    assert find_labels(tmp_path, 80).rows(0) == (pytest.approx(np.array([[7, 0.5, 0.5, 0.5, 0.5]])), 0)


def test_boxes_are_cut_at_the_image(tmp_path: Path) -> None:
    put(tmp_path / "images/a.jpg")
    put(tmp_path / "labels/a.txt", "7 0.0 0.75 0.5 1.0")
    assert find_labels(tmp_path, 80).rows(0)[0].tolist() == [[7, 0.125, 0.625, 0.25, 0.75]]


@pytest.mark.parametrize(
    "row",
    [
        "person 0.5 0.5 0.1 0.1",
        "80 0.5 0.5 0.1 0.1",
        "-1 0.5 0.5 0.1 0.1",
        "1.5 0.5 0.5 0.1 0.1",
        "nan 0.5 0.5 0.1 0.1",
        "inf 0.5 0.5 0.1 0.1",
        "1 0.5 0.5 0.1",
        "1 0.5 0.5 0.1 0.1 0.9",
        "1 0.5 0.5 0 0.1",
        "1 0.5 0.5 0.1 -0.1",
        "1 1.5 0.5 0.1 0.1",
        "1 0.5 nan 0.1 0.1",
        "1 0.5 inf 0.1 0.1",
        "1 320 240 64 48",
        "1",
        "\x00\x01\ufffd",
        "1 0.2 0.2 0.4 0.2 0.6 0.2",
    ],
)
def test_a_malformed_row_is_left_out_and_counted(tmp_path: Path, row: str) -> None:
    put(tmp_path / "images/a.jpg")
    put(tmp_path / "labels/a.txt", f"1 0.5 0.5 0.1 0.1\n{row}\n2 0.5 0.5 0.2 0.2\n")
    rows, malformed = find_labels(tmp_path, 80).rows(0)
    assert rows[:, 0].tolist() == [1, 2]
    assert malformed == 1


def test_labels_that_are_no_file_are_counted(tmp_path: Path) -> None:
    put(tmp_path / "images/a.jpg")
    put(tmp_path / "images/b.jpg")
    (tmp_path / "labels/a.txt").mkdir(parents=True)
    put(tmp_path / "labels/b.txt", "1 0.5 0.5 0.1 0.1")
    rows, malformed = find_labels(tmp_path, 80).rows(0)
    assert (len(rows), malformed) == (0, 1)


def test_both_kinds_of_labels_agree(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts, annotations = tmp_path / "texts", []
    put(texts / "images/a.jpg")
    lines = []
    for _ in range(50):
        left, top = rng.integers(0, 150), rng.integers(0, 70)
        width, height = rng.integers(1, 200 - left + 1), rng.integers(1, 100 - top + 1)
        number = int(rng.integers(4))
        annotations.append(box(5, (1, 3, 17, 90)[number], int(left), int(top), int(width), int(height)))
        shares = ((left + width / 2) / 200, (top + height / 2) / 100, width / 200, height / 100)
        lines.append(f"{number} " + " ".join(f"{share:.8f}" for share in shares))
    put(texts / "labels/a.txt", "\n".join(lines))
    document = tmp_path / "json/annotations/instances_train2017.json"
    instances(document, [image(5, "a.jpg")], annotations)
    put(tmp_path / "json/train2017/a.jpg")
    expected, malformed = find_labels(texts, 80).rows(0)
    assert malformed == 0
    assert len(expected) == 50
    for path in (tmp_path / "json", document):
        source = find_labels(path, 80)
        assert isinstance(source, InstanceLabels)
        assert source.images == [str(tmp_path / "json/train2017/a.jpg")]
        np.testing.assert_allclose(source.rows(0)[0], expected, atol=1e-6)
        assert source.malformed == 0


def test_an_instances_file_of_any_name_beside_its_images(tmp_path: Path) -> None:
    document = instances(tmp_path / "mine.json", [image(1, "sub/a.jpg")], [box(1, 1, 0, 0, 100, 50)])
    put(tmp_path / "sub/a.jpg")
    assert find_labels(document, 80).rows(0)[0].tolist() == [[0, 0.25, 0.25, 0.5, 0.5]]


def test_images_keep_their_own_boxes(tmp_path: Path) -> None:
    images = [image(9, "c.jpg"), image(4, "a.jpg"), image(6, "b.jpg")]
    annotations = [box(4, 1, 0, 0, 10, 10), box(9, 3, 0, 0, 20, 20), box(4, 17, 0, 0, 30, 30)]
    instances(tmp_path / "instances_a.json", images, annotations)
    for name in "abc":
        put(tmp_path / f"{name}.jpg")
    source = find_labels(tmp_path, 80)
    got = {
        Path(file).stem: source.rows(number)[0][:, 0].tolist() for number, file in enumerate(source.images)
    }
    assert got == {"a": [0, 2], "b": [], "c": [1]}


def test_regions_of_many_objects_are_no_boxes(tmp_path: Path) -> None:
    annotations = [
        box(1, 1, 0, 0, 9, 9),
        box(1, 1, 0, 0, 99, 99, iscrowd=1),
        box(1, 3, 0, 0, 9, 9, iscrowd=0),
    ]
    instances(tmp_path / "instances_a.json", [image(1, "a.jpg")], annotations)
    put(tmp_path / "a.jpg")
    source = find_labels(tmp_path, 80)
    assert source.rows(0)[0][:, 0].tolist() == [0, 1]
    assert source.malformed == 0


BAD_ANNOTATIONS = [
    box(7, 1, 0, 0, 10, 10),
    box([1], 1, 0, 0, 10, 10),
    box(1, 2, 0, 0, 10, 10),
    box(1, None, 0, 0, 10, 10),
    box(1, 1, 0, 0, 10),
    box(1, 1, 0, 0, 0, 10),
    box(1, 1, 0, 0, 10, -10),
    box(1, 1, 300, 0, 10, 10),
    box(1, 1, 0, 0, "wide", 10),
    box(1, 1, 0, 0, float("nan"), 10),
    box(1, 1, 0, 0, 10**400, 10),
    {"image_id": 1, "category_id": 1},
    {"image_id": 1, "category_id": 1, "bbox": 5},
    "no record",
    None,
]


@pytest.mark.parametrize("bad", BAD_ANNOTATIONS, ids=range(len(BAD_ANNOTATIONS)))
def test_a_malformed_annotation_is_left_out_and_counted(tmp_path: Path, bad: Any) -> None:
    good = box(1, 1, 0, 0, 10, 10)
    instances(tmp_path / "instances_a.json", [image(1, "a.jpg")], [good, bad, good])
    put(tmp_path / "a.jpg")
    source = find_labels(tmp_path, 80)
    assert len(source.rows(0)[0]) == 2
    assert source.malformed == 1


def test_malformed_and_missing_images_are_counted(tmp_path: Path) -> None:
    bad = [image(2, "b.jpg", width=0), image(3, "c.jpg", height="x"), {"id": 4}, 5, image(6, "")]
    instances(tmp_path / "instances_a.json", [image(1, "a.jpg"), *bad, image(8, "missing.jpg")], [])
    put(tmp_path / "a.jpg")
    source = find_labels(tmp_path, 80)
    assert len(source.images) == 1
    assert source.malformed == 6


def test_of_equal_names_the_folder_decides(tmp_path: Path) -> None:
    put(tmp_path / "val2017/1.jpg")
    put(tmp_path / "train2017/1.jpg")
    put(tmp_path / "other/2.jpg")
    put(tmp_path / "train2017/2.jpg")
    listed = [image(1, "1.jpg"), image(2, "other/2.jpg")]
    instances(tmp_path / "annotations/instances_train2017.json", listed, [])
    instances(tmp_path / "annotations/instances_aaa2017.json", [image(1, "1.jpg")], [])
    source = find_labels(tmp_path, 80)
    assert source.images == [str(tmp_path / "train2017/1.jpg"), str(tmp_path / "other/2.jpg")]


def test_a_name_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    put(tmp_path / "secret.jpg")
    listed = [image(1, "../secret.jpg"), image(2, str(tmp_path / "secret.jpg")), image(3, "a.jpg")]
    instances(tmp_path / "set/instances_a.json", listed, [])
    put(tmp_path / "set/a.jpg")
    source = find_labels(tmp_path / "set", 80)
    assert source.images == [str(tmp_path / "set/a.jpg")]
    assert source.malformed == 2


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    put(tmp_path / "real/a.jpg")
    put(tmp_path / "set/labels/a.txt", "1 0.5 0.5 0.1 0.1")
    (tmp_path / "set/images").symlink_to(tmp_path / "real", target_is_directory=True)
    (tmp_path / "set/labels/again").symlink_to(tmp_path / "set", target_is_directory=True)
    source = find_labels(tmp_path / "set", 80)
    assert [Path(file).name for file in source.images] == ["a.jpg"]
    assert len(source.rows(0)[0]) == 1


def test_text_labels_come_before_instances(tmp_path: Path) -> None:
    put(tmp_path / "images/a.jpg")
    put(tmp_path / "labels/a.txt", "1 0.5 0.5 0.1 0.1")
    instances(tmp_path / "annotations/instances_val2017.json", [image(1, "a.jpg")], [])
    assert isinstance(find_labels(tmp_path, 80), TextLabels)


def test_paths_that_are_no_dataset(tmp_path: Path) -> None:
    assert "no such file or folder" in fault(tmp_path / "missing")
    assert "not a folder and not a JSON file" in fault(put(tmp_path / "a.jpg"))
    put(tmp_path / "empty/readme.md")
    assert "holds no labels" in fault(tmp_path / "empty")
    put(tmp_path / "bare/images/a.jpg")
    assert "holds no labels" in fault(tmp_path / "bare")
    put(tmp_path / "texts/labels/a.txt", "1 0.5 0.5 0.1 0.1")
    assert "holds labels but no images" in fault(tmp_path / "texts")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "not valid JSON"),
        ('{"images": [', "not valid JSON"),
        ("\xff\x00", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "no list 'images'"),
        ('{"images": {}}', "no list 'images'"),
        ('{"images": []}', "no list 'annotations'"),
        ('{"images": [], "annotations": []}', "no list 'categories'"),
        ('{"images": [], "annotations": [], "categories": [null, {"id": "x"}]}', "0 categories"),
        ('{"images": [], "annotations": [], "categories": [{"id": 1}]}', "none of its images is there"),
    ],
)
def test_a_json_file_that_is_no_instances_file(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in fault(put(tmp_path / "instances_a.json", text))


def test_more_categories_than_classes(tmp_path: Path) -> None:
    many = [{"id": number} for number in range(81)]
    path = instances(tmp_path / "instances_a.json", [image(1, "a.jpg")], [], many)
    assert "has 81 categories; the model can have 1 to 80 classes" in fault(path)


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)  # the mode of a folder means nothing to root
    assert "cannot be read: Permission denied" in fault(tmp_path)
