"""What a sequence of symbols repeats: lengths after which most of it comes again, with every single repetition.

A symbol (or a short run of them) that comes again at about the same distance twice in a row, and does so over a large part
of the sequence, proposes that distance. Its occurrences cut the sequence into segments. Of these one is the template, and
those that agree with it, symbol by symbol, are the repetitions: a segment that is a little longer or shorter may have
one insertion or deletion, and a symbol may differ here and there. Nothing is guessed from counts alone.

All of it is sorts and comparisons of whole columns: O(n log n).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.spans import BoolArray, Int64Array

__all__ = ["FEWEST", "Repetition", "Symbols", "repetitions"]

Symbols = npt.NDArray[np.uint32]

FEWEST: Final = 3
"""Two may be one for the warm-up and one for the run."""

_MOST_SYMBOLS: Final = 1 << 24
"""Of a longer sequence no more is looked at: positions and hashes of runs share 64 bits."""

_RUNS: Final = (1, 4)
"""Lengths of the runs of symbols that propose distances: single ones survive changes beside them, longer ones are
found where every single symbol comes many times in a repetition."""

_LEAST_COVERED: Final = 0.5
"""Share of the sequence that the repetitions must make up."""

_LEAST_HELD: Final = 0.75
"""The same between the first and the last of them."""

_LEAST_AGREEMENT: Final = 0.75
"""Share of a segment's symbols that equal the template's, beyond what chance gives."""

_MOST_LONGER: Final = 8
"""A segment may be longer or shorter than the template by one part in so many."""

_SAMPLE: Final = 4096
_MOST_PROPOSED: Final = 64
_MOST_TRIED: Final = 12
_MOST_TEMPLATES: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class Repetition:
    """One way to read the sequence as repetitions of `length` symbols.

    `bounds` cut it into segments (one more bound than segments), `good` says which of them agree with the template.
    Up to `split` symbols of a segment are aligned with the template's beginning, the rest with its end.
    `unexplained` counts the symbols of the segments from the first to the last good one that are not the template's, and
    `changed` those of good segments that stand where the template has another.
    """

    symbols: Symbols
    template: Symbols
    bounds: Int64Array
    good: BoolArray
    split: Int64Array
    unexplained: int
    changed: int

    @property
    def length(self) -> int:
        """Symbols of one repetition."""
        return self.template.size

    @property
    def first(self) -> int:
        """Position at which the first good segment begins."""
        return int(self.bounds[np.argmax(self.good)])

    @property
    def last(self) -> int:
        """Position at which the last good segment ends."""
        return int(self.bounds[self.good.size - int(np.argmax(self.good[::-1]))])

    @property
    def regular(self) -> bool:
        """Whether all segments from the first to the last good one are good, and as long as the template but for 2."""
        low, high = np.searchsorted(self.bounds, [self.first, self.last])
        lengths = np.diff(self.bounds)[low:high]
        return bool(self.good[low:high].all() and (np.abs(lengths - self.length) <= 2).all())

    def begins_within(self) -> bool:
        """Whether the sequence begins in a repetition: up to the end of the first good one it is, to the symbol, the template."""
        rest = self.first
        return (
            rest < self.length
            and self._agrees(0, rest, self.length - rest, least=1.0)
            and self._agrees(rest, rest + self.length, 0, least=1.0)
        )

    def ends_within(self) -> bool:
        """Whether the sequence ends in a repetition: from the beginning of the last good one on it is the template."""
        rest = self.symbols.size - self.last
        return (
            rest < self.length
            and self._agrees(self.last, self.symbols.size, 0, least=1.0)
            and self._agrees(self.last - self.length, self.last, 0, least=1.0)
        )

    def folded(self, marks: BoolArray) -> npt.NDArray[np.float64]:
        """For each place in the template, the share of repetitions in which it is marked."""
        share: npt.NDArray[np.float64] = marks[self.places()].mean(axis=0)
        return share

    def folded_median(self, values: Int64Array) -> npt.NDArray[np.float64]:
        """For each place in the template, the median of the values there."""
        middle: npt.NDArray[np.float64] = np.median(values[self.places()], axis=0)
        return middle

    def places(self, most: int = 2 * _MOST_TEMPLATES) -> Int64Array:
        """Positions in the sequence, one row for each of some good segments of the template's length."""
        starts = self.bounds[:-1][self.good & (np.diff(self.bounds) == self.length)]
        places: Int64Array = _spread(starts, most)[:, None] + np.arange(self.length)
        return places

    def cut(self, offset: int) -> tuple[Int64Array, Int64Array]:
        """First and one-past-last position of each whole repetition that begins at place `offset` of the template."""
        low, high = self.bounds[:-1], self.bounds[1:]
        middle = np.where(offset < self.split, low + offset, high - (self.length - offset))
        at, connected = middle[self.good], np.diff(np.flatnonzero(self.good)) == 1
        begin, end = at[:-1][connected], at[1:][connected]
        before, after = self.first - (self.length - offset), self.last + offset
        if offset and before >= 0 and self._agrees(before, self.first, offset):
            begin, end = np.append(before, begin), np.append(at[0], end)
        if after <= self.symbols.size and self._agrees(self.last, after, 0):
            begin, end = np.append(begin, at[-1]), np.append(end, after)
        return begin, end

    def _agrees(self, low: int, high: int, offset: int, *, least: float = _LEAST_AGREEMENT) -> bool:
        """Whether the positions [low, high) are the template from this place on."""
        if low == high:
            return True
        same = self.symbols[low:high] == self.template[offset : offset + high - low]
        return float(same.mean()) >= least


