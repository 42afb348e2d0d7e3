"""Parameters and FLOPs of the workloads that come with tracekit, counted without memory.

    python -m tracekit.capture.catalogue        # counts all again and writes catalogue.json

FLOPs are 2 × the multiply-adds of matrix products, convolutions and attention in one forward pass of one sample of the
default size. They are counted on torch's meta device, where no tensor has values: a model whose forward pass reads
values cannot be counted there and has no FLOPs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import nn

from tracekit.capture import workloads
from tracekit.capture.entries import CATALOGUE, Entry
from tracekit.capture.flops import flop_counter
from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions

__all__ = ["count", "main", "variants"]

_NOT_COUNTED: Final = (
    AssertionError,
    RuntimeError,
    NotImplementedError,
    ValueError,
    TypeError,
    AttributeError,
    IndexError,
    KeyError,
)
"""The errors of a forward pass that needs the values of its tensors."""


def variants() -> list[tuple[str, str]]:
    """Every workload that comes with tracekit, with each of its variants ("" if it has only one)."""
    pairs: list[tuple[str, str]] = []
    for name in workloads.built_in():
        module = import_module(f"tracekit.capture.workloads.{name}")
        pairs += [(name, variant) for variant in getattr(module, "VARIANTS", ("",))]
    return pairs


def count(name: str, variant: str) -> Entry:
    """Count one workload. Raises the errors of its construction."""
    module = import_module(f"tracekit.capture.workloads.{name}")
    meta = torch.device("meta")
    with meta:
        recipe = module.build(WorkloadOptions(device=meta, variant=variant))
    flops = None
    if hasattr(module, "example_batch"):
        with meta:
            flops = _counted(recipe, module.example_batch(variant))
    return Entry(
        name=f"{name}:{variant}" if variant else name,
        task=recipe.task,
        parameters=sum(p.numel() for p in recipe.model.parameters()),
        forward_flops=flops,
        batch=recipe.batch,
        size=recipe.size,
    )


def _counted(recipe: Recipe, batch: Any) -> int | None:
    """The FLOPs of a forward pass, by the first method that reads no value of a tensor; None if there is none."""
    distribution = torch.distributions.Distribution
    checks = distribution._validate_args
    # A forecast is a distribution. torch reads its parameters unless it has compiled something before.
    distribution.set_default_validate_args(False)
    try:
        for attempt in _ways(recipe.model, batch):
            with suppress(*_NOT_COUNTED), torch.no_grad(), flop_counter() as counter:
                recipe.forward(recipe.model, attempt)
                return counter.get_total_flops() or None
    finally:
        distribution.set_default_validate_args(checks)
    return None


def _ways(model: nn.Module, batch: Any) -> Iterator[Any]:
    yield batch
    model.eval()  # randomly dropped layers read values
    yield batch
    eager: Any = getattr(model, "set_attn_implementation", None)
    if eager is not None:
        eager("eager")  # transformers reads the mask before it chooses a fused attention
        yield batch
    if isinstance(batch, dict):
        # Matching losses read the targets, and use no counted operation.
        yield {key: value for key, value in batch.items() if "labels" not in key}


def main() -> None:
    """Count all and write the catalogue."""
    entries = []
    for name, variant in variants():
        entries.append(count(name, variant))
        print(
            entries[-1].name, entries[-1].parameters, entries[-1].forward_flops, file=sys.stderr, flush=True
        )
    lines = ",\n".join(msgspec.json.encode(entry).decode() for entry in entries)
    Path(CATALOGUE).write_text(f"[\n{lines}\n]\n", "utf-8")


if __name__ == "__main__":
    main()
