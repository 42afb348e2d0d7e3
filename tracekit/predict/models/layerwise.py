"""Steps of networks as the sum of their layers: each takes a time for its FLOPs and for its bytes, by its type and pass, and one for each
of its operators, which is the same in all layers of a pass.

The rates are fitted to the recorded times of layers, by their logarithms, none below 0. A type that was seen little is drawn towards what
all types show in that pass, and one that was never seen has that. Recording slows operators down, and work but little: two factors,
fitted to the measured steps, make the sum of the layers a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError, MissingDependencyError, nearest
from tracekit.facts.distribution import how_to_install
from tracekit.facts.units import NS_PER_S, format_share
from tracekit.predict.model import Term
from tracekit.predict.models.checked import number, numbers, table
from tracekit.predict.table import Floats, Runs
from tracekit.predict.work import Kind, Work, work_of

__all__ = ["MODEL", "Layerwise", "LayerwiseFit"]

_LEAST: Final = 3
_ONE_OF_EACH: Final = (
    "device",
    "machine",
    "precision",
    "gpus",
    "peak_gflops",
    "bandwidth_gb_s",
    "loader_threads",
)
"""What a layer's time depends on besides its work, so that all rows have to agree in it."""
_NETWORK: Final = ("network", "mode", "option")
_FIXED: Final = ("optimizer", "communication")
"""Passes whose work does not grow with the batch."""
_DRAWN: Final = 0.1
"""The weight of what all types show, against that of what a type shows itself."""
_ALIKE: Final = 0.5
"""How far the two factors may lie apart, as a logarithm, before the data has to say so."""
_NOISE: Final = 0.1
"""Residuals of logarithms above this count less and less."""
_ROUNDS: Final = 12
_MOST_UNKNOWN: Final = 0.75
"""Networks of whose operators' time a larger share has unknown FLOPs or bytes are neither fitted nor foretold. Tiny networks reach a half of it, in operators that only call others."""
_TERMS: Final = 3
_SCALE: Final = np.array([1.0, 1e6, 1e6])
_LARGEST: Final = 1e18

Rates = tuple[float, float, float]
"""The nanoseconds of an operator, of a million FLOPs and of a million bytes."""


