"""Graphs of real traces: replays, paths and predictions on everything that is at hand."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paths import PUBLIC, PUBLIC_NSYS, ROOT, SAMPLES
from real_traces import scope_of, traces
from synthetic import generate, write

import tracekit
from tracekit.analyses.critical_path import critical_path
from tracekit.analyses.graph.build import dependencies
from tracekit.analyses.graph.joint import alone, joint_graph
from tracekit.analyses.graph.parts import parts_of
from tracekit.analyses.scope import Scope, select
from tracekit.analyses.what_if import (
    Bandwidth,
    Change,
    CudaGraph,
    FasterHost,
    Fuse,
    NoLoaderWait,
    OtherDevice,
    OverlapCommunication,
    Remove,
    RemoveSync,
    Scale,
    ShardOptimizer,
    predicted,
    what_if,
)
from tracekit.analyses.what_if.replay import _window
from tracekit.errors import UsageError
from tracekit.facts.units import format_ns
from tracekit.report.build import build_report

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two devices": {"devices": 2},
    "amd": {"vendor": "amd", "devices": 2, "communication": False},
    "no steps": {"steps": 0, "layers": 6},
    "one stream, whole µs": {"side_stream": False, "zero_kernels": True, "tick_ns": 1000},
    "stacks": {"python_stacks": True},
    "no sync rows": {"sync_rows": False},
    "workers": {"workers": 2},
    "inference": {"backward": False, "optimizer": False},
}
MOST_ERROR = 0.033
"""The mean error that Lumos has; here no step may have more."""
FASTER: tuple[Change, ...] = (
    Scale("category:*", 0.5),
    Scale("category:gemm", 0.1),
    Remove("category:*"),
    FasterHost(2),
    RemoveSync(),
    NoLoaderWait(),
    CudaGraph(),
    CudaGraph("kernel:*e*"),
    OverlapCommunication(),
    ShardOptimizer(8),
    Bandwidth(2),
)


def checked(scope: Scope, *, most_error: float = MOST_ERROR) -> None:
    """Asserts what holds for the graph of every trace."""
    made = dependencies(scope)
    graph, path = made.graph, parts_of(alone(made))
    assert (made.replayed == graph.time).all()
    assert path["duration_ns"].sum() == scope.duration
    assert path.null_count().select("start", "duration_ns", "resource", "cause").row(0) == (0, 0, 0, 0)
    ends = path["start"] + path["duration_ns"]
    assert (path["start"][1:] == ends[:-1]).all()
    assert (alone(made).slack[graph.path(graph.weights, made.replayed).target] == 0).all()
    usual = graph.replay(made.usual)
    assert abs(int(usual[-1]) - made.end) <= most_error * max(scope.duration, 1)
    if made.steps.size > 1:
        recorded, replayed = np.diff(graph.time[made.steps]), np.diff(usual[made.steps])
        assert (np.abs(replayed - recorded) <= most_error * recorded).all()


@pytest.mark.quick(2)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
def test_replays_are_exact_and_paths_as_long_as_the_window(path: Path) -> None:
    for window in ("steps", "trace"):
        checked(scope_of(path, window))


@pytest.mark.slow
@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in PUBLIC_NSYS])
def test_exports_of_nsight_systems_as_well(path: Path) -> None:
    for trace in tracekit.read_all(path):
        checked(select(trace))


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
def test_what_if_says_the_same_of_the_recorded_path(path: Path) -> None:
    scope = scope_of(path)
    if not scope.activities.height:
        return
    of_path = critical_path(scope).by_cause.filter(resource="host").select("cause", "total_ns")
    before = what_if(scope, [FasterHost(1)]).critical.filter(resource="host").select("part", "before_ns")
    said = dict(before.filter(before["before_ns"] > 0).rows())
    for cause, ns in of_path.rows():
        assert abs(said.get(cause, 0) - ns) <= 1, cause


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
@pytest.mark.sampled(4)
def test_less_work_never_takes_longer_and_no_change_changes_nothing(path: Path) -> None:
    scope = scope_of(path)
    assert predicted(scope, []) == scope.duration
    for change in FASTER:
        try:
            result = what_if(scope, [change])
        except UsageError:  # the trace has nothing of the kind
            continue
        assert 0 <= result.low_ns <= result.after_ns <= result.high_ns
        assert result.after_ns <= scope.duration, change.label
        for table in (result.critical, *([] if result.layers is None else [result.layers])):
            assert (table["before_ns"].sum(), table["after_ns"].sum()) == (result.before_ns, result.after_ns)
    both: list[Change] = [Scale("category:*", 0.5), FasterHost(2)]
    if not scope.on_cpu and scope.activities.height:
        assert predicted(scope, both) <= min(predicted(scope, [one]) for one in both)


def test_a_verdict_says_what_a_replay_gains() -> None:
    scope = scope_of(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz")
    first = build_report(scope.trace, scope=scope).verdict.advice[0]
    assert first.finding == "optimizer_not_fused"
    assert first.gain_ns == scope.duration - predicted(scope, [Fuse()])
    assert first.saves == f"saves about {format_ns(first.gain_ns)}"


def test_a_fused_optimizer_keeps_what_one_pass_takes() -> None:
    scope = scope_of(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz")
    result = what_if(scope, [Fuse()])
    assert result.low_ns < result.after_ns < min(result.high_ns, result.before_ns)
    assert result.critical.filter(part="optimizer")["after_ns"].sum() > 0


@pytest.mark.parametrize("other", [FasterHost(2), ShardOptimizer(4), Remove("category:optimizer")])
def test_a_fused_optimizer_gains_the_same_before_and_after_another_change(other: Change) -> None:
    scope = scope_of(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz")
    assert abs(predicted(scope, [Fuse(), other]) - predicted(scope, [other, Fuse()])) <= 2
    if other == FasterHost(2):
        assert abs(2 * predicted(scope, [Fuse(), other]) - predicted(scope, [Fuse()])) <= 1000


def test_a_fused_optimizer_lost_the_code_that_collects_parameters(tmp_path: Path) -> None:
    """An optimizer with foreach=True collects its parameters as a fused one does: that part of its code stays."""
    events: list[dict[str, Any]] = []
    for number in range(3):
        at, call = 2_100 * number, 10 * number + 1
        rows: list[tuple[str, str, int, int, dict[str, Any]]] = [
            ("user_annotation", f"ProfilerStep#{number}", at, 2_099, {}),
            ("user_annotation", "Optimizer.step#AdamW.step", at + 10, 2_000, {}),
        ]
        for k in range(4):
            start, args = at + 10 + 500 * k + 400, {"correlation": call + k}
            rows += [
                ("cpu_op", "aten::_foreach_add_", start, 100, {}),
                ("cuda_runtime", "cudaLaunchKernel", start + 80, 10, args),
                ("kernel", "multi_tensor_apply_kernel", start + 90, 5, args | {"device": 0, "stream": 7}),
            ]
        events += [
            {"ph": "X", "pid": 0 if cat == "kernel" else 1, "tid": 7 if cat == "kernel" else 1, "cat": cat}
            | {"name": name, "ts": ts, "dur": dur, "args": args}
            for cat, name, ts, dur, args in rows
        ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    after = predicted(select(tracekit.read(tmp_path / "t.json")), [Fuse()])
    assert 3 * 1_600_000 < after < 3 * 1_900_000


def test_a_range_was_a_single_point_although_steps_differ() -> None:
    result = what_if(scope_of(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz"), [FasterHost(2)])
    steps = result.steps
    assert steps is not None
    part = np.std(steps["before_ns"].to_numpy(), ddof=1) / np.mean(steps["before_ns"].to_numpy())
    assert result.low_ns == pytest.approx(result.after_ns * (1 - 2 * part), rel=0.01)
    assert result.high_ns == pytest.approx(result.after_ns * (1 + 2 * part), rel=0.01)
    same = what_if(scope_of(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz"), [FasterHost(1)])
    assert same.low_ns == same.after_ns == same.high_ns == same.before_ns


@pytest.mark.slow
def test_a_range_holds_the_time_of_other_steps_with_the_same_noise(tmp_path: Path) -> None:
    """Loops with a loader; the truth is a loop without it, whose steps are drawn again."""

    def loop(rng: random.Random, noise: float, *, loads: bool) -> tuple[list[dict[str, Any]], float]:
        events: list[dict[str, Any]] = []
        now = 0.0
        for number in range(4):
            begin = now
            for cat, name, mean in [("user_annotation", "enumerate(DataLoader)#_Next", 200)] * loads + [
                ("cpu_op", "aten::mm", 150)
            ] * 5:
                took = max(1.0, rng.gauss(mean, mean * noise))
                events.append(
                    {"ph": "X", "pid": 1, "tid": 1, "cat": cat, "name": name, "ts": now, "dur": took}
                )
                now += took + 1
            step = {
                "cat": "user_annotation",
                "name": f"ProfilerStep#{number}",
                "ts": begin,
                "dur": now - begin,
            }
            events.append({"ph": "X", "pid": 1, "tid": 1, **step})
        return events, now * 1000

    held = 0
    for seed in range(30):
        rng = random.Random(seed)
        noise = rng.choice([0.02, 0.1, 0.2])
        events, _ = loop(rng, noise, loads=True)
        (tmp_path / "loop.json").write_text(json.dumps({"traceEvents": events}))
        result = what_if(tracekit.read(tmp_path / "loop.json"), [NoLoaderWait()])
        held += result.low_ns <= loop(rng, noise, loads=False)[1] <= result.high_ns
    assert held >= 24


def test_a_range_of_one_step_says_that_it_does_not_know_how_steps_differ(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        {"ph": "X", "pid": 1, "tid": 1, "cat": cat, "name": name, "ts": ts, "dur": dur}
        for cat, name, ts, dur in (
            ("user_annotation", "ProfilerStep#1", 0, 1000),
            ("cpu_op", "aten::mm", 100, 400),
        )
    ]
    (tmp_path / "one.json").write_text(json.dumps({"traceEvents": events}))
    result = what_if(tracekit.read(tmp_path / "one.json"), [Scale("op:aten::mm", 0.5)])
    assert (result.before_ns, result.after_ns) == (1_000_000, 800_000)
    assert "does not have two steps" in result.assumptions["assumption"].item()


def test_on_a_slower_device_only_the_time_at_the_roof_may_change(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[512, 1024], [1024, 2048]], "Input type": ["c10::BFloat16"] * 2}
    call, kernel = ({"correlation": 1}, {"correlation": 1, "device": 0, "stream": 7})
    rows: list[tuple[str, str, int, int, int, dict[str, Any]]] = [
        ("user_annotation", "ProfilerStep#1", 0, 1000, 1, {}),
        ("cpu_op", "aten::mm", 0, 20, 1, shapes),
        ("cuda_runtime", "cudaLaunchKernel", 5, 5, 1, call),
        ("kernel", "gemm", 15, 900, 7, kernel),
        ("cuda_runtime", "cudaDeviceSynchronize", 30, 890, 1, {"correlation": 2}),
    ]
    events = [
        {"ph": "X", "pid": 0 if cat == "kernel" else 1, "tid": tid, "cat": cat, "name": name, "ts": ts}
        | {"dur": dur, "args": args}
        for cat, name, ts, dur, tid, args in rows
    ]
    device = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000}
    (tmp_path / "t.json").write_text(json.dumps({"deviceProperties": [device], "traceEvents": events}))
    scope = select(tracekit.read(tmp_path / "t.json"))
    best, likeliest, worst = (
        predicted(scope, [OtherDevice("A100 SXM 80 GB")], spread) for spread in (-1, 0, 1)
    )
    # 2 · 512 · 1024 · 2048 FLOPs: 2.170 µs at 989.5 TFLOP/s, 6.883 µs at 312
    assert best == pytest.approx(1_000_000 + 4_713, abs=3)
    assert likeliest == worst == pytest.approx(1_000_000 + 900_000 * (989.5 / 312 - 1), rel=1e-3)


def test_steps_of_unlike_work_have_no_range_from_nothing(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    at = 0
    for number, length in enumerate((60, 2400, 180)):
        for cat, name, ts, dur in (
            ("user_annotation", f"ProfilerStep#{number}", at, length),
            ("cpu_op", "aten::mm", at, length // 2),
        ):
            events.append({"ph": "X", "pid": 1, "tid": 1, "cat": cat, "name": name, "ts": ts, "dur": dur})
        at += length
    (tmp_path / "steps.json").write_text(json.dumps({"traceEvents": events}))
    result = what_if(tracekit.read(tmp_path / "steps.json"), [Scale("op:aten::mm", 0)])
    assert result.low_ns == result.after_ns == result.high_ns == 1_320_000
    assert "different work" in result.assumptions["assumption"].item()


def test_a_whole_number_is_a_factor(tmp_path: Path) -> None:
    trace = tracekit.read(write(generate(1), tmp_path / "t.json"))
    assert predicted(select(trace), [Scale("category:*", 2)]) == predicted(
        select(trace), [Scale("category:*", 2.0)]
    )


def test_a_sharded_optimizer_does_not_speak_of_an_all_reduce_that_is_not_there() -> None:
    alone = what_if(scope_of(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz"), [ShardOptimizer(4)])
    assert "no communication" in alone.assumptions["assumption"].item()
    rank = scope_of(ROOT / "sample_traces" / "bert_cpu_ddp" / "trace-rank0.json.gz")
    assert "all-reduce" in what_if(rank, [ShardOptimizer(4)]).assumptions["assumption"][0]


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        ("category:matrix multiplication", "category:gemm"),
        ("category:copies and casts", "category:copy"),
        ("cause:data loading", "cause:data_loading"),
    ],
)
def test_a_selector_takes_the_name_that_tables_show(shown: str, name: str) -> None:
    scope = scope_of(ROOT / "sample_traces" / "encoder_cpu" / "trace.json.gz")
    assert predicted(scope, [Scale(shown, 0.5)]) == predicted(scope, [Scale(name, 0.5)]) < scope.duration


def test_a_cause_of_operators_alone_is_not_offered() -> None:
    scope = scope_of(ROOT / "sample_traces" / "encoder_cpu" / "trace.json.gz")
    with pytest.raises(UsageError, match="no cause in the window matches") as error:
        predicted(scope, [Scale("cause:operator_dispatch", 0.5)])
    assert "did you mean operator_dispatch" not in str(error.value)


def test_two_times_that_read_alike_are_told_apart() -> None:
    scope = scope_of(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz")
    answer = what_if(scope, [Scale("op:aten::sum", 0.999)]).answer
    assert "less than before" in answer
    assert "instead of" not in answer


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (Scale("layer:nowhere", 0.5), "no layer in the window matches"),
        (Scale("colour:red", 0.5), "selects nothing"),
        (Remove("cause:laziness"), "there is no cause"),
        (CudaGraph(), "no device was captured"),
        (OtherDevice("H200"), "no device was captured"),
        (OtherDevice("abacus"), "the catalogue has no device"),
        (OverlapCommunication(), "no communication"),
    ],
)
def test_a_change_that_fits_nothing_is_one_line(change: Change, fault: str) -> None:
    scope = scope_of(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz")
    with pytest.raises(UsageError, match=fault) as error:
        what_if(scope, [change])
    assert "\n" not in str(error.value)


def test_the_path_of_a_processor_is_what_its_thread_does() -> None:
    scope = scope_of(ROOT / "sample_traces" / "bert_cpu" / "trace.json.gz")
    result = critical_path(scope)
    assert result.wait_ns == result.links == 0
    assert (
        result.processor_ns
        == scope.activities.filter(
            (scope.activities["start"] >= scope.start) & (scope.activities["end"] <= scope.end)
        )["duration"].sum()
    )


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.sampled(2)
def test_planted_traces_of_every_kind(name: str, tmp_path: Path) -> None:
    for seed in range(3):
        trace = tracekit.read(write(generate(seed, **CONFIGS[name]), tmp_path / "t.json"))
        for window in ("steps", "trace"):
            scope = select(trace, window=window)
            checked(scope, most_error=1.0)
            assert what_if(scope, [Scale("category:*", 0.5)]).after_ns <= scope.duration
            assert critical_path(scope).length_ns == scope.duration


@pytest.mark.slow
@settings(max_examples=20)
@example(346)
@given(st.integers(0, 2**32))
def test_damaged_traces_have_a_graph_or_none(seed: int) -> None:
    rng = random.Random(seed)
    planted = generate(rng.randint(0, 5), **CONFIGS[rng.choice(sorted(CONFIGS))])
    with tempfile.TemporaryDirectory() as folder:
        path = write(planted, Path(folder, "t.json"))
        document = json.loads(path.read_text())
        events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
        for event in rng.sample(events, min(len(events), 40)):
            event["ts"] = float(event["ts"]) + rng.choice([-50, -3, 0.001, 7, 400])
            event["dur"] = float(event["dur"]) * rng.choice([0, 0.5, 3])
        path.write_text(json.dumps(document))
        checked(select(tracekit.read(path)), most_error=1.0)


def test_a_window_whose_end_moves_before_its_beginning_is_no_negative_time() -> None:
    joint = joint_graph([scope_of(SAMPLES[0])])
    times = joint.graph.time.copy()
    times[-1] = joint.begin - 5
    steps = np.concatenate(
        [where[made.steps] for made, where in zip(joint.members, joint.where, strict=True)]
    )
    times[steps] = joint.begin - np.arange(steps.size)
    assert _window(joint, times) == 0
