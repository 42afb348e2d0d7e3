"""Made-up sentence pairs as token numbers, with frequencies as in text and lengths as in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from tracekit.capture.workloads.data.samples import bounded_zipf, log_normal_length, numpy_generator

__all__ = ["PADDING", "SentencePair", "SentencePairs", "TokenBatch", "collate_pairs", "translation_loss"]

PADDING, _BEGIN, _END = 0, 1, 2
_WORDS_FROM = 3

_SYNTHETIC_PAIRS = 1_000_000
_TOKEN_EXPONENT = 1.05
_MEDIAN_LENGTH, _LENGTH_SIGMA = 24, 0.6
_RATIO_SIGMA = 0.15
_LABEL_SMOOTHING = 0.1

SentencePair = tuple[torch.Tensor, torch.Tensor]
TokenBatch = tuple[torch.Tensor, torch.Tensor]


class SentencePairs(Dataset[SentencePair]):
    """Pairs of sentences of at most `longest` tokens; a sample depends on its index and the seed alone.

    The first ends with the end token, which counts; the second also begins with the begin token.
    """

    def __init__(self, vocabulary: int, longest: int, seed: int) -> None:
        self.vocabulary = vocabulary
        self.longest = longest
        self.seed = seed

    def __len__(self) -> int:
        return _SYNTHETIC_PAIRS

    def __getitem__(self, index: int) -> SentencePair:
        random = numpy_generator(self.seed, index)
        source = self._length(random, _MEDIAN_LENGTH, _LENGTH_SIGMA)
        target = self._length(random, source, _RATIO_SIGMA)
        first, second = self._words(random, source - 1), self._words(random, target - 1)
        return (
            torch.from_numpy(np.concatenate([first, [_END]])),
            torch.from_numpy(np.concatenate([[_BEGIN], second, [_END]])),
        )

    def _length(self, random: np.random.Generator, median: float, sigma: float) -> int:
        return log_normal_length(random, median=median, sigma=sigma, least=1, most=self.longest)

    def _words(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        words: NDArray[np.int64] = _WORDS_FROM + bounded_zipf(
            random.random(count), self.vocabulary - _WORDS_FROM, _TOKEN_EXPONENT
        )
        return words


def collate_pairs(samples: Sequence[SentencePair]) -> TokenBatch:
    """Return sources (batch, longest) and targets (batch, longest), padded with 0, the longest source first."""
    ordered = sorted(samples, key=lambda sample: -len(sample[0]))
    return (
        pad_sequence([source for source, _ in ordered], batch_first=True),
        pad_sequence([target for _, target in ordered], batch_first=True),
    )


def translation_loss(scores: torch.Tensor, batch: TokenBatch) -> torch.Tensor:
    """Return the mean smoothed cross entropy of `scores` (batch, tokens - 1, vocabulary) for the next target tokens."""
    return functional.cross_entropy(
        scores.flatten(0, 1),
        batch[1][:, 1:].flatten(),
        ignore_index=PADDING,
        label_smoothing=_LABEL_SMOOTHING,
    )
