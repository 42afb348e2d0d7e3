"""Graphs of planted programs: the path is as long as the window, and predictions are what the program does when it runs again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from graph.programs import (
    COLLECTIVES,
    KERNELS,
    LAUNCH,
    WAIT,
    Command,
    Run,
    Speeds,
    of_two_ranks,
    random_program,
    simulate,
    simulate_job,
    write,
)

import tracekit
from tracekit.analyses.critical_path import critical_path
from tracekit.analyses.graph.build import dependencies
from tracekit.analyses.graph.joint import joint_graph
from tracekit.analyses.graph.parts import parts_of
from tracekit.analyses.scope import Scope, select
from tracekit.analyses.what_if import CudaGraph, FasterHost, NoLoaderWait, Remove, RemoveSync, Scale, what_if
from tracekit.errors import UsageError

SEEDS = range(7)


@pytest.mark.slow
@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.sampled(4)
def test_a_prediction_is_what_the_program_does_when_it_runs_again(
    seed: int, streams: int, tmp_path: Path
) -> None:
    program = random_program(seed, streams)
    run = simulate(program)
    scope = select(tracekit.read(write(run, tmp_path / "t.json")))
    assert scope.duration == run.window
    made = dependencies(scope)
    assert (made.replayed == made.graph.time).all()
    assert critical_path(scope).length_ns == run.window
    assert what_if(scope, [Scale("category:*", 1.0)]).after_ns == run.window
    for name in KERNELS:
        if any(one.name == name and one.what == "launch" for one in program):
            for factor in (0.0, 0.5, 2.0):
                again = simulate(program, Speeds({name: factor}))
                assert what_if(scope, [Scale(f"kernel:{name}", factor)]).after_ns == again.window, (
                    name,
                    factor,
                )
            if name != KERNELS[0]:  # each stream keeps a kernel
                left = [one for one in program if one.what != "launch" or one.name != name]
                more = what_if(scope, [Remove(f"kernel:{name}")]).after_ns - simulate(left).window
                # What streams wait for lies after a kernel that is gone, with the gap between the two.
                assert 0 <= more <= (2 * LAUNCH if streams > 1 else 0), name
    again = simulate(program, Speeds(host=0.5))
    assert what_if(scope, [FasterHost(2)]).after_ns == again.window
    again = simulate(program, Speeds(waits=False))
    assert what_if(scope, [RemoveSync()]).after_ns == again.window


@pytest.mark.slow
@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rooted", [False, True])
@pytest.mark.sampled(4)
def test_two_ranks_are_one_graph_and_a_faster_one_is_foretold(
    seed: int, rooted: bool, tmp_path: Path
) -> None:
    programs = of_two_ranks(random_program(seed), seed, rooted=rooted)
    normal = [Speeds(), Speeds()]
    runs = simulate_job(programs, normal)
    scopes = [
        select(tracekit.read(write(run, tmp_path / f"rank{rank}.json", rank, ahead=5_000_000 * rank)))
        for rank, run in enumerate(runs)
    ]
    window = whole(runs)
    joint = joint_graph(scopes)
    assert (joint.replayed == joint.graph.time).all()
    assert joint.alike == sum(one.what in ("reduce", "meet") for one in programs[0])
    parts = parts_of(joint)
    assert joint.window == window == critical_path(scopes).length_ns == parts["duration_ns"].sum()
    ends = parts["start"] + parts["duration_ns"]
    assert (parts["start"][1:] == ends[:-1]).all()
    assert what_if(scopes, [Scale("category:*", 1.0)]).after_ns == window
    for rank in (0, 1):
        changed = [*normal]
        changed[rank] = Speeds(dict.fromkeys(KERNELS, 0.5), 0.5)
        faster = whole(simulate_job(programs, changed))
        assert what_if(scopes, [Scale(f"rank:{rank}", 0.5)]).after_ns == faster, rank
    halved = [
        [replace(one, ns=one.ns // 2) if one.what in ("reduce", "meet") else one for one in each]
        for each in programs
    ]
    assert what_if(scopes, [Scale("category:communication", 0.5)]).after_ns == whole(
        simulate_job(halved, normal)
    )


@pytest.mark.slow
@pytest.mark.quick(1)
def test_a_path_goes_to_the_slow_rank_and_back(tmp_path: Path) -> None:
    def rank(first: int, second: int) -> list[Command]:
        kernels = [Command("launch", ns * 1000, 7, name=KERNELS[0]) for ns in (first, second, 20)]
        reduce = [
            Command("wait", stream=COLLECTIVES, other=7),
            Command("reduce", 10_000, COLLECTIVES),
            Command("wait", stream=7, other=COLLECTIVES),
        ]
        return [Command("step"), kernels[0], *reduce, kernels[1], *reduce, kernels[2], Command("step")]

    runs = simulate_job([rank(100, 900), rank(400, 300)], [Speeds(), Speeds()])
    traces = [tracekit.read(write(run, tmp_path / f"rank{rank}.json", rank)) for rank, run in enumerate(runs)]
    result = critical_path(traces)
    parts = parts_of(joint_graph([select(trace) for trace in traces]))
    ran = parts.filter(resource="device").select("rank", "category", "duration_ns").rows()
    assert ran == [
        (1, "gemm", 400_000),
        (0, "communication", 10_000),
        (0, "gemm", 900_000),
        (0, "communication", 10_000),
        (0, "gemm", 20_000),
    ]
    assert result.by_rank is not None
    assert result.by_rank["handovers"].to_list() == [1, 0]
    assert result.by_rank["waited_ns"].to_list() == [300_000, 600_000]
    assert result.length_ns == whole(runs)
    # Rank 0 may take so much longer up to the first collective, rank 1 up to the second.
    joint = joint_graph([select(trace) for trace in traces])
    slack = [joint.slack[joint.where[rank]] for rank in (0, 1)]
    activity = [joint.members[rank].activity >= 0 for rank in (0, 1)]
    assert [one[there][:2].tolist() for one, there in zip(slack, activity, strict=True)] == [
        [300_000, 0],
        [0, 600_000],
    ]


def side_stream(steps: int) -> list[Command]:
    """Steps in which a copy on another stream waits for a product, and the next product for the copy."""
    step = [
        Command("step"),
        Command("launch", 400_000, 7, name=KERNELS[0]),
        Command("wait", stream=13, other=7),
        Command("launch", 600_000, 13, name=KERNELS[1]),
        Command("wait", stream=7, other=13),
        Command("launch", 300_000, 7, name=KERNELS[0]),
        Command("sync", stream=7),
    ]
    return step * steps


@pytest.mark.parametrize("kept", ["nameless", "calls", "none"])
def test_waits_of_streams_whose_records_name_no_stream_were_lost(kept: str, tmp_path: Path) -> None:
    """From CUDA 12.9 on, PyTorch's profiler may write −1 for the stream that a wait was for (pytorch/kineto#1552). And by time, without records, only the first
    activity of a stream was ever found to wait."""
    program = side_stream(4)
    run = simulate(program)
    if kept != "nameless":
        run.events = [event for event in run.events if event["cat"] != "cuda_sync"]
    if kept == "none":
        run.events = [event for event in run.events if "Event" not in event["name"]]
    for event in run.events:
        if event["name"] == "Stream Wait Event":
            event["args"] |= {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}
    scope = select(tracekit.read(write(run, tmp_path / "t.json")))
    result = critical_path(scope)
    assert result.device_ns == 4 * 1_300_000
    assert result.replay_error < 0.01
    assert dependencies(scope).count("inferred_wait") == 8
    # Without records of synchronisations, what follows the last wait of a step rests on a time as well.
    assert result.inferred_ns == 4 * (400_000 + 600_000 + 2 * 1_200 + (kept != "nameless") * 305_000)
    assert ("8 waits of streams" in (result.not_captured or "")) == (kept == "nameless")
    again = simulate(program, Speeds({KERNELS[1]: 0.5}))
    assert what_if(scope, [Scale(f"kernel:{KERNELS[1]}", 0.5)]).after_ns == again.window


def test_a_library_that_forks_into_several_streams_at_once(tmp_path: Path) -> None:
    """The call that made a stream wait is not the last one before its launch, and its kernel begins late beside others."""
    fork = [Command("wait", stream=lane, other=7) for lane in (30, 31)]
    step = [
        Command("step"),
        Command("launch", 2_000_000, 7, name=KERNELS[0]),
        *fork,
        Command("launch", 100_000, 7, name=KERNELS[1]),
        Command("launch", 50_000, 30, name=KERNELS[1]),
        Command("launch", 90_000, 31, name=KERNELS[1]),
        Command("wait", stream=7, other=31),
        Command("launch", 500_000, 7, name=KERNELS[0]),
        Command("sync", stream=7),
    ]
    run = simulate(step * 2)
    run.events = [event for event in run.events if event["cat"] != "cuda_sync"]
    for event in run.events:
        if event["cat"] == "kernel" and event["tid"] in (30, 31):
            event["ts"] += 25  # the device was full
            event["dur"] -= 25
    scope = select(tracekit.read(write(run, tmp_path / "t.json")))
    made = dependencies(scope)
    lines, between = made.lines, made.between
    pairs = {
        (int(lines.stream[lines.line[a]]), int(lines.stream[lines.line[b]]))
        for a, b in zip(between.source, between.target, strict=True)
    }
    assert {(7, 30), (7, 31)} <= pairs
    unknown = critical_path(scope).by_cause.filter(cause="unexplained")["total_ns"].sum()
    assert unknown == 0


def test_a_graph_replaces_the_code_between_waits_and_leaves_the_rest(tmp_path: Path) -> None:
    launches = [Command("launch", 2000, name=KERNELS[0]), Command("work", 40_000)] * 2
    step = [
        Command("step"),
        Command("work", 30_000),
        *launches,
        Command("launch", 2000, name=KERNELS[0]),
        Command("sync"),
        Command("work", 50_000),
    ]
    scope = select(tracekit.read(write(simulate(step * 3), tmp_path / "t.json")))
    result = what_if(scope, [CudaGraph()])
    kernels = LAUNCH + 3 * 2000 + 2 * 1000  # no kernels were queued, so their gaps are taken to be 1 µs
    assert result.after_ns == 3 * (30_000 + 10_000 + kernels + WAIT + 50_000)
    assert "become 1 graph, which holds 100.0 %" in result.assumptions["assumption"][1]


@pytest.mark.parametrize(("order", "saved_ns"), [("AAB", 36_000), ("ABA", 0), ("BAA", 30_000)])
def test_graphs_of_some_work_end_where_other_work_is_launched(
    order: str, saved_ns: int, tmp_path: Path
) -> None:
    names = {"A": KERNELS[0], "B": KERNELS[1]}
    launches = [
        each
        for kind in order
        for each in (Command("work", 40_000), Command("launch", 2000, name=names[kind]))
    ]
    step = [Command("step"), *launches, Command("sync"), Command("work", 50_000)]
    scope = select(tracekit.read(write(simulate(step * 3), tmp_path / "t.json")))
    result = what_if(scope, [CudaGraph(f"kernel:{names['A']}")])
    # Two calls of 3 µs and the 40 µs between them become one call of 10 µs; a graph of one launch is not worth it. At the end of a step the
    # first kernel and the gap after it come on top, and so does the call, since the host waits for the second kernel.
    assert result.before_ns - result.after_ns == 3 * saved_ns


def test_a_graph_of_some_work_ends_where_another_thread_launches(tmp_path: Path) -> None:
    """A graph of what the main thread launches before and after the backward pass held the code of that time."""
    first, other = (Command("launch", 2000, name=name) for name in KERNELS[:2])
    work, turn = Command("work", 40_000), Command("turn")
    step = [Command("step"), work, first, work, turn, other, work, turn, first, Command("sync"), work]
    scope = select(tracekit.read(write(simulate(step * 3), tmp_path / "t.json")))
    result = what_if(scope, [CudaGraph(f"kernel:{KERNELS[0]}")])
    assert result.after_ns == result.before_ns  # no graph of one launch is worth it
    assert what_if(scope, [CudaGraph()]).after_ns < result.before_ns


@pytest.mark.parametrize("pinned", [False, True])
def test_a_graph_held_copies_that_the_host_waits_for(pinned: bool, tmp_path: Path) -> None:
    """Of 138 ms in which the device waited for pageable copies and Python, CUDA graphs would have saved 127 ms."""
    events: list[dict[str, object]] = []

    def add(cat: str, name: str, ts: float, dur: float, correlation: int = 0, stream: int = 0) -> None:
        args = {"correlation": correlation, "device": 0, "stream": stream} if stream else {}
        args = args or ({"correlation": correlation} if correlation else {})
        event = {"ph": "X", "pid": 0 if stream else 1, "tid": stream or 1, "cat": cat, "name": name}
        events.append(event | {"ts": ts, "dur": dur, "args": args})

    at = 0.0
    for number in range(3):
        begin = at
        for _ in range(20):
            call = len(events) + 1
            add("cpu_op", "aten::to", at, 60)
            add("cuda_runtime", "cudaMemcpyAsync", at + 20, 30 if not pinned else 3, call)
            memory = "Pinned" if pinned else "Pageable"
            add("gpu_memcpy", f"Memcpy HtoD ({memory} -> Device)", at + 27, 1, call, 7)
            if not pinned:
                add("cuda_runtime", "cudaStreamSynchronize", at + 51, 5, call + 1)
            at += 100  # the rest is Python
        add("user_annotation", f"ProfilerStep#{number}", begin, at - begin)
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    scope = select(tracekit.read(tmp_path / "t.json"))
    result = what_if(scope, [CudaGraph()])
    assert result.before_ns > 5_900_000
    if pinned:
        assert result.after_ns < 0.1 * result.before_ns
    else:
        assert result.after_ns == result.before_ns
        assert "copies of pageable memory" in result.assumptions["assumption"][1]


def helped(folder: Path, *, launches: bool) -> Scope:
    """Steps of ten operators of 50 µs with a launch each; a second thread polls once a step, and may launch a kernel."""
    events: list[dict[str, object]] = []

    def add(cat: str, name: str, ts: float, dur: float, thread: int, call: int = 0) -> None:
        where = {"device": 0, "stream": 7} if cat == "kernel" else {}
        args = {"correlation": call, **where} if call else {}
        event = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}
        events.append(event | {"pid": 0 if cat == "kernel" else 1, "tid": 7 if cat == "kernel" else thread})

    for number in range(3):
        begin = 1_000 * number
        add("user_annotation", f"ProfilerStep#{number}", begin, 1_000, 1)
        for at in range(begin + 100, begin + 700, 60):
            call = len(events) + 1
            add("cpu_op", "aten::linear", at, 50, 1)
            add("cuda_runtime", "cudaLaunchKernel", at + 20, 10, 1, call)
            add("kernel", "gemm", at + 25, 10, 7, call)
        add("cuda_runtime", "cudaEventQuery", begin + 330, 3, 2, len(events) + 1)
        if launches:
            call = len(events) + 1
            add("cuda_runtime", "cudaLaunchKernel", begin + 705, 5, 2, call)
            add("kernel", "gemm", begin + 712, 10, 7, call)
    (folder / "t.json").write_text(json.dumps({"traceEvents": events}))
    return select(tracekit.read(folder / "t.json"))


@pytest.mark.parametrize("change", [CudaGraph(), Remove("op:aten::linear"), Scale("cause:python", 0)])
def test_what_a_seldom_busy_thread_waited_for_was_taken_for_code_of_its_own(
    change: CudaGraph | Remove | Scale, tmp_path: Path
) -> None:
    """It launched one kernel a step, and no change of the main thread made the step shorter than 887 µs."""
    alone, both = (what_if(helped(tmp_path, launches=launches), [change]) for launches in (False, True))
    assert alone.before_ns == both.before_ns == 3_000_000
    assert alone.after_ns <= both.after_ns <= alone.after_ns + 3 * 20_000


def test_calls_that_a_change_adds_are_launch_calls_of_the_path(tmp_path: Path) -> None:
    """They were spread over all that was left of the path."""
    result = what_if(helped(tmp_path, launches=False), [CudaGraph()])
    assert result.after_ns == 3 * 420_000
    left = dict(result.critical.filter(pl.col("after_ns") > 0).select("part", "after_ns").rows())
    assert left == {"python": 3 * 410_000, "launch_api": 3 * 10_000}


def test_a_path_without_launches_does_not_claim_that_the_host_takes_all_of_it(tmp_path: Path) -> None:
    events = [
        {
            "ph": "X",
            "pid": pid,
            "tid": tid,
            "cat": cat,
            "name": name,
            "ts": 1_000 * number,
            "dur": dur,
            "args": args,
        }
        for number in range(3)
        for pid, tid, cat, name, dur, args in (
            (1, 1, "user_annotation", f"ProfilerStep#{number}", 1_000, {}),
            (0, 7, "kernel", "gemm", 800, {"device": 0, "stream": 7}),
        )
    ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    scope = select(tracekit.read(tmp_path / "t.json"))
    assert "No launches are known, so the path does not show" in critical_path(scope).answer
    assert "No launches are known" in what_if(scope, [Scale("kernel:gemm", 0.5)]).assumptions["assumption"][0]


def test_graphs_hold_what_the_host_no_longer_waits_in(tmp_path: Path) -> None:
    launch = [Command("launch", 2000, name=KERNELS[0]), Command("work", 40_000)] * 2
    step = [Command("step"), *launch, Command("sync"), *launch]
    scope = select(tracekit.read(write(simulate(step * 3), tmp_path / "t.json")))
    both = [what_if(scope, changes) for changes in ([RemoveSync(), CudaGraph()], [CudaGraph(), RemoveSync()])]
    assert "become 1 graph, which holds 100.0 %" in " ".join(both[0].assumptions["assumption"])
    assert both[0].after_ns == both[1].after_ns < what_if(scope, [CudaGraph()]).after_ns


def test_a_wait_stayed_when_the_code_that_waited_was_removed(tmp_path: Path) -> None:
    """Without the reads of a value the host runs ahead: only the device's 1 ms a step is left of 1.5 ms."""
    events: list[dict[str, object]] = []
    for number in range(4):
        at, call = 1_520.0 * number, 2 * number + 1
        rows = [
            ("user_annotation", f"ProfilerStep#{number}", at, 1_519, 1, {}),
            ("cuda_runtime", "cudaLaunchKernel", at + 1, 3, 1, {"correlation": call}),
            ("kernel", "gemm", at + 8, 1_000, 7, {"correlation": call, "device": 0, "stream": 7}),
            ("cpu_op", "aten::item", at + 6, 1_009, 1, {}),
            ("cuda_runtime", "cudaStreamSynchronize", at + 8, 1_005, 1, {"correlation": call + 1}),
        ]
        events += [
            {"ph": "X", "pid": 0 if cat == "kernel" else 1, "tid": tid, "cat": cat, "name": name, "ts": ts}
            | {"dur": dur, "args": args}
            for cat, name, ts, dur, tid, args in rows
        ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    scope = select(tracekit.read(tmp_path / "t.json"))
    result = what_if(scope, [Remove("op:aten::item")])
    assert abs(result.after_ns - 4 * 1_001_000) < 20_000
    assert abs(result.after_ns - what_if(scope, [RemoveSync()]).after_ns) < 20_000


def test_the_device_began_before_it_was_done_with_earlier_work(tmp_path: Path) -> None:
    """Without the wait for data the first kernels of the window ran in the time of the step before it: the step was too short by that."""
    events: list[dict[str, object]] = []
    for number in range(5):
        at, call = 10_000.0 * number, number + 1
        rows = [
            ("user_annotation", f"ProfilerStep#{number}", at, 9_990, 1, {}),
            ("user_annotation", "enumerate(DataLoader)#_Next", at + 10, 8_000, 1, {}),
            ("cuda_runtime", "cudaLaunchKernel", at + 9_000, 5, 1, {"correlation": call}),
            ("kernel", "gemm", at + 9_010, 5_000, 7, {"correlation": call, "device": 0, "stream": 7}),
        ]
        events += [
            {"ph": "X", "pid": 0 if cat == "kernel" else 1, "tid": tid, "cat": cat, "name": name, "ts": ts}
            | {"dur": dur, "args": args}
            for cat, name, ts, dur, tid, args in rows
            if number or cat != "user_annotation"
        ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    scope = select(tracekit.read(tmp_path / "t.json"))
    assert scope.start > int(scope.steps["start"][0])
    assert what_if(scope, [NoLoaderWait()]).after_ns >= 4 * 5_000_000


@pytest.mark.parametrize("told", [True, False])
def test_others_wait_for_a_root_only_if_the_trace_tells_it(told: bool, tmp_path: Path) -> None:
    def rank(ns: int) -> list[Command]:
        kernel = Command("launch", ns * 1000, 7, name=KERNELS[0])
        meets = [
            Command("meet", 10_000, COLLECTIVES, other, name)
            for other, name in ((0, "all_reduce"), (1, "broadcast"))
        ]
        waits = Command("wait", stream=COLLECTIVES, other=7)
        return [Command("step"), meets[0], kernel, waits, meets[1], Command("step")]

    runs = simulate_job([rank(100), rank(400)], [Speeds(), Speeds()])
    for run in runs:
        for event in run.events:
            if not told:
                event["args"].pop("Concrete Inputs", None)
    traces = [tracekit.read(write(run, tmp_path / f"rank{rank}.json", rank)) for rank, run in enumerate(runs)]
    result = critical_path(traces)
    assert result.by_rank is not None
    assert result.by_rank["waited_ns"].to_list() == ([300_000, 0] if told else [0, 0])
    assert ("in 1 call of communication" in (result.not_captured or "")) != told


def whole(runs: list[Run]) -> int:
    return max(run.end for run in runs) - min(run.steps[0] for run in runs)


def test_a_clock_that_contradicts_all_launches_gave_the_host_half_of_its_waits_back(tmp_path: Path) -> None:
    run = simulate(random_program(3, 1))
    for event in run.events:
        if event["cat"] == "kernel":
            event["ts"] -= 50_000
    scope = select(tracekit.read(write(run, tmp_path / "t.json")), window="trace")
    with pytest.raises(UsageError, match="no launch agrees with the clock of the device"):
        what_if(scope, [FasterHost(2)])
