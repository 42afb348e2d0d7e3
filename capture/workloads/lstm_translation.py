"""`lstm_translation`: translation by layers of LSTMs with attention, after GNMT; `size` is tokens per sentence.

The one variant, `gnmt`, has 160,670,272 parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.nn.utils.rnn import pad_packed_sequence

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
from tracekit.capture.workloads.recurrent import pack

__all__ = ["VARIANTS", "LstmTranslator", "build", "build_model", "example_batch"]

VARIANTS: Final[tuple[str, ...]] = ("gnmt",)

_BATCH, _TINY_BATCH = 64, 4
_SIZE, _TINY_SIZE = 50, 10
_DROPOUT = 0.2
_INITIAL_RANGE = 0.1
_LEARNING_RATE = 1e-3
_CLIP_NORM = 5.0


@dataclass(frozen=True, slots=True)
class _Shape:
    width: int
    vocabulary: int
    layers: int = 4


_FULL = _Shape(1024, 32_320)
_TINY = _Shape(32, 500)


class AdditiveAttention(nn.Module):
    """A mean of the keys, weighted by a small perceptron of query and key (Bahdanau's)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.weigh = nn.Linear(width, 1, bias=False)

    def forward(self, queries: torch.Tensor, keys: torch.Tensor, filling: torch.Tensor) -> torch.Tensor:
        """Return (batch, queries, width) for queries (batch, queries, width) and keys (batch, keys, width).

        Keys for which `filling` (batch, keys) is true have no weight.
        """
        mixed = torch.tanh(self.query(queries).unsqueeze(2) + self.key(keys).unsqueeze(1))
        weights = self.weigh(mixed).squeeze(3).masked_fill(filling.unsqueeze(1), -torch.inf).softmax(dim=2)
        return torch.bmm(weights.to(keys.dtype), keys)


class Encoder(nn.Module):
    """A bidirectional layer, then forward layers; from the third on, layers add their input to their output."""

    def __init__(self, shape: _Shape) -> None:
        super().__init__()
        self.both_ways = nn.LSTM(shape.width, shape.width, batch_first=True, bidirectional=True)
        self.forward_layers = nn.ModuleList(
            nn.LSTM(shape.width if place else 2 * shape.width, shape.width, batch_first=True)
            for place in range(shape.layers - 1)
        )
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, embedded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return features (batch, longest, width) of `embedded`, of the same shape, the longest first."""
        packed, _ = self.both_ways(pack(self.dropout(embedded), lengths))
        features, _ = pad_packed_sequence(packed, batch_first=True, total_length=embedded.shape[1])
        for place, layer in enumerate(self.forward_layers):
            read, _ = layer(self.dropout(features))
            features = read + features if place else read
        return features


class Decoder(nn.Module):
    """A layer that queries the attention; each further layer gets its result in addition to the input."""

    def __init__(self, shape: _Shape) -> None:
        super().__init__()
        self.first = nn.LSTM(shape.width, shape.width, batch_first=True)
        self.attention = AdditiveAttention(shape.width)
        self.further = nn.ModuleList(
            nn.LSTM(2 * shape.width, shape.width, batch_first=True) for _ in range(shape.layers - 1)
        )
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, embedded: torch.Tensor, encoded: torch.Tensor, filling: torch.Tensor) -> torch.Tensor:
        """Return features (batch, target, width) for `embedded` (batch, target, width) and `encoded` sources."""
        features, _ = self.first(self.dropout(embedded))
        context = self.attention(features, encoded, filling).to(features.dtype)
        for place, layer in enumerate(self.further):
            read, _ = layer(self.dropout(torch.cat([features, context], dim=2)))
            features = read + features if place else read
        decoded: torch.Tensor = features
        return decoded


class LstmTranslator(nn.Module):
    """An encoder and a decoder that share an embedding, and scores of all tokens."""

    def __init__(self, shape: _Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width, padding_idx=PADDING)
        self.encoder = Encoder(shape)
        self.decoder = Decoder(shape)
        self.classifier = nn.Linear(shape.width, shape.vocabulary)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -_INITIAL_RANGE, _INITIAL_RANGE)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return scores (batch, length, vocabulary) of the token after each one of `target` (batch, length).

        `source` is (batch, length), the longest first; tokens of 0 are padding and are ignored.
        """
        filling = source == PADDING
        encoded = self.encoder(self.embedding(source), (~filling).sum(dim=1))
        scores: torch.Tensor = self.classifier(self.decoder(self.embedding(target), encoded, filling))
        return scores


def build_model(variant: str, *, tiny: bool = False) -> LstmTranslator:
    """Return the network, of 160,670,272 parameters.

    A `tiny` one has 32 features and 500 tokens. Raises `UsageError` for an unknown variant.
    """
    variant_or_default("lstm_translation", variant, VARIANTS)
    return LstmTranslator(_TINY if tiny else _FULL)


def example_batch(variant: str, *, tiny: bool = False) -> TokenBatch:
    """Return a source of 50 tokens (1, 50) and a target of one more (1, 51), or of 10 and 11 if `tiny`."""
    variant_or_default("lstm_translation", variant, VARIANTS)
    length = _TINY_SIZE if tiny else _SIZE
    return torch.ones(1, length, dtype=torch.int64), torch.ones(1, length + 1, dtype=torch.int64)


def _forward(model: nn.Module, batch: TokenBatch) -> torch.Tensor:
    scores: torch.Tensor = model(batch[0], batch[1][:, :-1])
    return scores


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload, by default 64 pairs of at most 50 tokens a step, trained by Adam.

    Raises `UsageError` for real data, which it does not read.
    """
    variant = variant_or_default("lstm_translation", options.variant, VARIANTS)
    refuse_data("lstm_translation", options)
    refuse_max_rows("lstm_translation", options)
    shape = _TINY if options.tiny else _FULL
    batch = options.batch or (_TINY_BATCH if options.tiny else _BATCH)
    size = options.size or (_TINY_SIZE if options.tiny else _SIZE)
    return Recipe(
        model=build_model(variant, tiny=options.tiny).to(options.device),
        dataset=SentencePairs(shape.vocabulary, size, options.seed),
        forward=_forward,
        loss=translation_loss,
        optimizer=_optimizer,
        task="translation",
        batch=batch,
        size=size,
        synthetic=True,
        collate=collate_pairs,
        clip_norm=_CLIP_NORM,
        config={
            "variant": variant,
            "batch": batch,
            "longest_sentence": size,
            "vocabulary": shape.vocabulary,
            "width": shape.width,
            "layers": 2 * shape.layers,
            "dropout": _DROPOUT,
            "optimizer": "Adam",
            "learning_rate": _LEARNING_RATE,
        },
    )
