"""Matching, CIoU and the loss against versions written out for single numbers."""

import math
import random

import pytest
import torch

from tracekit.capture.workloads.yolov5.loss import DetectionLoss, Gains, complete_iou, match_targets
from tracekit.capture.workloads.yolov5.model import YoloV5

ANCHORS = YoloV5(0.33, 0.125).detect.anchors
ALL_PIXELS = [
    [(10, 13), (16, 30), (33, 23)],
    [(30, 61), (62, 45), (59, 119)],
    [(116, 90), (156, 198), (373, 326)],
]
GAINS = Gains(classes=0.5, objectness=1.0)


def brute_force(targets: list[list[float]], level: int, height: int, width: int) -> list[tuple[float, ...]]:
    """All matches, each (image, anchor, row, column, class, x, y, width, height)."""
    stride = 8 << level
    found = []
    for image, category, centre_x, centre_y, share_w, share_h in targets:
        x, y, w, h = centre_x * width, centre_y * height, share_w * width, share_h * height
        for anchor, (pixels_w, pixels_h) in enumerate(ALL_PIXELS[level]):
            anchor_w, anchor_h = pixels_w / stride, pixels_h / stride
            if max(w / anchor_w, anchor_w / w, h / anchor_h, anchor_h / h) >= 4:
                continue
            column, row = math.floor(x), math.floor(y)
            cells = [(row, column)]
            if x - column < 0.5 and x > 1:
                cells.append((row, column - 1))
            if x - column > 0.5 and width - x > 1:
                cells.append((row, column + 1))
            if y - row < 0.5 and y > 1:
                cells.append((row - 1, column))
            if y - row > 0.5 and height - y > 1:
                cells.append((row + 1, column))
            for r, c in cells:
                found.append((image, anchor, r, c, category, x - c, y - r, w, h))
    return found


def matched(targets: torch.Tensor, level: int, height: int, width: int) -> list[tuple[float, ...]]:
    got = match_targets(targets, ANCHORS[level], height, width)
    torch.testing.assert_close(got.prior, ANCHORS[level][got.anchor])
    whole = torch.stack((got.image, got.anchor, got.row, got.column, got.category), 1)
    return [(*a, *b) for a, b in zip(whole.tolist(), got.box.tolist(), strict=True)]


def same(left: list[tuple[float, ...]], right: list[tuple[float, ...]]) -> None:
    assert [row[:5] for row in sorted(left)] == [row[:5] for row in sorted(right)]
    for a, b in zip(sorted(left), sorted(right), strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-4)


def random_targets(count: int, seed: int) -> list[list[float]]:
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        sides = [min(math.exp(rng.gauss(-2, 1.2)), 1.0) for _ in range(2)]
        centre = [rng.uniform(side / 2, 1 - side / 2) for side in sides]
        rows.append([rng.randrange(4), rng.randrange(80), *centre, *sides])
    return torch.tensor(rows).tolist()  # what single precision keeps of them


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize(("height", "width"), [(80, 80), (8, 16), (2, 2), (1, 3)])
def test_matching_is_that_of_brute_force(level: int, height: int, width: int) -> None:
    targets = random_targets(150, seed=level)
    expected = brute_force(targets, level, height, width)
    same(matched(torch.tensor(targets), level, height, width), expected)
    if height == 80:
        per_target = len(expected) / len({(row[0], row[1], row[4], *row[7:]) for row in expected})
        assert 2.8 < per_target <= 3.0  # nearly all lie off the border


@pytest.mark.parametrize("x", [0.0, 0.0625, 0.125, 0.1875, 0.25, 0.5, 0.8125, 0.875, 0.9375, 0.99])
def test_matching_on_the_borders_of_cells(x: float) -> None:
    targets = [[0.0, 3.0, x, 0.5, 0.25, 0.25], [1.0, 3.0, 0.5, x, 0.25, 0.25]]
    expected = brute_force(targets, 0, 8, 8)
    assert expected
    same(matched(torch.tensor(targets), 0, 8, 8), expected)
    assert len({row[:4] for row in expected}) == len(expected)


def test_a_centre_on_the_far_edge_stays_within_the_grid() -> None:
    got = match_targets(torch.tensor([[0, 0, 1.0, 1.0, 0.25, 0.25]]), ANCHORS[0], 8, 8)
    assert got.row.shape[0] > 0
    assert int(got.row.max()) == int(got.column.max()) == 7


def test_a_ratio_of_four_is_too_much() -> None:
    side = 8 * ANCHORS[0, 0, 0]  # of a grid of 8 cells, the first anchor's width
    for factor, fits in ((3.99, True), (4.01, False), (1 / 3.99, True), (1 / 4.01, False)):
        box = torch.stack((factor * side / 64, 8 * ANCHORS[0, 0, 1] / 64))
        target = torch.cat((torch.tensor([0.0, 0.0, 0.5, 0.5]), box))[None]
        got = match_targets(target, ANCHORS[0, :1], 8, 8)
        assert bool(got.anchor.numel()) == fits


