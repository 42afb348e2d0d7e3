"""Runs of sweeps whose trajectories are known: each point from the one before by what a segment is meant to be."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.facts.ceilings import Ceilings
from tracekit.trajectory import Run
from tracekit.trajectory.runs import WORK, error_of

KEY = {"parallel": "threads", "work": "batch", "choice": "precision"}
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
FLOPS = 1e9


def sweep(
    seed: int, kind: str, *, noise: float = 0.03, between: float = 0.0, steps: int = 10
) -> tuple[list[Run], list[str]]:
    """Runs along the key of a kind, with noise on each step and between runs, and the label of each segment."""
    rng = np.random.default_rng(seed)
    again = np.random.default_rng([seed, 1])

    def off() -> float:
        return float(np.exp(between * again.standard_normal()))

    intensity, rate, state = rng.uniform(2, 50), 10 ** rng.uniform(10, 12), "off"
    runs, labels = [_run(0, kind, intensity, rate, state, rng, noise, steps, off())], []
    for number in range(1, 4 if kind == "choice" else 7):
        before, state = state, str(rng.choice(["off", "off", "bandwidth", "compute"]))
        label, of_intensity, of_rate = _move(before, state, kind, rng)
        intensity, rate = intensity * of_intensity, rate * of_rate
        labels.append(label)
        runs.append(_run(number, kind, intensity, rate, state, rng, noise, steps, off()))
    return runs, labels


def _move(before: str, state: str, kind: str, rng: np.random.Generator) -> tuple[str, float, float]:
    """A label, and the factors of intensity and performance that make it; ideal is twice the performance."""
    parallel, saturated = kind == "parallel", f"{state}-saturated"
    fewer, more = rng.uniform(0.5, 0.8), rng.uniform(1.3, 2.0)
    if state != "off" and before != "off":
        return (saturated, rng.choice([1.0, more, fewer]), rng.uniform(0.7, 1.6))
    if state != "off":
        return (saturated, 1.0, rng.uniform(1.0, 1.6) if parallel else 1.0)
    moves = [("retrograde", rng.choice([1.0, more]), fewer), ("scaling", 1.0, 2.0)]
    if parallel:
        moves += [("contention", 1.0, rng.uniform(1.0, 1.6)), ("loss of intensity", fewer, rng.uniform(1.0, 1.6))]  # fmt: skip
    else:
        moves += [("gain of intensity", more, rng.uniform(1.0, more)), ("loss of intensity", fewer, 1.0), ("no change", 1.0, 1.0)]  # fmt: skip
    return moves[rng.integers(len(moves))]


def _run(number: int, kind: str, intensity: float, rate: float, state: str, rng: np.random.Generator, noise: float, steps: int, off: float) -> Run:  # fmt: skip
    """A run at 30 % of both roofs, or at 95 % of one; its times are `off` by this factor."""
    peak = rate / {"off": 0.3, "bandwidth": 0.2, "compute": 0.95}[state]
    bandwidth = rate / intensity / {"off": 0.3, "bandwidth": 0.95, "compute": 0.2}[state]
    times = (1e9 * FLOPS / rate * off * 1000 * (1 + noise * rng.standard_normal(steps))).astype(int).tolist()
    time = 1e9 * FLOPS * 1000 / (sum(times) / len(times)) if steps < 3 else None
    return made(KEY[kind], PRECISIONS[number] if kind == "choice" else 2**number, times, intensity, rate=time, ceilings=(peak, bandwidth))  # fmt: skip


def made(
    key: str,
    value: object,
    times: list[int],
    intensity: float = 10.0,
    *,
    rate: float | None = None,
    ceilings: tuple[float, float] | None = None,
    bytes_source: str = "analytic",
    samples: int | None = None,
    **settings: object,
) -> Run:
    """A run of 1,000 GFLOP a step with these times."""
    from tracekit.statistics import trimmed_mean

    flops, time = 1000 * FLOPS, trimmed_mean(times) or 1.0
    row = {
        "level": "model", "name": "model", "time_ns": time, "error": error_of(times), "flops": flops, "source": "analytic", "bytes": flops / intensity,
        "bytes_source": bytes_source, "intensity": intensity, "flops_per_s": rate or flops / time * 1e9, "covered_share": 1.0, "precision": "fp32", "unit": "matrix", "share": 1.0,
    }  # fmt: skip
    own = {"workload": "cnn", "device": "cpu", "device_name": "made", "batch": 8, "threads": 1, "ranks": 1, "precision": "fp32"}  # fmt: skip
    return Run(
        name=f"{key}-{value}",
        settings={**own, **settings, key: value},  # type: ignore[dict-item]
        chosen=frozenset({key}),
        step_times=tuple(times),
        undisturbed=True,
        samples=samples,
        work=pl.DataFrame([row], schema=WORK),
        ceilings=None
        if ceilings is None
        else Ceilings("made", "planted", {("fp32", "matrix"): ceilings[0]}, {"DRAM": ceilings[1]}),
    )
