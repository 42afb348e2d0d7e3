"""Laws of scaling, fitted to times: Amdahl's, and communication by a ring, a tree or a 2-D torus (α–β model).

All laws are sums of terms with factors that are not negative. Errors are taken as relative (a time of 10 ms errs by ten times as much as
one of 1 ms), so each time weighs as much as any other. Intervals are those of least squares for 95 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from math import isqrt, log, log2, sqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass

__all__ = ["HOPS", "Fit", "fit_messages", "fit_steps", "non_negative", "t_quantile"]

Floats = npt.NDArray[np.float64]

_LIKE: Final = 4.0
"""Laws whose AICc differs by less explain the times equally well."""
_EXACT: Final = 1e-9
"""Relative errors below this are those of floating point."""
_TWICE_AS_FAR: Final = 2.0
"""A law that errs by more than so many times as much for runs left out as another one is not their law, however few its parameters."""
_TOLD_APART: Final = 1e6
"""The most by which rounding may grow in a fit: its square, which the covariance has, leaves some digits of a float64."""
_FAR: Final = 0.2
"""A law from which times lie further, relative to them, is not their law; nor one that foretells those left out no better."""
LEAST_SERIES: Final = 3
LEAST_FREE: Final = 2
"""So many more points than parameters the criterion needs."""


def _torus(ranks: int) -> int:
    """Hops of one way along both sides of the most square grid of so many ranks."""
    side = next(each for each in range(isqrt(ranks), 0, -1) if ranks % each == 0)
    return side + ranks // side - 2


HOPS: Final[dict[str, Callable[[int], float]]] = {
    "ring": lambda ranks: ranks - 1,
    "tree": log2,
    "torus": _torus,
}
"""Messages that follow each other while data goes once to all ranks. A sum over all ranks (all-reduce) goes there and back."""


_STEP_TERMS: Final[dict[str, Callable[[str, int, float], float]]] = {
    "compute_ns": lambda _law, _ranks, batch: batch,
    "fixed_ns": lambda _law, _ranks, _batch: 1.0,
    "alpha_ns": lambda law, ranks, _batch: 2 * HOPS[law](ranks),
}
"""What a step's time consists of: compute that follows the batch of a rank, what is fixed, and the latency of messages."""
_TWICE: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""The collectives whose times the α–β model gives: how often data goes through all ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A law with its parameters."""

    law: str
    """`amdahl`, `constant`, `ring`, `tree` or `torus`."""
    values: dict[str, float]
    """Of step times: `compute_ns` (on the fewest ranks), `fixed_ns`, `alpha_ns`, and by Amdahl's law `serial_share`, fixed over both. Of collectives:
    `alpha_ns`, `beta_ns` of a byte."""
    intervals: dict[str, tuple[float, float]]
    """Where each value lies in 95 % of cases."""
    points: int
    error: float | None
    """The mean relative error for each number of ranks when the law is fitted to the others."""
    aicc: float | None
    """Akaike's criterion for few points, less is better; None if there are too few."""
    residual: float
    """The root of the mean square of the relative errors of the points."""
    covariance: Floats
    best: bool = False
    """Whether this is the law, or one of several that explain the times equally well; of none if the points are too few to tell, or
    lie far from all laws."""

    @property
    def free(self) -> int:
        """How many parameters were fitted."""
        return len(self.covariance)

    def step_at(self, ranks: int, batch: float) -> tuple[float, float, float]:
        """A step's time in ns on so many ranks, and its interval; `batch` is that of a rank, over the one on the fewest ranks."""
        terms = [name for name in self.values if name in _STEP_TERMS]
        row = np.array([_STEP_TERMS[name](self.law, ranks, batch) for name in terms])
        value = float(row @ np.array([self.values[name] for name in terms]))
        spread = t_quantile(self.points - self.free) * sqrt(max(float(row @ self.covariance @ row), 0.0))
        return value, max(value - spread, 0.0), value + spread


