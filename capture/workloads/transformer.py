"""`transformer`: the encoder-decoder Transformer as it was first published, for translation; `size` is tokens per sentence.

Variants are its two published sizes with a vocabulary of 37,000, and the large one with the 33,708 tokens of the
MLPerf benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import Final

import torch
from torch import nn

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.checks import refuse_data, refuse_max_rows, variant_or_default
from tracekit.capture.workloads.data.translation import (
    PADDING,
    SentencePairs,
    TokenBatch,
    collate_pairs,
    translation_loss,
)
from tracekit.capture.workloads.optimizers import ScheduledOptimizer

__all__ = ["VARIANTS", "TranslationTransformer", "build", "build_model", "example_batch"]

VARIANTS: Final[tuple[str, ...]] = ("base", "big", "big-mlperf")

_BATCH, _TINY_BATCH = 32, 4
_SIZE, _TINY_SIZE = 128, 16
_BETAS = (0.9, 0.98)
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class _Shape:
    width: int
    heads: int
    inner: int
    vocabulary: int
    dropout: float
    layers: int = 6
    warmup: int = 4_000


_SHAPES = {
    "base": _Shape(512, 8, 2048, 37_000, 0.1),
    "big": _Shape(1024, 16, 4096, 37_000, 0.3),
    "big-mlperf": _Shape(1024, 16, 4096, 33_708, 0.1),
}
# A short warm-up, so that a few steps already change something.
_TINY = _Shape(64, 4, 128, 1_000, 0.1, layers=2, warmup=100)


class SinusoidalPositions(nn.Module):
    """Adds to each token a wave of its position: sines in the first half of the features, cosines in the second."""

    rates: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        rates = torch.exp(torch.arange(0, width, 2) * (-log(10_000) / width))
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return features of the shape of `tokens`, (batch, length, width)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        angles = places.unsqueeze(1) * self.rates
        return tokens + torch.cat([angles.sin(), angles.cos()], dim=1)


class TranslationTransformer(nn.Module):
    """`nn.Transformer` between an embedding and its transpose; both languages and the scores share the embedding."""

    def __init__(self, shape: _Shape) -> None:
        super().__init__()
        self.scale = sqrt(shape.width)
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = SinusoidalPositions(shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.transformer = nn.Transformer(
            shape.width, shape.heads, shape.layers, shape.layers, shape.inner, shape.dropout, batch_first=True
        )
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=shape.width**-0.5)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return scores (batch, length, vocabulary) of the token after each one of `target` (batch, length).

        `source` is (batch, length); tokens of 0 are padding and are ignored.
        """
        filling = source == PADDING
        ahead = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1)
        # The padding of a target comes after its tokens, where the causal mask already hides it. To declare the
        # mask as causal avoids a comparison for which the host would wait.
        features = self.transformer(
            self._embed(source),
            self._embed(target),
            tgt_mask=ahead,
            src_key_padding_mask=filling,
            memory_key_padding_mask=filling,
            src_is_causal=False,
            tgt_is_causal=True,
        )
        scores: torch.Tensor = self.head(features)
        return scores

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.dropout(self.positions(self.embedding(tokens) * self.scale))
        return embedded


def _shape(variant: str, *, tiny: bool) -> _Shape:
    name = variant_or_default("transformer", variant, VARIANTS)
    return _TINY if tiny else _SHAPES[name]


def build_model(variant: str, *, tiny: bool = False) -> TranslationTransformer:
    """Return the network of `variant`: 63,084,544 parameters (base), 214,249,472 (big), 210,878,464 (big-mlperf).

    A `tiny` one has 2 + 2 layers, 64 features and 1,000 tokens. Raises `UsageError` for an unknown variant.
    """
    return TranslationTransformer(_shape(variant, tiny=tiny))


def example_batch(variant: str, *, tiny: bool = False) -> TokenBatch:
    """Return a source of 128 tokens (1, 128) and a target of one more (1, 129), or of 16 and 17 if `tiny`."""
    variant_or_default("transformer", variant, VARIANTS)
    length = _TINY_SIZE if tiny else _SIZE
    return torch.ones(1, length, dtype=torch.int64), torch.ones(1, length + 1, dtype=torch.int64)


def inverse_square_root(update: int, width: int, warmup: int) -> float:
    """Return the learning rate of update 1, 2, ...: up in equal steps, then down with the root of the updates."""
    return float(width**-0.5 * min(update**-0.5, update * warmup**-1.5))


def _forward(model: nn.Module, batch: TokenBatch) -> torch.Tensor:
    scores: torch.Tensor = model(batch[0], batch[1][:, :-1])
    return scores


def _adam(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=rate, betas=_BETAS, eps=_EPSILON)


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload, by default 32 pairs of at most 128 tokens a step, trained by Adam with a warm-up.

    Raises `UsageError` for real data, which it does not read.
    """
    variant = variant_or_default("transformer", options.variant, VARIANTS)
    refuse_data("transformer", options)
    refuse_max_rows("transformer", options)
    shape = _shape(variant, tiny=options.tiny)
    batch = options.batch or (_TINY_BATCH if options.tiny else _BATCH)
    size = options.size or (_TINY_SIZE if options.tiny else _SIZE)
    scheduled = ScheduledOptimizer(
        _adam, lambda update: inverse_square_root(update, shape.width, shape.warmup)
    )
    return Recipe(
        model=build_model(variant, tiny=options.tiny).to(options.device),
        dataset=SentencePairs(shape.vocabulary, size, options.seed),
        forward=_forward,
        loss=translation_loss,
        optimizer=scheduled.optimizer,
        after_update=scheduled.after_update,
        task="translation",
        batch=batch,
        size=size,
        synthetic=True,
        collate=collate_pairs,
        config={
            "variant": variant,
            "batch": batch,
            "longest_sentence": size,
            "vocabulary": shape.vocabulary,
            "width": shape.width,
            "layers": 2 * shape.layers,
            "dropout": shape.dropout,
            "optimizer": "Adam",
            "warmup_updates": shape.warmup,
        },
    )
