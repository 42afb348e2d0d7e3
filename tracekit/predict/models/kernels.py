"""Kernels on devices, also on one that was never seen: a roofline whose share depends on size, waves and intensity.

time = the larger of the launch and half of it + (arithmetic⁴ + memory⁴)^¼ · exp(trees + operator + device). The trees see quantities
without a dimension only, and their sum is bounded. A device that gave no measurement has the factors of those of its generation and
near it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError
from tracekit.predict.boards import Boards, boards_of
from tracekit.predict.model import Term
from tracekit.predict.models.checked import LARGEST, number, numbers, table
from tracekit.predict.models.forest import Forest, forest_of, grow
from tracekit.predict.models.kernel_work import KINDS, TILINGS, Work, works_of
from tracekit.predict.table import Floats, Runs

__all__ = ["MODEL", "Kernels", "KernelsFit"]

_MOST_ROWS: Final = {"product": 40_000, "convolution": 15_000, "shape": 30_000}
_TREES: Final = 150
_RATE: Final = 0.1
_LEAST: Final = 50
_BOUND: Final = 3.0
"""No kernel is more than e³ times slower, or faster, than its operator's like."""
_AT_FLOOR: Final = 1.15
_SHARP: Final = 16.0
_HALF: Final = 0.5
"""The part of a launch that is not hidden behind work."""
_APART: Final = 1.0
"""Devices whose compute capabilities are so far apart tell an e-th of each other."""
_NEXT_TO_NONE: Final = 0.2
_FASTEST: Final = 0.02
_ROUNDS: Final = 2
_LONGEST_UNIT: Final = 3600.0
_LEAST_IDLE: Final = 10


@dataclass(frozen=True, slots=True)
class Like:
    """The kernels of one kind: their trees, and the logarithms of the factors of operators and devices."""

    forest: Forest | None
    ops: Mapping[str, float]
    devices: Mapping[str, float]
    tilings: Mapping[str, Mapping[str, str]]
    """By operator and device, how results are cut into tiles."""


