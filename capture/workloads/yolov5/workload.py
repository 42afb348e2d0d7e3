"""`yolov5`: the detector YOLOv5 n, s, m, l or x, trained on COCO; `size` is the image's side in pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.checks import variant_or_default
from tracekit.capture.workloads.data.boxes import DetectionSample, SyntheticCoco, collate_detections
from tracekit.capture.workloads.data.coco import CocoImages
from tracekit.capture.workloads.data.coco_images import Augmentation
from tracekit.capture.workloads.yolov5.loss import DetectionLoss, Gains
from tracekit.capture.workloads.yolov5.model import COCO_CLASSES, STRIDES, YoloV5
from tracekit.capture.workloads.yolov5.training import Training
from tracekit.errors import UsageError

__all__ = ["VARIANTS", "build", "build_model", "example_batch"]

VARIANTS: Final[tuple[str, ...]] = ("s", "n", "m", "l", "x")
"""The default comes first."""

_SIZE = 640
_TINY_SIZE = 64
_BATCH = 16
_TINY_BATCH = 2
_TINY_DEPTH, _TINY_WIDTH = 0.33, 0.125
_CLIP_NORM = 10.0
# If the coarsest level has a single cell, batch normalisation has a single value per channel for one image.
_LEAST_SIZE = 2 * STRIDES[-1]


@dataclass(frozen=True, slots=True)
class _Hyperparameters:
    gains: Gains
    final_share: float
    augmentation: Augmentation


_LOW = _Hyperparameters(Gains(classes=0.5, objectness=1.0), 0.01, Augmentation())
_HIGH = _Hyperparameters(Gains(classes=0.3, objectness=0.7), 0.1, Augmentation(mixup=0.1, scale=0.9))


@dataclass(frozen=True, slots=True)
class _Variant:
    depth: float
    width: float
    hyperparameters: _Hyperparameters


_MODELS: Final = {
    "n": _Variant(0.33, 0.25, _LOW),
    "s": _Variant(0.33, 0.50, _LOW),
    "m": _Variant(0.67, 0.75, _HIGH),
    "l": _Variant(1.0, 1.0, _HIGH),
    "x": _Variant(1.33, 1.25, _HIGH),
}


def build_model(variant: str) -> YoloV5:
    """Return YOLOv5 `variant` for COCO's 80 classes; the empty name means the default.

    Raises `UsageError` for a variant that is not in `VARIANTS`.
    """
    shape = _MODELS[variant_or_default("yolov5", variant, VARIANTS)]
    return YoloV5(shape.depth, shape.width)


def example_batch(variant: str, *, tiny: bool = False) -> DetectionSample:
    """Return one random image of the default size and one box, as `collate_detections` makes a batch of them.

    The images are bytes (1, 3, side, side), the boxes (1, 6). Raises `UsageError` for an unknown variant.
    """
    variant_or_default("yolov5", variant, VARIANTS)
    side = _TINY_SIZE if tiny else _SIZE
    box = torch.cat((torch.zeros(1, 2), torch.full((1, 4), 0.5)), 1)
    return torch.randint(256, (1, 3, side, side), dtype=torch.uint8), box


def build(options: WorkloadOptions) -> Recipe:
    """Return the training of YOLOv5, by default s on 16 images of 640×640 pixels a step.

    `options.tiny` takes a model of an eighth of the base width, and 2 images of 64 pixels. The data are made up
    unless `options.data` names a COCO dataset. Raises `UsageError` for an unknown variant, a size that is no
    multiple of 32 or below 64, and data that cannot be used.
    """
    name = variant_or_default("yolov5", options.variant, VARIANTS)
    hyper = _MODELS[name].hyperparameters
    size = options.size or (_TINY_SIZE if options.tiny else _SIZE)
    if size % STRIDES[-1] or size < _LEAST_SIZE:
        raise UsageError(
            f"size is {size}", remedy=f"it must be a multiple of {STRIDES[-1]}, at least {_LEAST_SIZE}"
        )
    batch = options.batch or (_TINY_BATCH if options.tiny else _BATCH)
    dataset, skipped = _data(options, size, hyper.augmentation)
    model = YoloV5(_TINY_DEPTH, _TINY_WIDTH) if options.tiny else build_model(name)
    model = model.to(options.device)
    loss = DetectionLoss(model.detect.anchors, hyper.gains, classes=COCO_CLASSES, size=size)
    training = Training(batch=batch, batches_per_epoch=len(dataset) // batch, final_share=hyper.final_share)
    return Recipe(
        model=model,
        dataset=dataset,
        forward=_forward,
        loss=lambda levels, pair: loss(levels, pair[1]),
        optimizer=training.optimizer,
        task="object detection",
        batch=batch,
        size=size,
        synthetic=options.data is None,
        collate=collate_detections,
        after_update=training,
        clip_norm=_CLIP_NORM,
        config={
            "batch": batch,
            "image_side": size,
            "variant": name,
            "classes": COCO_CLASSES,
            "optimizer": "SGD",
            "weight_decay": training.weight_decay,
            "clip_norm": _CLIP_NORM,
        },
        skipped=skipped,
    )


def _data(
    options: WorkloadOptions, size: int, augmentation: Augmentation
) -> tuple[SyntheticCoco | CocoImages, Callable[[], int]]:
    if options.data is None:
        return SyntheticCoco(size, COCO_CLASSES, options.seed), lambda: 0
    real = CocoImages(
        options.data, side=size, classes=COCO_CLASSES, seed=options.seed, augmentation=augmentation
    )
    return real, real.skipped


def _forward(model: nn.Module, pair: Any) -> Any:
    images, _ = pair
    return model(images.float() / 255)
