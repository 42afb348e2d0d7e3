"""The training loop that all recipes share: phases, precision, accumulation, several ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from tracekit.capture.blocks import checkpoint_blocks, compile_blocks, replicate, shard
from tracekit.capture.device import autocast, grad_scaler
from tracekit.capture.marks.names import PhaseRange, no_phase
from tracekit.capture.recipe import Recipe
from tracekit.errors import UsageError
from tracekit.manifest import Setting, Settings

__all__ = ["Training", "moved"]

_IMAGE_DIMENSIONS = 4


def moved(batch: Any, device: torch.device, *, channels_last: bool = False) -> Any:
    """The same nested tuples, lists and dicts with their tensors on the device; other values unchanged."""
    if isinstance(batch, torch.Tensor):
        if channels_last and batch.dim() == _IMAGE_DIMENSIONS:
            return batch.to(device, non_blocking=True, memory_format=torch.channels_last)
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: moved(value, device, channels_last=channels_last) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [moved(value, device, channels_last=channels_last) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


class Training:
    """A `Workload` made of a recipe and settings: one step is `accumulate` batches and one update.

    `model` is the bare model, whose modules are marked as layers; the training may run it inside a wrapper for
    several ranks. Raises UsageError if the settings need repeated blocks and the model has none.
    """

    def __init__(self, recipe: Recipe, settings: Settings, device: torch.device) -> None:
        self.recipe, self.settings, self.device = recipe, settings, device
        self.model = recipe.model
        if settings.channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if settings.checkpoint_activations and not checkpoint_blocks(self.model):
            raise UsageError(
                "the model has no repeated blocks to checkpoint", remedy="leave --checkpoint-activations out"
            )
        if settings.compile and not compile_blocks(self.model):
            raise UsageError("the model has no repeated blocks to compile", remedy="leave --compile out")
        self._runs = self.model
        self._is_ready = settings.ranks == 1
        if settings.ranks > 1 and settings.parallel == "fsdp":
            shard(self.model)  # before the optimizer is made, which must see the shards
            self._is_ready = True
        self._optimizer = recipe.optimizer(self._runs)
        self._scaler = grad_scaler(device, settings.precision)
        self._updates = 0
        self._mean_loss = torch.zeros((), device=device)

    @property
    def config(self) -> Mapping[str, Setting]:
        """The recipe's own settings."""
        return self.recipe.config

    @property
    def samples_per_step(self) -> int:
        """Over all ranks."""
        return self.recipe.batch * self.settings.accumulate * self.settings.ranks

    def batches(self) -> Iterator[list[Any]]:
        """The batches of each step, on the host, in an endless loop."""
        settings, on_gpu = self.settings, self.device.type == "cuda"
        pinned = on_gpu if settings.pin_memory is None else settings.pin_memory
        sampler: DistributedSampler[Any] | None = (
            DistributedSampler(self.recipe.dataset, shuffle=False, drop_last=True)
            if settings.ranks > 1
            else None
        )
        loader: DataLoader[Any] = DataLoader(
            self.recipe.dataset,
            batch_size=self.recipe.batch,
            sampler=sampler,
            collate_fn=self.recipe.collate,
            num_workers=settings.workers,
            persistent_workers=settings.workers > 0,
            pin_memory=pinned and on_gpu,
            drop_last=True,
        )
        if not len(loader):
            raise UsageError(
                f"the data hold fewer than the {self.recipe.batch} samples of a batch", remedy="lower --batch"
            )
        endless = _endless(loader)
        while True:
            yield [next(endless) for _ in range(settings.accumulate)]

    def step(self, batch: list[Any], phase: PhaseRange) -> torch.Tensor:
        """Train on the batches of one step; return their mean loss, detached, on the device."""
        if not self._is_ready:
            self._replicate(batch[0])
        with phase("zero_grad"):
            self._optimizer.zero_grad()
        losses = []
        for index, part in enumerate(batch):
            with self._unsynchronised(last=index == len(batch) - 1):
                losses.append(self._backward(part, len(batch), phase))
        with phase("optimizer"):
            self._update()
        with phase("metrics"):
            loss = torch.stack(losses).mean()
            self._mean_loss += (loss - self._mean_loss) / max(self._updates, 1)
        return loss

    def _backward(self, batch: Any, parts: int, phase: PhaseRange) -> torch.Tensor:
        with phase("h2d"):
            inputs = moved(batch, self.device, channels_last=self.settings.channels_last)
        with autocast(self.device, self.settings.precision):
            with phase("forward"):
                output = self.recipe.forward(self._runs, inputs)
            with phase("loss"):
                loss = self.recipe.loss(output, inputs)
        with phase("backward"):
            self._scaler.scale(loss / parts if parts > 1 else loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _update(self) -> None:
        if self.recipe.clip_norm is not None:
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self._runs.parameters(), self.recipe.clip_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._updates += 1
        if self.recipe.after_update is not None:
            self.recipe.after_update(self._runs, self._updates)

    def _replicate(self, batch: Any) -> None:
        """Wrap the model for several ranks, after a pass on one that shows which parameters take part."""
        self._backward(batch, 1, no_phase)
        self._runs = replicate(self.model, self.device)
        self._optimizer.zero_grad()
        self._is_ready = True

    def _unsynchronised(self, *, last: bool) -> AbstractContextManager[object]:
        """Several ranks exchange their gradients once per step, with its last batch."""
        pause = getattr(self._runs, "no_sync", None)
        return nullcontext() if last or pause is None else pause()


def _endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader
