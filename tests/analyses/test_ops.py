"""Operators against brute force over generated traces, and against torch's own tables on a recorded run."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from planted import MS, US, Planted
from synthetic import HostSpan, generate, write
from synthetic import Planted as Truth

import tracekit
from tracekit.analyses.ops import ops
from tracekit.analyses.scope import select
from tracekit.facts.stack_names import PHASES

CONFIGS: list[dict[str, Any]] = [
    {"layers": 2, "steps": 2},
    {"layers": 2, "steps": 2, "devices": 2, "orphans": 4},
    {"layers": 3, "steps": 0},
    {"layers": 2, "steps": 1, "device_recorded": False},
]


def encloses(outer: HostSpan, inner: HostSpan) -> bool:
    same = (outer.process, outer.thread) == (inner.process, inner.thread)
    before = (outer.start_ns, -outer.end_ns, outer.index) < (inner.start_ns, -inner.end_ns, inner.index)
    return same and before and outer.start_ns <= inner.start_ns and inner.end_ns <= outer.end_ns


def expected(truth: Truth, low: int, high: int, wanted: set[int]) -> dict[str | None, dict[str, int]]:
    """The table by comparing every operator with every other; `wanted` are the activities of the scope."""
    found = [span for span in truth.spans if span.kind == "op"]
    table: dict[str | None, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    above = {one.index: [o for o in found if o.index != one.index and encloses(o, one)] for one in found}
    nearest = {
        one: max(around, key=lambda s: (s.start_ns, -s.dur_ns)) for one, around in above.items() if around
    }
    for one in found:
        if not low <= one.start_ns < high:
            continue
        row = table[one.name]
        row["calls"] += 1
        if all(outer.name != one.name for outer in above[one.index]):
            row["host_total_ns"] += one.dur_ns
        inside = [o for o in found if o.index in nearest and nearest[o.index].index == one.index]
        row["host_self_ns"] += one.dur_ns - sum(o.dur_ns for o in inside)
    spans = {span.index: span for span in found}
    for activity in truth.activities:
        if activity.index not in wanted:
            continue
        own = None if activity.op is None else spans[activity.op]
        table[None if own is None else own.name]["device_self_ns"] += activity.dur_ns
        names = {None} if own is None else {own.name, *(o.name for o in above[own.index])}
        for name in names:
            table[name]["device_total_ns"] += activity.dur_ns
            table[name]["launched"] += 1
    return table


@pytest.mark.slow
@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: "-".join(map(str, c.values())))
@pytest.mark.parametrize("window", ["steps", "trace"])
@pytest.mark.sampled(8)
def test_against_brute_force(seed: int, config: dict[str, Any], window: Any, tmp_path: Path) -> None:
    truth = generate(seed, python_stacks=False, **config)
    trace = tracekit.read(write(truth, tmp_path / "t.json"))
    scope = select(trace, window=window)
    found = ops(scope)
    by_step = scope.window == "steps"
    low = truth.steps[0].start_ns if by_step else min(s.start_ns for s in truth.spans)
    high = truth.steps[-1].end_ns if by_step else max(s.end_ns for s in truth.spans) + 1
    wanted = {a.index for a in truth.activities if not by_step or _belongs(a, truth)}
    table = expected(truth, low, high, wanted)
    assert set(found.by_operator["operator"]) == set(table)
    for row in found.by_operator.iter_rows(named=True):
        for name in ("calls", "host_total_ns", "host_self_ns"):
            assert row[name] == table[row["operator"]].get(name, 0), (row["operator"], name)
        for name in ("device_total_ns", "device_self_ns", "launched"):
            told = table[row["operator"]].get(name, 0) if trace.has_device else None
            assert row[name] == told, (row["operator"], name)
        whole = row["device_self_ns"] if trace.has_device else row["host_self_ns"]
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == whole
    if trace.has_device:
        assert int(found.by_operator["device_self_ns"].sum()) == int(scope.activities["duration"].sum())
    shaped = found.by_shape
    assert shaped is not None
    for name in ("calls", "host_total_ns", "host_self_ns", "launched"):
        assert int(shaped[name].sum()) == int(found.by_operator[name].sum())


def _belongs(activity: Any, truth: Truth) -> bool:
    """An activity belongs to the step of its launch, or, when that is unknown, in which it starts."""
    at = activity.start_ns if activity.launch is None else activity.launch_start_ns
    return any(step.start_ns <= at < step.end_ns for step in truth.steps)


def test_an_operator_inside_itself() -> None:
    made = Planted()
    made.span("op", "aten::to", 0, 100 * US)
    made.span("op", "aten::copy_", 10 * US, 90 * US)
    made.span("op", "aten::to", 20 * US, 80 * US)
    made.activity("copy", 200 * US, 50 * US, launch=30 * US)
    made.activity("outside", 300 * US, 5 * US, launch=150 * US)
    rows = {row["operator"]: row for row in ops(made.trace()).by_operator.iter_rows(named=True)}
    one = rows["aten::to"]
    assert (one["calls"], one["host_total_ns"], one["host_self_ns"]) == (2, 100 * US, 80 * US)
    assert (one["device_total_ns"], one["device_self_ns"], one["launched"]) == (50 * US, 50 * US, 1)
    assert (one["mean_host_ns"], one["mean_device_ns"]) == (50 * US, 25 * US)
    assert (rows["aten::copy_"]["device_total_ns"], rows["aten::copy_"]["device_self_ns"]) == (50 * US, 0)
    assert (rows[None]["calls"], rows[None]["device_self_ns"], rows[None]["mean_host_ns"]) == (
        0,
        5 * US,
        None,
    )


def test_shapes_tell_calls_apart() -> None:
    made = Planted()
    for at, shapes in ((0, "[[1, 2]]"), (100, "[[1, 2]]"), (200, "[[3]]")):
        made.span("op", "aten::mm", at * US, (at + 50) * US, shapes=shapes, dtypes='["float"]')
    found = ops(made.trace(devices=())).by_shape
    assert found is not None
    assert found.select("shapes", "calls", "host_self_ns").rows() == [
        ("[[1, 2]]", 2, 100 * US),
        ("[[3]]", 1, 50 * US),
    ]


def test_without_operators_or_shapes() -> None:
    made = Planted()
    made.activity("gemm", 0, MS)
    found = ops(made.trace(captured=frozenset({"device"})))
    assert found.by_shape is None
    assert found.by_operator.select("operator", "calls", "device_self_ns").rows() == [(None, 0, MS)]
    assert found.answer == "No operator was recorded."  # not `0 calls of 0 operators took 0 ns`
    assert found.not_captured is not None
    empty = ops(Planted().trace())
    assert (empty.answer, empty.calls) == ("No operator was recorded.", 0)
    assert empty.not_captured is not None


@pytest.mark.slow
def test_against_torch(tmp_path: Path) -> None:
    """`key_averages()` of the same run: counts exactly, times within the µs to which torch rounds."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(4 * 36, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data, target = torch.rand(2, 3, 8, 8), torch.tensor([1, 2])
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, acc_events=True
    ) as profiler:
        for _ in range(2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(data), target).backward()
            optimizer.step()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    names = {e["name"] for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "cpu_op"}
    told = {event.key: event for event in profiler.key_averages() if event.key in names}
    assert len(told) > 40
    table = ops(tracekit.read(path)).by_operator
    assert set(table["operator"]) == set(told)
    for name, calls, whole, own in table.select(
        "operator", "calls", "host_total_ns", "host_self_ns"
    ).iter_rows():
        event = told[name]
        assert calls == event.count, name
        assert whole / 1e3 == pytest.approx(event.cpu_time_total, abs=0.01 * calls + 0.01), name
        assert own / 1e3 == pytest.approx(event.self_cpu_time_total, abs=0.01 * calls + 0.01), name
    shaped = ops(tracekit.read(path)).by_shape
    assert shaped is not None
    by_shape: dict[tuple[str, str], int] = defaultdict(int)
    for event in profiler.key_averages(group_by_input_shape=True):
        by_shape[event.key, json.dumps(event.input_shapes)] += event.count
    mine = shaped.group_by("operator", "shapes").agg(pl.col("calls").sum())
    for name, shapes, calls in mine.iter_rows():
        assert by_shape[name, json.dumps(json.loads(shapes or "[]"))] == calls, (name, shapes)
