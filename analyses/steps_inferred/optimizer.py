"""Steps from optimizer to optimizer that hold the same kernels, in whatever order they were launched.

Where several threads launch side by side, no step repeats the order of another. The multiset of its kernels it does repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.analyses.steps_inferred.candidates import MOST_STEPS_WITHOUT, possible
from tracekit.analyses.steps_inferred.sequence import LaunchSequence
from tracekit.spans import Int64Array

__all__ = ["Between", "between_optimizers"]

_LEAST_BREAK: Final = 4
"""The launches of one optimizer lie less than one part in so many of the widest gap between two of them apart."""

_MOST_LONGER: Final = 8
"""A step may have more or fewer launches than the middle one by one part in so many."""

_LEAST_SAME: Final = 0.9
"""Share of a step's kernels that another has as well, each as often."""

_LEAST_COVERED: Final = 0.5
_LEAST_HELD: Final = 0.75
"""Share of all launches, and of those from the first to the last step, that the steps must make up."""

_LEAST_BESIDE: Final = 0.1
"""Share of a step's launches that are at least not its optimizer's."""


@dataclass(frozen=True, slots=True, eq=False)
class Between:
    """Steps of about `length` launches of the sequence, each from `begin` to before `end`."""

    sequence: LaunchSequence
    length: int
    begin: Int64Array
    end: Int64Array

    def shorter_than(self, length: int) -> bool:
        """Whether there are several of these in one of that length."""
        return 2 * self.length <= length + length // _MOST_LONGER


def between_optimizers(sequence: LaunchSequence) -> Between | None:
    """The steps of a network that all hold one optimizer and the same kernels; None where there are none.

    In PyTorch there must be a thread of its own for the backward pass: an optimizer may be part of it, for each layer.
    """
    marks = np.flatnonzero(sequence.optimizer)
    if marks.size < 2 or not sequence.neural or (sequence.pytorch and len(sequence.threads) == 1):
        return None
    apart = np.diff(marks)
    last = np.append(apart * _LEAST_BREAK > max(int(apart.max()), _LEAST_BREAK), True)
    bounds = np.append(0, marks[last] + 1)
    lengths = np.diff(bounds)
    length = int(np.median(lengths))
    same = _same(sequence, bounds, int(np.argmin(np.abs(lengths - length))))
    optimizing = np.diff(np.append(0, np.cumsum(sequence.optimizer))[bounds])
    good = (
        (np.abs(lengths - length) * _MOST_LONGER <= length)
        & (same >= _LEAST_SAME * np.maximum(lengths, length))
        & (lengths - optimizing >= _LEAST_BESIDE * lengths)
    )
    # Where the first one begins is known only if it holds what the others do, to the launch.
    good[0] &= bool(same[0] == lengths[0] == length)
    begin, end = bounds[:-1][good], bounds[1:][good]
    held = int((end - begin).sum())
    if (
        not possible(sequence, begin, end)
        or held < _LEAST_COVERED * sequence.symbols.size
        or held < _LEAST_HELD * int(end[-1] - begin[0])
        or float(sequence.enclosed(begin).mean()) > MOST_STEPS_WITHOUT
    ):
        return None
    if end[-1] == sequence.symbols.size:  # nothing tells when the last one ended
        begin, end = begin[:-1], end[:-1]
    return Between(sequence, length, begin, end)


def _same(sequence: LaunchSequence, bounds: Int64Array, reference: int) -> Int64Array:
    """How many launches of each stretch the reference has as well, each as often, in any order."""
    symbols = sequence.symbols[: bounds[-1]].astype(np.int64)
    stretch = np.repeat(np.arange(bounds.size - 1), np.diff(bounds))
    pairs, counts = np.unique((stretch << 32) | symbols, return_counts=True)
    owner, symbol = pairs >> 32, pairs & 0xFFFFFFFF
    wanted, most = symbol[owner == reference], counts[owner == reference]
    place = np.minimum(np.searchsorted(wanted, symbol), wanted.size - 1)
    shared = np.where(wanted[place] == symbol, np.minimum(counts, most[place]), 0)
    return np.bincount(owner, weights=shared, minlength=bounds.size - 1).astype(np.int64)
