"""The Kineto reader on planted traces in every formatting, and on the public traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest
from paths import PUBLIC, SAMPLES
from synthetic import STYLES, Planted, derive, dump, generate, write

import tracekit
from tracekit.readers.kineto import native as _native
from tracekit.readers.kineto import pool as _pool
from tracekit.readers.kineto import source as _source
from tracekit.trace import Trace


def planted(style: str = "kineto", **changes: object) -> Planted:
    if STYLES[style].old:
        changes = {"tick_ns": 1000, **changes}
    return generate(seed=7, **changes)


def read(tmp_path: Path, truth: Planted, style: str = "kineto", name: str = "t.json") -> Trace:
    return tracekit.read(write(truth, tmp_path / name, style))


def device_rows(trace: Trace) -> list[tuple[object, ...]]:
    origin = trace.meta.origin_ns
    rows = trace.device.select(
        "device_id",
        "stream_id",
        (pl.col("start") + origin),
        "duration",
        pl.col("name").cast(pl.String),
        "correlation",
    )
    return sorted(rows.rows(), key=repr)


@pytest.mark.quick(3)
@pytest.mark.parametrize("style", STYLES)
def test_every_formatting_gives_the_planted_times_to_the_ns(style: str, tmp_path: Path) -> None:
    truth = planted(style)
    trace = read(tmp_path, truth, style)
    offset = truth.config.base_ns if STYLES[style].clock != "base" else 0
    expected = [
        (a.device, a.stream, a.start_ns + offset, a.dur_ns, a.name, a.correlation) for a in truth.activities
    ]
    assert device_rows(trace) == sorted(expected, key=repr)


@pytest.mark.quick(1)
@pytest.mark.parametrize("style", ["kineto", "compact", "year2021", "strings"])
def test_parents_depths_launches_and_operators_are_the_planted_ones(style: str, tmp_path: Path) -> None:
    truth = planted(style)
    path = write(truth, tmp_path / "t.json", style)
    trace, naive = tracekit.read(path), derive(path)
    origin = trace.meta.origin_ns
    host = trace.host
    key = {(s.process, s.thread, s.start_ns - origin, s.dur_ns, s.name): s for s in naive.spans}
    names = host["name"].cast(pl.String).to_list()
    rows = list(
        zip(host["process_id"], host["thread_id"], host["start"], host["duration"], names, strict=True)
    )
    assert len(rows) == len(naive.spans)
    for row, parent, depth in zip(rows, host["parent_id"], host["depth"], strict=True):
        span = key[row]
        assert depth == span.depth
        up = None if span.parent is None else naive.spans[span.parent]
        assert (None if parent is None else names[parent]) == (None if up is None else up.name)
    by_activity = {(a.device, a.stream, a.start_ns - origin, a.name): a for a in naive.activities}
    for row in trace.device.with_columns(pl.col("name").cast(pl.String)).iter_rows(named=True):
        activity = by_activity[row["device_id"], row["stream_id"], row["start"], row["name"]]
        launch = None if activity.launch is None else naive.spans[activity.launch]
        assert (None if row["launch_id"] is None else host["start"][row["launch_id"]] + origin) == (
            None if launch is None else launch.start_ns
        )


def test_categories_are_the_planted_ones(tmp_path: Path) -> None:
    truth = generate(seed=3, devices=2, custom_communication=True)
    trace = read(tmp_path, truth)
    planted_rows = {(a.device, a.stream, a.start_ns): (a.category, a.cls) for a in truth.activities}
    wrong = []
    for row in trace.device.iter_rows(named=True):
        category, cls = planted_rows[row["device_id"], row["stream_id"], row["start"] + trace.meta.origin_ns]
        got = row["category"]
        if (cls == "communication") != (got == "communication") or (cls == "memory") != (
            got in ("memcpy", "memset")
        ):
            wrong.append((row["name"], got, cls))
        elif cls == "compute" and got != category:
            wrong.append((row["name"], got, category))
    assert not wrong


def test_gz_and_plain_are_equal(tmp_path: Path) -> None:
    truth = planted()
    assert read(tmp_path, truth).equals(read(tmp_path, truth, name="u.json.gz"))


def test_several_gzip_members_and_padding_are_one_stream(tmp_path: Path) -> None:
    data = dump(planted())
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(data[:1000]) + gzip.compress(data[1000:]) + b"\0" * 100)
    assert tracekit.read(path).equals(read(tmp_path, planted()))


@pytest.mark.quick(1)
@pytest.mark.parametrize("block", [1000, 64, 4096])
@pytest.mark.parametrize("style", ["kineto", "compact", "indent2", "shuffled", "trailing", "array"])
@pytest.mark.sampled(4)
def test_small_blocks_change_nothing(
    block: int, style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = generate(seed=1, steps=1, layers=1)
    whole = read(tmp_path, truth, style)
    monkeypatch.setattr(_source, "BLOCK_BYTES", block)
    assert read(tmp_path, truth, style).equals(whole)


def beside_each_other(monkeypatch: pytest.MonkeyPatch, *, natively: bool) -> None:
    """Blocks are decoded in threads if the native decoder is there and wanted, else in helper processes."""
    if not natively:
        monkeypatch.setattr(_native, "decoder", None)
    monkeypatch.setattr(_pool, "_HELPERS_WORTH_BYTES", 1)
    monkeypatch.setattr(_pool, "_THREADS_WORTH_BYTES", 1)
    monkeypatch.setattr(_pool.pl, "thread_pool_size", lambda: 2)


NATIVELY = pytest.mark.parametrize("natively", [True, pytest.param(False, marks=pytest.mark.slow)])


@NATIVELY
def test_helpers_change_nothing(natively: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = generate(seed=2, steps=4, layers=8)
    monkeypatch.setattr(_source, "BLOCK_BYTES", 20_000)
    alone = read(tmp_path, truth)
    beside_each_other(monkeypatch, natively=natively)
    assert read(tmp_path, truth).equals(alone)


@pytest.mark.slow
@NATIVELY
def test_a_damaged_block_in_a_helper_is_read_by_the_caller(
    natively: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = generate(seed=2, steps=4, layers=8)
    data = dump(truth).replace(b'"aten::mm"', b'"aten::"mm" x"', 1)
    path = tmp_path / "t.json"
    path.write_bytes(data)
    monkeypatch.setattr(_source, "BLOCK_BYTES", 20_000)
    alone = tracekit.read(path)
    beside_each_other(monkeypatch, natively=natively)
    spread = tracekit.read(path)
    assert spread.equals(alone)
    assert spread.health.filter(pl.col("kind") == "unescaped_quote")["count"].to_list() == [1]


def test_one_graph_launch_has_many_kernels_and_rows_do_not_multiply(tmp_path: Path) -> None:
    truth = generate(seed=5)
    trace = read(tmp_path, truth)
    assert trace.device.height == len(truth.activities)
    counts = trace.device.group_by("launch_id").len().drop_nulls()
    assert counts["len"].max() > 1


def test_calls_and_activities_that_only_have_an_external_id_in_common_are_linked(tmp_path: Path) -> None:
    """Files that other tools write for a few kernels: no correlation ids, and operators without a number."""
    truth = planted()
    document = json.loads(dump(truth, "kineto"))
    for event in document["traceEvents"]:
        args = event.get("args", {})
        args.pop("External id", None)
        if "correlation" in args:
            args["External id"] = args.pop("correlation")
    path = tmp_path / "other.json"
    path.write_text(json.dumps(document))
    links = ["start", "duration", "launch_id"]
    assert tracekit.read(path).device[links].equals(read(tmp_path, truth).device[links])


def test_stacks_of_operators_are_read_and_told(tmp_path: Path) -> None:
    stacks = ["a.py(1): f;b.py(2): g", "a.py(1): f;b.py(2): g", None, "", 5]
    events = [
        {"ph": "X", "cat": "Operator", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10 * at, "dur": 1}
        | {"args": {} if stack is None else {"Call stack": stack}}
        for at, stack in enumerate(stacks)
    ]
    for kept in (events, events[2:4]):
        (tmp_path / "t.json").write_text(json.dumps({"traceEvents": kept}))
        trace = tracekit.read(tmp_path / "t.json")
        read_ = trace.host["call_stack"].cast(pl.String).to_list()
        expected = [str(stack) if stack else None for stack in stacks]
        assert read_ == (expected if kept is events else [None, None])
        assert ("stacks" in trace.meta.captured) == (kept is events)


def test_a_stream_argument_does_not_make_an_operator_device_work(tmp_path: Path) -> None:
    trace = read(tmp_path, generate(seed=5, triton=True))
    assert trace.host.filter(pl.col("name").cast(pl.String).str.starts_with("triton_")).height > 0
    assert set(trace.device["kind"].cast(pl.String)) == {"kernel", "memcpy", "memset"}


def test_lost_launches_and_orphans_stay_device_time(tmp_path: Path) -> None:
    truth = generate(seed=5, orphans=4, lost_launches=3)
    trace = read(tmp_path, truth)
    unlinked = sum(a.launch is None for a in truth.activities)
    assert unlinked >= 7
    row = trace.health.filter(pl.col("kind") == "unlinked_activity")
    assert row["count"].to_list() == [unlinked]
    assert int(trace.device["duration"].sum()) == sum(a.dur_ns for a in truth.activities)


def test_two_processes_with_equal_thread_ids_do_not_mix(tmp_path: Path) -> None:
    truth = generate(seed=5, workers=2)
    trace = read(tmp_path, truth)
    assert trace.host["process_id"].n_unique() == 3
    parent = trace.host.select("span_id", "process_id")
    joined = trace.host.join(parent, left_on="parent_id", right_on="span_id", suffix="_of_parent")
    assert (joined["process_id"] == joined["process_id_of_parent"]).all()


@pytest.mark.parametrize(
    ("name", "rank"),
    [("rank-3.json", 3), ("worker5_x.json", 5), ("17.5-TP-2.trace.json", 2), ("trace.json", None)],
)
def test_rank_from_the_name_and_unknown_is_not_zero(name: str, rank: int | None, tmp_path: Path) -> None:
    trace = read(tmp_path, generate(seed=1, rank=None, steps=1), name=name)
    assert trace.meta.rank == rank
    assert ("unknown_rank" in trace.health["kind"].to_list()) == (rank is None)


def test_what_was_not_recorded_is_null_not_zero(tmp_path: Path) -> None:
    trace = read(
        tmp_path, generate(seed=1, memory_events=False, counters=False, sync_rows=False, flows=False)
    )
    assert trace.memory is None
    assert trace.counters is None
    assert trace.syncs is None
    assert trace.flows is None
    amd = read(tmp_path, generate(seed=1, vendor="amd"), name="a.json")
    assert amd.device["occupancy"].null_count() == amd.device.height
    assert "occupancy" not in amd.meta.captured


def test_kinds_of_which_no_row_has_a_time_were_not_captured(tmp_path: Path) -> None:
    events = json.loads(dump(generate(seed=1), "kineto"))
    for event in events["traceEvents"]:
        if event["ph"] in ("C", "i") or event.get("cat") == "cuda_sync":
            event.pop("ts")
    (tmp_path / "t.json").write_text(json.dumps(events))
    trace = tracekit.read(tmp_path / "t.json")
    assert (trace.memory, trace.counters, trace.syncs) == (None, None, None)
    assert not {"memory", "counters", "sync"} & set(trace.meta.captured)
    assert trace.health.filter(kind="record_without_time")["example"].item() in (
        "syncs row",
        "counters row",
        "memory row",
    )


def test_arrows_that_repeat_launches_are_counted_as_such(tmp_path: Path) -> None:
    kinds = read(tmp_path, generate(seed=1)).health["kind"].to_list()
    assert "derived:flow" in kinds
    assert not any("None" in kind for kind in kinds)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "changes", [{"host_recorded": False}, {"device_recorded": False}, {"steps": 0}, {"steps": 1}]
)
def test_half_traces_are_read(changes: dict[str, object], tmp_path: Path) -> None:
    truth = generate(seed=1, **changes)
    trace = read(tmp_path, truth)
    assert trace.device.height == (len(truth.activities) if truth.config.device_recorded else 0)
    assert (trace.host.height > 0) == truth.config.host_recorded


def test_memory_counters_and_flows_are_the_planted_ones(tmp_path: Path) -> None:
    truth = generate(seed=4)
    trace = read(tmp_path, truth)
    origin = trace.meta.origin_ns
    assert trace.memory is not None
    assert trace.counters is not None
    got = [
        (row["start"] + origin, row["device_id"], row["bytes"], row["allocated"])
        for row in trace.memory.iter_rows(named=True)
    ]
    assert got == sorted((m.time_ns, m.device, m.bytes, m.allocated) for m in truth.memory) or sorted(
        got
    ) == sorted((m.time_ns, m.device, m.bytes, m.allocated) for m in truth.memory)
    values = [(r["start"] + origin, r["value"]) for r in trace.counters.iter_rows(named=True)]
    assert sorted(values) == sorted((time, float(value)) for _, _, time, value in truth.counters)
    assert trace.flows is not None
    assert trace.flows.height > 0


SIZED = [
    pytest.param(path, marks=pytest.mark.slow) if path.stat().st_size > 100_000 else path
    for path in PUBLIC
    if path.stat().st_size < 800_000
]


@pytest.mark.quick(6)
@pytest.mark.skipif(not PUBLIC, reason="the public traces are not beside this checkout")
@pytest.mark.parametrize("path", SIZED, ids=lambda p: p.name)
def test_public_traces_event_for_event(path: Path) -> None:
    naive, trace = derive(path, host=False), tracekit.read(path)
    assert trace.meta.event_count == len(naive.events)
    origin = trace.meta.origin_ns
    got = sorted(
        (d, s, t + origin, n)
        for d, s, t, n in trace.device.select("device_id", "stream_id", "start", "duration").rows()
    )
    assert got == sorted((a.device, a.stream, a.start_ns, a.dur_ns) for a in naive.activities)
    host = [
        e
        for e in naive.events
        if e["ph"] == "X" and e.get("cat") in ("cpu_op", "Operator", "user_annotation")
    ]
    kinds = trace.host["kind"].cast(pl.String)
    assert int(kinds.is_in(["op", "annotation", "step"]).sum()) == len(host)


@pytest.mark.quick(3)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.parent.name)
def test_samples_have_layers_and_a_healthy_file(path: Path) -> None:
    trace = tracekit.read(path)
    assert {"layers", "shapes", "memory", "steps", "ops"} <= trace.meta.captured
    assert trace.meta.layers is not None
    assert trace.health.filter(pl.col("severity") != "info").height == 0
    layers = trace.host.filter(pl.col("kind") == "module")
    assert layers["layer"].null_count() == 0
    assert layers.height > 0


def test_a_span_that_the_profiler_found_open_ends_with_the_last_other_span(tmp_path: Path) -> None:
    """PyTorch ends it when it stops, as much as seconds after the last step; where exactly is rounded to a nanosecond."""
    spans = [("ProfilerStep#1", 1, 100, 50), ("aten::add", 1, 120, 20), ("gloo:all_reduce", 2, 130, 870.001), ("late", 2, 160, 840)]  # fmt: skip
    events = [
        {"ph": "X", "cat": "cpu_op" if "::" in name else "user_annotation", "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur}
        for name, tid, ts, dur in spans
    ]  # fmt: skip
    stop = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 1000}
    for name, ends in (("open.json", [stop]), ("ended.json", [])):
        path = tmp_path / name
        path.write_text(json.dumps({"traceEvents": [*events, *ends]}))
        trace = tracekit.read(path, cache=False)
        durations = dict(trace.host.select(pl.col("name").cast(pl.String), "duration").rows())
        health = dict(trace.health[["kind", "count"]].rows())
        assert durations["ProfilerStep#1"] == 50_000
        assert (durations["gloo:all_reduce"], durations["late"]) == (
            (20_000, 0) if ends else (870_001, 840_000)
        )
        assert health.get("unended_span", 0) == (2 if ends else 0)
        assert "unread_instant" not in health