def scalar_ciou(a: list[float], b: list[float]) -> float:
    (ax, ay, aw, ah), (bx, by, bw, bh) = a, b
    wide = max(0.0, min(ax + aw / 2, bx + bw / 2) - max(ax - aw / 2, bx - bw / 2))
    high = max(0.0, min(ay + ah / 2, by + bh / 2) - max(ay - ah / 2, by - bh / 2))
    iou = wide * high / (aw * ah + bw * bh - wide * high)
    hull_w = max(ax + aw / 2, bx + bw / 2) - min(ax - aw / 2, bx - bw / 2)
    hull_h = max(ay + ah / 2, by + bh / 2) - min(ay - ah / 2, by - bh / 2)
    distance = ((ax - bx) ** 2 + (ay - by) ** 2) / (hull_w**2 + hull_h**2)
    v = 4 / math.pi**2 * (math.atan(aw / ah) - math.atan(bw / bh)) ** 2
    alpha = v / (1 - iou + v) if v else 0.0
    return iou - distance - alpha * v


def test_complete_iou_is_that_of_single_boxes() -> None:
    rng = random.Random(1)
    pairs = [
        [[rng.uniform(0, 4) for _ in range(2)] + [rng.uniform(0.2, 4) for _ in range(2)] for _ in "ab"]
        for _ in range(200)
    ]
    left, right = (torch.tensor([pair[side] for pair in pairs], dtype=torch.float64) for side in (0, 1))
    expected = torch.tensor([scalar_ciou(a, b) for a, b in pairs], dtype=torch.float64)
    assert (expected < 0).any()
    assert (expected > 0.5).any()
    torch.testing.assert_close(complete_iou(left, right), expected, rtol=1e-5, atol=1e-5)


def test_complete_iou_of_equal_and_of_distant_boxes() -> None:
    box = torch.tensor([[3.0, 3.0, 1.0, 2.0]])
    assert float(complete_iou(box, box)) == pytest.approx(1.0, abs=1e-5)
    far = torch.tensor([[1e4, 3.0, 1.0, 2.0]])
    assert float(complete_iou(box, far)) == pytest.approx(-1.0, abs=1e-3)


@pytest.mark.parametrize(
    "other", [[3.0, 3.0, 1.0, 2.0], [9.0, 9.0, 1.0, 1.0], [3.0, 3.0, 0.0, 0.0], [4.0, 3.0, 1.0, 2.0]]
)
def test_complete_iou_has_finite_gradients(other: list[float]) -> None:
    box = torch.tensor([other], requires_grad=True)
    complete_iou(box, torch.tensor([[3.0, 3.0, 1.0, 2.0]])).sum().backward()
    assert box.grad is not None
    assert box.grad.isfinite().all()


def cross_entropy(score: float, wanted: float) -> float:
    return math.log1p(math.exp(-abs(score))) + max(score, 0) - score * wanted


def sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-score))


def scalar_loss(levels: list[torch.Tensor], targets: list[list[float]], classes: int, size: int) -> float:
    box = objectness = category = 0.0
    for number, level in enumerate(levels):
        values = level.double().tolist()
        _, _, height, width, _ = level.shape
        matches = brute_force(targets, number, height, width)
        wanted: dict[tuple[float, ...], float] = {}
        ious, entropies = [], []
        for *cell, kind, x, y, w, h in matches:
            image, anchor, row, column = (int(part) for part in cell)
            raw = values[image][anchor][row][column]
            pixels_w, pixels_h = ALL_PIXELS[number][anchor]
            stride = 8 << number
            predicted = [2 * sigmoid(raw[0]) - 0.5, 2 * sigmoid(raw[1]) - 0.5]
            predicted += [
                (2 * sigmoid(raw[2])) ** 2 * pixels_w / stride,
                (2 * sigmoid(raw[3])) ** 2 * pixels_h / stride,
            ]
            ious.append(scalar_ciou(predicted, [x, y, w, h]))
            assert (image, anchor, row, column) not in wanted, "the oracle knows no rule for a shared cell"
            wanted[image, anchor, row, column] = max(ious[-1], 0.0)
            entropies += [cross_entropy(raw[5 + c], float(c == kind)) for c in range(classes)]
        if matches:
            box += sum(1 - iou for iou in ious) / len(ious)
            category += sum(entropies) / len(entropies)
        cells = [
            cross_entropy(raw[4], wanted.get((b, a, r, c), 0.0))
            for b, anchors in enumerate(values)
            for a, rows in enumerate(anchors)
            for r, row in enumerate(rows)
            for c, raw in enumerate(row)
        ]
        objectness += (4.0, 1.0, 0.4)[number] * sum(cells) / len(cells)
    total = 0.05 * box + (size / 640) ** 2 * objectness
    if classes > 1:
        total += 0.5 * classes / 80 * category
    return total * levels[0].shape[0]


