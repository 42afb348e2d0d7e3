"""`encoder`: a small encoder trained to predict masked tokens; `size` is the sequence length."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions

__all__ = ["Encoder", "EncoderBlock", "MaskedZipfTokens", "SelfAttention", "build"]

Pair = tuple[torch.Tensor, torch.Tensor]

_VOCABULARY = 2_000
_MASK_TOKEN = 0
_IGNORED = -100  # the target of a token that is not predicted
_MASKED_SHARE = 0.15
_WIDTH = 128
_HEADS = 4
_BLOCKS = 3
_DROPOUT = 0.1
_EPOCH = 50_000


class SelfAttention(nn.Module):
    """Multi-head attention of each token to all tokens of its sequence."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return attended features, of the shape of `tokens`: (batch, length, width)."""
        batch, length, width = tokens.shape
        split = self.qkv(tokens).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        projected: torch.Tensor = self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return projected


class EncoderBlock(nn.Module):
    """Attention and a two-layer perceptron, each after a normalisation and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return encoded features, of the shape of `tokens`."""
        tokens = tokens + self.dropout(self.attention(self.attention_norm(tokens)))
        mixed: torch.Tensor = tokens + self.dropout(self.mlp(self.mlp_norm(tokens)))
        return mixed


class Encoder(nn.Module):
    """Token and position embeddings, blocks, and scores from the transposed token embedding."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_VOCABULARY, _WIDTH)
        self.positions = nn.Embedding(length, _WIDTH)
        self.blocks = nn.Sequential(*(EncoderBlock(_WIDTH, _HEADS) for _ in range(_BLOCKS)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, _VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores (batch, length, vocabulary) for token numbers (batch, length)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        features = self.blocks(self.tokens(tokens) + self.positions(places))
        scores: torch.Tensor = self.head(self.norm(features))
        return scores


class MaskedZipfTokens(Dataset[Pair]):
    """Token sequences whose frequencies fall as in text, some masked; the targets are the masked tokens.

    A sample depends on its index and the seed alone.
    """

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self.seed = seed
        ranks = torch.arange(1, _VOCABULARY, dtype=torch.float64)
        self.shares = ranks.pow(-1.05)

    def __len__(self) -> int:
        return _EPOCH

    def __getitem__(self, index: int) -> Pair:
        random = torch.Generator().manual_seed(self.seed * _EPOCH + index)
        # Token 0 is the mask, so words begin at 1.
        words = torch.multinomial(self.shares, self.length, replacement=True, generator=random) + 1
        chance = torch.rand(self.length, generator=random)
        masked = (chance < _MASKED_SHARE) | (
            chance == chance.min()
        )  # without masked tokens there is no mean loss
        return words.masked_fill(masked, _MASK_TOKEN), words.masked_fill(~masked, _IGNORED)


def _loss(scores: torch.Tensor, pair: Pair) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), pair[1].flatten(), ignore_index=_IGNORED)


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload, by default 8 sequences of 64 tokens a step, trained by AdamW."""
    batch, length = options.batch or (4 if options.tiny else 8), options.size or (32 if options.tiny else 64)
    return Recipe(
        model=Encoder(length).to(options.device),
        dataset=MaskedZipfTokens(length, options.seed),
        forward=lambda model, pair: model(pair[0]),
        loss=_loss,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-4),
        task="masked language model",
        batch=batch,
        size=length,
        synthetic=True,
        config={
            "batch": batch,
            "sequence_length": length,
            "vocabulary": _VOCABULARY,
            "width": _WIDTH,
            "heads": _HEADS,
            "blocks": _BLOCKS,
            "dropout": _DROPOUT,
            "optimizer": "AdamW",
        },
    )
