"""Time and memory of reading a large Nsight Systems export and of finding the layer of every activity in it.

    python benchmarks/nsys.py                       2 million ranges, 0.9 million kernels, against the limits
    python benchmarks/nsys.py --ranges 16000000 --kernels 7000000
    python benchmarks/nsys.py --file run.sqlite     an export of yours

The file is made by `make_nsys.py`. Each figure is of one process from its start, the fastest of `--rounds`. The limits
are of CPU time and of peak memory, as wall time depends on what else the machine does; they hold for the size that
is the default, and the exit code is 1 when one is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from run import TRACEKIT, Cost, best, measure

HERE = Path(__file__).resolve().parent
RANGES, KERNELS = 2_000_000, 900_000
CPU_LIMIT_S = 12.0
MEMORY_LIMIT_MB = 2048.0
PLACE = """
import sys, tracekit
from tracekit.analyses.attribution import attribution
from tracekit.analyses.scope import select
for trace in tracekit.read_all(sys.argv[1]):
    attribution(select(trace, window="trace"))
"""
LIMITED = "read + layers"


def main() -> None:
    """Print one line per command, beside the limits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranges", type=int, default=RANGES)
    parser.add_argument("--kernels", type=int, default=KERNELS)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = wanted.file or Path(folder) / "large.sqlite"
        if wanted.file is None:
            # In a process of its own: a child's peak memory starts from that of the process that forked it.
            size = ["--ranges", str(wanted.ranges), "--kernels", str(wanted.kernels)]
            subprocess.run([sys.executable, str(HERE / "make_nsys.py"), str(path), *size], check=True)
        costs = costs_of(path, Path(folder), wanted.rounds)
    print(f"{path.name:<16}     wall       CPU      peak")
    for name, cost in costs.items():
        limits = f"   limits {CPU_LIMIT_S:.0f} s CPU, {MEMORY_LIMIT_MB:.0f} MB" if name == LIMITED else ""
        print(f"  {name:<14}{cost.wall_s:7.2f} s {cost.cpu_s:7.2f} s {cost.peak_mb:6.0f} MB{limits}")
    limited = costs[LIMITED]
    usual = wanted.file is None and (wanted.ranges, wanted.kernels) == (RANGES, KERNELS)
    missed = limited.cpu_s > CPU_LIMIT_S or limited.peak_mb > MEMORY_LIMIT_MB
    if usual and missed:
        print("MISSED a limit")
        sys.exit(1)


def costs_of(path: Path, work: Path, rounds: int) -> dict[str, Cost]:
    """Each command in a process of its own, without a cache of what was read."""
    commands = {
        LIMITED: [sys.executable, "-c", PLACE, str(path)],
        "report": [*TRACEKIT, "report", str(path), "--no-cache"],
    }
    fresh = {**os.environ, "TRACEKIT_CACHE_DIR": str(work / "cache")}
    return {
        name: best([measure(command, fresh) for _ in range(rounds)]) for name, command in commands.items()
    }


if __name__ == "__main__":
    main()
