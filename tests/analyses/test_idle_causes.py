"""The causes of idle time against what was planted, against a naive split, and on odd input."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import PUBLIC, SAMPLES
from real_traces import scope_of, traces
from synthetic import INCIDENTS, Planted, generate, write

import tracekit
from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.host_stack import host_stack
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.idle import idle
from tracekit.analyses.idle.causes import IdleCauses, idle_causes
from tracekit.analyses.idle.host_code import timeline
from tracekit.analyses.scope import Scope, select
from tracekit.facts.idle_names import CAUSES
from tracekit.trace import Trace

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two devices": {"devices": 2},
    "three devices": {"devices": 3, "layers": 9},
    "amd": {"vendor": "amd"},
    "amd, two devices": {"vendor": "amd", "devices": 2, "communication": False},
    "no steps": {"steps": 0, "layers": 6},
    "no graph": {"custom_communication": True, "graph": False},
    "one stream, whole µs": {"side_stream": False, "zero_kernels": True, "tick_ns": 1000},
    "stacks": {"python_stacks": True},
    "no sync rows": {"sync_rows": False},
    "workers": {"workers": 2},
    "inference": {"backward": False, "optimizer": False},
}
SEEDS = range(3)
RIGHT_GAPS = 0.95
"""The least part of the gaps whose split is right to the ns."""
RIGHT_TIME = 0.05
"""The most by which the time of a cause may differ, where it is a hundredth of the idle time or more."""


def by_gap(truth: Planted, trace: Trace, result: IdleCauses) -> dict[tuple[int, int], dict[str, int]]:
    """(device, start) of each gap → ns by cause."""
    starts = result.pieces.group_by("gap_id").agg(pl.col("start").min(), pl.col("device_id").first())
    keys = {gap: (device, start + trace.meta.origin_ns) for gap, start, device in starts.rows()}
    found: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    rows = result.pieces.group_by("gap_id", "cause").agg(pl.col("duration_ns").sum())
    for gap, cause, ns in rows.rows():
        found[keys[gap]][cause] = ns
    assert set(found) == {(gap.device, gap.start_ns) for gap in truth.gaps}
    return found


def split_of(gap: Any) -> dict[str, int]:
    known = gap.split or {"not_captured": gap.end_ns - gap.start_ns}
    return {cause: ns for cause, ns in known.items() if ns}


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.sampled(4)
def test_planted_gaps_get_the_planted_causes(name: str, tmp_path: Path) -> None:
    right = total = 0
    planted: Counter[str] = Counter()
    got: Counter[str] = Counter()
    for seed in SEEDS:
        truth = generate(seed, **CONFIGS[name])
        trace = tracekit.read(write(truth, tmp_path / "t.json"))
        scope = select(trace, window="trace")
        found = by_gap(truth, trace, idle_causes(scope))
        conserved(scope)
        for gap in truth.gaps:
            mine, wanted = found[gap.device, gap.start_ns], split_of(gap)
            right += mine == wanted
            total += 1
            planted.update(wanted)
            got.update(mine)
    assert right >= RIGHT_GAPS * total, (right, total)
    for cause, ns in planted.items():
        if ns >= 0.01 * planted.total():
            assert got[cause] == pytest.approx(ns, rel=RIGHT_TIME), cause
    # What the host did is exact; only what a device waited for has to be guessed.
    host = [cause for cause in CAUSES[:10] if cause not in ("launch_api", "synchronisation")]
    assert {cause: got[cause] for cause in host} == {cause: planted[cause] for cause in host}


@pytest.mark.quick(2)
@pytest.mark.parametrize("incident", INCIDENTS)
def test_every_incident_shows_as_its_cause(incident: str, tmp_path: Path) -> None:
    truth = generate(7, incidents=(incident,), orphans=0, lost_launches=0)
    trace = tracekit.read(write(truth, tmp_path / "t.json"))
    result = idle_causes(select(trace, window="trace"))
    ends = {i.ended_by for i in truth.incidents if i.cause == incident}
    gaps = [gap for gap in truth.gaps if gap.ended_by in ends]
    assert gaps
    found = by_gap(truth, trace, result)
    for gap in gaps:
        assert found[gap.device, gap.start_ns] == split_of(gap)
        assert found[gap.device, gap.start_ns].get(incident, 0) > 0


def conserved(scope: Scope) -> IdleCauses:
    """Asserts that pieces cut the idle time of each device without overlap."""
    result = idle_causes(scope)
    pieces = result.pieces
    assert (
        pieces.null_count().select("device_id", "gap_id", "start", "duration_ns", "cause", "phase").row(0)
        == (0,) * 6
    )
    assert (pieces["duration_ns"] > 0).all()
    for device, ns in breakdown(scope).devices.select("device_id", "idle_ns").rows():
        mine = pieces.filter(pl.col("device_id") == device).sort("start")
        assert mine["duration_ns"].sum() == ns
        ends = mine["start"] + mine["duration_ns"]
        assert (mine["start"][1:] >= ends[:-1]).all()
    for table in (result.by_cause, result.by_layer, result.by_operator, result.by_frame):
        assert table is None or table["total_ns"].sum() == result.idle_ns
    return result


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
def test_conservation_on_real_traces(path: Path) -> None:
    for window in ("steps", "trace"):
        conserved(scope_of(path, window))


@pytest.mark.slow
def test_a_real_run_without_workers_waits_for_data() -> None:
    path = next((p for p in PUBLIC if p.name.startswith("v100_resnet50_2021_workers0")), None)
    if path is None:
        pytest.skip("public traces are absent")
    result = idle(tracekit.read(path))
    assert result.by_cause["cause"][0] == "data_loading"
    assert result.by_cause["total_ns"][0] > 0.7 * result.device_idle_ns
    assert result.answer.startswith("The device was idle for 462 ms: data loading 76")


# -- against a naive split -------------------------------------------------------------------------


def naive_innermost(spans: list[tuple[int, int, int, int]], thread: int, time: int) -> int:
    """The span (start, end, thread, number) that started last of those open at a time; −1 for none."""
    open_ = [
        (start, -end, number) for start, end, on, number in spans if on == thread and start <= time < end
    ]
    return max(open_, key=lambda s: (s[0], s[1], s[2]))[2] if open_ else -1


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_time_goes_to_the_innermost_span_as_counted_ns_by_ns(seed: int) -> None:
    rng = random.Random(seed)
    rows = []
    for _ in range(rng.randint(1, 25)):
        start = rng.randint(0, 60)
        rows.append((start, start + rng.choice([0, 0, 1, 3, 9, 30, 60]), rng.randint(1, 3)))
    trace = planted_trace(rows)
    stack = host_stack(trace)
    spans = [
        (row["start"], row["start"] + row["duration"], row["thread_id"], row["span_id"])
        for row in trace.host.iter_rows(named=True)
    ]
    codes = {row["thread_id"]: int(stack.thread[row["span_id"]]) for row in trace.host.iter_rows(named=True)}
    threads = rng.choices(sorted(codes), k=8)
    starts = np.array([rng.randint(-5, 100) for _ in threads])
    ends = starts + np.array([rng.randint(0, 40) for _ in threads])
    coded = np.array([codes[thread] for thread in threads])
    pieces = timeline(stack.nesting, coded).split(coded, starts, ends)
    got: dict[tuple[int, int], int] = {}
    for interval, low, high, span in zip(pieces.interval, pieces.start, pieces.end, pieces.span, strict=True):
        for time in range(low, high):
            assert (interval, time) not in got
            got[interval, time] = span
    expected = {
        (i, time): naive_innermost(spans, thread, time)
        for i, thread in enumerate(threads)
        for time in range(starts[i], ends[i])
    }
    assert got == expected


def planted_trace(rows: list[tuple[int, int, int]]) -> Trace:
    from tracekit.health import HealthLog
    from tracekit.readers.assemble import assemble, conform
    from tracekit.trace import DEVICE_SCHEMA, HOST_SCHEMA, THREAD_SCHEMA, Meta, empty

    host = pl.DataFrame(
        [
            {
                "process_id": 1,
                "thread_id": thread,
                "kind": "op",
                "name": f"aten::op{number}",
                "start": start,
                "duration": end - start,
            }
            for number, (start, end, thread) in enumerate(rows)
        ]
    )
    log = HealthLog()
    made = assemble([conform(host, HOST_SCHEMA), empty(DEVICE_SCHEMA)], log)
    return Trace(Meta("x.json", "kineto"), made.host, made.device, empty(THREAD_SCHEMA), log.frame())


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_conservation_however_the_trace_was_made(
    seed: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    changes = {
        "steps": data.draw(st.integers(0, 2)),
        "devices": data.draw(st.integers(1, 3)),
        "host_recorded": data.draw(st.booleans()),
        "sync_rows": data.draw(st.booleans()),
        "zero_kernels": data.draw(st.booleans()),
        "python_stacks": data.draw(st.booleans()),
        "vendor": data.draw(st.sampled_from(["nvidia", "amd"])),
        "tick_ns": data.draw(st.sampled_from([1, 1000])),
    }
    folder = tmp_path_factory.mktemp("t")
    trace = tracekit.read(write(generate(seed, layers=2, **changes), folder / "t.json"))
    for window in ("steps", "trace"):
        conserved(select(trace, window=window))


# -- odd input -------------------------------------------------------------------------------------


def test_without_a_host_nothing_is_blamed(tmp_path: Path) -> None:
    truth = generate(1, host_recorded=False)
    trace = tracekit.read(write(truth, tmp_path / "t.json"))
    result = conserved(select(trace, window="trace"))
    assert set(result.by_cause["cause"]) == {"not_captured"}
    assert result.not_captured is not None
    assert "ProfilerActivity.CPU" in str(result.not_captured)
    assert result.pieces["span_id"].null_count() == result.pieces.height


def test_a_trace_of_nothing_has_no_idle_time(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": []}')
    result = idle_causes(tracekit.read(path))
    assert (result.idle_ns, result.pieces.height, result.by_cause.height) == (0, 0, 0)
    assert idle(tracekit.read(path)).device_gaps.height == 0


def test_layers_and_operators_of_pieces_are_those_of_the_spans(tmp_path: Path) -> None:
    trace = tracekit.read(write(generate(3), tmp_path / "t.json"))
    scope = select(trace)
    pieces = idle_causes(scope).pieces.filter(pl.col("span_id").is_not_null())
    model = attribution(scope).model
    late = pieces.filter(pl.col("cause") != "launch_latency")
    places = model.places(late["span_id"].to_numpy())
    assert late["layer_id"].fill_null(-1).to_list() == places.layer.tolist()
    names = trace.host["name"].cast(pl.String)
    kinds = trace.host["kind"].cast(pl.String)
    parents = trace.host["parent_id"].to_list()
    for span, op in late.select("span_id", "op_id").unique().rows():
        at = span
        while at is not None and kinds[at] != "op":
            at = parents[at]
        assert at == op, names[span]


def test_waits_for_events_were_taken_from_another_process_with_the_same_correlations(tmp_path: Path) -> None:
    truth = generate(2, steps=2)
    alone = idle_causes(tracekit.read(write(truth, tmp_path / "a.json")))
    waits = {e["args"]["correlation"] for e in truth.events if e.get("cat") == "cuda_sync"}
    waits |= {
        e["args"].get("wait_on_cuda_event_record_corr_id")
        for e in truth.events
        if e.get("cat") == "cuda_sync"
    }
    calls = [
        e for e in truth.events if e.get("cat") == "cuda_runtime" and e["args"].get("correlation") in waits
    ]
    assert calls
    first = min(e["ts"] for e in calls)
    # Another process, whose calls stand first in the file's order, counts from the same number.
    truth.events.extend({**e, "pid": 7, "tid": 7, "ts": first + i, "dur": 1} for i, e in enumerate(calls))
    both = idle_causes(tracekit.read(write(truth, tmp_path / "b.json")))
    assert alone.pieces.filter(pl.col("cause") == "dependency").height
    columns = ["device_id", "start", "duration_ns", "cause", "dependency"]
    assert both.pieces.select(columns).equals(alone.pieces.select(columns))
