"""Image classification with the models of timm and torchvision, where the user has these installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.hf.training import (
    IMAGE_CLASSES,
    AdamWWithWarmUp,
    GeneratedSamples,
    SyntheticImages,
    ambient,
    normalise,
    refuse_data,
    unknown_name,
)
from tracekit.errors import MissingDependencyError

__all__ = ["Adapter", "forward", "loss"]

_SIDE = 224
_TINY_SIDE = 64
_RATE = 1e-3
_DECAY = 0.05
_AUXILIARY_SHARE = 0.3  # of the classifiers half way up, in Inception


def forward(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Any:
    """Return the model's output for images of bytes: scores (batch, classes), or a tuple that begins with them."""
    return model(normalise(batch["image"]))


def loss(output: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross entropy, plus 0.3 of that of each auxiliary classifier."""
    if isinstance(output, torch.Tensor):
        return functional.cross_entropy(output.float(), batch["label"])
    scores, *auxiliary = [each for each in output if each is not None]
    total = functional.cross_entropy(scores.float(), batch["label"])
    for each in auxiliary:
        total = total + _AUXILIARY_SHARE * functional.cross_entropy(each.float(), batch["label"])
    return total


@dataclass(frozen=True, slots=True)
class Adapter:
    """Builds workloads from a package of image models.

    `known` returns the names of the models of the imported package, `make` one of them with random weights and
    as many classes as said. `side_of` returns the side in pixels that a model is made for, and whether it takes
    no other.
    """

    package: str
    default: str
    known: Callable[[Any], Sequence[str]]
    make: Callable[[Any, str, int], nn.Module]
    side_of: Callable[[nn.Module], tuple[int | None, bool]]

    def load(self) -> Any:
        """Return the package; raises `MissingDependencyError`, with the import's own reason, when it cannot be."""
        try:
            return importlib.import_module(self.package)
        except Exception as error:  # compiled extensions that do not fit raise whatever they like
            reason = " ".join(str(error).split()) or type(error).__name__
            raise MissingDependencyError(
                f"{self.package} cannot be imported: {reason}",
                remedy=f"install a {self.package} that fits your torch",
            ) from error

    def build_model(self, variant: str) -> nn.Module:
        """Return the model of that name (empty: the default) with 1000 classes and random weights.

        Raises `UsageError` for a name the package does not know, and `MissingDependencyError`.
        """
        package = self.load()
        name = variant or self.default
        known = list(self.known(package))
        if name not in known:
            raise unknown_name(f"model of {self.package}", name, known)
        return self.make(package, name, IMAGE_CLASSES)

    def side(self, model: nn.Module, *, tiny: bool) -> int:
        """Return the default side of the model's images in pixels."""
        side, fixed = self.side_of(model)
        return _TINY_SIDE if tiny and not fixed else side or _SIDE

    def example_batch(self, variant: str, *, tiny: bool = False) -> dict[str, torch.Tensor]:
        """Return a batch of one image of the default size, on the device of the context."""
        with torch.device("meta"):
            side = self.side(self.build_model(variant), tiny=tiny)
        image = torch.zeros((1, 3, side, side), dtype=torch.uint8)
        return ambient({"image": image, "label": torch.zeros(1, dtype=torch.int64)})

    def build(self, options: WorkloadOptions) -> Recipe:
        """Build the training of the model `options.variant`, by AdamW with a warm-up.

        A tiny run has the model as it is, but two images of 64 pixels a side where it takes these. Raises
        `UsageError` for an unknown name or when real data are asked for, and `MissingDependencyError`.
        """
        name = options.variant or self.default
        refuse_data(f"{self.package}:{name}", options.data)
        with options.device:
            model = self.build_model(name).to(options.device)
        side = options.size or self.side(model, tiny=options.tiny)
        training = AdamWWithWarmUp.of(_RATE, _DECAY, tiny=options.tiny)
        return Recipe(
            model=model,
            dataset=GeneratedSamples(SyntheticImages(side), options.seed),
            forward=forward,
            loss=loss,
            optimizer=training.optimizer,
            after_update=training.after_update,
            task="image classification",
            batch=options.batch or (2 if options.tiny else 32),
            size=side,
            synthetic=True,
            config={
                "variant": name,
                "tiny": options.tiny,
                "classes": IMAGE_CLASSES,
                "optimizer": "AdamW",
                "learning_rate": training.rate,
                "weight_decay": _DECAY,
                "warm_up_updates": training.warm_up,
            },
        )
