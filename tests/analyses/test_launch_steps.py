"""Steps inferred from the sequence of launches: loops whose steps are known, and the look-alikes that are no steps."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from paths import PUBLIC, PUBLIC_NSYS
from planted import US
from planted_loops import ADAM, COPY, ENGINE, Loop, Network
from real_traces import scope_of, trace_of

import tracekit
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.idle import idle
from tracekit.analyses.scope import Scope, launch_times, select, step_table
from tracekit.analyses.steps import steps
from tracekit.analyses.steps_inferred.sequence import launch_sequence
from tracekit.report.build import build_report
from tracekit.report.json import render as json_
from tracekit.trace import Trace

NETWORK = Network(
    ["embedding_gather", "add"], ["gemm_a", "bias", "softmax", "gemm_b", "gelu"], ["norm", "head_gemm"], 6
)


def training(
    count: int,
    network: Network = NETWORK,
    *,
    parts: int = 1,
    optimizer: tuple[str, ...] = (ADAM, ADAM),
    made: Loop | None = None,
    recompute: bool = False,
) -> Loop:
    """Steps of `parts` forward and backward passes and one optimizer."""
    made = made or Loop()
    for _ in range(count):
        made.step_begins()
        for _ in range(parts):
            made.forward(network)
            made.launches(["loss"])
            made.backward(network, recompute=recompute)
        made.launches(list(optimizer))
    return made


def inference(count: int, network: Network = NETWORK, *, made: Loop | None = None, feed: bool = True) -> Loop:
    made = made or Loop()
    for _ in range(count):
        made.step_begins()
        if feed:
            made.feed()
        made.forward(network)
    return made


def starts(scope: Scope) -> list[int]:
    return scope.steps["start"].to_list()


def none_in(trace: Trace) -> bool:
    scope = select(trace)
    return (scope.inferred_from, scope.steps.height, scope.window) == (None, 0, "trace")


def test_a_training_loop_has_steps() -> None:
    made = training(5)
    scope = select(made.done())
    assert scope.inferred_from == "period of 71 launches in the launch sequence"
    assert scope.label == (
        "4 steps, step 0 to step 3 (inferred: a period of 71 launches in the launch sequence)"
    )
    assert starts(scope) == made.marks[:4]  # of the last one nothing tells the end
    assert scope.steps["end"].to_list() == made.marks[1:]
    assert scope.activities.height == 4 * 71
    assert scope.activities["step"].value_counts()["count"].to_list() == [71] * 4
    assert steps(scope).table["time_ns"].to_list() == np.diff(made.marks).tolist()
    made.launch("something else")
    assert starts(select(made.done())) == made.marks[:4]
    made = training(5)
    made.launches(["embedding_gather", "something", "else"])  # the next one begins
    assert starts(select(made.done())) == made.marks


def test_everybody_says_how_they_are_inferred() -> None:
    trace = training(4).done()
    result = steps(trace)
    assert result.answer.startswith(
        "The median of 3 steps (inferred: a period of 71 launches in the launch sequence) is"
    )
    assert result.not_captured is None
    assert result.inferred_from == "period of 71 launches in the launch sequence"
    report = build_report(trace)
    assert report.window.steps_inferred_from == result.inferred_from
    assert "(inferred: a period of 71 launches" in report.window.label
    assert '"steps_inferred_from": "period of 71 launches in the launch sequence"' in json_.render(report)


def test_what_is_marked_named_or_asked_for_comes_first() -> None:
    made = training(5)
    assert select(made.done(), window="trace").steps.height == 0
    for low, high in zip(made.marks[1:4], made.marks[2:5], strict=True):
        made.span("annotation", "train_step", low - US, high - 2 * US)
    assert select(made.done()).inferred_from == "train_step"
    made.span("annotation", "mine", made.marks[2] - 2 * US, made.marks[4])
    asked = select(made.done(), step="^mine$")
    assert (asked.steps["name"].to_list(), asked.inferred_from) == (["mine"], None)
    made.step(7, made.marks[1], made.marks[2])
    assert select(made.done()).steps["name"].to_list() == ["ProfilerStep#7"]


def test_nothing_is_looked_for_where_steps_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        pytest.fail("a marked trace needs no inference")

    monkeypatch.setattr("tracekit.analyses.scope.launch_steps", never)
    made = training(5)
    assert select(made.done(), window="trace").steps.height == 0
    made.step(1, made.marks[0], made.marks[4])
    assert select(made.done()).steps.height == 1


def test_layers_of_a_single_step_are_no_steps() -> None:
    """However many, and whatever each of them does beside: copy, wait, gather its weights."""
    deep = replace(NETWORK, layers=48)
    assert none_in(inference(1, deep).done())
    assert none_in(inference(2, deep).done())
    assert none_in(training(1, deep).done())
    assert none_in(training(2, deep, recompute=True).done())
    gathers = replace(deep, layer=[COPY, "ncclDevKernel_AllGather", *deep.layer])
    assert none_in(training(1, gathers, optimizer=()).done(form="nsys"))
    assert none_in(inference(2, gathers).done(form="nsys"))
    made = Loop()
    for _ in range(20):  # a part of one pass, as when recording is switched on for a moment
        made.feed()
        made.launches(deep.layer)
        made.call("cudaStreamSynchronize", made.clock, US)
        made.clock += 2 * US
    assert none_in(made.done(form="nsys"))


def test_an_optimizer_within_the_backward_pass_makes_no_steps_of_layers() -> None:
    made = Loop()
    made.forward(NETWORK)
    for _ in range(30):
        made.launches([*(f"bwd_{name}" for name in NETWORK.layer), ADAM], ENGINE)
    assert none_in(made.done())
    assert none_in(made.done(since=made.clock // 3))


def test_the_parts_of_a_step_that_accumulates_are_no_steps() -> None:
    made = training(5, parts=4)
    scope = select(made.done())
    assert scope.inferred_from == f"period of {4 * 69 + 2} launches in the launch sequence"
    assert starts(scope) == made.marks[:-1]
    assert none_in(training(2, parts=8).done())
    # An optimizer that cannot be told from other kernels: nothing says what a step is.
    assert none_in(training(5, parts=4, optimizer=("elementwise",) * 9).done())
    assert none_in(training(2, parts=8).done(until=training(1, parts=8).clock // 10 * 9))


def test_two_optimizers_for_two_networks_are_one_step() -> None:
    other = replace(NETWORK, layer=["gemm_a", "bias", "relu", "gemm_b", "relu"], layers=6)
    made, between = Loop(), []
    for _ in range(6):
        training(1, made=made)
        training(1, other, made=made)
        between.append(made.marks.pop())
    scope = select(made.done())
    assert scope.inferred_from == "period of 142 launches in the launch sequence"
    assert starts(scope) in (made.marks[:-1], between[:-1])  # either may be the first


def test_an_evaluation_after_every_second_step_makes_no_step_of_two() -> None:
    made = Loop()
    for _ in range(4):
        training(2, made=made)
        for _ in range(2):
            made.forward(NETWORK)
    assert none_in(made.done())


def test_a_warm_up_a_tail_and_what_is_done_now_and_then_are_in_no_step_of_their_own() -> None:
    made = Loop()
    made.launches([f"fill_{number % 7}" for number in range(120)])
    for number in range(12):
        training(1, made=made)
        if number % 4 == 3:
            made.launches(["log_mean", "log_copy"])
    made.clock += 500 * US
    for _ in range(3):
        made.forward(NETWORK)
    scope = select(made.done())
    assert scope.inferred_from == "period of 71 launches in the launch sequence"
    assert len(made.marks) - 1 <= scope.steps.height <= len(made.marks)
    assert set(starts(scope)) <= {
        *made.marks,
        *(at for at in starts(scope) if min(abs(at - m) for m in made.marks) < 400 * US),
    }


def test_what_lies_between_steps_counts_for_none() -> None:
    made = training(4)
    made.clock += 5_000 * US
    made.launches(["evaluate", "log"] * 20)
    training(4, made=made)
    scope = select(made.done())
    times = steps(scope).table["time_ns"]
    assert scope.steps.height in (5, 6)  # those of which nothing tells the end are none
    assert set(times.to_list()) <= {t for t in np.diff(made.marks).tolist() if t < 5_000 * US}


def test_kernels_whose_names_change_from_step_to_step() -> None:
    made = training(10, made=Loop(changed=0.04))
    scope = select(made.done())
    assert scope.steps.height >= 8
    assert (scope.steps["start"].diff().drop_nulls().cast(pl.Float64) / np.diff(made.marks).mean()).round(
        1
    ).to_list() == [1.0] * (scope.steps.height - 1)
    # Each step another length: nothing is a period.
    made = Loop()
    for layers in (1, 9, 4, 12, 2, 7, 15, 5, 3, 20):
        training(1, replace(NETWORK, layers=layers), made=made)
    assert none_in(made.done())


def test_two_threads_that_launch_side_by_side() -> None:
    """The order within a step differs from step to step; what it holds does not."""
    rng = random.Random(8)
    made = Loop()
    for _ in range(8):
        made.step_begins()
        made.forward(NETWORK)
        own, other = (
            [f"bwd_{name}" for name in NETWORK.layer * 6],
            [f"lookup_{number % 5}" for number in range(60)],
        )
        while own or other:
            engine = bool(own) and (not other or rng.random() < 0.5)
            made.launch((own if engine else other).pop(0), ENGINE if engine else 1)
        made.launches([ADAM] * 3)
    scope = select(made.done())
    assert starts(scope) == made.marks[:-1]
    # The same, twice, so that two steps together repeat to the letter: still they are two.
    double = Loop()
    for _ in range(4):
        for seed in (1, 2):
            double.step_begins()
            names = [*NETWORK.layer * 6, *NETWORK.head]
            random.Random(seed).shuffle(names)
            double.launches([*NETWORK.embed, *names])
            double.launches([f"bwd_{name}" for name in names], ENGINE)
            double.launches([ADAM] * 3)
    assert starts(select(double.done())) == double.marks[:-1]


def test_inference_is_known_by_its_input_and_its_layers() -> None:
    made = inference(6)
    scope = select(made.done())
    assert starts(scope) == made.marks[:-1]  # with the copy, not with the first kernel
    assert scope.activities["class"].to_list().count("memory") == 5
    assert none_in(inference(6, feed=False).done())
    assert none_in(inference(6, replace(NETWORK, layers=1)).done())  # may itself be a layer
    made = inference(6)
    made.launches(["argmax_of_something_else"])
    assert none_in(made.done())


@pytest.mark.parametrize("layers", [6, 1])
def test_decoding_is_known_by_the_token_that_the_host_reads(layers: int) -> None:
    """A loop that generates tokens had no steps, so no time of a token."""
    made = Loop()
    for _ in range(6):
        made.step_begins()
        made.forward(replace(NETWORK, layers=layers))
        made.read()
    if layers == 1:  # may itself be a layer that reads what it decides by
        assert none_in(made.done())
    else:
        assert starts(select(made.done())) == made.marks[:-1]


def test_inference_is_known_by_its_data_loader() -> None:
    made = Loop()
    for _ in range(5):
        made.span(
            "annotation",
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            made.clock,
            made.clock + 50 * US,
        )
        made.clock += 60 * US
        made.marks.append(made.clock)
        made.forward(replace(NETWORK, layers=1))
    scope = select(made.done())
    assert starts(scope) == made.marks[:-1]


def test_other_programs_repeat_what_they_repeat() -> None:
    made = Loop()
    for _ in range(8):
        made.step_begins()
        made.launches(["stencil", "halo"] * 10 + ["residual", "update", "swap"])
    scope = select(made.done(form="nsys"))
    assert scope.inferred_from == "period of 23 launches in the launch sequence"
    assert starts(scope) == made.marks[:-1]
    # The same in a program of PyTorch's: may be anything.
    assert none_in(made.done())


def test_a_kernel_in_a_loop_is_no_step_but_an_exact_repetition_of_several_is() -> None:
    for names in (["saxpy"], ["scale", "add"], ["a", "b", "c"], ["a", "b", "c", "d"]):
        made = Loop()
        for _ in range(200):
            made.launches(names)
        count = select(made.done(form="nsys")).steps.height
        assert count >= 199 if len(names) > 1 else count == 0


def test_a_copy_before_each_kernel_makes_it_a_step() -> None:
    made = Loop()
    for _ in range(5):
        made.feed()
        made.launches(["saxpy"])
    assert select(made.done(form="nsys")).steps.height == 5


def test_replays_of_a_graph_are_steps() -> None:
    made = Loop()
    for _ in range(10):
        made.graph(["embed", *["gemm", "norm"] * 12, "head"])
    for trace in (made.done(), made.done(form="nsys")):
        assert select(trace).steps.height == 10


def test_a_solver_that_alternates_its_sweeps_has_ten_steps() -> None:
    """Five double steps: the marks were pairs of launches, and those alternate as well."""
    made = Loop()
    for number in range(10):
        sweeps = [["flux_x", "advance_x", "reset_x"], ["flux_y", "advance_y", "reset_y"]]
        made.launches(["calc_dt"])
        for sweep in sweeps if number % 2 == 0 else sweeps[::-1]:
            made.launches(sweep)
    steps_ = select(made.done(form="nsys")).steps
    assert steps_.height in (9, 10)


def test_random_launches_are_no_steps() -> None:
    for seed in range(2):
        rng = random.Random(seed)
        made = Loop()
        made.launches([rng.choice(["stencil", "halo", "update", ADAM, "gemm"]) for _ in range(600)])
        assert none_in(made.done(form="nsys"))
        assert none_in(made.done())


def test_steps_must_hold_most_of_the_time() -> None:
    made = training(5)
    made.launch("another program", ns=5 * 71 * 20 * US + US)
    assert none_in(made.done())


def test_nothing_that_holds_two_launches_is_cut() -> None:
    """Time steps of one operator, blocks of one module, what lies in a forward pass."""
    for kind, name in (("op", "aten::lstm"), ("module", "nn.Module: Encoder_0"), ("annotation", "forward")):
        made = training(6)
        assert select(made.done()).steps.height == 5
        made.span(kind, name, 0, made.clock)
        assert none_in(made.done())
    made = training(6)
    made.span("annotation", "whatever else", 0, made.clock)
    assert select(made.done()).steps.height == 5


def test_however_deep_the_nest_what_holds_two_launches_is_seen() -> None:
    made = training(6)
    for level in range(1500):
        made.span("python", "frame", made.marks[0] - 4000 + level, made.clock + 4000 - level)
    assert select(made.done()).steps.height == 5
    made.span("op", "aten::lstm", 0, made.clock + 4000)
    assert none_in(made.done())


def test_collectives_copies_and_another_device_do_not_disturb() -> None:
    made = training(5)
    plain = select(made.done())
    rng = random.Random(6)
    for _ in range(60):
        at = rng.randrange(made.clock)
        made.activity("ncclDevKernel_AllReduce", at + 9 * US, 50 * US, launch=at, stream=20)
        made.activity(
            "Memcpy DtoH (Device -> Pinned)", at + 9 * US, US, kind="memcpy", launch=at + 3, stream=21
        )
        made.activity("gemm_elsewhere", at + 9 * US, US, launch=at + 5, device=1)
    scope = select(made.done())
    assert starts(scope) == starts(plain)
    assert scope.inferred_from == plain.inferred_from


def test_a_thread_that_launches_something_else_at_random_does_not_disturb() -> None:
    made = training(8)
    rng = random.Random(7)
    for _ in range(100):
        at = rng.randrange(made.clock)
        made.activity(f"augment_{rng.randrange(3)}", at + 9 * US, US, launch=at, stream=30)
        made.host[-1]["thread_id"] = 3
    scope = select(made.done())
    # Autograd's launches make up half of them, so neither thread alone shows a step; one stream does.
    assert scope.steps.height >= 7
    assert starts(scope) == made.marks[: scope.steps.height]


def test_launches_that_were_not_recorded_are_taken_in_order_of_time() -> None:
    made = training(5)
    made.host = []
    scope = select(made.done())
    assert scope.steps.height in (4, 5)
    assert scope.inferred_from == "period of 71 launches in the launch sequence"


def test_a_graph_is_one_launch() -> None:
    made = Loop()
    for _ in range(6):
        made.step_begins()
        made.feed()
        made.launches(["prepare"])
        correlation = 10_000 + len(made.marks)
        made.call("cudaGraphLaunch", made.clock, 5 * US, correlation=correlation)
        at = made.clock + 10 * US
        for name in [*NETWORK.embed, *NETWORK.layer * 6, *NETWORK.head]:
            row = {
                "name": name,
                "kind": "kernel",
                "start": at,
                "duration": 5 * US,
                "correlation": correlation,
            }
            made.device.append({**row, "device_id": 0, "stream_id": 7})
            at += 6 * US
        made.clock = at
        made.launches(["sample"])
    scope = select(made.done())
    assert scope.inferred_from == "period of 3 launches in the launch sequence"
    assert starts(scope) == made.marks[:-1]


def test_figures_are_of_the_complete_steps() -> None:
    made = Loop()
    made.launches([f"fill_{number % 7}" for number in range(100)])
    made.clock += 40_000 * US  # an idle stretch before the first step
    training(6, made=made)
    scope = select(made.done())
    assert scope.steps.height == 5
    whole = select(made.done(), window="trace")
    assert idle(scope).streams["idle_ns"].sum() < 40_000 * US
    assert idle(whole).streams["idle_ns"].sum() > 40_000 * US
    table = breakdown(scope).devices
    assert int(table["window_ns"][0]) == scope.duration < whole.duration


def without(trace: Trace, kind: str) -> Trace:
    """The trace as if nobody had marked spans of this kind."""
    hidden = (
        pl.when(pl.col("kind") == kind).then(pl.lit("overhead", trace.host.schema["kind"])).otherwise("kind")
    )
    return replace(trace, host=trace.host.with_columns(hidden.alias("kind")))


def assert_right(scope: Scope, truth: pl.DataFrame) -> None:
    """All true steps but the last, whose end nothing tells; each begins in the one it stands for, and takes as long."""
    assert scope.inferred_from is not None
    assert "launch sequence" in scope.inferred_from
    inside = np.searchsorted(truth["start"].to_numpy(), starts(scope), side="right")
    assert inside.tolist() == [*range(1, truth.height)]
    expected = float(np.median(np.diff(truth["start"].to_numpy())))
    assert np.median(scope.steps["duration"].to_numpy()) == pytest.approx(expected, rel=0.01)


def real(paths: list[Path]) -> list[object]:
    """These traces; those that take long to read are slow, but for two that have steps."""
    quick = ("v100_resnet50_2021_workers0.json.gz", "power_iteration_t4.sqlite")
    slow = [path for path in paths if path.stat().st_size > 70_000 and path.name not in quick]
    return [pytest.param(path, marks=pytest.mark.slow) if path in slow else path for path in paths]


@pytest.mark.quick(7)
@pytest.mark.parametrize("path", real(PUBLIC), ids=lambda p: p.name)
def test_hidden_marks_of_real_traces_are_inferred_or_nothing_is(path: Path) -> None:
    trace = trace_of(path)
    marked = step_table(trace)
    assert scope_of(path).inferred_from is None  # nor is any range taken for one
    scope = select(without(trace, "step"))
    if marked.height >= 3 and trace.has_device:
        assert_right(scope, marked)
    elif path.name.startswith("mi300_owlv2"):  # one mark around five batches of an inference
        assert scope.steps.height == 4
    else:  # single steps and pairs, with layers that repeat
        assert (scope.inferred_from, scope.steps.height) == (None, 0)


@pytest.mark.parametrize("path", real(PUBLIC_NSYS), ids=lambda p: p.name)
def test_exports_of_others(path: Path) -> None:
    if path.name == "power_iteration_t4.sqlite":
        trace = tracekit.read(path)
        scope = select(trace)  # its ranges are numbered blocks of steps
        assert (scope.inferred_from, scope.steps.height) == ("Step # to #", 44)
        assert_right(select(without(trace, "annotation")), scope.steps)
    elif path.name == "saxpy_mpi_a100.sqlite":  # two copies to the device and a kernel, five times
        assert select(tracekit.read(path)).steps.height == 5
    else:  # 17 blocks of one forward pass
        assert all(none_in(trace) for trace in tracekit.read_all(path))


@pytest.mark.parametrize(
    ("kernel", "neural"), [("dynamic_per_token_quant_kernel", True), ("stencil_kernel", False)]
)
def test_kernels_that_quantise_show_a_network(kernel: str, neural: bool) -> None:
    """Of a program that does not show PyTorch."""
    made = Loop()
    made.launches([kernel, *["custom_step_kernel"] * 4] * 3)
    trace = made.done(form="nsys")
    sequence = launch_sequence(trace, trace.device, launch_times(trace, trace.device))
    assert sequence is not None
    assert (sequence.pytorch, sequence.neural) == (False, neural)