def repetitions(symbols: Symbols) -> list[Repetition]:
    """The lengths that most of the sequence repeats at least three times, each with its repetitions; shortest first.

    Multiples of a length are left out where the shorter explains as much.
    """
    symbols = symbols[:_MOST_SYMBOLS]
    if symbols.size < FEWEST:
        return []
    chance = _chance(symbols)
    if chance > 1 - 1 / _SAMPLE:
        return []
    found = []
    for distance, anchors in _proposed(symbols, chance):
        repetition = _repetition(symbols, distance, anchors, chance)
        if repetition is not None:
            found.append(repetition)
    return sorted(found, key=lambda each: each.length)


def _chance(symbols: Symbols) -> float:
    """How likely two places hold the same symbol."""
    ordered = np.sort(symbols)
    edges = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    counts = np.diff(np.append(edges, ordered.size)).astype(np.float64)
    return float((counts**2).sum() / ordered.size**2)


def _proposed(symbols: Symbols, chance: float) -> list[tuple[int, Int64Array]]:
    """Distances at which something comes again over much of the sequence, with the positions of that something."""
    best: dict[int, tuple[int, int, Int64Array]] = {}
    for run in _RUNS:
        if symbols.size <= run:
            continue
        for distance, votes, covered, positions in _steady(symbols, run):
            known, most, _ = best.get(distance, (0, 0, positions))
            at = positions if covered > most else best[distance][2]
            best[distance] = known + votes, max(covered, most), at
    ranked = sorted(best.items(), key=lambda each: (-each[1][0], each[0]))[:_MOST_PROPOSED]
    rng = np.random.default_rng(0)
    kept = []
    for distance, (_, _, positions) in ranked:
        at = rng.integers(0, symbols.size - distance, _SAMPLE)
        same = float((symbols[at] == symbols[at + distance]).mean())
        if (same - chance) / (1 - chance) >= _LEAST_COVERED * _LEAST_AGREEMENT**2:
            kept.append((distance, positions))
    return kept[:_MOST_TRIED]


def _steady(symbols: Symbols, run: int) -> list[tuple[int, int, int, Int64Array]]:
    """Distances at which runs of symbols come again and again: how often in all, and of the run that comes so most often
    the symbols that it covers and its positions.
    """
    size = symbols.size - run + 1
    bits = max(int(size).bit_length(), 1)
    hashed = np.zeros(size, np.uint64)
    for shift in range(run):
        hashed = (hashed + symbols[shift : shift + size]) * np.uint64(0x9E3779B97F4A7C15)
    mask = np.uint64((1 << bits) - 1)
    keys = np.sort((hashed & ~mask) | np.arange(size, dtype=np.uint64))
    position = (keys & mask).astype(np.int64)
    same = (keys[1:] ^ keys[:-1]) <= mask
    gap = np.diff(position)
    near = np.abs(gap[1:] - gap[:-1]) * _MOST_LONGER <= gap[1:]
    group = np.cumsum(np.append(False, ~same))
    steady = np.flatnonzero(same[1:] & same[:-1] & near & (2 * gap[1:] < symbols.size))
    pair, counts = np.unique((group[steady] << bits) | gap[steady], return_counts=True)
    distance = pair & int(mask)
    covered = (counts + 2) * distance
    order = np.flatnonzero(covered >= _LEAST_COVERED * _LEAST_HELD * symbols.size)
    order = order[np.lexsort((pair[order], -covered[order]))]
    order = order[np.sort(np.unique(distance[order], return_index=True)[1])]
    values, inverse = np.unique(distance, return_inverse=True)
    votes = np.bincount(inverse, weights=counts).astype(np.int64)[np.searchsorted(values, distance[order])]
    most = np.lexsort((distance[order], -votes))[:_MOST_PROPOSED]
    order, votes = order[most], votes[most]
    low = np.searchsorted(group, pair[order] >> bits)
    high = np.searchsorted(group, pair[order] >> bits, side="right")
    return [
        (int(distance[k]), int(vote), int(covered[k]), position[a:b])
        for k, vote, a, b in zip(order, votes, low, high, strict=True)
    ]


