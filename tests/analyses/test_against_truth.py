"""Every analysis against what was planted and against brute force, over many generated traces."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from synthetic import Activity, Planted, generate, oracle, write

import tracekit
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.collectives import collectives
from tracekit.analyses.idle import idle
from tracekit.analyses.kernels import kernels
from tracekit.analyses.launches import launches
from tracekit.analyses.memory import memory
from tracekit.analyses.overlap import overlap
from tracekit.analyses.scope import Scope, select
from tracekit.analyses.steps import PARTS, steps
from tracekit.errors import UsageError
from tracekit.trace import Trace

CONFIGS: list[dict[str, object]] = [
    {"steps": 3},
    {"steps": 2, "devices": 2},
    {"steps": 4, "vendor": "amd", "communication": False},
    {"steps": 0, "layers": 6},
    {"steps": 1, "custom_communication": True, "graph": False},
    {"steps": 2, "side_stream": False, "zero_kernels": True, "tick_ns": 1000},
]
CASES = [(seed, config) for seed in range(2) for config in CONFIGS]


@pytest.fixture(params=CASES, ids=lambda c: f"{c[0]}-{'-'.join(map(str, c[1].values()))}")
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Planted, Trace]:
    seed, config = request.param
    truth = generate(seed, orphans=0, lost_launches=0, **config)
    return truth, tracekit.read(write(truth, tmp_path / "t.json"))


def in_steps(truth: Planted) -> list[Activity]:
    chosen = [a for a in truth.activities if a.step is not None]
    return chosen or truth.activities


def both_windows(truth: Planted, trace: Trace) -> list[tuple[Scope, list[Activity], tuple[int, int]]]:
    of_steps = oracle.window_of_steps(truth.activities, truth.steps) if truth.steps else truth.window
    return [
        (select(trace, window="trace"), truth.activities, truth.window),
        (select(trace), in_steps(truth), of_steps),
    ]


@pytest.mark.quick(2)
def test_windows(case: tuple[Planted, Trace]) -> None:
    truth, trace = case
    origin = trace.meta.origin_ns
    for scope, activities, window in both_windows(truth, trace):
        assert (scope.start + origin, scope.end + origin) == window
        assert scope.activities.height == len(activities)


@pytest.mark.parametrize("seed", range(4))
def test_work_from_before_the_recording_is_left_out(seed: int, tmp_path: Path) -> None:
    truth = generate(seed, orphans=3, steps=2)
    trace = tracekit.read(write(truth, tmp_path / "t.json"))
    scope, origin = select(trace), trace.meta.origin_ns
    begin = truth.steps[0].start_ns
    earlier = [
        a
        for a in truth.activities
        if oracle.before_recording(a, truth.activities)
        or ((a.launch_start_ns or begin) < begin < a.end_ns and a.step is None)
    ]
    assert len(earlier) >= 3
    assert scope.earlier["start"].sort().to_list() == sorted(a.start_ns - origin for a in earlier)
    assert (scope.start + origin, scope.end + origin) == oracle.window_of_steps(truth.activities, truth.steps)
    assert scope.activities.join(scope.earlier, on="activity_id", how="semi").is_empty()


@pytest.mark.quick(3)
def test_breakdown_to_the_ns(case: tuple[Planted, Trace]) -> None:
    truth, trace = case
    for scope, _, window in both_windows(truth, trace):
        rows = breakdown(scope).devices
        assert rows.height == truth.config.devices
        for row in rows.iter_rows(named=True):
            expected = oracle.breakdown(truth.activities, window, row["device_id"])
            got = {
                name: row[f"{name}_ns"]
                for name in ("window", "compute", "communication", "memory", "idle", "busy")
            }
            assert got == {name: getattr(expected, name) for name in got}
            assert row["exposed_communication_ns"] == expected.exposed_communication
            assert row["exposed_memory_ns"] == expected.exposed_memory
            assert row["overlap_ns"] == expected.overlap


@pytest.mark.quick(3)
def test_overlap_to_the_ns(case: tuple[Planted, Trace]) -> None:
    truth, trace = case
    scope = select(trace, window="trace")
    result = overlap(scope)
    for row in result.devices.iter_rows(named=True):
        expected = oracle.breakdown(truth.activities, truth.window, row["device_id"])
        assert row["overlap_ns"] == expected.overlap
        assert row["exposed_ns"] == expected.exposed_communication
        assert row["overlap"] == pytest.approx(expected.overlap_ratio)
    for row in collectives(scope).by_size.drop_nulls("exposed_ns").iter_rows(named=True):
        assert 0 <= row["exposed_ns"] <= row["total_ns"]


@pytest.mark.quick(2)
def test_idle_per_stream_to_the_ns(case: tuple[Planted, Trace]) -> None:
    truth, trace = case
    result = idle(select(trace, window="trace"))
    expected = oracle.stream_idle(truth.activities)
    for row in result.streams.iter_rows(named=True):
        got = {name: row[f"{name}_ns"] for name in ("host_wait", "kernel_wait", "other")}
        assert got == expected[row["device_id"], row["stream_id"]]
        assert row["unknown_ns"] == 0
    assert result.gaps["duration_ns"].is_sorted(descending=True)


@pytest.mark.quick(2)
def test_kernel_statistics(case: tuple[Planted, Trace]) -> None:
    truth, trace = case
    result = kernels(select(trace, window="trace"))
    expected = oracle.kernel_table(truth.activities, kinds=("kernel", "memcpy", "memset"))
    rows = result.by_name.group_by("name").agg(
        pl.col("count").sum(), pl.col("total_ns").sum(), pl.col("max_ns").max()
    )
    assert dict(zip(rows["name"], rows["count"], strict=True)) == {n: e["count"] for n, e in expected.items()}
    for row in result.by_name.iter_rows(named=True):
        if result.by_name.filter(pl.col("name") == row["name"]).height > 1:
            continue  # one name under two operators of different categories
        truth_row = expected[row["name"]]
        for name in ("total", "mean", "median", "p95", "min", "max"):
            assert row[f"{name}_ns"] == pytest.approx(truth_row[name]), name
        assert (row["std_ns"] or 0) == pytest.approx(truth_row["std"])
    total = sum(a.dur_ns for a in truth.activities)
    assert (
        result.total_ns
        == total
        == int(result.by_category["total_ns"].sum())
        == int(result.by_operator["total_ns"].sum())
    )


@pytest.mark.quick(4)
def test_launch_statistics(case: tuple[Planted, Trace]) -> None:
    truth, trace = case
    result = launches(select(trace, window="trace"))
    summary = oracle.launch_summary(truth.activities)
    delays = oracle.launch_delays(truth.activities)
    assert result.activities == summary["linked"]
    assert result.short == summary["short_kernels"]
    assert result.launch_bound_share == pytest.approx(summary["launch_bound_share"])
    measures = {row["measure"]: row for row in result.delays.iter_rows(named=True)}
    assert measures["launch_delay"]["total_ns"] == sum(d for d, _ in delays.values())
    assert measures["queue_delay"]["total_ns"] == sum(q for _, q in delays.values())
    assert measures["queue_delay"]["count"] == sum(q > 0 for _, q in delays.values())
    origin = trace.meta.origin_ns
    for (device, stream), rows in result.queue.group_by("device_id", "stream_id", maintain_order=True):
        expected = dict(oracle.queue_depth(truth.activities, int(str(device)), int(str(stream))))
        for time, length in rows.select("time", "length").rows():
            assert expected[time + origin] == length


def test_a_graph_launch_is_shared_by_its_kernels(tmp_path: Path) -> None:
    """One slow cudaGraphLaunch once made 99 % of a decode step's kernels 'launch-bound'."""
    truth = generate(1, orphans=0, lost_launches=0, graph=True)
    trace = tracekit.read(write(truth, tmp_path / "t.json"))
    result = launches(select(trace, window="trace"))
    groups: dict[int, int] = {}
    for a in truth.activities:
        if a.launch is not None:
            groups[a.launch] = groups.get(a.launch, 0) + 1
    assert max(groups.values()) > 1
    bound = sum(
        a.dur_ns * groups[a.launch] < (a.launch_end_ns or 0) - (a.launch_start_ns or 0)
        for a in truth.activities
        if a.launch is not None
    )
    assert result.launch_bound_share == pytest.approx(bound / result.activities)