def fit_steps(points: Sequence[tuple[int, float, float]]) -> tuple[Fit, ...]:
    """The laws that fit runs, each with its ranks, the batch of a rank, and its step time in ns; the best first.

    A step takes compute · batch + fixed + α · 2 · hops, or by Amdahl's law the first two. What communication takes for its bytes is
    nearly the same on any number of ranks, so it counts as fixed. If the batch is the same in all runs, fixed cannot be told from compute, and
    counts as compute. A law needs runs on more numbers of ranks than it has parameters.

    >>> [fit.law for fit in fit_steps([(1, 8, 110.0), (2, 4, 60.0), (4, 2, 35.0)])]
    ['amdahl']
    """
    if not points:
        return ()
    ranks, batches, times = (np.array(each, dtype=np.float64) for each in zip(*points, strict=True))
    batches = batches / batches[ranks.argmin()]
    still = bool((batches == batches[0]).all())
    terms = ["compute_ns"] if still else ["compute_ns", "fixed_ns"]
    laws = {"constant" if still else "amdahl": terms, **{law: [*terms, "alpha_ns"] for law in HOPS}}
    fits = []
    for law, names in laws.items():
        rows = [
            [_STEP_TERMS[name](law, int(count), batch) for name in names]
            for count, batch in zip(ranks, batches, strict=True)
        ]
        if (fit := _fit(law, names, np.array(rows), times, ranks)) is not None:
            fits.append(_with_serial_share(fit) if law == "amdahl" else fit)
    return _judged(fits, len(laws))


def fit_messages(messages: pl.DataFrame) -> tuple[Fit, ...]:
    """The α–β models of these collectives (`runs.MESSAGES`), the best first: α · hops + β · bytes that a link carries.

    All-reduce, all-gather and reduce-scatter count, each name, number of ranks and size as one point.
    """
    known = messages.filter(pl.col("name").is_in(list(_TWICE)) & (pl.col("ranks") > 1))
    if not known.height:
        return ()
    ranks, times = known["ranks"].to_numpy().astype(np.float64), known["latency_ns"].to_numpy()
    sizes = np.array([f"{n} {size}" for n, size in known.select("ranks", "bytes").rows()])
    fits = []
    for law in HOPS:
        rows = []
        for name, count, size in known.select("name", "ranks", "bytes").rows():
            whole = law == "tree" and name == "all_reduce"  # each rank passes all of it on
            rows.append(
                [_TWICE[name] * HOPS[law](count), _TWICE[name] * size * (1 if whole else (count - 1) / count)]
            )
        if (
            fit := _fit(law, ["alpha_ns", "beta_ns"], np.array(rows), times, sizes, left_out=ranks)
        ) is not None:
            fits.append(fit)
    return _judged(fits, len(HOPS))


# -- least squares ---------------------------------------------------------------------------------


def _fit(
    law: str,
    names: list[str],
    rows: Floats,
    times: Floats,
    kinds: npt.NDArray[Any],
    left_out: npt.NDArray[Any] | None = None,
) -> Fit | None:
    """The fit of times; None if there are not more kinds of points than parameters, or they do not tell these apart."""
    count, free = rows.shape
    design = rows / times[:, None]
    scale = np.linalg.norm(design, axis=0)
    if len(np.unique(kinds)) <= free or not scale.all():
        return None
    design = design / scale
    if np.linalg.cond(design) > _TOLD_APART:
        return None
    values, squares = non_negative(design)
    centre = np.linalg.lstsq(design, np.ones(count), rcond=None)[0] / scale
    covariance = np.linalg.inv(design.T @ design) * (squares / (count - free)) / np.outer(scale, scale)
    values = values / scale
    spread = t_quantile(count - free) * np.sqrt(np.diag(covariance))
    intervals = {
        name: (max(0.0, min(float(middle - wide), float(value))), max(float(middle + wide), float(value)))
        for name, value, middle, wide in zip(names, values, centre, spread, strict=True)
    }
    left = kinds if left_out is None else left_out
    aicc = _aicc(squares, count, free)
    return Fit(
        law,
        dict(zip(names, values.tolist(), strict=True)),
        intervals,
        count,
        _left_out(design, left),
        aicc,
        sqrt(squares / count),
        covariance,
    )