def _repetition(symbols: Symbols, length: int, anchors: Int64Array, chance: float) -> Repetition | None:
    """The reading of the sequence as segments from anchor to anchor; None when they do not repeat one another."""
    bounds = _bounds(anchors, length, symbols.size)
    lengths = np.diff(bounds)
    exact = lengths == length
    if np.count_nonzero(exact) < FEWEST - 1:
        return None
    starts = bounds[:-1]
    template = _template(symbols, _spread(starts[exact], _MOST_TEMPLATES), length)
    matches, split = np.zeros(lengths.size, np.int64), np.full(lengths.size, length)
    places = starts[exact][:, None] + np.arange(length)
    matches[exact] = (symbols[places] == template).sum(axis=1)
    near = ~exact & (np.abs(lengths - length) * _MOST_LONGER <= length)
    matches[near], split[near] = _shifted(symbols, starts[near], lengths[near], template)
    longer = np.maximum(lengths, length)
    good = (exact | near) & ((matches / longer - chance) / (1 - chance) >= _LEAST_AGREEMENT)
    if np.count_nonzero(good) < FEWEST - 1:
        return None
    first, last = int(np.argmax(good)), good.size - int(np.argmax(good[::-1]))
    held, between = int(lengths[good].sum()), int(bounds[last] - bounds[first])
    if held < _LEAST_COVERED * symbols.size or held < _LEAST_HELD * between:
        return None
    # The template is one of the segments, and agrees with itself: the fewer there are, the more that would flatter them.
    count = int(np.count_nonzero(good))
    unexplained = int((longer - matches)[first:last].sum()) * count // (count - 1)
    changed = int((np.minimum(lengths, length) - matches)[good].sum()) * count // (count - 1)
    return Repetition(symbols, template, bounds, good, split, unexplained, changed)


def _bounds(anchors: Int64Array, length: int, size: int) -> Int64Array:
    """The anchors, with those put in that are missing at whole lengths between, before and after them."""
    times, rest = np.divmod(np.diff(anchors), length)
    times = np.append(np.where(rest == 0, times, 1), 1)
    filled = np.repeat(anchors, times)
    filled += length * (np.arange(filled.size) - np.repeat(np.cumsum(times) - times, times))
    before = np.arange(filled[0] % length, filled[0], length)
    after = np.arange(filled[-1] + length, size + 1, length)
    return np.concatenate([before, filled, after]).astype(np.int64)


def _template(symbols: Symbols, starts: Int64Array, length: int) -> Symbols:
    """Of these segments the one that agrees best with the others."""
    rows = symbols[starts[:, None] + np.arange(length)]
    agreement = [int((rows == row).sum()) for row in rows]
    chosen: Symbols = rows[int(np.argmax(agreement))]
    return chosen


def _shifted(
    symbols: Symbols, starts: Int64Array, lengths: Int64Array, template: Symbols
) -> tuple[Int64Array, Int64Array]:
    """Of segments that are longer or shorter than the template: symbols that agree at the best place to shift, and it."""
    if not starts.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    edges = np.cumsum(lengths) - lengths
    segment = np.repeat(np.arange(starts.size), lengths)
    offset = np.arange(segment.size) - edges[segment]
    from_end = template.size - (lengths[segment] - offset)
    here = symbols[starts[segment] + offset]
    fits = offset < template.size
    head = fits & (here == template[np.where(fits, offset, 0)])
    fits = from_end >= 0
    tail = fits & (here == template[np.where(fits, from_end, 0)])
    # Agreement when everything before a place is aligned with the beginning, and it and the rest with the end.
    before = np.cumsum(head) - head
    after = np.cumsum(tail[::-1])[::-1]
    merit = (before - before[edges][segment]) + (
        after - (after[edges] - np.add.reduceat(tail, edges))[segment]
    )
    best = np.maximum.reduceat(merit, edges)
    places = np.flatnonzero(merit == best[segment])
    return best, offset[places[np.unique(segment[places], return_index=True)[1]]]


def _spread(values: Int64Array, most: int) -> Int64Array:
    """So many of the values, evenly spread."""
    if values.size <= most:
        return values
    spread: Int64Array = values[np.linspace(0, values.size - 1, most).astype(np.int64)]
    return spread
