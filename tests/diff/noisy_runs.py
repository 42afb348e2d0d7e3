"""Step times with noise of known kinds, and a planted slow-down."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

KINDS = ("independent", "neighbours", "long steps")
STEP_NS = 10_000_000


def run(
    random: np.random.Generator,
    steps: int,
    kind: str = "independent",
    *,
    slower: float = 0.0,
    noise: float = 0.03,
) -> npt.NDArray[np.int64]:
    """The step times of a run: lognormal noise; of neighbours with correlation 0.5, or 0.8; or with 4 % of the steps 2 to 5 times as long."""
    errors = random.standard_normal(steps)
    if correlation := {"neighbours": 0.5, "drift": 0.8}.get(kind):
        for at in range(1, steps):
            errors[at] = correlation * errors[at - 1] + np.sqrt(1 - correlation**2) * errors[at]
    times: Any = STEP_NS * (1 + slower) * np.exp(noise * errors)
    if kind == "long steps":
        times *= np.where(random.random(steps) < 0.04, random.uniform(2, 5, steps), 1)
    return times.astype(np.int64)


def pair(
    seed: tuple[int, ...], steps: int, kind: str, *, runs: int = 1, slower: float = 0.0, between: float = 0.0
) -> tuple[list[npt.NDArray[np.int64]], list[npt.NDArray[np.int64]]]:
    """Both sides, of which new is slower; with `between` also each run differs from the others."""
    random = np.random.default_rng(seed)

    def side(by: float) -> list[npt.NDArray[np.int64]]:
        return [
            run(random, steps, kind, slower=(1 + by) * np.exp(between * random.standard_normal()) - 1)
            for _ in range(runs)
        ]

    return side(0.0), side(slower)