def random_levels(batch: int, classes: int, size: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sides = (size // 8, size // 16, size // 32)
    return [torch.randn(batch, 3, side, side, 5 + classes, generator=generator) for side in sides]


@pytest.mark.parametrize("classes", [1, 2, 80])
def test_the_loss_is_that_of_single_numbers(classes: int) -> None:
    levels = random_levels(2, classes, 96, seed=classes)
    targets = [
        [0.0, classes - 1.0, 0.21, 0.33, 0.2, 0.25],
        [0.0, 0.0, 0.8, 0.77, 0.3, 0.1],
        [1.0, 0.0, 0.4, 0.6, 0.9, 0.7],
    ]
    loss = DetectionLoss(ANCHORS, GAINS, classes=classes, size=96)
    got = loss(levels, torch.tensor(targets))
    assert float(got) == pytest.approx(scalar_loss(levels, targets, classes, 96), rel=1e-5)


def test_the_loss_with_no_box_at_all_is_that_of_empty_cells() -> None:
    levels = [level.requires_grad_() for level in random_levels(2, 80, 64, seed=0)]
    loss = DetectionLoss(ANCHORS, GAINS, classes=80, size=64)(levels, torch.zeros(0, 6))
    assert float(loss.detach()) == pytest.approx(
        scalar_loss([x.detach() for x in levels], [], 80, 64), rel=1e-5
    )
    loss.backward()
    for level in levels:
        assert level.grad is not None
        assert (level.grad[..., 4] > 0).all()
        assert not level.grad[..., :4].any()
        assert not level.grad[..., 5:].any()


def test_of_targets_in_one_cell_one_sets_the_objectness() -> None:
    levels = random_levels(1, 80, 64, seed=3)
    boxes = [[0.0, 1.0, 0.5, 0.5, 0.25, 0.25], [0.0, 2.0, 0.5, 0.5, 0.27, 0.27]]
    for level in range(3):
        first, second = (
            {row[:4] for row in brute_force([box], level, 8 >> level, 8 >> level)} for box in boxes
        )
        assert first == second
    loss = DetectionLoss(ANCHORS, Gains(classes=0.0, box=0.0, objectness=1.0), classes=80, size=640)
    each = [float(loss(levels, torch.tensor([box]))) for box in boxes]
    assert each[0] != pytest.approx(each[1], rel=1e-5)
    both = float(loss(levels, torch.tensor(boxes)))
    assert any(both == pytest.approx(one, rel=1e-6) for one in each)


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_gradients_are_finite(scale: float) -> None:
    levels = [(scale * level).requires_grad_() for level in random_levels(4, 80, 128, seed=5)]
    loss = DetectionLoss(ANCHORS, GAINS, classes=80, size=128)
    loss(levels, torch.tensor(random_targets(60, seed=9))).backward()
    for level in levels:
        assert level.grad is not None
        assert level.grad.isfinite().all()
        assert level.grad[..., :4].any()


def test_half_precision_predictions_give_a_finite_loss_in_single_precision() -> None:
    levels = [level.half() for level in random_levels(2, 80, 64, seed=7)]
    targets = [row for row in random_targets(12, seed=4) if row[0] < 2]
    loss = DetectionLoss(ANCHORS, GAINS, classes=80, size=64)
    got = loss(levels, torch.tensor(targets))
    assert got.dtype == torch.float32
    assert float(got) == pytest.approx(
        float(loss([x.float() for x in levels], torch.tensor(targets))), rel=1e-3
    )


def test_a_better_prediction_costs_less() -> None:
    levels = random_levels(1, 80, 64, seed=11)
    target = torch.tensor([[0.0, 5.0, 0.53, 0.47, 0.3, 0.4]])
    loss = DetectionLoss(ANCHORS, GAINS, classes=80, size=64)
    better = [level.clone() for level in levels]
    for number, level in enumerate(better):
        level[..., 4] = -6.0
        found = match_targets(target, ANCHORS[number], level.shape[2], level.shape[3])
        cells = (found.image, found.anchor, found.row, found.column)
        level[cells] = level[cells].index_fill(1, torch.arange(5, 85), -6.0)
        level[(*cells, found.category + 5)] = 6.0
        level[(*cells, torch.tensor(4))] = 6.0
        share = torch.cat(((found.box[:, :2] + 0.5) / 2, (found.box[:, 2:] / found.prior).sqrt() / 2), 1)
        for value in range(4):
            level[(*cells, torch.tensor(value))] = share[:, value].clamp(1e-4, 1 - 1e-4).logit()
    assert float(loss(better, target)) < 0.05 * float(loss(levels, target))