@dataclass(frozen=True, slots=True)
class KernelsFit:
    """The model's parameters; the launch of an operator is in seconds."""

    launches: Mapping[str, Mapping[str, float]]
    """By operator and device."""
    likes: Mapping[str, Like]
    generations: Mapping[str, float]
    seconds: float
    """Of one unit of the target."""

    def predict(self, runs: Runs) -> Floats:
        """The times of these rows, in the target's unit."""
        return sum(self.parts(runs).values(), np.zeros(runs.height))

    def parts(self, runs: Runs) -> Mapping[str, Floats]:
        """The launch, and the work as far as the launch does not hide it."""
        boards = boards_of(runs)
        names = _names(boards)
        launch, time = np.zeros(runs.height), np.zeros(runs.height)
        for kind, work in works_of(runs, boards).items():
            like = self.likes.get(kind) or self._unmeasured()
            logs = _of_ops(like.ops, work.ops) + self._of_devices(like.devices, boards)[work.rows]
            tiling = self._tiling(like, work, boards)
            if like.forest is not None:
                logs += like.forest.sums(work.matrix(tiling))
            launch[work.rows] = _launch_of(self.launches, work.ops, names[work.rows])
            busy = work.base(tiling) * np.exp(np.clip(logs, -2 * _BOUND, 2 * _BOUND))
            time[work.rows] = _longer(launch[work.rows], busy)
        least = np.minimum(launch, time)
        return {"launch": least / self.seconds, "work": (time - least) / self.seconds}

    def explain(self) -> Sequence[Term]:
        """The launches, then the factors of operators and devices over a roofline's time."""
        terms = [
            Term(f"launch {op}", 1e6 * _unseen(known), "µs", "the time of a kernel however small")
            for op, known in self.launches.items()
        ]
        for kind, like in self.likes.items():
            terms += [
                Term(f"{kind} {name}", float(np.exp(value)), "×", "its time over that of a roofline")
                for name, value in (*like.ops.items(), *like.devices.items())
            ]
        return terms

    def state(self) -> dict[str, Any]:
        """The parameters, as JSON."""
        return {
            "launches": {op: dict(known) for op, known in self.launches.items()},
            "generations": dict(self.generations),
            "seconds": self.seconds,
            "likes": {
                kind: {
                    "ops": dict(like.ops),
                    "devices": dict(like.devices),
                    "tilings": {op: dict(known) for op, known in like.tilings.items()},
                    "forest": None if like.forest is None else like.forest.state(),
                }
                for kind, like in self.likes.items()
            },
        }

    def _unmeasured(self) -> Like:
        """Kernels of a kind that was not measured: as far above a roofline as the median of the operators that were."""
        factors = [value for like in self.likes.values() for value in like.ops.values()]
        return Like(None, {"": float(np.median(factors))} if factors else {}, {}, {})

    def _tiling(self, like: Like, work: Work, boards: Boards) -> list[str]:
        """The tiling of each row: of the device, or of that of the nearest generation."""
        index = boards.index[work.rows].tolist()
        found: dict[tuple[str, int], str] = {}
        for op, at in set(zip(work.ops, index, strict=True)):
            known = like.tilings.get(op, {})
            board = boards.boards[at]
            near = min(known, key=lambda name: self._apart(name, board.generation), default="")
            found[op, at] = known.get(board.name, known.get(near, "any"))
        return [found[key] for key in zip(work.ops, index, strict=True)]

    def _apart(self, name: str, generation: str) -> tuple[bool, bool, float, str]:
        """How little the libraries of a known device are those of this generation: they are built for all devices of a major version,
        and what is newer than a device does not run on it.
        """
        known, asked = self.generations.get(name, 0.0), _generation(generation) or 0.0
        return int(known) != int(asked), known > asked, abs(known - asked), name

    def _of_devices(self, known: Mapping[str, float], boards: Boards) -> Floats:
        """The factor of each row's device, as a logarithm; of one that was not seen, that of the devices near its generation."""
        each = [
            known.get(board.name, _near(known, self.generations, board.generation)) for board in boards.boards
        ]
        return np.array(each, dtype=np.float64)[boards.index]


def _near(known: Mapping[str, float], generations: Mapping[str, float], generation: str) -> float:
    """The mean of the factors of devices, those of near generations first."""
    if not known:
        return 0.0
    asked = _generation(generation)
    names = list(known)
    weights = [
        1.0 if asked is None else float(np.exp(-abs(generations.get(name, asked) - asked) / _APART))
        for name in names
    ]
    return float(np.average([known[name] for name in names], weights=weights))


def _generation(text: str) -> float | None:
    """The compute capability as a number; None where it is not known."""
    try:
        return float(text)
    except ValueError:
        return None


def _of_ops(known: Mapping[str, float], ops: tuple[str, ...]) -> Floats:
    """The value of each operator; of one that was not seen, the median."""
    middle = float(np.median(list(known.values()))) if known else 0.0
    return np.array([known.get(op, middle) for op in ops], dtype=np.float64)


def _longer(launch: Floats, busy: Floats) -> Floats:
    """Seconds of kernels whose work hides what it can of their launch."""
    longer = np.maximum(launch, _HALF * launch + busy)
    shorter = np.minimum(launch, _HALF * launch + busy)
    found: Floats = longer * (1 + (shorter / longer) ** _SHARP) ** (1 / _SHARP)
    return found


