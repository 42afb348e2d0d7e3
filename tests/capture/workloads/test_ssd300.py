"""SSD300: published sizes, priors and matching against plain loops, the loss by hand, made-up objects."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, ssd300
from tracekit.capture.workloads.data import boxes as box_data
from tracekit.capture.workloads.ssd300 import loss as ssd_loss
from tracekit.capture.workloads.ssd300.workload import predict, prediction_heads


def tiny(**options) -> Recipe:
    torch.manual_seed(0)
    return ssd300.build(WorkloadOptions(device=torch.device("cpu"), tiny=True, **options))


@pytest.mark.slow
def test_predictions_are_in_the_order_of_the_priors():
    """Each answer is made to depend on its grid's features alone, and these to be known."""
    levels = [
        torch.arange(grid * grid, dtype=torch.float32).view(1, 1, grid, grid).expand(1, 2, -1, -1)
        for grid in ssd_loss.GRIDS
    ]
    heads = prediction_heads([2] * 6, 4)
    for head in heads:
        torch.nn.init.zeros_(head.weight)
        head.weight.data[:, 0, 1, 1] = 1  # the pixel itself
        head.bias.data = torch.arange(len(head.bias)) * 1e4
    answers = predict(heads, levels, 4)[0]
    priors = ssd_loss.prior_boxes()
    place = 0
    for grid, per_cell in zip(ssd_loss.GRIDS, ssd_loss.PRIORS_PER_CELL, strict=True):
        for cell in range(grid * grid):
            for shape in range(per_cell):
                expected = cell + 1e4 * (4 * shape + torch.arange(4))
                assert torch.equal(answers[place], expected)
                row, column = divmod(cell, grid)
                assert abs(priors[place, 0] * grid - column - 0.5) < 0.7
                assert abs(priors[place, 1] * grid - row - 0.5) < 0.7
                place += 1
    assert place == len(priors) == 8732


def test_some_priors_by_hand():
    priors = ssd_loss.prior_boxes()
    torch.testing.assert_close(priors[0], torch.tensor([4 / 300, 4 / 300, 0.07, 0.07]))
    side = math.sqrt(0.07 * 0.15)
    torch.testing.assert_close(priors[5], torch.tensor([12 / 300, 4 / 300, side, side]))
    wide, narrow = 0.07 * math.sqrt(2), 0.07 / math.sqrt(2)
    torch.testing.assert_close(priors[4 * 38 + 2], torch.tensor([4 / 300, 12 / 300, wide, narrow]))
    torch.testing.assert_close(priors[-1], torch.tensor([0.5, 0.5, 0.87 / math.sqrt(2), 0.87 * math.sqrt(2)]))


def overlap(a: list[float], b: list[float]) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def match_slowly(objects, labels, priors) -> list[tuple[int | None, int]]:
    """Which object each prior stands for, and its label, of one image."""
    real = [place for place, label in enumerate(labels) if label > 0]
    table = [[overlap(objects[place], prior) for prior in priors] for place in real]
    answers: list[tuple[int | None, int]] = []
    for prior in range(len(priors)):
        best = max(range(len(real)), key=lambda place: table[place][prior], default=None)
        if best is None or table[best][prior] < 0.5:
            answers.append((None, 0))
        else:
            answers.append((real[best], labels[real[best]]))
    for place, row in zip(real, table, strict=True):
        answers[row.index(max(row))] = (place, labels[place])
    return answers


def test_matching_against_plain_loops():
    random = np.random.default_rng(0)
    priors = ssd_loss.prior_boxes().double()[torch.from_numpy(random.permutation(8732)[:400])]
    corners = ssd_loss.corners(priors)
    for _ in range(12):
        images = [box_data.random_boxes(random, 0.01).astype(np.float64) for _ in range(3)]
        images[0] = np.concatenate([images[0], images[0][:1]])  # two objects in one place claim one prior
        labels = [random.integers(1, 9, len(boxes)) for boxes in images]
        batch = [
            (torch.zeros(3, 2, 2), *map(torch.from_numpy, pair)) for pair in zip(images, labels, strict=True)
        ]
        _, _, padded_labels = box_data.collate_boxes(batch)
        padded = torch.zeros(3, padded_labels.shape[1], 4, dtype=torch.float64)
        for place, boxes in enumerate(images):
            padded[place, : len(boxes)] = torch.from_numpy(boxes)
        matched, classes = ssd_loss.match(padded, padded_labels, priors)
        for place in range(3):
            slow = match_slowly(images[place].tolist(), labels[place].tolist(), corners.tolist())
            assert classes[place].tolist() == [label for _, label in slow]
            for prior, (wanted, _) in enumerate(slow):
                assert wanted is None or matched[place, prior] == wanted


def test_every_object_has_a_prior_of_its_own_however_badly_it_fits():
    sliver = torch.tensor([[[0.5, 0.5, 0.503, 0.9]]])
    _, classes = ssd_loss.match(sliver, torch.tensor([[7]]), ssd_loss.prior_boxes())
    assert classes[classes > 0].tolist() == [7]


def test_a_box_of_label_0_is_no_object():
    boxes = torch.tensor([[[0.1, 0.1, 0.4, 0.4], [0.1, 0.1, 0.42, 0.42]]])
    _, one = ssd_loss.match(boxes[:, :1], torch.tensor([[7]]), ssd_loss.prior_boxes())
    _, same = ssd_loss.match(boxes, torch.tensor([[7, 0]]), ssd_loss.prior_boxes())
    assert torch.equal(one, same)
    assert set(same.unique().tolist()) == {0, 7}


