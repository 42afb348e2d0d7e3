"""Tables of runs whose law is planted, with noise of a known size."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import polars as pl

from tracekit.predict.describe import Description, description_of
from tracekit.predict.table import Floats, Runs, read_runs

DESCRIPTION = {
    "target": {"column": "time_s", "unit": "s"},
    "columns": {
        "gpus": "gpus",
        "batch": "batch",
        "iterations": "iterations",
        "loader_threads": "threads",
        "peak_gflops": "gflops",
    },
    "devices": {"4000": {"name": "slow"}, "8000": {"name": "middle"}, "16000": {"name": "fast"}},
}


def described() -> Description:
    """What the columns of the planted tables mean."""
    return description_of(DESCRIPTION, Path("columns.toml"))


def law(gpus: Floats, batch: Floats, iterations: Floats, peak: Floats) -> Floats:
    """A start-up, and for each iteration the work of a device, a step of its own and the exchange."""
    return 20.0 + iterations * (0.004 + 6.0 * batch / gpus / peak + 0.003 * (gpus - 1))


def planted(noise: float = 0.03, repetitions: int = 2, seed: int = 0, most_gpus: float = 4.0) -> pl.DataFrame:
    """Runs of all configurations of a sweep: each one so many times, with log-normal noise."""
    counts = [gpus for gpus in (1.0, 2.0, 4.0, 8.0) if gpus <= most_gpus]
    rows = product(
        counts, (16.0, 32.0, 64.0, 128.0), (2.0, 4.0), (4000.0, 8000.0, 16000.0), range(repetitions)
    )
    gpus, batch, threads, peak, _ = np.array(list(rows)).T
    iterations = 64_000 / batch
    random = np.random.default_rng(seed)
    time = law(gpus, batch, iterations, peak) * np.exp(noise * random.standard_normal(gpus.size))
    return pl.DataFrame(
        {
            "gpus": gpus,
            "batch": batch,
            "iterations": iterations,
            "threads": threads,
            "gflops": peak,
            "time_s": time,
        }
    )


def as_runs(frame: pl.DataFrame, folder: Path, name: str = "runs.csv") -> Runs:
    """The frame as a CSV that was read."""
    frame.write_csv(folder / name)
    return read_runs(folder / name, described())
