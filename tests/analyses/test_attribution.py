"""Attribution against planted truth: the launch, operators, layer and phase of every activity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from paths import PUBLIC, SAMPLES
from real_traces import scope_of, traces
from synthetic import SOURCES, Shape, generate, layered, write

import tracekit
from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.scope import select
from tracekit.trace import Trace

PLAIN = [Shape(source=source) for source in SOURCES]
SHAPES = [
    *PLAIN,
    *(replace(shape, same_thread=True) for shape in PLAIN),
    *(replace(shape, checkpoint="reentrant") for shape in PLAIN),
    *(replace(shape, checkpoint="unpack") for shape in PLAIN),
    *(replace(shape, checkpoint="reentrant", same_thread=True, reduction=True) for shape in PLAIN),
    *(replace(shape, checkpoint="unpack", same_thread=True) for shape in PLAIN),
    *(replace(shape, engine_spans=False) for shape in PLAIN),
    *(replace(shape, reduction=True, flows=False) for shape in PLAIN),
    *(replace(shape, checkpoint="reentrant", flows=False) for shape in PLAIN),
    *(replace(shape, second_thread=True) for shape in PLAIN),
    *(replace(shape, numbers=False) for shape in PLAIN),
]


def name_of(shape: Shape) -> str:
    changed = [f"{key}={value}" for key, value in shape.__dict__.items() if value != getattr(Shape(), key)]
    return "-".join(changed) or "plain"


@pytest.mark.slow
@pytest.mark.quick(3)
@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
@pytest.mark.sampled(8)
def test_every_layer_phase_and_recomputation_is_the_planted_one(shape: Shape, tmp_path: Path) -> None:
    truth = layered(0, shape)
    trace = tracekit.read(write(truth.planted, tmp_path / "t.json"))
    scope = select(trace, window="trace")
    rows = attributed(scope).join(attribution(scope).layers, on="layer_id", how="left")
    found = {
        (row["stream_id"], row["start"] + trace.meta.origin_ns): row for row in rows.iter_rows(named=True)
    }
    assert len(found) == len(truth.planted.activities)
    wrong = []
    for activity, place in zip(truth.planted.activities, truth.places, strict=True):
        row = found[activity.stream, activity.start_ns]
        got = row["path"], row["phase"], row["recomputed"]
        if got != (place.layer, place.phase, place.recomputed):
            wrong.append((activity.name[:40], got, place, row["method"]))
    assert not wrong, f"{len(wrong)} of {len(found)}: {wrong[:4]}"


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_both_operators_are_the_planted_ones(seed: int, vendor: str, tmp_path: Path) -> None:
    truth = generate(seed, vendor=vendor, devices=1 + seed % 2, workers=seed % 3)
    trace = tracekit.read(write(truth, tmp_path / "t.json"))
    scope = select(trace, window="trace")
    names = pl.Series([*trace.host["name"].cast(pl.String), None])
    begins = pl.Series([*trace.host["start"], None])
    rows = attributed(scope)
    found = {
        (r["device_id"], r["stream_id"], r["start"] + trace.meta.origin_ns): r for r in rows.rows(named=True)
    }
    spans = truth.spans
    checked = 0
    for activity in truth.activities:
        row = found[activity.device, activity.stream, activity.start_ns]
        if activity.launch is None:
            continue
        for column, planted in (("op_id", activity.op), ("outer_op_id", activity.outer_op)):
            if planted is None:
                assert row[column] is None, (activity.name, column)
                continue
            got = names[row[column]], begins[row[column]] + trace.meta.origin_ns
            assert got == (spans[planted].name, spans[planted].start_ns), (activity.name, column)
            checked += 1
    assert checked > 50


def read(path: Path) -> tuple[Trace, pl.DataFrame]:
    trace = tracekit.read(path)
    return trace, attributed(select(trace, window="trace"))


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
def test_every_activity_has_one_place_and_they_sum_to_the_device_time(path: Path) -> None:
    for scope in (scope_of(path), scope_of(path, "trace")):
        found = attribution(scope)
        assert found.activities.height == scope.activities.height
        assert found.activities["activity_id"].to_list() == scope.activities["activity_id"].to_list()
        assert int(found.coverage["duration_ns"].sum()) == int(scope.activities["duration"].sum())
        placed = found.activities.filter(pl.col("method") != "unattributed")
        assert placed["layer_id"].null_count() == 0
        lost = found.activities.filter(pl.col("method") == "unattributed")
        assert lost["layer_id"].null_count() == lost.height


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_captures_are_attributed_to_more_than_99_per_cent(path: Path) -> None:
    _, rows = read(path)
    work = rows.filter(pl.col("phase").is_in(["forward", "backward", "optimizer"]))
    lost = work.filter(pl.col("method") == "unattributed")
    assert int(lost["duration"].sum()) * 100 <= int(work["duration"].sum())
    # Not by giving everything to the root or to a phase: layers proper hold the forward and the backward pass.
    found = attribution(tracekit.read(path)).layers
    proper = found.filter((pl.col("source") == "capture") & (pl.col("path") != "<root>"))
    both = work.filter(pl.col("phase").is_in(["forward", "backward"]))
    held = both.filter(pl.col("layer_id").is_in(proper["layer_id"].implode()))
    assert int(held["duration"].sum()) * 2 >= int(both["duration"].sum())


@pytest.mark.parametrize("name", ["h100_bert_small", "h100_timesformer"])
def test_where_the_profile_has_modules_launched_kernels_have_an_operator_and_a_layer(name: str) -> None:
    path = next((p for p in PUBLIC if p.name == f"{name}.json.gz"), None)
    if path is None:
        pytest.skip("the public traces are not here")
    trace, rows = read(path)
    launched = rows.filter(pl.col("launch_id").is_not_null())
    assert launched.height
    assert launched["op_id"].null_count() == 0
    modules = trace.host.filter(pl.col("kind") == "module")
    begin, end = modules["start"].min(), (modules["start"] + modules["duration"]).max()
    called = launched.join(
        trace.host.select(pl.col("span_id").alias("launch_id"), pl.col("start").alias("called")),
        on="launch_id",
    )
    within = called.filter((pl.col("called") >= begin) & (pl.col("called") < end))
    assert within.height >= 50
    assert set(within["method"].cast(pl.String)) == {"module"}


def test_what_the_profile_lacks_is_named_with_the_flag_that_records_it(tmp_path: Path) -> None:
    shape = Shape(source="range", numbers=False)
    trace = tracekit.read(write(layered(0, shape).planted, tmp_path / "a.json"))
    assert any("sequence numbers" in one for one in attribution(trace).missing)
    bare = generate(1, host_recorded=False, communication=False)
    trace = tracekit.read(write(bare, tmp_path / "b.json"))
    found = attribution(trace)
    assert any("ProfilerActivity.CPU" in one for one in found.missing)
    assert set(found.activities["method"].cast(pl.String)) == {"unattributed"}
    assert found.coverage_share == 0


def test_a_trace_in_which_nothing_ran_has_no_coverage(tmp_path: Path) -> None:
    empty = generate(1, host_recorded=False, device_recorded=False)
    found = attribution(tracekit.read(write(empty, tmp_path / "t.json")))
    assert found.coverage_share is None
    assert found.activities.height == 0
