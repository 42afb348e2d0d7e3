"""How good the recommendation of `tracekit trajectory` is: the best of a grid from two thirds of it, against a sweep of the whole grid.

    python benchmarks/trajectory.py                                       # three CNNs, an hour on two cores
    python benchmarks/trajectory.py cnn@32 --batches 1,4,16 --steps 5     # WORKLOAD@SIZE; a few minutes

Both sweeps are runs of their own, with other seeds: the command sees none of those that judge it. It sees every second
combination and the corners. Each sweep goes through its combinations `--repeat` times, the two in turns, so that a machine that others
use disturbs all alike. The best of many noisy medians is best by luck in part, so if it is another configuration than the recommended one, both run
again in turns. Exit code 1 if one of the recommended configurations reaches less than 97 % of the best one's samples a second.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import polars as pl

import tracekit
from tracekit.capture.sweep import Grid, Progress, sweep
from tracekit.manifest import CaptureOptions, Level, Settings
from tracekit.report.trajectory import trajectory_section
from tracekit.trajectory import read_runs, trajectories_of

DEFAULT = ["cnn@64", "resnet50:18@64", "yolov5:n@128"]
AIM = 0.97
AGAIN = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("workloads", nargs="*", default=DEFAULT, metavar="WORKLOAD@SIZE")
    parser.add_argument("--batches", default="1,2,4,8,16,32")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/trajectory"))
    given = parser.parse_args()
    batches, threads = ([int(word) for word in text.split(",")] for text in (given.batches, given.threads))
    corners = set(product((batches[0], batches[-1]), (threads[0], threads[-1])))
    cells = {(b, t): (i + j) % 2 == 0 or (b, t) in corners for (i, b), (j, t) in product(enumerate(batches), enumerate(threads))}  # fmt: skip
    shares = [_one(name, cells, given.steps, given.repeat, given.output) for name in given.workloads]
    print(f"\nthe least share of the best: {min(shares):.1%}; the aim is {AIM:.0%}")
    return int(min(shares) < AIM)


def _one(name: str, cells: dict[tuple[int, int], bool], steps: int, repeat: int, output: Path) -> float:
    """The samples a second at the recommendation over those of the best of all, by the runs that were not seen."""
    folder = output / name.replace(":", "-").replace("@", "-")
    seen, whole = folder / "seen", folder / "whole"
    every: list[pl.DataFrame] = []
    for seed, ((batch, threads), shown) in product(range(repeat), cells.items()):
        every.append(_run(name, batch, threads, 2 * seed + 1, steps, whole, ("M",)))
        if shown:
            _run(name, batch, threads, 2 * seed, steps, seen, ("M", "MLG") if seed == 0 else ("M",))
    found = trajectories_of(read_runs([seen], tracekit.read), "batch")
    print(f"\n{trajectory_section(found)}")
    rates = _medians(every)
    place = found.recommendations[0][1].best.place
    best = max(rates, key=lambda cell: rates[cell])
    chosen = (int(place["batch"]), int(place["threads"]))
    if chosen != best:
        turns = product(range(AGAIN), (chosen, best))
        rates = _medians(_run(name, *cell, 2 * (repeat + turn), steps, folder / "again", ("M",)) for turn, cell in turns)  # fmt: skip
    share = rates[chosen] / rates[best]
    print(f"{name}: recommended batch {chosen[0]}, threads {chosen[1]}: {share:.1%} of the best of the whole grid, batch {best[0]}, threads {best[1]}")  # fmt: skip
    return share


def _medians(runs: Iterable[pl.DataFrame]) -> dict[tuple[int, int], float]:
    """Samples a second by batch and threads."""
    grouped = pl.concat(runs).drop_nulls("throughput_per_s").group_by("batch", "threads", maintain_order=True)
    medians = grouped.agg(pl.col("throughput_per_s").median()).rows()
    return {(batch, threads): rate for batch, threads, rate in medians}


def _run(name: str, batch: int, threads: int, seed: int, steps: int, folder: Path, levels: tuple[Level, ...]) -> pl.DataFrame:  # fmt: skip
    workload, _, size = name.partition("@")
    grid = Grid(workloads=[workload], batch=[batch], threads=[threads])
    settings = Settings(size=int(size) if size else None, seed=seed)
    return sweep(grid, folder, settings=settings, options=CaptureOptions(steps=steps, warmup=3), levels=levels, progress=_tell)  # fmt: skip


def _tell(progress: Progress) -> None:
    if progress.row is not None:
        rate = progress.row["throughput_per_s"]
        print(f"{progress.label}: {progress.row['status'] if rate is None else f'{rate:.1f} samples/s'}", file=sys.stderr)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