@pytest.mark.quick(4)
def test_copies(case: tuple[Planted, Trace]) -> None:
    truth, trace = case
    copies = memory(select(trace, window="trace")).copies
    expected = oracle.memcpy_table(truth.activities)
    got = (
        copies.with_columns(pl.coalesce("direction", "kind").alias("direction"))
        .group_by("direction")
        .agg(pl.col("count").sum(), pl.col("bytes").sum(), pl.col("total_ns").sum())
    )
    assert got.height == len(expected)
    for row in got.iter_rows(named=True):
        truth_row = expected[row["direction"]]
        assert (row["count"], row["total_ns"]) == (truth_row["count"], truth_row["total"])
        if truth.config.vendor == "nvidia":
            assert row["bytes"] == truth_row["bytes"]


@pytest.mark.quick(3)
def test_allocator_peaks(case: tuple[Planted, Trace]) -> None:
    truth, trace = case
    peaks = memory(trace).peaks
    assert peaks is not None
    for row in peaks.iter_rows(named=True):
        mine = [m for m in truth.memory if m.device == row["device_id"]]
        assert row["peak_bytes"] == max(m.allocated for m in mine)
        assert row["allocations"] == sum(m.bytes > 0 for m in mine)
        assert row["frees"] == sum(m.bytes < 0 for m in mine)


