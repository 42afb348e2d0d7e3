"""Training of transformers under tensor, data and pipeline parallelism: slots of a pipeline, layers in a slot, and α–β links.

An iteration of m micro-batches on a pipeline of p stages takes m times the slowest stage, once each other stage, the transfers between
stages, the all-reduce of the gradients and the optimizer. The slowest stage is the last, which has the output layer.

A layer takes FLOPs / rate + bytes / bandwidth, and never less than what the host needs for it. Its kernels have all sizes; if their
times spread like an exponential distribution of mean d, and the host needs h for them, then the longer of the two is on average
h + d · exp(−h / d). FLOPs and bytes are those of a GPT layer; whether activations are recomputed is not known, and goes into the rate.

All parameters are positive. They are found in logarithms, near what hardware has, against a robust loss. What the law misses of a layer
that was measured in several layouts, such as how well its shapes fit the device's tiles, is a factor for that shape, near 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError
from tracekit.predict.model import Term
from tracekit.predict.table import Floats, Runs

__all__ = ["MODEL", "FittedLayouts", "Layouts"]

_LAW: Final[dict[str, tuple[float, float]]] = {
    "flop_rate": (2e14, 1.0),
    "half_width": (200.0, 0.7),
    "intensity": (150.0, 0.4),
    "host": (2e-3, 2.0),
    "start": (4e-5, 1.0),
    "link": (2e11, 0.7),
    "stage_link": (5e10, 1.0),
    "vocabulary": (5e4, 0.3),
    "logit_bytes": (60.0, 0.7),
    "head": (5e-4, 1.5),
    "optimizer_bytes": (24.0, 0.5),
    "fixed": (1e-3, 2.0),
}
"""The parameters: where each is expected (FLOP/s, columns, FLOP/byte, s, s, B/s, B/s, tokens, B, s, B, s), and how far off, in logarithms."""
_NOISE: Final = 0.02
_MISFIT: Final = 0.1
"""How far the times of a shape are from the law, in logarithms."""
_SHAPE: Final = {
    "layers": ("hidden", "heads", "sequence", "tensor_parallel", "micro_batch"),
    "head": ("hidden", "sequence", "tensor_parallel", "micro_batch"),
}
_MOST_SHAPES: Final = 128
_LARGEST_FACTOR: Final = 10.0
_LEAST_ROWS: Final = 8
_MOST_STEPS: Final = 60
_MOST_ROWS: Final = 2_500
"""Of more, evenly spaced ones are fitted."""
_LAYOUT: Final = ("tensor_parallel", "data_parallel", "pipeline_parallel")
_HALF: Final = 2
"""Bytes of a number in half precision."""
_ALL_REDUCES: Final = 4
"""Of a tensor-parallel layer: two forward, two backward."""

Ints = npt.NDArray[np.int64]
Shape = tuple[float, ...]
Columns = Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class FittedLayouts:
    """The law with its parameters, and factors of the shapes that were measured."""

    law: Mapping[str, float]
    shapes: Mapping[str, Mapping[Shape, float]]

    def predict(self, runs: Runs) -> Floats:
        """The times, in the target's unit."""
        return np.asarray(sum(self.parts(runs).values()))

    def parts(self, runs: Runs) -> Mapping[str, Floats]:
        """The times of the layers, of the output layer and so on, in the target's unit."""
        lacking = _lacking(runs)
        if lacking:
            raise InconclusiveError(f"model layouts: {lacking}")
        columns = _columns(runs)
        factors = {
            part: np.array([known.get(shape, 1.0) for shape in _shapes(columns, part)])
            for part, known in self.shapes.items()
        }
        scale = runs.numbers("iterations", 1.0) / runs.description.seconds
        return {
            name: np.clip(value * scale, 0, 1e300)
            for name, value in _parts(self.law, columns, factors).items()
        }

    def explain(self) -> Sequence[Term]:
        """The parameters of the law, those of the layers first."""
        law = self.law
        factors = np.array([*self.shapes["layers"].values()] or [1.0])
        return (
            Term(
                "rate",
                law["flop_rate"] / 1e12,
                "TFLOP/s",
                "of large matrix products, if activations are recomputed",
            ),
            Term(
                "half width",
                law["half_width"],
                "columns",
                "the width of a device's part of a layer at which matrix products reach half that rate",
            ),
            Term(
                "bandwidth",
                law["flop_rate"] / law["intensity"] / 1e9,
                "GB/s",
                "of memory, for what is not a matrix product",
            ),
            Term(
                "host",
                law["host"] * 1e3,
                "ms",
                "the least time of a layer and micro-batch, however small it is",
            ),
            Term("link", law["link"] / 1e9, "GB/s", "of each device, in an all-reduce"),
            Term("start", law["start"] * 1e6, "µs", "to start an all-reduce or a transfer"),
            Term("stage link", law["stage_link"] / 1e9, "GB/s", "from a stage of the pipeline to the next"),
            Term("vocabulary", law["vocabulary"], "tokens", "of the output layer, as the times suggest"),
            Term("output", law["logit_bytes"], "B", "moved for each token and word of the vocabulary"),
            Term("head", law["head"] * 1e3, "ms", "of the output layer and micro-batch, at least"),
            Term("optimizer", law["optimizer_bytes"], "B", "moved for each parameter"),
            Term("fixed", law["fixed"] * 1e3, "ms", "of an iteration, whatever its layout"),
            Term(
                "shapes",
                100 * float(np.abs(factors - 1).mean()),
                "%",
                f"by which the {len(self.shapes['layers'])} measured shapes of layers differ from the law, on average",
            ),
        )

    def state(self) -> dict[str, Any]:
        """The parameters, and each shape with its factor last."""
        shapes = {
            part: [[*shape, factor] for shape, factor in known.items()] for part, known in self.shapes.items()
        }
        return {"law": dict(self.law), "shapes": shapes}


