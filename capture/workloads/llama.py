"""`llama`: Llama, trained to predict the next token; `size` is in tokens."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.causal import causal_example, causal_recipe
from tracekit.capture.workloads.checks import import_transformers, variant_or_default

__all__ = ["VARIANTS", "build", "build_model", "example_batch"]

VARIANTS: Final[tuple[str, ...]] = ("1b", "7b")

_SHAPES: Final[dict[str, dict[str, Any]]] = {
    # The shape of Llama 3.2 1B, whose positions reach 131,072 by stretching the slow rotations.
    "1b": {
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "7b": {},  # the defaults of transformers: the first Llama
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}


def build_model(variant: str, *, tiny: bool = False) -> nn.Module:
    """Return `LlamaForCausalLM` with random weights.

    Raises `UsageError` for an unknown variant and `MissingDependencyError` without transformers.
    """
    shape = _SHAPES["tiny" if tiny else variant_or_default("llama", variant, VARIANTS)]
    transformers = import_transformers()
    model: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, use_cache=False))
    return model


def example_batch(variant: str, *, tiny: bool = False) -> dict[str, torch.Tensor]:
    """Return a batch of one sample, of 2048 tokens (tiny: 32), on the device of the context."""
    variant_or_default("llama", variant, VARIANTS)
    return causal_example(32 if tiny else 2048)


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload, by default 1 sequence of 2048 tokens a step, trained by AdamW with a warm-up.

    With `options.data` it trains on that text, as `bert` does. Raises `UsageError` for an unknown variant or
    data without text, `MissingDependencyError` without transformers.
    """
    variant = variant_or_default("llama", options.variant, VARIANTS)
    length = options.size or (32 if options.tiny else 2048)
    with options.device:
        model = build_model(variant, tiny=options.tiny).to(options.device)
    return causal_recipe(model, options, variant=variant, length=length, batch=1, rate=3e-4)
