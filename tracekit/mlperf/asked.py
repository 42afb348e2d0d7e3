"""Which series answers a question about a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from typing import Final

from tracekit.classes import dataclass
from tracekit.mlperf.cells import Cell, kind_of

__all__ = ["UNIT", "Question", "benchmark_of", "in_unit", "is_asked", "place_of", "question_of", "series_for"]

UNIT: Final = log(30)
"""Batches of a chip that differ by more on systems of one benchmark have another unit."""
_ALIKE: Final = {"maskrcnn": "mask"}
"""Benchmarks that submitters call by several names."""


@dataclass(frozen=True, slots=True)
class Question:
    """A configuration to forecast. `system` and `organisation` may be empty: then any system with the benchmark serves."""

    benchmark: str
    accelerators: int
    batch: int | None = None
    """Of all chips; None: that of the nearest size."""
    epochs: float | None = None
    """None: by the batch, as the series' cells show it."""
    organisation: str = ""
    system: str = ""
    round: str = ""


def question_of(cell: Cell) -> Question:
    """The question whose answer is the score of this cell."""
    return Question(
        cell.benchmark,
        cell.accelerators or 1,
        cell.batch,
        cell.epochs,
        cell.organisation,
        cell.system,
        cell.round,
    )


def benchmark_of(name: str) -> str:
    """The name of a benchmark, one for all that submitters give it."""
    return _ALIKE.get(name.lower(), name.lower())


def place_of(cell: Cell) -> float:
    """The logarithm of the batch of a chip."""
    return log((cell.batch or 1) / (cell.accelerators or 1))


def series_for(series: Mapping[str, Sequence[Cell]], question: Question) -> str | None:
    """The series of the system, else one of its organisation, else any with the benchmark, best with the batch in the same unit, and of those the one
    with the most sizes.
    """
    wanted = [
        name
        for name, group in series.items()
        if group and benchmark_of(group[0].benchmark) == benchmark_of(question.benchmark)
    ]

    def fits(name: str) -> tuple[bool, bool, bool, bool, int]:
        cell = series[name][0]
        return (
            is_asked(cell, replace(question, round="")),
            is_asked(cell, replace(question, round="", system="")),
            in_unit(series[name], question),
            cell.round == question.round,
            len(series[name]),
        )

    return max(wanted, key=fits, default=None)


def is_asked(cell: Cell, question: Question) -> bool:
    """Whether the cell is of the organisation, the kind of system and the round of the question, as far as it has them."""
    kinds = (
        kind_of(cell.system, cell.accelerators).lower(),
        kind_of(question.system, question.accelerators).lower(),
    )
    return (
        question.organisation.lower() in ("", cell.organisation.lower())
        and (not question.system or kinds[0] == kinds[1])
        and (question.round in ("", cell.round) or not cell.round)
    )


def in_unit(group: Sequence[Cell], question: Question) -> bool:
    """Whether the batch of a chip may be counted as the sizes of this series count it."""
    at = log((question.batch or 1) / question.accelerators)
    return question.batch is None or min(abs(place_of(cell) - at) for cell in group) <= UNIT
