"""The prior boxes of SSD, their assignment to objects, and the loss over them.

Boxes are in parts of the image, priors by centre and size, objects by corners. No step waits for the device: shapes
do not depend on the data.
"""

from __future__ import annotations

from itertools import product
from math import sqrt

import torch
from torch import nn
from torch.nn import functional

__all__ = ["MultiBoxLoss", "box_offsets", "corners", "hard_negatives", "match", "overlaps", "prior_boxes"]

IMAGE_SIDE = 300
GRIDS = (38, 19, 10, 5, 3, 1)
STRIDES = (8, 16, 32, 64, 100, 300)
SCALES = (0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05)
ASPECTS = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
PRIORS_PER_CELL = tuple(2 + 2 * len(aspects) for aspects in ASPECTS)

_CENTRE_VARIANCE, _SIZE_VARIANCE = 0.1, 0.2
_MATCH_OVERLAP = 0.5
_NEGATIVES_PER_POSITIVE = 3


def prior_boxes() -> torch.Tensor:
    """Return the 8,732 priors (8732, 4): centre x, centre y, width, height; by grid, row, column, then shape.

    Each cell has two squares, of its grid's scale and between it and the next, and two of each aspect ratio.
    """
    boxes: list[tuple[float, float, float, float]] = []
    for place, (grid, stride, aspects) in enumerate(zip(GRIDS, STRIDES, ASPECTS, strict=True)):
        scale, between = SCALES[place], sqrt(SCALES[place] * SCALES[place + 1])
        shapes = [(scale, scale), (between, between)]
        for aspect in aspects:
            wide, narrow = scale * sqrt(aspect), scale / sqrt(aspect)
            shapes += [(wide, narrow), (narrow, wide)]
        for row, column in product(range(grid), repeat=2):
            centre = (column + 0.5) * stride / IMAGE_SIDE, (row + 0.5) * stride / IMAGE_SIDE
            boxes += [(*centre, *shape) for shape in shapes]
    return torch.tensor(boxes)


def corners(boxes: torch.Tensor) -> torch.Tensor:
    """Return left, top, right, bottom of boxes (..., 4) given as centre x, centre y, width, height."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([centre - size / 2, centre + size / 2], dim=-1)


def overlaps(objects: torch.Tensor, priors: torch.Tensor) -> torch.Tensor:
    """Return the intersection over union (batch, objects, priors) of boxes (batch, objects, 4) and (priors, 4).

    Both are given by corners.
    """
    objects = objects.unsqueeze(2)
    shared = torch.minimum(objects[..., 2:], priors[:, 2:]) - torch.maximum(objects[..., :2], priors[:, :2])
    intersection = shared.clamp(min=0).prod(dim=-1)
    areas = (objects[..., 2:] - objects[..., :2]).prod(dim=-1) + (priors[:, 2:] - priors[:, :2]).prod(dim=-1)
    return intersection / (areas - intersection)


def match(
    objects: torch.Tensor, labels: torch.Tensor, priors: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the object of each prior, and its label, 0 for no object; both (batch, priors).

    `objects` (batch, objects, 4) are boxes by corners (label 0: no object), `priors` (priors, 4) by centre
    and size. A prior belongs to the object that it overlaps most, if by at least half; and each object has at least
    the prior that overlaps it most. If two objects claim a prior in this way, the later object gets it.
    """
    real = (labels > 0).unsqueeze(2)
    overlap = overlaps(objects, corners(priors)).masked_fill(~real, 0)
    best_overlap, best_object = overlap.max(dim=1)
    best_prior = overlap.argmax(dim=2)
    numbers = torch.arange(1, labels.shape[1] + 1, device=labels.device) * real.squeeze(2)
    claimed = torch.zeros_like(best_object).scatter_reduce(1, best_prior, numbers, "amax")
    matched = torch.where(claimed > 0, claimed - 1, best_object)
    positive = (claimed > 0) | (best_overlap >= _MATCH_OVERLAP)
    return matched, labels.gather(1, matched) * positive


def box_offsets(boxes: torch.Tensor, priors: torch.Tensor) -> torch.Tensor:
    """Return the target of the model for `boxes` (..., 4), by corners, at `priors` (..., 4), by centre and size.

    It is the distance of the centres relative to the prior's size, and the logarithm of the ratio of sizes, each
    divided by a constant (0.1, 0.2) that brings them to a similar scale.
    """
    size = boxes[..., 2:] - boxes[..., :2]
    centre = (boxes[..., :2] + boxes[..., 2:]) / 2
    moved = (centre - priors[..., :2]) / (priors[..., 2:] * _CENTRE_VARIANCE)
    return torch.cat([moved, torch.log(size / priors[..., 2:]) / _SIZE_VARIANCE], dim=-1)


def hard_negatives(background_loss: torch.Tensor, positive: torch.Tensor) -> torch.Tensor:
    """Return which priors (batch, priors) count as background: those with the highest loss, three per positive prior.

    They are chosen within each image; an image without objects has none.
    """
    ranked = background_loss.detach().masked_fill(positive, -torch.inf).argsort(dim=1, descending=True)
    rank = ranked.argsort(dim=1)
    wanted = _NEGATIVES_PER_POSITIVE * positive.sum(dim=1, keepdim=True)
    return (rank < wanted) & ~positive


class MultiBoxLoss(nn.Module):
    """Smooth L1 of the boxes of positive priors, plus cross entropy over these and the hardest negatives.

    Both are summed over the batch and divided by its number of positive priors (at least 1).
    """

    priors: torch.Tensor

    def __init__(self, priors: torch.Tensor) -> None:
        """Take the `priors` (priors, 4) by centre and size, on the device of the batches."""
        super().__init__()
        self.register_buffer("priors", priors, persistent=False)

    def forward(
        self, offsets: torch.Tensor, scores: torch.Tensor, objects: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of `offsets` (batch, priors, 4) and `scores` (batch, priors, classes) against the truth.

        The truth is boxes `objects` (batch, objects, 4) by corners, with `labels` (batch, objects) from 1; a label
        of 0 is no object.
        """
        matched, classes = match(objects, labels, self.priors)
        positive = classes > 0
        boxes = objects.gather(1, matched.unsqueeze(2).expand(-1, -1, 4))
        # Offsets to a padding box are infinite, but then the prior is not positive and they do not count.
        distance = functional.smooth_l1_loss(
            offsets.float(), box_offsets(boxes, self.priors), reduction="none"
        ).sum(dim=2)
        surprise = functional.cross_entropy(scores.float().transpose(1, 2), classes, reduction="none")
        counted = positive | hard_negatives(surprise, positive)
        total = torch.where(positive, distance, 0).sum() + torch.where(counted, surprise, 0).sum()
        return total / positive.sum().clamp(min=1)
