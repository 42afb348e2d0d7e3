"""The digest against a sweep over every ns: which activity has it, and in which step it lies."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import tracekit
from tracekit.analyses.scope import Scope, select, step_spans
from tracekit.digest import digest_of

_FIRST = ("compute", "communication", "memory")
_NAMES = {
    "compute": ("sgemm", "relu_kernel"),
    "communication": ("ncclDevKernel_AllReduce_Sum_f32_RING_LL",),
    "memory": ("Memcpy HtoD",),
}


def planted(path: Path, rng: random.Random) -> None:
    """A trace of some steps with overlapping activities of all classes on a few streams; times are whole µs."""
    events: list[dict[str, object]] = []
    time, busy, correlation = 10, dict.fromkeys(range(3), 0), 0

    def add(cat: str, name: str, start: int, duration: int, tid: int, **args: object) -> None:
        pid = 0 if cat in ("kernel", "gpu_memcpy") else 1
        events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": start,
                "dur": duration,
                "args": args,
            }
        )

    for step in range(rng.randint(1, 4)):
        begin = time
        for _ in range(rng.randint(1, 6)):
            time += rng.randint(1, 12)
            correlation += 1
            kind, stream = rng.choice(_FIRST), rng.randrange(3)
            start = max(time + rng.randint(1, 5), busy[stream])
            duration = rng.randint(1, 25)
            busy[stream] = start + duration
            add(
                "cuda_runtime",
                "cudaLaunchKernel" if kind != "memory" else "cudaMemcpyAsync",
                time,
                1,
                7,
                correlation=correlation,
            )
            add(
                "gpu_memcpy" if kind == "memory" else "kernel",
                rng.choice(_NAMES[kind]),
                start,
                duration,
                stream,
                correlation=correlation,
                stream=stream,
                device=0,
            )
        time += rng.randint(2, 20)
        add("user_annotation", f"ProfilerStep#{step}", begin, time - begin, 7)
        time += rng.choice((0, 0, 5))
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))


def swept(scope: Scope) -> Counter[tuple[int, str, str]]:
    """ns by step, class and name: at every ns the activity of the first class that began first has it."""
    spans = step_spans(scope)
    begins = [scope.start, *spans["span_start"].to_list()[1:]]
    rows = (
        scope.overlapping.sort("start", "end", "activity_id")
        .select("class", pl.col("name").cast(pl.String), "start", "end")
        .rows()
    )
    found: Counter[tuple[int, str, str]] = Counter()
    for at in range(scope.start, scope.end, 1000):  # all times are whole µs
        step = spans["step"][max(number for number, begin in enumerate(begins) if begin <= at)]
        running = [(kind, name) for kind, name, start, end in rows if start <= at < end]
        owner = next(
            ((kind, name) for first in _FIRST for kind, name in running if kind == first), ("idle", "")
        )
        found[(step, *owner)] += 1000
    return found


@pytest.mark.quick(15)
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.sampled(8)
def test_every_ns_is_given_as_a_sweep_gives_it(seed: int, tmp_path: Path) -> None:
    planted(tmp_path / "trace.json", random.Random(seed))
    scope = select(tracekit.read(tmp_path / "trace.json", cache=False))
    made = digest_of(scope)
    rows = made.values.join(made.leaves, on="leaf").filter((pl.col("kind") != "call") & (pl.col("ns") > 0))
    idle = pl.col("kind") == "idle"
    rows = rows.with_columns(pl.when(idle).then(pl.lit("")).otherwise("name").alias("name"))
    sums = rows.group_by("step", pl.col("kind").cast(pl.String), "name").agg(pl.col("ns").sum())
    assert dict(Counter({row[:3]: row[3] for row in sums.rows()})) == dict(swept(scope))
