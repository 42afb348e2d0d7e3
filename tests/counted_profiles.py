"""What torch's profiler records of a function on processors, and the work that tracekit counts in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

import tracekit
from tracekit.analyses.flops import CountedOperators, counted
from tracekit.trace import Trace

Ran = tuple[Trace, CountedOperators]


def profiled(run: Callable[[], object], path: Path) -> Ran:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        run()
    prof.export_chrome_trace(str(path))
    trace = tracekit.read(path)
    return trace, counted(trace)


def total(figures: Any) -> int:
    return int(figures[figures > 0].sum())


def products(work: CountedOperators) -> int:
    return total(work.flops[work.matrix])


def of(ran: Ran, name: str) -> list[tuple[int, int, int]]:
    """FLOPs, bytes read and written of the calls of a name that count."""
    trace, work = ran
    spans = [i for i, each in enumerate(trace.host["name"]) if each == name and work.figure[i] >= 0]
    return [(int(work.flops[i]), int(work.read[i]), int(work.written[i])) for i in spans]