@pytest.mark.quick(4)
def test_step_times_and_composition(case: tuple[Planted, Trace]) -> None:
    truth, trace = case
    result = steps(trace)
    expected = oracle.step_times(truth.steps)
    table = result.table
    assert dict(zip(table["step"], table["time_ns"], strict=True)) == expected
    parts = table.select([f"{part}_ns" for part in PARTS]).sum_horizontal()
    assert (parts == table["span_ns"]).all()
    kernel_time = oracle.measure([oracle.span_of(a) for a in truth.activities if a.kind == "kernel"])
    assert int(table["kernel_ns"].sum()) <= kernel_time


def test_unlinked_activities_count_in_the_window_of_the_step_in_which_they_start(tmp_path: Path) -> None:
    truth = generate(3, orphans=3, lost_launches=3)
    trace = tracekit.read(write(truth, tmp_path / "t.json"))
    scope = select(trace)
    unlinked = scope.activities.filter(pl.col("launch_id").is_null())
    assert unlinked.height > 0
    starts = scope.steps
    for start, number in unlinked.select("start", "step").rows():
        row = starts.filter(pl.col("step") == number).row(0, named=True)
        assert row["start"] <= start < row["end"]


def test_steps_from_named_ranges(tmp_path: Path) -> None:
    truth = generate(3, steps=2)
    trace = tracekit.read(write(truth, tmp_path / "t.json"))
    scope = select(trace, step=r"^Optimizer\.step#")
    assert scope.steps.height == 2
    assert scope.steps["name"].str.starts_with("Optimizer.step#").all()
    with pytest.raises(UsageError, match="no annotation matches") as refused:
        select(trace, step="^nothing is called this")
    assert "'Optimizer.step#" in str(refused.value)  # what could be asked for is named
    with pytest.raises(UsageError, match="not a regular expression"):
        select(trace, step="(")


@pytest.mark.quick(1)
@pytest.mark.parametrize("config", [{"device_recorded": False}, {"device_recorded": False, "workers": 2}])
def test_without_a_device_operator_self_time_takes_its_place(
    config: dict[str, object], tmp_path: Path
) -> None:
    truth = generate(3, **config)
    trace = tracekit.read(write(truth, tmp_path / "t.json"))
    result = kernels(select(trace, window="trace"))
    # The check of compiled code's conditions computes nothing.
    ops = [s for s in truth.spans if s.kind == "op" and s.name != "TorchDynamo Cache Lookup"]
    by_thread: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for op in ops:
        by_thread.setdefault((op.process, op.thread), []).append((op.start_ns, op.end_ns))
    assert result.total_ns == sum(oracle.measure(spans) for spans in by_thread.values())
    counts = {row["name"]: row["count"] for row in result.by_name.iter_rows(named=True)}
    for name, count in counts.items():
        assert count <= sum(op.name == name for op in ops)