@dataclass(frozen=True, slots=True)
class LayerwiseFit:
    """The rates of each kind of layer and, for types that are none of them, of each pass; and what makes their sums steps."""

    heeds: ClassVar[frozenset[str]] = frozenset((*_ONE_OF_EACH, *_NETWORK, "batch"))

    kinds: Mapping[Kind, Rates]
    passes: Mapping[str, Rates]
    rest: Rates
    """Of passes that were not measured."""
    starts: float
    """How long operators take in a step over how long they took while it was recorded."""
    works: float
    """The same for FLOPs and bytes."""
    networks: Mapping[str, Mapping[Kind, tuple[float, ...]]]
    """By network the operators of each kind, and its FLOPs and bytes: what does not grow with the batch, and what does for each sample."""
    unknown: Mapping[str, float]
    """By network the share of its operators' time of which FLOPs or bytes are not known."""
    seconds: float
    """Of one unit of the target."""

    def predict(self, runs: Runs) -> Floats:
        """The times of these rows, in the target's unit."""
        return sum(self.parts(runs).values(), np.zeros(runs.height))

    def parts(self, runs: Runs) -> Mapping[str, Floats]:
        """What these times consist of, by pass."""
        work = self._work(runs)
        rates = np.array([self._rates(kind) for kind in work.kinds]).reshape(-1, _TERMS)[work.kind]
        times = work.terms / _SCALE * rates @ [self.starts, self.works, self.works]
        found: dict[str, Floats] = {}
        for name in dict.fromkeys(which for _, which in work.kinds):
            those = np.array([which == name for _, which in work.kinds])[work.kind]
            sums = np.bincount(work.row[those], times[those], runs.height)
            found[name] = sums / NS_PER_S / self.seconds
        return found

    def doubts(self, runs: Runs, inside: npt.NDArray[np.bool_]) -> tuple[Floats, list[str]]:
        """Work that is not known counts by its operators only. A network of which more is not known than of any that was measured may take
        all between nothing and twice what the rest of it takes; one of which most is not known has no answer.
        """
        del inside  # what is not known is so there as well
        work, told = work_of(runs)
        share = np.where(told, work.unknown_of(runs.height), 0.0)
        names = _networks(runs)
        for row in np.flatnonzero(~told):
            share[row] = self.unknown.get(names[row], 0.0)
        more = np.maximum(share - max(self.unknown.values(), default=0.0), 0.0)
        wider = np.where(share > _MOST_UNKNOWN, np.inf, -np.log1p(-np.minimum(more, _MOST_UNKNOWN)))
        return wider, [_said_of_unknown(each) if each > 0 else "" for each in share.tolist()]

    def lacked(self) -> str:
        """How much of the networks' work is not known."""
        low, high = min(self.unknown.values(), default=0.0), max(self.unknown.values(), default=0.0)
        return f"{_said_of_unknown(low, high)}: these count by their number only" if high > 0 else ""

    def explain(self) -> Sequence[Term]:
        """The two factors, what an operator takes in each pass, then the rates of each kind of layer, what took most first."""
        terms = [
            Term(
                "operators",
                self.starts,
                "×",
                "what operators take in a step, over what they took while it was recorded",
            ),
            Term(
                "work",
                self.works,
                "×",
                "what FLOPs and bytes take, over what they took while they were recorded",
            ),
        ]
        terms += [
            Term(f"operator, {name}", rates[0], "ns", "for each operator of a layer")
            for name, rates in self.passes.items()
        ]
        others = {("other types", name): rates for name, rates in self.passes.items()}
        for (layer, name), (_, flops, moved) in (*self.kinds.items(), *others.items()):
            terms += [
                Term(f"{layer}, {name}", rate / 1e3, unit, f"for its {what}")
                for rate, unit, what in ((flops, "µs/MFLOP", "FLOPs"), (moved, "µs/MB", "bytes"))
                if rate > 0
            ]
        return terms

    def state(self) -> dict[str, Any]:
        """The rates, the factors and the work of the networks, as JSON."""
        return {
            "kinds": [[*kind, *rates] for kind, rates in self.kinds.items()],
            "passes": {name: list(rates) for name, rates in self.passes.items()},
            "rest": list(self.rest),
            "starts": self.starts,
            "works": self.works,
            "networks": {
                name: [[*kind, *of] for kind, of in kinds.items()] for name, kinds in self.networks.items()
            },
            "unknown": dict(self.unknown),
            "seconds": self.seconds,
        }

    def _rates(self, kind: Kind) -> Rates:
        return self.kinds.get(kind) or self.passes.get(kind[1]) or self.rest

    def _work(self, runs: Runs) -> Work:
        """The work of the rows; of those that do not tell it, that of their network at their batch."""
        work, told = work_of(runs)
        if told.all():
            return work
        rows: list[tuple[int, Kind, Floats]] = []
        batches, names = runs.numbers("batch", 1.0), _networks(runs)
        for row in np.flatnonzero(~told):
            kinds = self.networks.get(names[row])
            if kinds is None:
                raise InconclusiveError(
                    "the work of its layers is not known",
                    remedy=nearest(names[row], self.networks, "give its work, as tracekit dataset writes it"),
                )
            for kind, (operators, *grows) in kinds.items():
                flops, moved = np.array(grows).reshape(2, 2) @ [1.0, batches[row]]
                rows.append((int(row), kind, np.array([operators, flops, moved])))
        return _joined(work, rows)