class Kernels:
    """The model of kernels."""

    def lacks(self, runs: Runs) -> str | None:
        """Why it cannot be fitted to these rows: they are no kernels on known devices, or too few."""
        if not {"op", "device"} <= runs.roles:
            return "its rows are not kernels: it needs the columns of the operator and of the device"
        if runs.height < _LEAST:
            return f"it needs {_LEAST} kernels, and there are {runs.height}"
        try:
            works_of(runs, boards_of(runs))
        except InconclusiveError as error:
            return str(error)
        return None

    def fit(self, runs: Runs) -> KernelsFit:
        """Fit it to rows with a target."""
        boards = boards_of(runs)
        works = works_of(runs, boards)
        seconds = runs.description.seconds
        times = runs.target * seconds
        names = _names(boards)
        launches = _launches(works, times, names)
        likes = {
            kind: _fit_like(kind, work, times[work.rows], names[work.rows], launches)
            for kind, work in works.items()
        }
        generations = {
            board.name: number
            for board in boards.boards
            if (number := _generation(board.generation)) is not None
        }
        return KernelsFit(launches, likes, generations, seconds)

    def restore(self, state: Mapping[str, Any]) -> KernelsFit:
        """The fitted model of a state. Raises ValueError, KeyError or TypeError for one that is none."""
        likes = {}
        for kind, said in table(state["likes"]).items():
            trees = said["forest"]
            forest = None if trees is None else forest_of(trees, len(KINDS[kind]))
            likes[str(kind)] = Like(
                forest, numbers(said["ops"]), numbers(said["devices"]), _words(said["tilings"])
            )
        launches = {str(op): numbers(known) for op, known in table(state["launches"]).items()}
        seconds = number(state["seconds"], _LONGEST_UNIT)
        if seconds <= 0 or any(min(known.values(), default=0.0) < 0 for known in launches.values()):
            raise ValueError("a time is below 0")
        return KernelsFit(launches, likes, numbers(state["generations"]), seconds)


def _launches(
    works: Mapping[str, Work], times: Floats, names: npt.NDArray[np.object_]
) -> dict[str, dict[str, float]]:
    """The launch of each operator on each device, seconds: from kernels that have next to no work."""
    found: dict[str, dict[str, float]] = {}
    for work in works.values():
        base = work.base(["any"] * len(work.ops))
        kinds = np.array(work.ops, dtype=object)
        for op in dict.fromkeys(work.ops):
            found[op] = {}
            for name in dict.fromkeys(names[work.rows[kinds == op]].tolist()):
                some = np.flatnonzero((kinds == op) & (names[work.rows] == name))
                measured = times[work.rows[some]]
                idle = base[some] < _NEXT_TO_NONE * np.quantile(measured, _FASTEST)
                if idle.sum() >= _LEAST_IDLE:
                    found[op][name] = float(np.median(measured[idle]))
    return found


def _unseen(known: Mapping[str, float]) -> float:
    """The launch on a device that was not seen. Hosts can be much slower than the others, and none is much faster: of two middle ones
    the faster counts.
    """
    return median_low(known.values()) if known else 0.0


def _launch_of(
    launches: Mapping[str, Mapping[str, float]], ops: tuple[str, ...], names: npt.NDArray[np.object_]
) -> Floats:
    """The launch of each row, seconds; of an operator that was not seen, the median of those that were."""
    others = {op: _unseen(known) for op, known in launches.items()}
    middle = float(np.median(list(others.values()))) if others else 0.0
    told = {
        (op, name): launches.get(op, {}).get(name, others.get(op, middle))
        for op, name in set(zip(ops, names.tolist(), strict=True))
    }
    return np.array([told[key] for key in zip(ops, names.tolist(), strict=True)], dtype=np.float64)


def _names(boards: Boards) -> npt.NDArray[np.object_]:
    """The device of each row."""
    return np.array([board.name for board in boards.boards], dtype=object)[boards.index]


