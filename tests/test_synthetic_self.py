"""The synthetic traces say the truth: planted facts, the written file and the brute-force oracle agree."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from synthetic import (
    INCIDENTS,
    STYLES,
    Activity,
    HostSpan,
    Planted,
    derive,
    dump,
    dump_with_ends,
    file_events,
    generate,
    oracle,
    parse,
    write,
)
from synthetic.write import microseconds

CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "two_devices": {"devices": 2, "layers": 6},
    "no_steps": {"steps": 0},
    "one_step": {"steps": 1, "orphans": 0, "lost_launches": 0},
    "inference": {"backward": False, "optimizer": False, "steps": 4},
    "amd": {"vendor": "amd", "devices": 2},
    "whole_us": {"tick_ns": 1000},
    "stacks_and_workers": {"python_stacks": True, "workers": 2, "zero_kernels": True},
    "device_bound": {"kernel_ns": (80_000, 400_000), "dispatch_ns": (0, 500), "incidents": ()},
    "bare": {
        "incidents": (),
        "communication": False,
        "side_stream": False,
        "graph": False,
        "triton": False,
        "flows": False,
        "sync_rows": False,
        "memory_events": False,
        "counters": False,
        "gpu_annotations": False,
        "warmup_ops": 0,
    },
}


@pytest.fixture(params=CONFIGS)
def planted(request: pytest.FixtureRequest) -> Planted:
    return generate(len(request.param), **CONFIGS[request.param])


def facts(activity: Activity) -> dict[str, Any]:
    """What naive reading of a file can find out about an activity."""
    hidden = ("index", "category", "graph_node", "bound", "args")
    return {key: getattr(activity, key) for key in Activity.__dataclass_fields__ if key not in hidden}


def span_facts(span: HostSpan) -> dict[str, Any]:
    return {key: getattr(span, key) for key in HostSpan.__dataclass_fields__ if key not in ("cause", "args")}


def runs_only_the_engine(planted: Planted) -> bool:
    own = [s for s in planted.spans if (s.process, s.thread) == planted.backward_thread and s.parent is None]
    return all("autograd::engine" in s.name or "AccumulateGrad" in s.name for s in own)


# -- the generator ----------------------------------------------------------------------------------


def test_same_seed_same_trace() -> None:
    assert generate(7) == generate(7) == generate(random.Random(7))
    assert generate(7).events != generate(8).events


@pytest.mark.quick(1)
def test_the_file_alone_gives_the_planted_facts(planted: Planted) -> None:
    derived = derive(dump(planted, "compact"))
    assert [span_facts(s) for s in derived.spans] == [span_facts(s) for s in planted.spans]
    assert derived.steps == planted.steps
    found = {(a.correlation, a.start_ns, a.stream): facts(a) for a in derived.activities}
    truth = {(a.correlation, a.start_ns, a.stream): facts(a) for a in planted.activities}
    assert len(truth) == len(planted.activities)
    assert found == truth


def test_streams_run_in_order_and_nothing_starts_before_its_launch(planted: Planted) -> None:
    for key in {(a.device, a.stream) for a in planted.activities}:
        own = [a for a in planted.activities if (a.device, a.stream) == key]
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(own))
    for a in planted.activities:
        assert a.launch_start_ns is None or a.launch_start_ns < a.start_ns
        assert a.dur_ns >= 0


def test_times_are_on_the_clock_grid(planted: Planted) -> None:
    tick = planted.config.tick_ns
    assert all(event[key] % tick == 0 for event in planted.events for key in ("ts", "dur") if key in event)


@pytest.mark.quick(4)
def test_gaps_are_the_oracles_and_every_ns_has_a_reason(planted: Planted) -> None:
    for device in {a.device for a in planted.activities}:
        own = [gap for gap in planted.gaps if gap.device == device]
        expected = oracle.idle_gaps(planted.activities, device, planted.window)
        assert [(gap.start_ns, gap.end_ns, gap.ended_by) for gap in own] == expected
        assert (
            sum(e - s for s, e, _ in expected)
            == oracle.breakdown(planted.activities, planted.window, device).idle
        )
    for gap in planted.gaps:
        if gap.cause is None:
            continue
        assert sum(gap.split.values()) == gap.end_ns - gap.start_ns
        if gap.cause != "host":
            assert set(gap.split) <= {gap.cause, "launch_api", "launch_latency"}
            continue
        if gap.ended_by is None:
            continue
        by = planted.activities[gap.ended_by]
        assert by.launch_start_ns is not None
        assert by.launch_thread is not None
        asked = (gap.start_ns, by.launch_start_ns)
        engine = by.launch_thread == planted.backward_thread and runs_only_the_engine(planted)
        caller = planted.main_thread if engine else None
        assert gap.by_span == oracle.host_time_in(planted.spans, by.launch_thread, asked, caller)


def test_breakdown_is_conserved_in_both_windows(planted: Planted) -> None:
    windows = [oracle.trace_window(planted.activities)]
    if planted.steps:
        windows.append(oracle.steps_window(planted.activities))
        windows.append(oracle.steps_window(planted.activities, [planted.steps[0].number]))
    for window in windows:
        for device in {a.device for a in planted.activities}:
            b = oracle.breakdown(planted.activities, window, device)
            assert b.compute + b.exposed_communication + b.exposed_memory + b.idle == b.window
            assert b.window == window[1] - window[0]
            assert b.busy + b.idle == b.window
            assert b.overlap == b.communication - b.exposed_communication


@pytest.mark.slow
def test_every_incident_comes_out_as_planted() -> None:
    for seed in range(6):
        planted = generate(seed)
        assert Counter(i.cause for i in planted.incidents) == Counter(dict.fromkeys(INCIDENTS, 3))
        for incident in planted.incidents:
            (gap,) = [g for g in planted.gaps if g.ended_by == incident.ended_by]
            if incident.cause in ("unexplained", "dependency"):
                assert gap.cause == incident.cause
            else:
                assert max(gap.split, key=lambda cause: gap.split[cause]) == incident.cause


def test_what_the_configuration_asks_for_is_there() -> None:
    planted = generate(3)
    names = Counter(event.get("cat") for event in planted.events)
    for category in (
        "cuda_sync",
        "gpu_user_annotation",
        "ac2g",
        "fwdbwd",
        "counter",
        "cpu_instant_event",
        "overhead",
    ):
        assert names[category], category
    assert sum(a.launch is None for a in planted.activities) == 5
    per_launch = Counter(a.launch for a in planted.activities if a.launch is not None)
    assert max(per_launch.values()) == 8, "one graph launch, many kernels"
    assert any("stream" in s.args for s in planted.spans if s.kind == "op"), "Triton rows carry a stream"
    assert any(a.launch_thread == planted.backward_thread for a in planted.activities)
    assert any(a.step is None and a.launch is not None for a in planted.activities), (
        "launched before the steps"
    )
    assert len(planted.collectives) == 3
    overlap = oracle.breakdown(planted.activities, planted.window).overlap
    assert 0 < overlap < oracle.breakdown(planted.activities, planted.window).communication
    assert {a.cls for a in planted.activities} == {"compute", "communication", "memory"}


def test_traces_without_a_host_or_without_a_device() -> None:
    device_only = generate(1, host_recorded=False)
    assert not device_only.spans
    assert not device_only.steps
    assert all(a.launch is None and a.step is None for a in device_only.activities)
    assert derive(dump(device_only)).activities
    host_only = generate(1, device_recorded=False)
    assert not host_only.activities
    assert host_only.window == (0, 0)
    assert {s.kind for s in host_only.spans} == {"step", "annotation", "op", "overhead"}
    assert [span_facts(s) for s in derive(dump(host_only)).spans] == [span_facts(s) for s in host_only.spans]


def test_custom_collectives_do_not_say_nccl() -> None:
    planted = generate(2, custom_communication=True)
    kernels = [a.name for a in planted.activities if a.cls == "communication"]
    assert kernels
    assert not any("nccl" in name for name in kernels)


def test_memory_events_add_up() -> None:
    planted = generate(4)
    total, held = 0, {}
    for event in planted.memory:
        total += event.bytes
        assert event.allocated == total
        if event.bytes < 0:
            assert held.pop(event.address) == -event.bytes
        else:
            held[event.address] = event.bytes
    assert sum(held.values()) == total


# -- the writers ------------------------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.sampled(8)
def test_a_written_file_parses_back_exactly(tmp_path: Path, style: str, suffix: str) -> None:
    planted = generate(5, tick_ns=1000 if style == "year2021" else 1)
    path = write(planted, tmp_path / f"trace{suffix}", style)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == (suffix == ".json.gz")
    events, header = parse(path.read_bytes())
    base = 0 if STYLES[style].clock == "base" else planted.config.base_ns
    expected = [{**event, "ts": event["ts"] + base} for event in file_events(planted, style)]
    if STYLES[style].strings:
        for event in expected:
            event.update({key: str(event[key]) for key in ("pid", "tid") if key in event})
            args = event.get("args", {})
            args = {key: str(v) if key in ("stream", "External id") else v for key, v in args.items()}
            event.update({"args": args} if args else {})
    assert json.loads(json.dumps(events, default=float)) == json.loads(json.dumps(expected))
    assert ("baseTimeNanoseconds" in header) == (base == 0 and not STYLES[style].array)
    assert bool(header) != STYLES[style].array


@pytest.mark.quick(1)
@pytest.mark.parametrize("style", [name for name in STYLES if name != "strings"])
@pytest.mark.sampled(4)
def test_every_style_keeps_the_facts(style: str) -> None:
    planted = generate(6, tick_ns=1000, python_stacks=False)
    shift = 0 if STYLES[style].clock == "base" else planted.config.base_ns
    derived = derive(dump(planted, style))
    found = sorted(
        (a.correlation, a.start_ns - shift, a.dur_ns, a.name, a.step or -1) for a in derived.activities
    )
    assert found == sorted(
        (a.correlation, a.start_ns, a.dur_ns, a.name, a.step or -1) for a in planted.activities
    )
    assert [s.dur_ns for s in derived.steps] == [s.dur_ns for s in planted.steps]


def test_kineto_files_look_like_kineto() -> None:
    planted = generate(1)
    text = dump(planted, "kineto").decode()
    kernel = next(a for a in planted.activities if a.launch is not None)
    assert (
        f'  {{\n    "ph": "X", "cat": "kernel", "name": "{kernel.name}", "pid": 0, "tid": 7,\n'
        f'    "ts": {microseconds(kernel.start_ns)}, "dur": {microseconds(kernel.dur_ns)},\n'
        f'    "args": {{\n      "External id": {kernel.external_id}, "queued": 0, "device": 0,'
    ) in text
    flow = f'  {{\n    "ph": "s", "id": {kernel.correlation}, "pid": 4242, "tid": 4242, "ts": '
    assert flow in text
    assert text.startswith('\n{\n  "schemaVersion": 1,\n')
    assert text.endswith('  ],\n  "traceName": "/tmp/trace.json"\n}\n')


def test_microseconds_never_round() -> None:
    assert microseconds(1_735_636_563_669_603_001) == "1735636563669603.001"
    assert microseconds(-1) == "-0.001"
    assert microseconds(1000) == "1.000"


def test_whole_microseconds_refuse_to_lose_ns() -> None:
    with pytest.raises(ValueError, match="tick_ns=1000"):
        dump(generate(1), "year2021")


def test_old_files_use_the_old_names() -> None:
    planted = generate(1, tick_ns=1000)
    events, _ = parse(dump(planted, "year2021"))
    categories = {event["cat"] for event in events if event["ph"] == "X"}
    assert categories == {"Operator", "Runtime", "Kernel", "Memcpy", "Memset", "Trace"}
    kernels = [event for event in events if event.get("cat") == "Kernel"]
    assert all(event["tid"] == f"stream {event['args']['stream']}" for event in kernels)
    assert all("External id" not in event["args"] for event in kernels)
    assert {event["name"] for event in events if event.get("cat") == "async"} == {"launch"}


def test_event_ends_point_behind_each_event() -> None:
    planted = generate(1, steps=1)
    for style in ("kineto", "compact", "indent2", "array"):
        data, ends = dump_with_ends(planted, style)
        assert len(ends) == len(planted.events)
        assert all(data[end - 1 : end] == b"}" and data[end : end + 1] in b",\n]" for end in ends)


# -- the oracle on planted traces --------------------------------------------------------------------


def test_tables_cover_everything(planted: Planted) -> None:
    table = oracle.kernel_table(planted.activities)
    kernels = [a for a in planted.activities if a.kind == "kernel"]
    assert sum(row["count"] for row in table.values()) == len(kernels)
    assert sum(row["total"] for row in table.values()) == sum(a.dur_ns for a in kernels)
    copies = oracle.memcpy_table(planted.activities)
    assert sum(row["bytes"] for row in copies.values()) == sum(a.bytes or 0 for a in planted.activities)
    assert sum(oracle.step_times(planted.steps).values()) == (
        planted.steps[-1].end_ns - planted.steps[0].start_ns if planted.steps else 0
    )


def test_launches_and_queues(planted: Planted) -> None:
    delays = oracle.launch_delays(planted.activities)
    assert all(delay > 0 and 0 <= queue <= delay for delay, queue in delays.values())
    summary = oracle.launch_summary(planted.activities)
    assert summary["linked"] == len(delays)
    assert summary["linked"] + summary["unlinked"] == len(planted.activities)
    for device, stream in {(a.device, a.stream) for a in planted.activities}:
        series = oracle.queue_depth(planted.activities, device, stream)
        assert all(depth >= 0 for _, depth in series)
        assert not series or series[-1][1] == 0