class Layerwise:
    """The model of networks as the sum of their layers."""

    def lacks(self, runs: Runs) -> str | None:
        """Why it cannot be fitted to these rows: they do not tell the work of layers, or are of several devices."""
        if "work" not in runs.frame.columns:
            return "it needs the work of each layer, as tracekit dataset writes it"
        for role in _ONE_OF_EACH:
            if role in runs.frame.columns and runs.frame[role].n_unique() > 1:
                return f"it has no term for {role}"
        if "iterations" in runs.frame.columns:
            return "it predicts a step, and its rows are whole runs"
        told = work_of(runs)[1]
        known = _known(runs)
        counts = [runs.frame.filter(pl.Series(those))["configuration"].n_unique() for those in (told, known)]
        if counts[1] >= _LEAST:
            return None
        lost = (
            f"; of {counts[0] - counts[1]} more, most of the work is not known"
            if counts[0] > counts[1]
            else ""
        )
        return (
            f"it needs {_LEAST} configurations with the work of their layers, and there are {counts[1]}{lost}"
        )

    def fit(self, runs: Runs) -> LayerwiseFit:
        """Fit it to rows with a target."""
        runs = runs.where(_known(runs))
        work, _ = work_of(runs)
        kinds, passes, rest = _rates_of(work, runs.weights)
        bare = LayerwiseFit(kinds, passes, rest, 1.0, 1.0, {}, {}, 1.0)
        target = runs.target * runs.description.seconds * NS_PER_S
        starts, works = _factors(bare, work, target, runs.weights)
        names = _networks(runs)
        networks = _work_of_networks(work, names, runs.numbers("batch", 1.0))
        unknown = dict.fromkeys(names, 0.0)
        for name, share in zip(names, work.unknown_of(runs.height).tolist(), strict=True):
            unknown[name] = max(unknown[name], share)
        return LayerwiseFit(kinds, passes, rest, starts, works, networks, unknown, runs.description.seconds)

    def restore(self, state: Mapping[str, Any]) -> LayerwiseFit:
        """The fitted model of a state. Raises ValueError, KeyError or TypeError for one that is none."""
        networks = {name: _restored(kinds, 5) for name, kinds in table(state["networks"]).items()}
        passes = {name: _rates(rates) for name, rates in table(state["passes"]).items()}
        kinds = {kind: _rates(rates) for kind, rates in _restored(state["kinds"], _TERMS).items()}
        factors = numbers({name: state[name] for name in ("starts", "works")})
        seconds = number(state["seconds"], 1e6)
        unknown = numbers(state["unknown"])
        if min(unknown.values(), default=0) < 0 or max(unknown.values(), default=0) > 1:
            raise ValueError("a share is none")
        if min(factors.values()) < 0 or max(factors.values()) <= 0 or seconds <= 0:
            raise ValueError("a factor is not that of a fit")
        return LayerwiseFit(
            kinds,
            passes,
            _rates(state["rest"]),
            factors["starts"],
            factors["works"],
            networks,
            unknown,
            seconds,
        )


def _known(runs: Runs) -> npt.NDArray[np.bool_]:
    """The rows that tell their work, and most of it."""
    work, told = work_of(runs)
    return told & (work.unknown_of(runs.height) <= _MOST_UNKNOWN)


def _said_of_unknown(low: float, high: float | None = None) -> str:
    """How much is not known.

    >>> _said_of_unknown(0.08, 0.41)
    'the FLOPs or bytes of operators that took 8.0 % to 41.0 % of the time are not known'
    """
    shares = dict.fromkeys(format_share(each) for each in (low, high) if each is not None)
    return f"the FLOPs or bytes of operators that took {' to '.join(shares)} of the time are not known"


