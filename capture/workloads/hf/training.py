"""What the workloads on models of transformers share: the import, AdamW, and images."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

import torch
from torch import nn
from torch.utils.data import Dataset

from tracekit.capture.workloads.data.imagenet import DEVIATION, MEAN
from tracekit.capture.workloads.data.tokens import sample_generator
from tracekit.capture.workloads.schedule import ScheduledOptimizer, linear_warmup
from tracekit.errors import MissingDependencyError, UsageError

__all__ = [
    "EPOCH",
    "IMAGE_CLASSES",
    "AdamWWithWarmUp",
    "GeneratedSamples",
    "SyntheticImages",
    "ambient",
    "choose_variant",
    "import_transformers",
    "normalise",
    "refuse_data",
    "require_multiple",
    "unknown_name",
]

EPOCH: Final = 50_000
"""The number of samples of a data set that is made up."""

IMAGE_CLASSES: Final = 1_000
_HF_REMEDY = "pip install 'tracekit[hf]'"

_Nest = TypeVar("_Nest")


def import_transformers(*also: str) -> ModuleType:
    """Return the package transformers; `also` names further packages that the model needs.

    Raises `MissingDependencyError` when one of them cannot be imported.
    """
    # Models are made from their configuration alone; should the library look for more, it shall not download.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for package in also:
        _import(package)
    return _import("transformers")


def _import(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingDependencyError(
            f"this workload needs {package}, which cannot be imported: {error}", remedy=_HF_REMEDY
        ) from error


def unknown_name(kind: str, name: str, known: Sequence[str]) -> UsageError:
    """Return the error that there is no `name` among the `known`: it lists the close ones, or if few, all."""
    close = difflib.get_close_matches(name.lower(), known, n=5, cutoff=0.5)
    if len(known) <= 8 or not close:
        close = list(known)
    return UsageError(f"unknown {kind} {name!r}", remedy=f"choose one of: {', '.join(close)}")


def choose_variant(workload: str, variant: str, known: Sequence[str]) -> str:
    """Return `variant`, or if that is empty the first of the `known`; raises `UsageError` if it is not known."""
    if variant and variant not in known:
        raise unknown_name(f"variant of {workload}", variant, known)
    return variant or known[0]


def refuse_data(workload: str, data: Path | None) -> None:
    """Raise `UsageError` when real data were asked for: the workload trains on data that are made up."""
    if data is not None:
        raise UsageError(f"{workload} has no reader for real data", path=data, remedy="leave the data out")


def require_multiple(what: str, size: int, step: int) -> None:
    """Raise `UsageError` unless `size` is a multiple of `step`."""
    if size % step or size < step:
        raise UsageError(f"{what} of {size} pixels a side", remedy=f"the side must be a multiple of {step}")


def ambient(batch: _Nest) -> _Nest:
    """Return a nest of dicts, lists, tuples and tensors, moved to the device of the context (such as meta)."""
    if isinstance(batch, torch.Tensor):
        return batch.to(torch.empty(0).device)  # type: ignore[return-value]
    if isinstance(batch, dict):
        return {key: ambient(value) for key, value in batch.items()}  # type: ignore[return-value]
    if isinstance(batch, list | tuple):
        return type(batch)(ambient(value) for value in batch)
    return batch


class AdamWWithWarmUp(ScheduledOptimizer):
    """AdamW whose learning rate rises linearly to `rate` over the first `warm_up` updates.

    Weights of two dimensions and more decay, biases and the scales of norms do not.
    """

    def __init__(self, rate: float, *, decay: float = 0.01, warm_up: int = 0) -> None:
        super().__init__(self._made, linear_warmup(rate, max(warm_up, 1)))
        self.rate, self.decay = rate, decay
        self.warm_up = warm_up

    @classmethod
    def of(cls, rate: float, decay: float, *, tiny: bool) -> AdamWWithWarmUp:
        """Return one that warms up over 100 updates, or for a tiny model over 4 to a rate that suits it."""
        return cls(1e-2, decay=decay, warm_up=4) if tiny else cls(rate, decay=decay, warm_up=100)

    def _made(self, model: nn.Module, rate: float) -> torch.optim.Optimizer:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [each for each in trained if each.dim() > 1], "weight_decay": self.decay},
            {"params": [each for each in trained if each.dim() <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        return torch.optim.AdamW(groups, lr=rate)


class GeneratedSamples(Dataset[Any]):
    """Samples that `make` makes up from a random state; each depends on its index and the seed alone."""

    def __init__(self, make: Callable[[torch.Generator], Any], seed: int) -> None:
        self.make = make
        self.seed = seed

    def __len__(self) -> int:
        return EPOCH

    def __getitem__(self, index: int) -> Any:
        return self.make(sample_generator(self.seed, index))


class SyntheticImages:
    """Makes an image of bytes (3, side, side) and its class: a random crop, half of them mirrored."""

    def __init__(self, side: int, classes: int = IMAGE_CLASSES) -> None:
        self.side = side
        self.classes = classes

    def __call__(self, random: torch.Generator) -> dict[str, torch.Tensor]:
        """Return `image` (uint8) and `label` (int64, 0-dimensional)."""
        whole = self.side * 8 // 7  # ImageNet's usual 256 for a crop of 224
        image = torch.randint(256, (3, whole, whole), generator=random, dtype=torch.uint8, device="cpu")
        top, left = torch.randint(whole - self.side + 1, (2,), generator=random, device="cpu").tolist()
        image = image[:, top : top + self.side, left : left + self.side]
        if torch.rand((), generator=random, device="cpu") < 0.5:
            image = image.flip(-1)
        label = torch.randint(self.classes, (), generator=random, device="cpu")
        return {"image": image.contiguous(), "label": label}


@lru_cache(maxsize=4)
def _scale_and_shift(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    deviation = torch.tensor(DEVIATION, device=device).view(1, 3, 1, 1)
    mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
    return 1 / (255 * deviation), mean / deviation


def normalise(images: torch.Tensor) -> torch.Tensor:
    """Return images of bytes (batch, 3, height, width) as floats of ImageNet's mean 0 and deviation 1."""
    scale, shift = _scale_and_shift(images.device)  # kept: made anew, they would be copied in each step
    return images.float() * scale - shift