def non_negative(design: Floats) -> tuple[Floats, float]:
    """The factors, none negative, by which the columns sum to 1 best, and the sum of squares that is left.

    Of so few columns every choice is tried: the best without a negative factor is the solution.
    """
    best, least = np.zeros(design.shape[1]), float(design.shape[0])
    for size in range(1, design.shape[1] + 1):
        for chosen in combinations(range(design.shape[1]), size):
            part = design[:, chosen]
            solution = np.linalg.lstsq(part, np.ones(len(part)), rcond=None)[0]
            squares = float(((part @ solution - 1) ** 2).sum())
            if (solution >= 0).all() and squares < least:
                best, least = np.zeros(design.shape[1]), squares
                best[list(chosen)] = solution
    return best, least


def _left_out(design: Floats, kinds: npt.NDArray[Any]) -> float | None:
    """The mean relative error for each kind when it is left out; None if the others are too few."""
    errors = []
    for kind in np.unique(kinds):
        rest = design[kinds != kind]
        if len(rest) < design.shape[1] or np.linalg.matrix_rank(rest) < design.shape[1]:
            return None
        errors.append(float(np.abs(design[kinds == kind] @ non_negative(rest)[0] - 1).mean()))
    return float(np.mean(errors))


def _aicc(squares: float, count: int, free: int) -> float | None:
    parameters = free + 1  # the size of the errors is one too
    if count - parameters < LEAST_FREE:
        return None
    likelihood = count * log(max(squares / count, _EXACT**2))
    return likelihood + 2 * parameters + 2 * parameters * (parameters + 1) / (count - parameters - 1)


def _judged(fits: list[Fit], laws: int) -> tuple[Fit, ...]:
    """The fits, the best first. Among those that explain the times equally well the ones with the fewest parameters are best, unless another law
    foretells those left out far better: with few runs the criterion weighs parameters more than errors.
    """
    known = [fit.aicc for fit in fits if fit.aicc is not None]
    if len(known) < laws:
        return tuple(sorted(fits, key=lambda fit: fit.free))
    like = [fit for fit in fits if fit.aicc is not None and fit.aicc < min(known) + _LIKE]
    fewest = min(fit.free for fit in like)
    least = min((fit.error for fit in fits if fit.error is not None), default=0.0)
    most = min(_FAR, max(_TWICE_AS_FAR * least, _EXACT))
    judged = [
        replace(
            fit,
            best=fit in like and fit.free == fewest and fit.residual <= _FAR and (fit.error or 0) <= most,
        )
        for fit in fits
    ]
    return tuple(sorted(judged, key=lambda fit: (not fit.best, fit.aicc)))


def _with_serial_share(fit: Fit) -> Fit:
    """Amdahl's law with the share of the step on the fewest ranks that does not shrink; its error by the derivative."""
    compute, fixed = fit.values["compute_ns"], fit.values["fixed_ns"]
    share, slope = fixed / (compute + fixed), np.array([-fixed, compute]) / (compute + fixed) ** 2
    spread = t_quantile(fit.points - 2) * sqrt(float(slope @ fit.covariance @ slope))
    ends = (max(share - spread, 0.0), min(share + spread, 1.0))
    return replace(
        fit, values={**fit.values, "serial_share": share}, intervals={**fit.intervals, "serial_share": ends}
    )


def t_quantile(freedom: int) -> float:
    """How many standard errors hold 95 % of Student's distribution, on both sides (Cornish and Fisher's series).

    >>> [round(t_quantile(freedom), 2) for freedom in (1, 2, 3, 5, 30)]
    [12.71, 4.3, 3.18, 2.57, 2.04]
    """
    if freedom < LEAST_SERIES:
        return (12.706, 4.303)[freedom - 1]
    return 1.95996 + 2.37227 / freedom + 2.82250 / freedom**2 + 2.55585 / freedom**3 + 1.58953 / freedom**4
