"""YOLOv5's loss: targets are matched to anchors by shape; boxes by CIoU, objectness and classes by cross-entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from tracekit.capture.workloads.yolov5.model import COCO_CLASSES

__all__ = ["DetectionLoss", "Gains", "Matches", "complete_iou", "match_targets"]

_EPSILON = 1e-7
_LARGEST_RATIO = 4.0
_LEVEL_WEIGHTS = (4.0, 1.0, 0.4)
_STEPS: Final = (
    (0.0, 0.0),
    (0.5, 0.0),
    (0.0, 0.5),
    (-0.5, 0.0),
    (0.0, -0.5),
)  # own cell, left, up, right, down


@dataclass(frozen=True, slots=True)
class Gains:
    """The weights of the parts of the loss; `objectness` at 640 pixels, `classes` at 80 classes."""

    classes: float
    objectness: float
    box: float = 0.05


@dataclass(frozen=True, slots=True)
class Matches:
    """The n predictions of one level that are assigned to targets.

    `image`, `anchor`, `row`, `column` and `category` are whole numbers (n,). `box` (n, 4) is the target's centre
    from the cell's corner, and its width and height, in cells; `prior` (n, 2) is the anchor's size in cells.
    """

    image: torch.Tensor
    anchor: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor
    category: torch.Tensor
    box: torch.Tensor
    prior: torch.Tensor


def match_targets(targets: torch.Tensor, anchors: torch.Tensor, height: int, width: int) -> Matches:
    """Match `targets` (n, 6) to the `anchors` (3, 2), in cells, of a level of `height` × `width` cells.

    A row is image, class, centre x, centre y, width, height; the last four are shares of the image. A target
    fits an anchor if no side is 4 times the other's or more. It is then assigned to the cell of its centre, and
    to the horizontal and the vertical neighbour within half a cell of the centre, if they exist.
    """
    extent = targets.new_tensor((width, height))
    centres, sides = targets[:, 2:4] * extent, targets[:, 4:6] * extent
    ratios = sides[:, None] / anchors[None]
    fits = torch.maximum(ratios, ratios.reciprocal()).amax(2) < _LARGEST_RATIO
    target, anchor = fits.nonzero(as_tuple=True)
    centre = centres[target]
    within = centre % 1
    near_low = (within < 0.5) & (centre > 1)
    # Not (extent - centre) % 1 < 0.5: for a centre on the border of two cells, it would take its own cell twice.
    near_high = (within > 0.5) & (centre < extent - 1)
    own = torch.ones_like(near_low[:, :1])
    takes = torch.cat((own, near_low, near_high), 1)
    pair, direction = takes.nonzero(as_tuple=True)
    target, anchor, centre = target[pair], anchor[pair], centre[pair]
    cell = (centre - targets.new_tensor(_STEPS)[direction]).long()
    column = cell[:, 0].clamp(0, width - 1)
    row = cell[:, 1].clamp(0, height - 1)
    corner = torch.stack((column, row), 1)
    return Matches(
        image=targets[target, 0].long(),
        anchor=anchor,
        row=row,
        column=column,
        category=targets[target, 1].long(),
        box=torch.cat((centre - corner, sides[target]), 1),
        prior=anchors[anchor],
    )


def complete_iou(boxes: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the complete IoU (n,) of box i with other box i; both (n, 4): centre x, centre y, width, height.

    It is the IoU, less the squared distance of the centres by the squared diagonal of the hull of both, less a
    penalty for the difference in aspect ratio. From −1.5 to 1.
    """
    low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    other_low, other_high = others[:, :2] - others[:, 2:] / 2, others[:, :2] + others[:, 2:] / 2
    # Products of columns, because the gradient of `prod` searches for zeros, for which a GPU waits for the host.
    shared = (torch.minimum(high, other_high) - torch.maximum(low, other_low)).clamp(0)
    area = shared[:, 0] * shared[:, 1]
    iou = area / (boxes[:, 2] * boxes[:, 3] + others[:, 2] * others[:, 3] - area + _EPSILON)
    hull = torch.maximum(high, other_high) - torch.minimum(low, other_low)
    diagonal = hull.square().sum(1) + _EPSILON
    distance = (boxes[:, :2] - others[:, :2]).square().sum(1)
    angle = torch.atan(boxes[:, 2] / (boxes[:, 3] + _EPSILON))
    other_angle = torch.atan(others[:, 2] / (others[:, 3] + _EPSILON))
    aspect = (4 / math.pi**2) * (angle - other_angle).square()
    with torch.no_grad():
        weight = aspect / (1 - iou + aspect + _EPSILON)
    return iou - distance / diagonal - weight * aspect


class DetectionLoss:
    """The loss of a batch's raw predictions; `anchors` (3, 3, 2) are in cells of each level.

    `size` is the side of the images in pixels.
    """

    def __init__(self, anchors: torch.Tensor, gains: Gains, *, classes: int, size: int) -> None:
        self.anchors = anchors
        self.classes = classes
        self.box_gain = gains.box
        self.objectness_gain = gains.objectness * (size / 640) ** 2
        self.class_gain = gains.classes * classes / COCO_CLASSES

    def __call__(self, levels: list[torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of the whole batch, a scalar.

        `levels` is the result of `Detect`, `targets` (n, 6) the boxes as `match_targets` takes them; n may be 0.
        """
        anchors = self.anchors.to(targets.device)
        box = objectness = category = targets.new_zeros(())
        for level, priors, weight in zip(levels, anchors, _LEVEL_WEIGHTS, strict=True):
            matches = match_targets(targets, priors, level.shape[2], level.shape[3])
            wanted = torch.zeros_like(level[..., 4], dtype=torch.float32)
            # Without matches a mean has no value; the loss is then the loss of the empty cells.
            if matches.image.shape[0]:
                cells = (matches.image, matches.anchor, matches.row, matches.column)
                predicted = level[cells].float()
                iou = complete_iou(_boxes(predicted, matches.prior), matches.box)
                box = box + (1 - iou).mean()
                # If several targets share a cell and an anchor, one of them counts.
                wanted[cells] = iou.detach().clamp(0)
                category = category + self._class_loss(predicted[:, 5:], matches.category)
            scores = level[..., 4].float()
            objectness = objectness + weight * functional.binary_cross_entropy_with_logits(scores, wanted)
        return (
            self.box_gain * box + self.objectness_gain * objectness + self.class_gain * category
        ) * levels[0].shape[0]

    def _class_loss(self, scores: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        if self.classes == 1:
            return scores.new_zeros(())
        wanted = functional.one_hot(category, self.classes).to(scores.dtype)
        return functional.binary_cross_entropy_with_logits(scores, wanted)


def _boxes(predicted: torch.Tensor, priors: torch.Tensor) -> torch.Tensor:
    share = predicted[:, :4].sigmoid()
    return torch.cat((share[:, :2] * 2 - 0.5, (share[:, 2:] * 2) ** 2 * priors), 1)
