"""`gpt2`: GPT-2, trained to predict the next token; `size` is in tokens."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.causal import causal_example, causal_recipe
from tracekit.capture.workloads.checks import import_transformers, variant_or_default

__all__ = ["VARIANTS", "build", "build_model", "example_batch"]

VARIANTS: Final[tuple[str, ...]] = ("small", "medium", "xl")

_SHAPES: Final[dict[str, dict[str, int]]] = {
    "small": {"n_embd": 768, "n_layer": 12, "n_head": 12},
    "medium": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
    "tiny": {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 512},
}
_TINY_PLACES = 64


def build_model(variant: str, *, tiny: bool = False, length: int = 0) -> nn.Module:
    """Return `GPT2LMHeadModel` with random weights.

    It takes sequences of up to 1024 tokens (tiny: 64), or more if `length` is more. Raises `UsageError` for an
    unknown variant and `MissingDependencyError` without transformers.
    """
    shape: dict[str, Any] = dict(_SHAPES["tiny" if tiny else variant_or_default("gpt2", variant, VARIANTS)])
    shape["n_positions"] = max(length, _TINY_PLACES if tiny else 1024)
    if tiny:
        shape |= {"bos_token_id": 0, "eos_token_id": 0}
    transformers = import_transformers()
    model: nn.Module = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, use_cache=False))
    return model


def example_batch(variant: str, *, tiny: bool = False) -> dict[str, torch.Tensor]:
    """Return a batch of one sample, of 1024 tokens (tiny: 32), on the device of the context."""
    variant_or_default("gpt2", variant, VARIANTS)
    return causal_example(32 if tiny else 1024)


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload, by default 8 sequences of 1024 tokens a step, trained by AdamW with a warm-up.

    With `options.data` it trains on that text, as `bert` does. Raises `UsageError` for an unknown variant or
    data without text, `MissingDependencyError` without transformers.
    """
    variant = variant_or_default("gpt2", options.variant, VARIANTS)
    length = options.size or (32 if options.tiny else 1024)
    with options.device:
        model = build_model(variant, tiny=options.tiny, length=length).to(options.device)
    return causal_recipe(model, options, variant=variant, length=length, batch=8, rate=6e-4)
