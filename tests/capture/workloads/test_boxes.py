"""Made-up boxes: their statistics, and that a sample depends on the seed and its index alone."""

import numpy as np
import pytest
import torch

from tracekit.capture.workloads.data.boxes import SyntheticCoco, collate_detections


@pytest.fixture(scope="module")
def many() -> list[torch.Tensor]:
    dataset = SyntheticCoco(640, 80, seed=0)
    return [dataset.boxes(index) for index in range(8000)]


@pytest.mark.slow
def test_boxes_per_image(many: list[torch.Tensor]) -> None:
    counts = np.array([len(rows) for rows in many])
    assert counts.mean() == pytest.approx(6.9, abs=0.35)
    assert np.median(counts) == 4
    assert np.percentile(counts, 95) == pytest.approx(22, abs=2)
    assert counts.max() <= 93
    assert (counts == 0).mean() == pytest.approx(0.01, abs=0.005)


@pytest.mark.slow
def test_areas_split_as_those_of_coco(many: list[torch.Tensor]) -> None:
    rows = torch.cat(many)
    area = rows[:, 4] * rows[:, 5] * 640**2
    small, large = float((area < 32**2).float().mean()), float((area > 96**2).float().mean())
    assert small == pytest.approx(0.41, abs=0.02)
    assert large == pytest.approx(0.25, abs=0.02)
    assert 1 - small - large == pytest.approx(0.34, abs=0.02)


def test_classes_follow_zipf(many: list[torch.Tensor]) -> None:
    rows = torch.cat(many)
    counts = rows[:, 1].long().bincount(minlength=80).double().numpy()
    weights = np.arange(1, 81) ** -1.1
    expected = len(rows) * weights / weights.sum()
    assert len(counts) == 80
    # Pearson's statistic with 79 degrees of freedom is above 130 once in 4000 draws.
    assert ((counts - expected) ** 2 / expected).sum() < 130


def test_boxes_lie_within_the_image(many: list[torch.Tensor]) -> None:
    rows = torch.cat(many)
    assert (rows[:, 4:] > 0).all()
    assert (rows[:, 2:4] - rows[:, 4:] / 2 >= -1e-6).all()
    assert (rows[:, 2:4] + rows[:, 4:] / 2 <= 1 + 1e-6).all()
    assert not rows[:, 0].any()


def test_a_sample_depends_on_seed_and_index_alone() -> None:
    first, again, other = (SyntheticCoco(64, 80, seed) for seed in (3, 3, -4))
    image, boxes = first[17]
    torch.manual_seed(99)
    again[3]
    assert torch.equal(again[17][0], image)
    assert torch.equal(again[17][1], boxes)
    assert torch.equal(again.boxes(17), boxes)
    assert not torch.equal(first[18][0], image)
    assert not torch.equal(other[17][0], image)
    assert (image.shape, image.dtype) == ((3, 64, 64), torch.uint8)
    assert image.float().mean() == pytest.approx(127.5, abs=3)


def test_an_index_beyond_the_end() -> None:
    dataset = SyntheticCoco(64, 80, seed=0)
    assert len(dataset) == 118_287
    for index in (-len(dataset) - 1, len(dataset)):
        with pytest.raises(IndexError):
            dataset[index]


def test_collate_names_the_image_of_each_box() -> None:
    counts = (2, 0, 1)
    samples = []
    for number, count in enumerate(counts):
        rows = torch.zeros(count, 6)
        rows[:, 1] = 10 + number
        samples.append((torch.full((3, 4, 4), number, dtype=torch.uint8), rows))
    images, targets = collate_detections(samples)
    assert images.shape == (3, 3, 4, 4)
    assert images[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert targets[:, :2].tolist() == [[0, 10], [0, 10], [2, 12]]


def test_collate_without_a_box() -> None:
    _, targets = collate_detections([(torch.zeros(3, 4, 4, dtype=torch.uint8), torch.zeros(0, 6))])
    assert targets.shape == (0, 6)