def _rates_of(work: Work, weights: Floats) -> tuple[dict[Kind, Rates], dict[str, Rates], Rates]:
    """The rates of each kind, those that took most first, of each pass, and of all layers."""
    timed = work.ns > 0
    row, kind, ns = work.row[timed], work.kind[timed], work.ns[timed]
    terms = work.terms[timed] / _SCALE
    # Each layer counts by its share of its network's time.
    share = weights[row] * ns / np.bincount(row, ns, weights.size)[row]
    which = np.array([name for _, name in work.kinds])[kind]
    rest = _robust(terms, ns, share)
    kinds: dict[Kind, Rates] = {}
    passes: dict[str, Rates] = {}
    for name in np.unique(which):
        of = which == name
        common = _robust(terms[of], ns[of], share[of], drawn=terms[of] @ rest)
        own, place = np.unique(kind[of], return_inverse=True)
        design = np.zeros((place.size, 1 + 2 * own.size))
        design[:, 0] = terms[of, 0]
        for term in (1, 2):
            design[np.arange(place.size), 2 * place + term] = terms[of, term]
        found = _robust(design, ns[of], share[of], drawn=terms[of] @ common)
        for at, each in enumerate(own.tolist()):
            kinds[work.kinds[each]] = _three([found[0], found[1 + 2 * at], found[2 + 2 * at]])
        passes[str(name)] = _three([found[0], *common[1:]])
    took = np.bincount(kind, share, len(work.kinds))
    order = [work.kinds[each] for each in np.argsort(-took, kind="stable")]
    return {each: kinds[each] for each in order if each in kinds}, passes, _three(rest)


def _three(values: Iterable[float]) -> Rates:
    operator, flops, moved = map(float, values)
    return operator, flops, moved


def _robust(terms: Floats, ns: Floats, share: Floats, drawn: Floats | None = None) -> Floats:
    """The rates, none below 0, that miss least by the logarithm; layers that are far off count less and less. `drawn`: what all types
    show, which counts a little.
    """
    said = np.maximum(ns if drawn is None else drawn, 1.0)
    found = np.zeros(terms.shape[1])
    for _ in range(_ROUNDS):
        left = np.log(ns / said)
        weight = np.sqrt(share / np.sqrt(1 + (left / _NOISE) ** 2)) / said
        design, aim = terms * weight[:, None], (said * (1 + np.clip(left, -1, 1))) * weight
        if drawn is not None:
            little = np.sqrt(_DRAWN * share) / np.maximum(drawn, 1.0)
            design, aim = np.vstack([design, terms * little[:, None]]), np.concatenate([aim, drawn * little])
        found = _not_below(design, aim)
        said = np.maximum(terms @ found, 1.0)
    return found


def _not_below(terms: Floats, aim: Floats) -> Floats:
    """The coefficients, none below 0, that miss least."""
    try:
        from scipy.optimize import nnls  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingDependencyError(
            "the layerwise model needs SciPy to be fitted",
            remedy=how_to_install("predict"),
        ) from None
    size = np.maximum(np.linalg.norm(terms, axis=0), 1e-12)
    triangle: Floats = np.asarray(np.linalg.qr(np.column_stack([terms / size, aim]), mode="r"))
    found: Floats = nnls(triangle[:, :-1], triangle[:, -1])[0] / size
    return found


def _factors(bare: LayerwiseFit, work: Work, target: Floats, weights: Floats) -> tuple[float, float]:
    """What makes the sums of the operators, and of FLOPs and bytes, the measured steps."""
    rates = np.array([bare.kinds.get(kind, bare.rest) for kind in work.kinds]).reshape(-1, _TERMS)[work.kind]
    times = work.terms / _SCALE * rates
    sums = [np.bincount(work.row, part, target.size) for part in (times[:, 0], times[:, 1:].sum(axis=1))]
    known = weights > 0
    terms = np.column_stack(sums)[known]
    both = float(np.exp(np.average(np.log(target[known] / terms.sum(axis=1)), weights=weights[known])))
    found = np.full(2, both)
    for _ in range(20):  # each row by its logarithm, those that are far off less and less
        said = terms @ found
        left = np.log(target[known] / said)
        weight = np.sqrt(weights[known]) / _NOISE / (1 + (left / (2 * _NOISE)) ** 2) ** 0.25
        slopes = terms * found / said[:, None] * weight[:, None]
        drawn = np.eye(2) / _ALIKE
        wanted = np.concatenate([left * weight, (np.log(both) - np.log(found)) / _ALIKE])
        step = np.linalg.lstsq(np.vstack([slopes, drawn]), wanted, rcond=None)[0]
        found = found * np.exp(np.clip(step, -1, 1))
    return float(found[0]), float(found[1])


