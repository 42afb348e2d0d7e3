"""How long the graph, its replay and the critical path of a large trace take, and how much memory, once it is read.

Usage: python benchmarks/critical_path.py [--megabytes 1200]

The trace is a real one, repeated (`make_trace.py`); 1,200 MB hold 2.3 million host spans and 0.75 million activities. The peak of each
stage is that of the whole process (Linux only: it is set back before each).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from make_trace import enlarge, source_trace

import tracekit
from tracekit.analyses.attribution import attribution
from tracekit.analyses.critical_path import critical_path
from tracekit.analyses.graph.build import dependencies
from tracekit.analyses.graph.joint import joint_graph
from tracekit.analyses.graph.parts import recorded
from tracekit.analyses.scope import select

_Made = TypeVar("_Made")


def stage(name: str, make: Callable[[], _Made]) -> _Made:
    """What `make` gives; prints the CPU seconds that it took, and the memory of the process."""
    Path("/proc/self/clear_refs").write_text("5")
    begun = time.process_time()
    made = make()
    took = time.process_time() - begun
    print(f"{name:10} {took:6.2f} s CPU  {_memory('VmRSS'):6,} MB after it, {_memory('VmHWM'):6,} MB at most")
    return made


def _memory(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) // 1024


def main() -> None:
    """Print one line per stage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=1200.0)
    parser.add_argument("--trace", type=Path, help="measure this file instead")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = wanted.trace or Path(folder) / "large.json"
        if wanted.trace is None:
            enlarge(source_trace(Path(folder)), path, wanted.megabytes)
        trace = stage("read", lambda: tracekit.read(path, cache=False))
        print(f"{trace.host.height:,} host spans, {trace.device.height:,} activities")
        scope = select(trace)
        stage("attribution", lambda: attribution(scope))
        made = stage("graph", lambda: dependencies(scope))
        stage("replay", lambda: made.replayed)
        stage("path", lambda: recorded(joint_graph([scope])))
        stage("tables", lambda: critical_path(scope))


if __name__ == "__main__":
    main()
