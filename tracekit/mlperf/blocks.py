"""Blocks of training, and how many epochs a run takes.

It takes as many epochs as its blocks up to the last evaluation have: block n is followed by evaluation n, whatever numbers both carry, or, where
evaluations come less often, they are the blocks that had begun well before the last evaluation did. Where no blocks are logged, epochs are blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tracekit.mlperf.log import Event, number_of, point_of

__all__ = ["AT_ONCE_NS", "Blocks", "trained_in"]

Blocks = tuple[tuple[float, float, float | None], ...]
"""Begin and end of each, in seconds from `run_start`, and its epochs."""

AT_ONCE_NS: Final = 500_000_000
"""What several ranks log within this time is one event."""
_NS: Final = 1e9
_MOST_EPOCHS: Final = 10_000
"""More epochs than these are samples, as BERT counts them."""


def trained_in(
    events: Sequence[Event],
    start: Event,
    evaluations: Sequence[Event],
    samples: int | None,
    batch: int | None,
    size: float | None,
) -> tuple[Blocks, float | None]:
    """The blocks up to the last evaluation, and the epochs of all of them; None if neither they nor the evaluations tell.

    `samples` are those of an epoch, and `size` what it has of the unit (samples or tokens) in which blocks count if not in epochs.
    """
    events = _with_blocks(events)
    blocks, count = _blocks(events, start, evaluations)
    if not evaluations or (count and not _told_by_evaluations(evaluations, count, blocks, samples)):
        return blocks, _in_epochs(count, size)
    begin = next((event for event in events if event.key == "block_start"), None)
    return blocks, _by_evaluations(evaluations, begin, samples, batch, size)


def _with_blocks(events: Sequence[Event]) -> Sequence[Event]:
    """The events; where no blocks are logged, with epochs as blocks. Each is one if their numbers follow each other, else it is not told how many."""
    if any(event.key == "block_start" for event in events):
        return events
    numbers = sorted({number for event in events if event.key == "epoch_start" and (number := _epoch_of(event)) is not None})  # fmt: skip
    each = {"epoch_count": 1} if set(np.diff(numbers)) == {1.0} else {}

    def as_block(event: Event) -> Event:
        point = {"first_epoch_num": event.metadata["epoch_num"]} if "epoch_num" in event.metadata else {}
        return replace(event, key=event.key.replace("epoch", "block"), metadata={**event.metadata, **point, **each})  # fmt: skip

    return [as_block(event) if event.key in ("epoch_start", "epoch_stop") else event for event in events]


def _blocks(
    events: Sequence[Event], start: Event, evaluations: Sequence[Event]
) -> tuple[Blocks, float | None]:
    """The blocks up to the last evaluation, and what all of them count as epochs; None if a block does not tell its own.

    A block ends where it is said to, where the next one begins, or where its evaluation does, whichever comes first. Some submitters write that
    an evaluation starts as soon as its block does: that ends nothing.
    """
    begins = [event for event in events if event.key == "block_start"]
    begins = [
        event
        for at, event in enumerate(begins)
        if at == 0 or point_of(event) is None or point_of(event) != point_of(begins[at - 1])
    ]
    stops = {
        point: event.time_ns
        for event in reversed(events)
        if event.key == "block_stop" and (point := point_of(event)) is not None
    }
    stopped = sorted(stops)
    evals = [event.time_ns for event in events if event.key == "eval_start"]
    count = _count(begins, evals, evaluations)
    made = []
    for at, begin in enumerate(begins[: count or None]):
        ends = [event.time_ns for event in begins[at + 1 : at + 2]]
        if count == len(evaluations):
            ends += evals[at : at + 1]
        else:
            ends += [time for time in evals if time > begin.time_ns][:1]
        if (point := point_of(begin)) is not None:  # its stop may carry the point where the next one begins
            ends += [stops[own] for own in stopped[bisect_left(stopped, point) :][:2]]
        end = min((time for time in ends if time - begin.time_ns > AT_ONCE_NS), default=None)
        if end is not None:
            since = [(time - start.time_ns) / _NS for time in (begin.time_ns, end)]
            made.append((since[0], since[1], number_of(begin.metadata.get("epoch_count"))))
    counts = [epochs for _, _, epochs in made if epochs is not None]
    whole = len(made) == count == len(counts) and count > 0
    return tuple(made), float(sum(counts)) if whole else None


def _count(begins: Sequence[Event], evals: Sequence[int], evaluations: Sequence[Event]) -> int:
    """The blocks up to the last evaluation: as many as there are evaluations, or, where those come less often, all that began before the last one
    by half of a block or more, so that the next block, which may begin beside it, does not count.

    One more block than evaluations may train beside them; it counts where it is as many again, or the last evaluation carries its epoch.
    """
    number = len(evaluations)
    if not number or len(begins) <= number:
        return number
    last = evals[number - 1] if len(evals) >= number else evaluations[-1].time_ns
    length = float(np.median(np.diff([event.time_ns for event in begins])))
    before = sum(last - event.time_ns > length / 2 for event in begins)
    epoch = _epoch_of(evaluations[-1])
    told = [number_of(begins[before - 1].metadata.get(name)) for name in ("first_epoch_num", "epoch_count")]
    ends = told[0] + told[1] - 1 if told[0] is not None and told[1] is not None else None
    sparse = before > number + 1 or (before == number + 1 and (before == 2 * number or ends == epoch))
    return before if sparse else number


def _told_by_evaluations(
    evaluations: Sequence[Event], count: float, blocks: Blocks, samples: int | None
) -> bool:
    """Whether evaluations count samples or parts of epochs, and blocks whole epochs: then each has one by habit only."""
    number = _epoch_of(evaluations[-1])
    if (number or 0.0) > _MOST_EPOCHS >= count:
        return True
    whole = all(epochs is not None and epochs.is_integer() for _, _, epochs in blocks)
    parts = any(not (_epoch_of(event) or 0.0).is_integer() for event in evaluations)
    counted = number is None and bool(samples) and "samples_count" in evaluations[-1].metadata
    return whole and (parts or counted)


def _by_evaluations(
    evaluations: Sequence[Event],
    begin: Event | None,
    samples: int | None,
    batch: int | None,
    size: float | None,
) -> float | None:
    """The epochs up to the last evaluation, by its own count of them, of samples or of steps; None if it has none."""
    last = evaluations[-1].metadata
    epochs, count = _epoch_of(evaluations[-1]), number_of(last.get("samples_count"))
    if not epochs and not count and batch:
        count = (number_of(last.get("step_num")) or 0.0) * batch
    if count and samples and (epochs is None or epochs <= _MOST_EPOCHS):
        return count / samples
    return _in_epochs(epochs - _origin(evaluations, begin), size) if epochs else None


def _origin(evaluations: Sequence[Event], begin: Event | None) -> float:
    """Where parts of epochs count from: 0, or the number of the first epoch, whichever makes the first evaluation come more nearly as far after it
    as others after each other.
    """
    numbers = [number for event in evaluations if (number := _epoch_of(event)) is not None]
    first = None if begin is None else number_of(begin.metadata.get("first_epoch_num"))
    if first is None or first > numbers[0] or all(number.is_integer() for number in numbers):
        return 0.0
    usual = float(np.median(np.diff(numbers))) if len(numbers) > 1 else 0.0
    return min(first, 0.0, key=lambda origin: abs(numbers[0] - origin - usual))


def _epoch_of(event: Event) -> float | None:
    return number_of(event.metadata.get("epoch_num"))


def _in_epochs(count: float | None, size: float | None) -> float | None:
    """Epochs by a count of them, or of what an epoch has so many of; None if it is not known how many."""
    if count is None or count <= _MOST_EPOCHS:
        return count
    return count / size if size else None