def _networks(runs: Runs) -> list[str]:
    """What the network of each row is called, with its mode and option."""
    return [" ".join(filter(None, words)) for words in zip(*map(runs.names, _NETWORK), strict=True)]


def _work_of_networks(
    work: Work, names: Sequence[str], batches: Floats
) -> dict[str, dict[Kind, tuple[float, ...]]]:
    """By network the work of each kind as a straight line of the batch; of one batch only, it is in proportion."""
    sums: dict[tuple[str, int, int], Floats] = {}
    for row, kind, terms in zip(work.row.tolist(), work.kind.tolist(), work.terms, strict=True):
        key = (names[row], kind, row)
        sums[key] = sums.get(key, np.zeros(_TERMS)) + terms
    by_kind: dict[tuple[str, int], list[tuple[float, Floats]]] = {}
    for (name, kind, row), terms in sums.items():
        by_kind.setdefault((name, kind), []).append((float(batches[row]), terms))
    found: dict[str, dict[Kind, tuple[float, ...]]] = {}
    for (name, kind), rows in by_kind.items():
        batch, values = np.array([each for each, _ in rows]), np.array([terms for _, terms in rows])
        lines = [_line(batch, values[:, term], fixed=work.kinds[kind][1] in _FIXED) for term in (1, 2)]
        found.setdefault(name, {})[work.kinds[kind]] = (float(np.median(values[:, 0])), *lines[0], *lines[1])
    return found


def _line(batch: Floats, values: Floats, *, fixed: bool) -> tuple[float, float]:
    """What of these values does not grow with the batch, and what does for each sample; neither is below 0."""
    if fixed:
        return float(np.median(values)), 0.0
    if np.unique(batch).size > 1:
        grows = max(float(np.polyfit(batch, values, 1)[0]), 0.0)
        if (stays := float(np.mean(values - grows * batch))) >= 0:
            return stays, grows
    return 0.0, float(np.mean(values / batch))


def _joined(work: Work, rows: Sequence[tuple[int, Kind, Floats]]) -> Work:
    """The work with further layers, without times."""
    names = {kind: place for place, kind in enumerate(work.kinds)}
    kinds = [names.setdefault(kind, len(names)) for _, kind, _ in rows]
    terms = np.vstack([work.terms, *(values for _, _, values in rows)])
    return Work(
        np.concatenate([work.row, np.array([row for row, _, _ in rows], dtype=np.int64)]),
        tuple(names),
        np.concatenate([work.kind, np.array(kinds, dtype=np.int64)]),
        terms[:, 0],
        terms[:, 1],
        terms[:, 2],
        np.concatenate([work.ns, np.full(len(rows), np.nan)]),
        np.concatenate([work.unknown, np.zeros(len(rows))]),
    )


def _restored(rows: object, count: int) -> dict[Kind, tuple[float, ...]]:
    """Kinds and their numbers, none below 0."""
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 2 + count for row in rows):
        raise ValueError("a kind of layer has other fields")
    found = {}
    for layer, name, *values in rows:
        if not isinstance(layer, str) or not isinstance(name, str):
            raise TypeError("a kind of layer is not text")
        found[layer, name] = _numbers(values)
    return found


def _rates(values: Sequence[object]) -> Rates:
    return _three(_numbers(values))


def _numbers(values: Sequence[object]) -> tuple[float, ...]:
    found = tuple(number(value, _LARGEST) for value in values)
    if min(found) < 0:
        raise ValueError("a rate or a work is below 0")
    return found


MODEL: Final = Layerwise()