class Layouts:
    """Slots · layers + communication + optimizer."""

    def lacks(self, runs: Runs) -> str | None:
        """Columns that are missing, too few rows, or rows of several devices."""
        lacking = _lacking(runs)
        if lacking:
            return lacking
        if len(np.unique(runs.numbers("configuration"))) < _LEAST_ROWS:
            return f"it needs {_LEAST_ROWS} configurations or more"
        for role in ("device", "machine", "precision", "mode"):
            if len(set(runs.names(role))) > 1:
                return f"the rows are of more than one {role}"
        return None

    def fit(self, runs: Runs) -> FittedLayouts:
        """Fit the law and the factors together."""
        runs = runs.where(np.arange(runs.height) % -(-runs.height // _MOST_ROWS) == 0)
        columns = _columns(runs)
        measured = np.log(runs.target / runs.numbers("iterations", 1.0) * runs.description.seconds)
        rows = {part: _indexed(_shapes(columns, part)) for part in _SHAPE}
        found = _solve(_Problem(columns, measured, runs.weights, rows))
        law = dict(zip(_LAW, np.exp(found[: len(_LAW)]).tolist(), strict=True))
        shapes, first = {}, len(_LAW)
        for part, (known, _) in rows.items():
            factors = np.exp(found[first : first + len(known)]).clip(1 / _LARGEST_FACTOR, _LARGEST_FACTOR)
            shapes[part] = dict(zip(known, factors.tolist(), strict=True))
            first += len(known)
        return FittedLayouts(law, shapes)

    def restore(self, state: Mapping[str, Any]) -> FittedLayouts:
        """The fitted model of a state."""
        if set(state["law"]) != set(_LAW) or set(state["shapes"]) != set(_SHAPE):
            raise ValueError("these are not the parameters of layouts")
        law = {name: _positive(state["law"][name], 1e30) for name in _LAW}
        shapes: dict[str, dict[Shape, float]] = {}
        for part, names in _SHAPE.items():
            if len(state["shapes"][part]) > _MOST_SHAPES:
                raise ValueError("there are too many shapes")
            shapes[part] = {}
            for *shape, factor in state["shapes"][part]:
                if len(shape) != len(names):
                    raise ValueError("a shape has too many or too few numbers")
                shapes[part][tuple(_positive(size, 1e30) for size in shape)] = _positive(
                    factor, _LARGEST_FACTOR
                )
        return FittedLayouts(law, shapes)


MODEL: Final = Layouts()


def _positive(value: object, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 / most <= value <= most:
        raise ValueError(f"{value!r} is not a number between {1 / most:g} and {most:g}")
    return float(value)


def _lacking(runs: Runs) -> str | None:
    missing = [name for name in ("batch", "layers", "hidden", "sequence") if name not in runs.roles]
    if missing:
        return f"it needs a column for {' and '.join(missing)}"
    unknown = [name for name in _LAYOUT if name not in runs.roles]
    if "gpus" not in runs.roles or len(unknown) > 1:
        return f"it needs a column for {' and '.join(unknown)}" if unknown else None
    ways = np.prod([runs.numbers(name) for name in _LAYOUT if name in runs.roles], axis=0)
    left = runs.numbers("gpus") / ways
    wrong = np.flatnonzero((left != np.round(left)) | (left < 1) if unknown else left != 1)
    if len(wrong):
        row = runs.frame["id"][int(wrong[0])]
        return f"the devices of row {row} are not the product of its ways of parallelism"
    return None


def _columns(runs: Runs) -> Columns:
    """What the law reads; what the table lacks and the rest tells is filled in."""
    found = {name: runs.numbers(name) for name in (*_SHAPE["layers"], *_LAYOUT, "batch", "layers", "gpus")}
    for name in _LAYOUT:
        if name not in runs.roles:
            others = np.prod([found[other] for other in _LAYOUT if other != name], axis=0)
            found[name] = found["gpus"] / others
    share = found["batch"] / found["data_parallel"]
    found["micro_batch"] = np.where(np.isnan(found["micro_batch"]), share, found["micro_batch"])
    found["heads"] = np.where(np.isnan(found["heads"]), found["hidden"] / 64, found["heads"])
    found["micro_batches"] = np.maximum(share / found["micro_batch"], 1)
    return found


def _shapes(columns: Columns, part: str) -> list[Shape]:
    return list(zip(*(columns[name].tolist() for name in _SHAPE[part]), strict=True))


def _indexed(shapes: list[Shape]) -> tuple[list[Shape], Ints]:
    """The shapes that most rows have, and which of them each row has; −1 for none."""
    counts: dict[Shape, int] = {}
    for shape in shapes:
        counts[shape] = counts.get(shape, 0) + 1
    known = sorted(counts, key=lambda shape: (-counts[shape], shape))[:_MOST_SHAPES]
    place = {shape: index for index, shape in enumerate(known)}
    return known, np.array([place.get(shape, -1) for shape in shapes])


def _layer(law: Mapping[str, float], columns: Columns) -> tuple[Floats, Floats]:
    """The time of a layer and a micro-batch, forward and backward: its own, and of its all-reduces."""
    hidden, sequence, ways = columns["hidden"], columns["sequence"], columns["tensor_parallel"]
    tokens = columns["micro_batch"] * sequence
    # Products of a width of `half_width` reach half the rate of wide ones.
    slower = 1 + law["half_width"] * ways / hidden
    flops = (96 * hidden * slower + 16 * sequence) * tokens * hidden / ways
    activations = tokens * (10 * hidden + (24 * hidden + 5 * columns["heads"] * sequence) / ways)
    weights = 12 * hidden**2 / ways
    moved = 4 * activations + 5 * _HALF * weights
    device = (flops + moved * law["intensity"]) / law["flop_rate"]
    own = law["host"] + device * np.exp(-law["host"] / device)
    return own, _ALL_REDUCES * _all_reduce(law, ways, _HALF * tokens * hidden)


def _all_reduce(law: Mapping[str, float], devices: Floats, size: Floats) -> Floats:
    """Of `size` bytes around a ring; 0 on one device."""
    took: Floats = law["start"] * np.log2(2 * devices) + 2 * (devices - 1) / devices * size / law["link"]
    return np.where(devices > 1, took, 0.0)


def _parts(law: Mapping[str, float], columns: Columns, factors: Mapping[str, Floats]) -> dict[str, Floats]:
    """The seconds of an iteration, by part."""
    hidden, ways, stages = columns["hidden"], columns["tensor_parallel"], columns["pipeline_parallel"]
    tokens, slots = columns["micro_batch"] * columns["sequence"], columns["micro_batches"]
    bandwidth = law["flop_rate"] / law["intensity"]
    vocabulary, per_stage = law["vocabulary"], columns["layers"] / stages
    own, reduced = (per_stage * factors["layers"] * part for part in _layer(law, columns))
    logits = tokens * vocabulary / ways
    head = law["head"] + 6 * logits * hidden / law["flop_rate"] + logits * law["logit_bytes"] / bandwidth
    embedding = np.where(stages > 1, 1, slots) * 6 * _HALF * tokens * hidden / bandwidth
    parameters = (12 * hidden**2 * per_stage + hidden * vocabulary) / ways
    transfer = law["start"] + _HALF * tokens * hidden / law["stage_link"]
    return {
        "layers": slots * own,
        "tensor-parallel all-reduce": slots * reduced,
        "embedding and output": slots * factors["head"] * head + embedding,
        "filling the pipeline": (stages - 1) * (own + reduced),
        "transfers between stages": 2 * (stages - 1) * transfer,
        "gradient all-reduce": _all_reduce(law, columns["data_parallel"], _HALF * parameters),
        "optimizer": parameters * law["optimizer_bytes"] / bandwidth,
        "fixed": np.full(len(hidden), law["fixed"]),
    }


@dataclass(frozen=True, slots=True)
class _Problem:
    """Logarithms of the parameters, then of the factors: how far they are from what was measured and expected."""

    columns: Columns
    measured: Floats
    weights: Floats
    rows: Mapping[str, tuple[list[Shape], Ints]]

    @property
    def expected(self) -> tuple[Floats, Floats]:
        """Of each number, where it is expected and how far off."""
        count = sum(len(known) for known, _ in self.rows.values())
        middle = np.log([middle for middle, _ in _LAW.values()])
        spread = [spread for _, spread in _LAW.values()]
        return np.append(middle, np.zeros(count)), np.append(spread, np.full(count, _MISFIT))

    def predicted(self, point: Floats) -> tuple[Floats, dict[str, Floats]]:
        """The logarithms of the times, and the share of each that a factor scales."""
        law = dict(zip(_LAW, np.exp(point[: len(_LAW)]).tolist(), strict=True))
        factors, first = {}, len(_LAW)
        for part, (known, index) in self.rows.items():
            of = np.append(np.exp(point[first : first + len(known)]), 1.0)
            factors[part], first = of[index], first + len(known)
        parts = _parts(law, self.columns, factors)
        total = np.asarray(sum(parts.values()))
        shares = {
            "layers": (parts["layers"] + parts["tensor-parallel all-reduce"] + parts["filling the pipeline"]),
            "head": parts["embedding and output"],
        }
        return np.log(total), {part: share / total for part, share in shares.items()}

    def slopes(self, point: Floats) -> Floats:
        """Of the logarithms of the times, by each number."""
        here, shares = self.predicted(point)
        found = np.zeros((len(here), len(point)))
        for column in range(len(_LAW)):
            moved = point.copy()
            moved[column] += 1e-5
            found[:, column] = (self.predicted(moved)[0] - here) / 1e-5
        first = len(_LAW)
        for part, (known, index) in self.rows.items():
            has = np.flatnonzero(index >= 0)
            found[has, first + index[has]] = shares[part][has]
            first += len(known)
        return found

    def cost(self, point: Floats) -> tuple[float, Floats]:
        """What is minimised, and how far off each row is in units of the noise."""
        middle, spread = self.expected
        off = (self.predicted(point)[0] - self.measured) / _NOISE
        loss = float((self.weights * 2 * (np.sqrt(1 + off**2) - 1)).sum())
        return loss + float((((point - middle) / spread) ** 2).sum()), off


def _solve(problem: _Problem) -> Floats:
    """Levenberg's and Marquardt's steps, with rows that are far off weighing less."""
    # Of the extra `predict`: a fitted model predicts without them.
    from scipy.sparse import csr_array, diags_array  # noqa: PLC0415
    from scipy.sparse.linalg import spsolve  # noqa: PLC0415

    middle, spread = problem.expected
    damping, point = 1e-2, np.array(middle, dtype=np.float64)
    cost, off = problem.cost(point)
    for _ in range(_MOST_STEPS):
        slopes = csr_array(problem.slopes(point) / _NOISE)
        weights = problem.weights / np.sqrt(1 + off**2)
        downhill = slopes.T @ (weights * off) + (point - middle) / spread**2
        curved = slopes.T @ slopes.multiply(weights[:, None]) + diags_array(1 / spread**2)
        while damping < 1e8:
            step = spsolve((curved + damping * diags_array(curved.diagonal())).tocsc(), downhill)
            tried: Floats = point - np.clip(step, -1, 1)
            lower, off_there = problem.cost(tried)
            if lower < cost:
                break
            damping *= 4
        else:
            return point
        gain, point, cost, off, damping = cost - lower, tried, lower, off_there, max(damping / 4, 1e-8)
        if gain < 1e-6 * cost:
            return point
    return point
