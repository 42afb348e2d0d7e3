"""Layers whose names only count them: which of one side is which of the other.

A profile that knows no attributes numbers the modules of each class (`Linear_7`), and a container numbers what is in it (`3`). One layer
more shifts the numbers of all that follow. So layers with such names are matched by their order around those of one type that do
the most alike work, as two texts are compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product, takewhile

__all__ = ["counts", "in_order"]


@cache
def counts(name: str, kind: str | None) -> bool:
    """Whether the name of a layer of this type is only a number of it.

    >>> counts("Linear_7", "Linear"), counts("3", "Linear"), counts("fc_2", "Linear")
    (True, True, False)
    """
    return re.fullmatch(r"\d+" if kind is None else rf"(?:{re.escape(kind)}_)?\d+", name) is not None


def in_order(one: Sequence[int], other: Sequence[int], likeness: Callable[[int, int], float], most: int) -> list[tuple[int, int]] | None:  # fmt: skip
    """The pairs in which two rows of layers agree best: their likenesses (0 to 1) sum to the most, and none crosses another. Pairs of
    1 at both ends are taken first. None if the rest has more than `most` pairs to try.

    >>> in_order([1, 3, 5], [1, 2, 3, 5], lambda a, b: float(a == b), 100)
    [(1, 1), (3, 3), (5, 5)]
    """
    first = _all_alike(one, other, likeness)
    last = _all_alike(one[first:][::-1], other[first:][::-1], likeness)
    rests = one[first : len(one) - last], other[first : len(other) - last]
    if len(rests[0]) * len(rests[1]) > most:
        return None
    inner = _best(*rests, likeness)
    ends = [*zip(one[len(one) - last :], other[len(other) - last :], strict=True)]
    return [*zip(one[:first], other[:first], strict=True), *inner, *ends]


def _all_alike(one: Sequence[int], other: Sequence[int], likeness: Callable[[int, int], float]) -> int:
    """How many pairs at the beginning are alike in all."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: likeness(*pair) == 1, pairs))


def _best(one: Sequence[int], other: Sequence[int], likeness: Callable[[int, int], float]) -> list[tuple[int, int]]:  # fmt: skip
    score: dict[tuple[int, int], float] = {}
    rows, columns = len(one), len(other)
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    for i, j in product(reversed(range(rows)), reversed(range(columns))):
        score[i, j] = likeness(one[i], other[j])
        best[i][j] = max(best[i + 1][j], best[i][j + 1], score[i, j] and score[i, j] + best[i + 1][j + 1])
    pairs, i, j = [], 0, 0
    while i < rows and j < columns:
        if score[i, j] and best[i][j] == score[i, j] + best[i + 1][j + 1]:
            pairs.append((one[i], other[j]))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs
