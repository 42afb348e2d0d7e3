"""Results by cell: the runs of one organisation, system, benchmark and batch, scored as MLPerf scores them.

The score drops the fastest and the slowest run and is the mean of the others; a run that failed counts as slowest. The speed-up between two
systems is the gain of throughput (epochs a second) over the inflation of epochs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import log
from typing import Final

import numpy as np
import polars as pl

from tracekit.classes import dataclass
from tracekit.mlperf.runs import LoggedRun
from tracekit.trace import Schema

__all__ = [
    "CELLS",
    "Cell",
    "cells_of",
    "cells_table",
    "ends_of",
    "paired",
    "score_of",
    "series_of",
    "sizes_of",
]

_SAMPLES: Final = {"resnet": 1_281_167, "ssd": 117_266, "mask": 117_266, "maskrcnn": 117_266}
"""Samples of an epoch where a log does not tell: ImageNet's training images, and COCO's with a box."""
_SIZE: Final = re.compile(
    r"([-_]n\d+(?=[-_]|$)|(?<=tpu-v\d)-\d+(?=[-_]|$)|(?<!dgx)-\d+$|(?<=[-_])\d+x|^\d+x|(?<!\d)\d+[-_]?nodes?(?=[-_]|$)|(?<![a-z])nodes?[-_]?\d+(?=[-_]|$))",
    re.IGNORECASE,
)
"""What tells the size of a system within its name. What stands behind an x or a v (x8H100, v3), or before a letter, is part of a node or a board."""
_MODEL: Final = 3
"""Behind a word, as in POD64 and Gaudi2, numbers up to this are those of models."""
_FEW: Final = 2
"""Runs; of more, the fastest and the slowest are dropped."""

CELLS: Final[Schema] = {
    "organisation": pl.String, "benchmark": pl.String, "system": pl.String, "accelerators": pl.Int64, "batch": pl.Int64, "batch_per_chip": pl.Float64,
    "runs": pl.Int64, "failed": pl.Int64, "score_min": pl.Float64, "init_s": pl.Float64, "epochs": pl.Float64, "evaluations": pl.Float64,
    "samples_per_s": pl.Float64, "init_share": pl.Float64, "training_share": pl.Float64, "evaluation_share": pl.Float64, "start_share": pl.Float64,
    "speedup": pl.Float64, "efficiency": pl.Float64, "round": pl.String,
}  # fmt: skip
"""Columns of `cells_table`. `speedup` and `efficiency` compare with the smallest system of the series; the shares are of the score's time:
`start_share` is what the first block takes longer than others, `evaluation_share` what evaluations take while no block trains. `epochs` are those of
the runs that make the score, `init_s` and `evaluations` those of all that succeeded. `init_share` is of initialisation and the score together."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The runs of one configuration."""

    organisation: str
    system: str
    benchmark: str
    accelerators: int | None
    batch: int | None
    runs: tuple[LoggedRun, ...]
    round: str = ""

    @property
    def succeeded(self) -> list[LoggedRun]:
        """Those that reached the target."""
        return [run for run in self.runs if run.succeeded]

    @property
    def score_s(self) -> float | None:
        """The score, in seconds."""
        return score_of([run.run_s if run.succeeded else None for run in self.runs])

    @property
    def scored(self) -> list[LoggedRun]:
        """Those that make the score: without the fastest and the slowest; all that succeeded where there is no score."""
        ordered = sorted(self.runs, key=lambda run: (run.run_s or 0.0) if run.succeeded else float("inf"))
        kept = ordered[1:-1] if len(ordered) > _FEW else ordered
        return kept if all(run.succeeded for run in kept) else self.succeeded

    @property
    def epochs(self) -> float | None:
        """The mean epochs of the runs that make the score, so that both are those of the same runs."""
        known = [run.epochs for run in self.scored if run.epochs is not None]
        return float(np.mean(known)) if known else None

    def mean(self, name: str) -> float | None:
        """The mean of a figure over the runs that succeeded and tell it."""
        known = [value for run in self.succeeded if (value := getattr(run, name)) is not None]
        return float(np.mean(known)) if known else None

    @property
    def samples_per_s(self) -> float | None:
        """Samples trained a second of the score; None where the size of an epoch is not known, or the batch is in tokens."""
        told = next((run.samples for run in self.runs if run.samples), _SAMPLES.get(self.benchmark.lower()))
        epochs, score = self.epochs, self.score_s
        return None if not told or epochs is None or not score else told * epochs / score

    @property
    def init_share(self) -> float | None:
        """Initialisation, which the score leaves out, as a part of both."""
        parts = [(run.init_s, run.run_s) for run in self.succeeded if run.init_s is not None and run.run_s]
        return sum(init for init, _ in parts) / sum(map(sum, parts)) if parts else None

    @property
    def shares(self) -> tuple[float, float, float] | None:
        """The parts of the time from `run_start` to `run_stop` of all runs: training, evaluation alone, and the start; None if no time is left to
        train.
        """
        split = [parts for run in self.succeeded if (parts := _split(run)) is not None]
        whole = sum(map(sum, split))
        if not whole:
            return None
        training, evaluation, start = (sum(part) / whole for part in zip(*split, strict=True))
        return (training, evaluation, start) if training > 0 else None


def score_of(times: Sequence[float | None]) -> float | None:
    """MLPerf's score of runs, None for one that failed: without the fastest and the slowest, the mean of the others.

    Of fewer than three runs it is their mean. None if a run that counts failed, or there is none.

    >>> score_of([10.0, 12.0, 11.0, 30.0, 11.5]), score_of([10.0, None, 11.0, 12.0]), score_of([10.0, None, None, 12.0])
    (11.5, 11.5, None)
    """
    ordered = sorted(times, key=lambda time: float("inf") if time is None else time)
    kept = ordered[1:-1] if len(ordered) > _FEW else ordered
    known = [time for time in kept if time is not None]
    return float(np.mean(known)) if known and len(known) == len(kept) else None


def cells_of(runs: Sequence[LoggedRun]) -> list[Cell]:
    """The cells of these runs, by organisation, benchmark and size."""
    groups: defaultdict[tuple[str, str, str, str, int | None, int | None], list[LoggedRun]] = defaultdict(
        list
    )
    for run in sorted(runs, key=lambda run: run.status == "cut" and run.batch is None):
        key = run.round, run.organisation, run.system, run.benchmark, run.accelerators, run.batch
        if run.status == "cut" and run.batch is None:  # before it said of which configuration it is
            alike = [
                other for other in groups if other[:4] == key[:4] and run.accelerators in (None, other[4])
            ]
            key = alike[0] if len(alike) == 1 else key
        groups[key].append(run)
    cells = [Cell(*key[1:], tuple(group), key[0]) for key, group in groups.items()]
    return sorted(cells, key=lambda cell: (cell.organisation, cell.benchmark, cell.accelerators or 0, cell.system, cell.batch or 0, cell.round))  # fmt: skip


def series_of(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells that differ in size alone, with a score and a number of chips, the smallest first; by a name of the series.

    Of one organisation, benchmark and kind of system (`kind_of`), and, if there are several, of one round.
    """
    found: defaultdict[str, list[Cell]] = defaultdict(list)
    several = len({cell.round for cell in cells}) > 1
    for cell in cells:
        if cell.accelerators and cell.score_s is not None:
            kind = kind_of(cell.system, cell.accelerators)
            words = (cell.organisation, kind, cell.benchmark, cell.round if several else "")
            found[", ".join(filter(None, words))].append(cell)
    return {name: sorted(group, key=lambda cell: cell.accelerators or 0) for name, group in found.items()}


def kind_of(system: str, chips: int | None = None) -> str:
    """The name of a system without what tells its size: numbers of nodes, and that of its chips.

    >>> kind_of("tpu-v3-512"), kind_of("dgx2h_n16_ngc19.05_pytorch"), kind_of("dgx2h_ngc19.05_pytorch")
    ('tpu-v3', 'dgx2h_ngc19.05_pytorch', 'dgx2h_ngc19.05_pytorch')
    >>> kind_of("POD64-TF", 64), kind_of("HLS-Gaudi2-N24-PT", 192), kind_of("dgx2h", 16)
    ('POD-TF', 'HLS-Gaudi2-PT', 'dgx2h')
    >>> kind_of("16-nodes-32xSPR-PyTorch"), kind_of("nodes4_ngc24"), kind_of("4xXE9680Lx8H200", 32)
    ('SPR-PyTorch', 'ngc24', 'XE9680Lx8H200')
    >>> kind_of("1xXE9680x8H100-SXM-80GB", 8), kind_of("tpu-v3-6", 3), kind_of("tpu-v3-32-TF", 16), kind_of("1xDGX-2", 16)
    ('XE9680x8H100-SXM-80GB', 'tpu-v3', 'tpu-v3-TF', 'DGX-2')
    """
    name = _SIZE.sub("", system)
    for count in () if chips is None else (chips, 2 * chips):  # chips, or cores
        name = re.sub(rf"(?<!dgx)[-_]{count}(?=[-_])", "", name, flags=re.IGNORECASE)
    if chips is not None and chips > _MODEL:
        name = re.sub(rf"(?<=[a-z]{{3}})(?<!dgx[abh]){chips}(?=[-_]|$)", "", name, flags=re.IGNORECASE)
    return name.strip("-_")


def cells_table(cells: Sequence[Cell]) -> pl.DataFrame:
    """One row per cell (`CELLS`)."""
    several = [sizes for group in series_of(cells).values() if len(sizes := sizes_of(group)) > 1]
    least = {id(cell): _nearest(cell, sizes[0]) for sizes in several for each in sizes for cell in each}
    return pl.DataFrame([_row(cell, least.get(id(cell))) for cell in cells], schema=CELLS, orient="row")


def _row(cell: Cell, least: Cell | None) -> dict[str, object]:
    score, shares, chips = cell.score_s, cell.shares, cell.accelerators
    speedup = least.score_s / score if least is not None and least.score_s and score else None
    grown = chips / least.accelerators if least is not None and least.accelerators and chips else None
    return {
        "organisation": cell.organisation, "benchmark": cell.benchmark, "system": cell.system, "accelerators": chips, "batch": cell.batch,
        "batch_per_chip": cell.batch / chips if cell.batch and chips else None,
        "runs": len(cell.runs), "failed": len(cell.runs) - len(cell.succeeded), "score_min": None if score is None else score / 60,
        "init_s": cell.mean("init_s"), "epochs": cell.epochs, "evaluations": cell.mean("evaluations"),
        "samples_per_s": cell.samples_per_s, "init_share": cell.init_share,
        **dict(zip(("training_share", "evaluation_share", "start_share"), shares or (None, None, None), strict=True)),
        "speedup": speedup, "efficiency": None if speedup is None or grown is None else speedup / grown,
        "round": cell.round or None,
    }  # fmt: skip


def sizes_of(group: Sequence[Cell]) -> list[list[Cell]]:
    """The cells of a series by their number of chips, the fewest first."""
    sizes: defaultdict[int, list[Cell]] = defaultdict(list)
    for cell in group:
        sizes[cell.accelerators or 0].append(cell)
    return [sizes[chips] for chips in sorted(sizes)]


def ends_of(group: Sequence[Cell]) -> tuple[Cell, Cell]:
    """The fastest cell on the most chips of a series, behind that on the fewest whose batch is nearest to its own."""
    sizes = sizes_of(group)
    large = min(sizes[-1], key=lambda cell: cell.score_s or float("inf"))
    return _nearest(large, sizes[0]), large


def _nearest(cell: Cell, others: Sequence[Cell]) -> Cell:
    return (
        cell
        if any(other is cell for other in others)
        else min(others, key=lambda other: _distance(cell, other))
    )


def _distance(one: Cell, other: Cell) -> tuple[float, float]:
    """How far the batches of two cells lie apart, and those of a chip."""
    if not one.batch or not other.batch:
        return (0.0 if one.batch == other.batch else float("inf"), 0.0)
    ratio = log(other.batch / one.batch)
    chips = log((other.accelerators or 1) / (one.accelerators or 1))
    return round(abs(ratio), 9), round(abs(ratio - chips), 9)


def paired(small: Sequence[Cell], large: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """The cells of two sizes in pairs of the nearest batches, each in one at least."""
    pairs = sorted(product(small, large), key=lambda pair: _distance(*pair))
    used: set[int] = set()
    made = []
    for one, other in pairs:
        if id(one) not in used or id(other) not in used:
            made.append((one, other))
            used |= {id(one), id(other)}
    return sorted(made, key=lambda pair: (pair[0].batch or 0, pair[1].batch or 0))


def _split(run: LoggedRun) -> tuple[float, float, float] | None:
    """Training, evaluation alone and start of a run, in seconds."""
    return _split_of(run.run_s, run.blocks, run.evaluation_s) if run.run_s and run.blocks else None


@lru_cache(maxsize=1 << 14)  # each forecast asks for those of all runs
def _split_of(
    run_s: float,
    blocks: Sequence[tuple[float, float, float | None]],
    evaluation_s: Sequence[tuple[float, float]],
) -> tuple[float, float, float]:
    alone = 0.0
    for begin, end in ((begin, min(end, run_s)) for begin, end in evaluation_s):
        training = sum(
            max(0.0, min(end, stop) - max(begin, start))
            for start, stop, _ in blocks
            if start <= end and stop > begin
        )
        alone += max(0.0, end - begin - training)
    lengths = [(stop - start) / epochs for start, stop, epochs in blocks if epochs]
    first = blocks[0]
    start = (
        first[0] + max(0.0, (lengths[0] - float(np.median(lengths[1:]))) * (first[2] or 0))
        if len(lengths) > 2
        else first[0]
    )
    alone, start = min(alone, run_s), min(start, run_s - min(alone, run_s))
    return run_s - alone - start, alone, start