def test_offsets_by_hand():
    prior = torch.tensor([0.5, 0.5, 0.2, 0.4])
    box = torch.tensor([0.4, 0.5, 0.8, 0.7])  # centre 0.6, 0.6; size 0.4, 0.2
    expected = torch.tensor([0.1 / 0.2 / 0.1, 0.1 / 0.4 / 0.1, math.log(2) / 0.2, math.log(0.5) / 0.2])
    torch.testing.assert_close(ssd_loss.box_offsets(box, prior), expected)
    torch.testing.assert_close(ssd_loss.box_offsets(ssd_loss.corners(prior), prior), torch.zeros(4))


def test_negatives_are_the_worst_three_for_each_positive():
    loss = torch.tensor(
        [[9.0, 1.0, 5.0, 4.0, 3.0, 2.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]
    )
    positive = torch.tensor([[1, 0, 0, 0, 0, 0], [0] * 6, [1, 1, 0, 0, 0, 0]]).bool()
    expected = torch.tensor([[0, 0, 1, 1, 1, 0], [0] * 6, [0, 0, 1, 1, 1, 1]]).bool()
    assert torch.equal(ssd_loss.hard_negatives(loss, positive), expected)


def loss_slowly(offsets, scores, objects, labels, priors) -> float:
    total, positives = 0.0, 0
    for image in range(len(offsets)):
        answers = match_slowly(
            objects[image].tolist(), labels[image].tolist(), ssd_loss.corners(priors).tolist()
        )
        surprise = [
            functional.cross_entropy(scores[image, prior], torch.tensor(label)).item()
            for prior, (_, label) in enumerate(answers)
        ]
        chosen = [prior for prior, (_, label) in enumerate(answers) if label]
        for prior in chosen:
            target = ssd_loss.box_offsets(objects[image, answers[prior][0]], priors[prior])
            error = (offsets[image, prior] - target).abs()
            total += sum(float(0.5 * e * e if e < 1 else e - 0.5) for e in error)
        negatives = sorted((surprise[p] for p in range(len(priors)) if p not in chosen), reverse=True)
        total += sum(surprise[prior] for prior in chosen) + sum(negatives[: 3 * len(chosen)])
        positives += len(chosen)
    return total / max(positives, 1)


def test_loss_against_plain_loops():
    torch.manual_seed(0)
    random = np.random.default_rng(1)
    priors = ssd_loss.prior_boxes()[torch.from_numpy(random.permutation(8732)[:300])]
    samples = []
    for count in (0, 3, 6):
        boxes = torch.from_numpy(random.uniform(0, 0.5, (count, 4)).astype(np.float32))
        boxes[:, 2:] += boxes[:, :2] + 0.05
        samples.append((torch.zeros(3, 1, 1), boxes, torch.from_numpy(random.integers(1, 5, count))))
    _, objects, labels = box_data.collate_boxes(samples)
    offsets, scores = torch.randn(3, 300, 4), torch.randn(3, 300, 5)
    loss = ssd_loss.MultiBoxLoss(priors)
    assert loss(offsets, scores, objects, labels).item() == pytest.approx(
        loss_slowly(offsets, scores, objects, labels, priors), rel=1e-5
    )


def test_a_batch_without_objects_has_no_loss_and_finite_gradients():
    recipe = tiny()
    batch = ssd300.example_batch("91", tiny=True)
    loss = recipe.loss(recipe.forward(recipe.model, batch), batch)
    loss.backward()
    assert loss.item() == 0
    assert all(torch.isfinite(parameter.grad).all() for parameter in recipe.model.parameters())


@pytest.mark.slow
def test_made_up_objects_are_as_many_and_as_large_as_stated():
    random = np.random.default_rng(0)
    images = [box_data.random_boxes(random, 2 / 300) for _ in range(20_000)]
    counts = np.array([len(boxes) for boxes in images])
    assert counts.mean() == pytest.approx(6.9, abs=0.15)
    assert (np.median(counts), np.quantile(counts, 0.95), counts.max()) == (4, pytest.approx(22, abs=1), 93)
    assert (counts == 0).mean() == pytest.approx(0.01, abs=0.002)
    boxes = np.concatenate(images).astype(np.float64)
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    assert boxes.min() >= 0
    assert boxes.max() <= 1 + 1e-6
    assert min(width.min(), height.min()) > 1.99 / 300
    pixels = width * height * 640 * 480
    shares = [
        (pixels < 32**2).mean(),
        ((pixels >= 32**2) & (pixels < 96**2)).mean(),
        (pixels >= 96**2).mean(),
    ]
    assert shares == pytest.approx([0.41, 0.34, 0.25], abs=0.02)


def test_samples_depend_on_seed_and_index_alone():
    recipe = tiny()
    assert (recipe.batch, recipe.size, recipe.synthetic, recipe.skipped()) == (2, 300, True, 0)
    first, again, other, seeded = (
        data[i] for data, i in zip([*[recipe.dataset] * 3, tiny(seed=1).dataset], [4, 4, 5, 4], strict=True)
    )
    assert all(torch.equal(part, same) for part, same in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], seeded[0])
    labels = torch.cat([recipe.dataset[index][2] for index in range(60)])
    assert labels.min() >= 1
    assert labels.max() <= 90
    assert (labels == 1).float().mean() > (labels == 5).float().mean()
    images, boxes, labels = recipe.collate([recipe.dataset[index] for index in range(3)])
    assert (images.dtype, images.shape) == (torch.uint8, (3, 3, 300, 300))
    assert boxes.shape == (*labels.shape, 4)
    assert torch.equal(
        (labels > 0).sum(1), torch.tensor([len(recipe.dataset[index][1]) for index in range(3)])
    )
