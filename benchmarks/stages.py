"""Where the CPU time of a report goes, stage by stage, and how many queries Polars runs in each.

    python benchmarks/stages.py TRACE…                     the fastest of several reports of each, in one process
    python benchmarks/stages.py TRACE… --callers 40        also the lines of tracekit with the most queries

The start of Python and the imports are left out. What several stages share (the activities of a scope, attribution, the
causes of idle time) is counted once, in the stage of its own name.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import tracekit
from tracekit.analyses import scope
from tracekit.report import build, formats

PACKAGE = str(Path(tracekit.__file__).parent)


class Stages:
    """CPU seconds and queries of each stage; what a stage within it took is not its own."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.queries: Counter[str] = Counter()
        self.callers: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._count()
        self._open.append(name)
        yield
        self._count()
        self._open.pop()

    def called(self, frame: FrameType | None, event: str, function: Any) -> None:
        """What `sys.setprofile` takes: a query is a call of the `collect` of Polars' own code."""
        if event != "c_call" or function.__name__ != "collect":
            return
        self.queries[self._open[-1]] += 1
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        if frame is not None:
            place = os.path.relpath(frame.f_code.co_filename, PACKAGE)
            self.callers[f"{place}:{frame.f_lineno} {frame.f_code.co_name}"] += 1

    def _count(self) -> None:
        now = time.process_time()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


def report(path: str, stages: Stages) -> None:
    with stages.stage("reading"):
        trace = tracekit.read(path)
    with stages.stage("scope"):
        part = scope.select(trace)
    with stages.stage("presentation"):
        made = build.build_report(trace, scope=part)
        formats.render_reports(formats.Format.table, [(made, trace)], formats.Page())


def measured(path: str, rounds: int) -> Stages:
    """The stages of the round that took the least CPU time."""
    every = []
    for _ in range(rounds + 1):
        every.append(Stages())
        with watched(every[-1]):
            report(path, every[-1])
    best = min(every[1:], key=lambda stages: sum(stages.seconds.values()))  # the first one imports
    counted = Stages()
    with watched(counted, queries=True):
        report(path, counted)
    best.queries, best.callers = counted.queries, counted.callers
    return best


@contextmanager
def watched(stages: Stages, *, queries: bool = False) -> Iterator[None]:
    """While this is open, `stages` get what is made once for a scope, by the module that makes it, and the queries."""
    made, decide = scope.Scope.once, build.decide

    def once(self: scope.Scope, key: Any, make: Callable[[], Any]) -> Any:
        def timed() -> Any:
            with stages.stage(key.__module__.removeprefix("tracekit.analyses.")):
                return make()

        return made(self, key, timed if callable(key) else make)

    def verdict(*of: Any) -> Any:
        with stages.stage("verdict"):
            return decide(*of)

    scope.Scope.once, build.decide = once, verdict  # type: ignore[method-assign,assignment]
    sys.setprofile(stages.called if queries else None)
    yield
    sys.setprofile(None)
    scope.Scope.once, build.decide = made, decide  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--callers", type=int, default=0)
    options = parser.parse_args()
    for path in options.traces:
        stages = measured(path, options.rounds)
        print(f"\n{path}")
        for name, seconds in stages.seconds.items():
            print(f"  {name:<22}{seconds * 1000:9.1f} ms{stages.queries[name]:6d} queries")
        print(
            f"  {'all':<22}{sum(stages.seconds.values()) * 1000:9.1f} ms{sum(stages.queries.values()):6d} queries"
        )
        for place, count in stages.callers.most_common(options.callers):
            print(f"    {count:5d}  {place}")


if __name__ == "__main__":
    main()
