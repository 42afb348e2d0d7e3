"""How long the layers, the operators and the causes of idle time of a large trace take, once it is read.

Usage: python benchmarks/attribution.py [--megabytes 800]

The trace is a real one, repeated (`make_trace.py`); 800 MB hold about 1.5 million host spans and half a million
activities. Each analysis runs alone in a fresh scope, so that none profits from what another has kept.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from make_trace import enlarge, source_trace

import tracekit
from tracekit.analyses.attribution import attribution
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.layers import layers
from tracekit.analyses.ops import ops
from tracekit.analyses.scope import Scope, select

MEASURED: dict[str, Callable[[Scope], object]] = {
    "attribution": attribution,
    "layers": layers,
    "ops": ops,
    "idle causes": idle_causes,
}


def main() -> None:
    """Print one line per analysis: wall and CPU seconds, best of three."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=800.0)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        enlarge(source_trace(Path(folder)), path, wanted.megabytes)
        begun = time.perf_counter()
        trace = tracekit.read(path, cache=False)
        print(f"read         {time.perf_counter() - begun:7.2f} s wall")
        print(f"{trace.host.height:,} host spans, {trace.device.height:,} activities")
        for name, function in MEASURED.items():
            walls, works = [], []
            for _ in range(3):
                scope = select(trace)
                wall, work = time.perf_counter(), time.process_time()
                function(scope)
                walls.append(time.perf_counter() - wall)
                works.append(time.process_time() - work)
            print(f"{name:12} {min(walls):7.2f} s wall  {min(works):7.2f} s CPU")


if __name__ == "__main__":
    main()
