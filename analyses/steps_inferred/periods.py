"""Steps inferred from launches: repeated stretches of the launch sequence (DEFINITIONS §1).

Not every repetition is a step: layers of a network and parts of a step with gradient accumulation repeat as well. So
the launches of a network are cut only at what occurs once in a step (an optimizer, a batch, an input). If that is not
conclusive, there are no steps, because a wrong step is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.steps_inferred.ranges import InferredSteps
from tracekit.analyses.steps_inferred.sequence import FEW, LaunchSequence, launch_sequence
from tracekit.analyses.steps_inferred.stretches import ALIKE, FEWEST, MOST, Stretches, group_starts, stretches
from tracekit.facts.units import count_of
from tracekit.spans import BoolArray, Int64Array
from tracekit.trace import Trace

__all__ = ["launch_steps"]

_NONE: Final = np.zeros(0, dtype=np.int64)

_FEWEST_LAYERS: Final = 4
"""The least number of repetitions within a step, each of at least so many activities, that show the layers of a
network.
"""

_LONGEST: Final = 4096
"""The number of activities of a step in which layers are searched."""

_SAME: Final = 0.005
"""A cut must explain this share of the launches more than another cut with shorter stretches."""

_MOST_TRIED: Final = 16
_MOST_LAGS: Final = 64
_GRAPH: Final = 4
"""A launch of so many activities is a graph."""


def launch_steps(trace: Trace, rows: pl.DataFrame, launched: Int64Array) -> InferredSteps | None:
    """The steps inferred from launches; None if nothing that repeats is certainly a step.

    `rows` are all activities of the device, `launched` the launch time of each.
    """
    sequence = launch_sequence(trace, rows, launched)
    if sequence is None:
        return None
    chosen = _chosen(sequence)
    begin, end = chosen.complete() if chosen is not None else (_NONE, _NONE)
    if begin.size:
        start, until = sequence.times(begin), sequence.times(end)
    else:
        begin = _repetition(sequence)
        if not begin.size:
            return None
        start = sequence.times(begin)
        last = rows.filter(pl.Series(launched >= start[-1])).select(pl.col("end").max()).item()
        until = np.append(start[1:], last)
    frame = pl.DataFrame({"start": start, "duration": until - start})
    name = pl.format("step {}", pl.int_range(pl.len())).alias("name")
    length = chosen.length if chosen is not None else int(begin[1] - begin[0])
    source = f"period of {count_of(length, 'launch', 'launches')} in the launch sequence"
    return InferredSteps(
        source, f"inferred: a {source}", frame.select(name, "start", "duration"), periods=True
    )


def _chosen(sequence: LaunchSequence) -> Stretches | None:
    """The stretches that are steps, by the most reliable mark of the trace."""
    if not sequence.neural:
        return _best(sequence)
    if sequence.optimizer.any():
        return _from_optimizer(sequence)
    if len(sequence.threads) > 1:  # one is autograd's: of a training step there should be an optimizer
        return None
    if sequence.loaded.any():
        return _possible(stretches(sequence, group_starts(np.flatnonzero(sequence.loaded))))
    return _between_copies(sequence, sequence.fed) or _between_copies(sequence, sequence.read)


def _possible(candidate: Stretches | None) -> Stretches | None:
    return candidate if candidate is not None and candidate.possible else None


def _from_optimizer(sequence: LaunchSequence) -> Stretches | None:
    """Stretches from optimizer to optimizer, or from every second one, because two networks may have one each.

    In PyTorch the backward pass has its own thread, unless all is in one graph. Without another thread, the optimizer
    may be part of a backward pass, once for each layer.
    """
    recorded = bool((sequence.thread >= 0).mean() >= MOST)
    plain = sequence.pytorch and recorded and sequence.activities.max() == 1
    if plain and len(sequence.threads) == 1:
        return None
    starts = group_starts(np.flatnonzero(sequence.optimizer), after=True)
    cut = _possible(stretches(sequence, starts))
    if cut is None and _alternate(sequence.symbols, starts):
        cut = _possible(stretches(sequence, starts[::2]))
    if cut is None:
        return None
    beside = cut.total((~sequence.optimizer).astype(np.int64))
    return cut if bool((beside >= FEW * (cut.end - cut.begin)).all()) else None


def _alternate(symbols: Int64Array, starts: Int64Array) -> bool:
    """Whether a stretch in the middle and the next one belong to two networks: neither is the other with added
    launches.
    """
    if starts.size < FEWEST:
        return False
    low, middle, high = starts[starts.size // 2 - 1 :][:3]
    most = int(symbols.max()) + 1
    shared = np.minimum(
        np.bincount(symbols[low:middle], None, most), np.bincount(symbols[middle:high], None, most)
    ).sum()
    return bool(shared < ALIKE * min(middle - low, high - middle))


def _between_copies(sequence: LaunchSequence, marked: BoolArray) -> Stretches | None:
    """Stretches from input to input, or from one result that the host reads to the next (a token), if there are only such stretches,
    all alike, and each contains the layers of a network. `marked` are the launches behind such copies.

    A different stretch, or launches after the last, may be the end of a larger step.
    """
    marks = np.flatnonzero(marked)
    cut = _possible(stretches(sequence, group_starts(marks[~sequence.enclosed(marks)])))
    if cut is None or not cut.whole:
        return None
    symbols, begin, end = sequence.symbols, int(cut.begin[-1]), int(cut.end[-1])
    rest = symbols[end:]
    if rest.size >= cut.length or (rest != symbols[begin : begin + rest.size]).any():
        return None
    middle = cut.begin.size // 2
    first = np.append(sequence.first, sequence.kernels.size)
    names = sequence.kernels[first[cut.begin[middle]] : first[cut.end[middle]]]
    return cut if _has_layers(names[:_LONGEST]) else None


def _has_layers(names: Int64Array) -> bool:
    """Whether most of it repeats with a period that fits several times, more often than by chance."""
    counts = np.unique(names, return_counts=True)[1]
    chance = float((counts**2).sum()) / names.size**2
    least = chance + MOST * (1 - chance)
    lags = range(_FEWEST_LAYERS, names.size // _FEWEST_LAYERS + 1)
    return any(float((names[lag:] == names[:-lag]).mean()) >= least for lag in lags)


def _best(sequence: LaunchSequence) -> Stretches | None:
    """The shortest stretches of those that explain the most launches, but for a small share."""
    tried = [_possible(stretches(sequence, starts)) for starts in _recurrences(sequence)]
    candidates = [each for each in tried if each is not None]
    least = max((each.shared for each in candidates), default=0) - _SAME * sequence.symbols.size
    return min(
        (each for each in candidates if each.shared >= least), key=lambda each: each.length, default=None
    )


def _repetition(sequence: LaunchSequence) -> Int64Array:
    """The beginnings of the shortest stretch of which the sequence is an exact repetition; empty if it is none.

    A short part may come before. The layers of a network repeat exactly as well, so a network's stretch must be the replay
    of graphs; another program's must hold different launches, a graph, or a copy to the device.
    """
    symbols, size = sequence.symbols, sequence.symbols.size
    lags = size - 1 - np.flatnonzero(symbols[:-1] == symbols[-1])[::-1]
    for length in lags[:_MOST_LAGS]:
        differs = np.flatnonzero(symbols[length:] != symbols[:-length])
        first = int(differs[-1]) + 1 if differs.size else 0
        if first > FEW * size or (size - first) // length < FEWEST:
            continue
        begin = _beginning(sequence, first, int(length))
        unit = slice(int(begin[0]), int(begin[0]) + int(length))
        graph = bool((sequence.activities[unit] >= _GRAPH).any())
        varied = np.unique(symbols[unit]).size > 1 or bool(sequence.fed[begin[1:]].all())
        return begin if graph or (varied and not sequence.neural) else _NONE
    return _NONE


def _beginning(sequence: LaunchSequence, first: int, length: int) -> Int64Array:
    """Where the repetitions of a stretch begin: after a copy to the device, or else after the longest pause of the host."""
    size = sequence.symbols.size
    places = first + np.arange((size - first) // length * length).reshape(-1, length)
    fed = sequence.fed[places[1:]].all(axis=0)
    pause = np.median(np.diff(sequence.at, prepend=sequence.at[:1])[places[1:]], axis=0)
    offset = int(np.argmax(np.where(fed, pause + pause.max() + 1, pause)))
    begin: Int64Array = np.arange(first + offset, size - length + 1, length)
    return begin


def _recurrences(sequence: LaunchSequence) -> Iterator[Int64Array]:
    """The places of a launch, and those where a launch always follows the same other launch, over much of the sequence.

    Launches that occur equally often belong to the same loop. Of these, the result has the launch at even distances with
    the longest pause of the host before it.
    """
    symbols = sequence.symbols
    for marks in (np.append(-1, symbols[:-1]) << 32 | symbols, symbols):
        yield from _recurring(sequence, marks)


def _recurring(sequence: LaunchSequence, pairs: Int64Array) -> Iterator[Int64Array]:
    size = pairs.size
    frame = pl.DataFrame({"pair": pairs, "pause": np.diff(sequence.at, prepend=sequence.at[:1])})
    place = pl.int_range(pl.len()).alias("place")
    times = (
        frame.with_columns(place)
        .group_by("pair")
        .agg(
            pl.len().alias("times"),
            pl.median("pause"),
            (pl.max("place") - pl.min("place")).alias("span"),
            (pl.col("place").diff().max() - pl.col("place").diff().min()).alias("uneven"),
        )
    )
    times = times.filter((pl.col("times") >= FEWEST) & (pl.col("span") >= MOST * size))
    order = [pl.col("uneven") > 0, -pl.col("pause"), "pair"]
    loops = times.sort(order).group_by("times", maintain_order=True)
    ranked = loops.agg(pl.first("pair"), pl.sum("times").alias("held")).sort("held", "times", descending=True)
    for pair in ranked["pair"].head(_MOST_TRIED // 2):
        yield np.flatnonzero(pairs == pair)