def _fit_like(
    kind: str,
    work: Work,
    times: Floats,
    names: npt.NDArray[np.object_],
    launches: Mapping[str, Mapping[str, float]],
) -> Like:
    """The factors of one kind's operators and devices, and its trees."""
    launch = _launch_of(launches, work.ops, names)
    kinds = np.array(work.ops, dtype=object)
    groups = np.array([f"{op}\0{name}" for op, name in zip(kinds, names, strict=True)])
    tilings = _tilings(work, times, launch, kinds, names)
    tiling = [tilings[op][name] for op, name in zip(kinds, names, strict=True)]
    base = work.base(tiling)
    some = _even(np.arange(kinds.size), groups, _MOST_ROWS[kind])
    logs, ops, seen = _logs(times[some], launch[some], base[some], kinds[some])
    devices = dict.fromkeys(dict.fromkeys(names[some].tolist()), 0.0)
    if some.size < _LEAST:
        return Like(None, ops, devices, tilings)
    free = work.free[some]
    for _ in range(_ROUNDS):
        own = np.array([devices[name] for name in names[some]])
        shared = grow(free, np.clip(logs - own, -_BOUND, _BOUND), _TREES // 3, 2 * _RATE)
        devices = {**devices, **_medians((logs - shared.sums(free))[seen], names[some][seen])}
    own = np.array([devices[name] for name in names[some]])
    matrix = work.matrix(tiling)[some]
    forest = grow(matrix, np.clip(logs - own, -_BOUND, _BOUND), _TREES, _RATE)
    return Like(forest, ops, devices, tilings)


def _logs(
    times: Floats, launch: Floats, base: Floats, kinds: npt.NDArray[np.object_]
) -> tuple[Floats, dict[str, float], npt.NDArray[np.bool_]]:
    """The logarithms of the work's time over the base, less their operator's median, these medians, and where it is seen.

    What a launch hides is only known to be short: it counts as the median, or as what can be hidden if that is less.
    """
    seen = times > _AT_FLOOR * launch
    busy = np.log(np.maximum(times - _HALF * launch, 1e-9) / base)
    ops = _medians(busy[seen], kinds[seen]) if seen.any() else {}
    middle = _of_ops(ops, tuple(kinds))
    hidden = np.log(np.maximum(_HALF * launch, 1e-9) / base)
    logs = np.where(seen, busy, np.minimum(middle, hidden)) - middle
    return np.clip(logs, -LARGEST, LARGEST), ops, seen


def _tilings(
    work: Work, times: Floats, launch: Floats, kinds: npt.NDArray[np.object_], names: npt.NDArray[np.object_]
) -> dict[str, dict[str, str]]:
    """For each operator and device, the tiling with which the times over the base spread least."""
    found: dict[str, dict[str, str]] = {}
    for op, name in sorted(set(zip(kinds.tolist(), names.tolist(), strict=True))):
        rows = np.flatnonzero((kinds == op) & (names == name) & (times > 2 * launch))
        spread = {}
        for tiling in work.tilings:
            if len(work.tilings) > 1 and rows.size:
                logs = np.log((times[rows] - _HALF * launch[rows]) / work.base([tiling] * kinds.size)[rows])
                spread[tiling] = float(np.mean(np.abs(logs - np.median(logs))))
        found.setdefault(op, {})[name] = min(
            spread, key=lambda each: spread[each], default=next(iter(work.tilings))
        )
    return found


def _medians(values: Floats, names: npt.NDArray[np.object_]) -> dict[str, float]:
    return {name: float(np.median(values[names == name])) for name in sorted(set(names.tolist()))}


def _even(rows: npt.NDArray[np.int64], groups: npt.NDArray[np.str_], most: int) -> npt.NDArray[np.int64]:
    """At most so many rows, about as many of each group."""
    if rows.size <= most:
        return rows
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    random = np.random.default_rng(0)
    order = np.lexsort((random.random(rows.size), group))
    rank = np.empty(rows.size, dtype=np.int64)
    rank[order] = np.arange(rows.size) - np.repeat(np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
    return np.sort(rows[np.argsort(rank, kind="stable")[:most]])


def _words(known: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    found = {str(op): {str(name): str(tiling) for name, tiling in each.items()} for op, each in known.items()}
    if not {tiling for each in found.values() for tiling in each.values()} <= {"", *TILINGS}:
        raise ValueError("a tiling is none")
    return found


MODEL: Final = Kernels()
