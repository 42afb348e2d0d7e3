"""Steps inferred from a repeated range: planted loops, and the look-alikes that are no steps."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl
import pytest
from planted import MS, US, Planted, finding

from tracekit.analyses.scope import Scope, select
from tracekit.analyses.steps import steps
from tracekit.facts.step_names import STEP_RANGE
from tracekit.report.build import build_report
from tracekit.report.json import render as json_
from tracekit.trace import Excerpt

BARE = frozenset({"device", "launches", "ops"})


def work(made: Planted, at: int, ns: int, *, thread: int = 1, **more: object) -> None:
    """An operator that launches a kernel of this length."""
    made.span("op", "aten::mm", at, at + 20 * US, thread, **more)
    made.activity("gemm", at + 10 * US, ns, launch=at + 2 * US)
    made.host[-1]["thread_id"] = thread


def loop(name: str = "iter_{:04d}", count: int = 5, *, inner: tuple[str, ...] = ()) -> Planted:
    """A warm-up of 100 µs, then `count` ranges of 1 ms with a kernel of 500 µs each, and the ranges `inner` in them."""
    made = Planted()
    work(made, 0, 100 * US)
    for number in range(count):
        start = (number + 1) * MS
        made.span("annotation", name.format(number + 3), start, start + 900 * US)
        for level, text in enumerate(inner):
            made.span("annotation", text, start + (level + 1) * 10 * US, start + (800 - level * 10) * US)
        work(made, start + 100 * US, 500 * US)
    return made


def scope_of(made: Planted) -> Scope:
    return select(made.trace(captured=BARE))


def inferred(made: Planted) -> str | None:
    return scope_of(made).inferred_from


# fmt: off
STEPS = [
        "step", "Step 12", "STEP", "[step]", "step_{}", "iter_0005", "iter5", "Iteration", "iteration12", "Iteration: 7",
        "batch", "Batch 3/40", "batch 3 of 40", "batch_idx=4", "Train Step", "train_step", "TrainStep", "trainStep #2",
        "training_step", "train_batch", "train_iter", "[pl][profile]run_training_batch", "Epoch 1, step 12",
        "epoch0/iter3", "inference step", "infer_step_3", "decode_step", "denoising step 4", "mini-batch 3", "minibatch",
        "time step 5", "global_step", "loop iteration", "Step 40 to 50", "one_step", "## step 3 ##", "iterations", "step no. 5",
]
OTHERS = [
        "", "12", "epoch 3", "epoch", "warmup", "warmup step", "warm-up iteration 2", "Optimizer.step#Adam.step",
        "optimizer_step", "optimizer.step", "opt step", "scheduler.step", "lr_step", "validation step", "val_step",
        "eval_iter", "test batch", "data_iter", "next_batch", "get_batch", "load batch", "batch_norm", "BatchNorm2d",
        "batch_to_device", "micro_batch", "microbatch 3", "forward_step", "backward_step", "stepper", "footstep",
        "iterator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "ProfilerStep", "forward", "train",
        "training loop", "run", "étape step", "step 3 loss", "layer.3.iterate", "batch_size=32", "steps/s", "日step",
]
# fmt: on


def test_names_of_steps_and_of_other_things() -> None:
    """By both engines of regular expressions."""
    for names, steps_ in ((STEPS, True), (OTHERS, False)):
        assert [name for name in names if bool(re.search(STEP_RANGE, name)) != steps_] == []
        assert pl.Series(names).filter(pl.Series(names).str.contains(STEP_RANGE) != steps_).to_list() == []


def test_a_repeated_range_is_the_step() -> None:
    scope = scope_of(loop())
    assert (scope.window, scope.inferred_from) == ("steps", "iter_#")
    assert scope.label == ('5 steps, iter_0003 to iter_0007 (inferred from the range "iter_#")')
    assert scope.steps["step"].to_list() == [0, 1, 2, 3, 4]
    assert scope.steps["start"].to_list() == [(n + 1) * MS for n in range(5)]
    # The warm-up before them is in no step.
    assert scope.activities["duration"].to_list() == [500 * US] * 5
    assert (scope.start, scope.end) == (MS, 5 * MS + 900 * US)


def test_everybody_who_names_steps_says_that_they_are_inferred() -> None:
    trace = loop("train_step").trace(captured=BARE)
    result = steps(trace)
    assert (result.table.height, result.inferred_from) == (5, "train_step")
    assert result.answer.startswith('The median of 5 steps (inferred from the range "train_step") is 1')
    report = build_report(trace)
    assert report.window.steps_inferred_from == "train_step"
    assert '"steps_inferred_from": "train_step"' in json_.render(report)
    found = finding(trace, "breakdown", "incomplete_capture")
    assert found is not None
    assert "prof.step()" not in found.advice


def test_the_profilers_own_steps_and_a_pattern_come_first() -> None:
    made = loop(inner=("train_step",))
    asked = select(made.trace(captured=BARE), step="^train_step$")
    assert (asked.steps.height, asked.inferred_from) == (5, None)
    assert "inferred" not in asked.label
    made.step(1, MS, 3 * MS)
    scope = scope_of(made)
    assert (scope.steps["name"].to_list(), scope.inferred_from) == (["ProfilerStep#1"], None)


def test_the_whole_trace_has_no_inferred_steps() -> None:
    scope = select(loop().trace(captured=BARE), window="trace")
    assert (scope.window, scope.steps.height, scope.inferred_from) == ("trace", 0, None)
    assert scope.activities.height == 6
    assert "inferred" not in scope.label
    assert steps(scope).table.height == 0


def test_of_two_names_the_one_that_covers_more_work_is_the_step() -> None:
    made = loop("iteration {}", inner=("train_step",))
    for number in range(5):  # a metric after the train_step, but in the iteration
        work(made, (number + 1) * MS + 850 * US, US)
    assert inferred(made) == "iteration #"


@pytest.mark.parametrize(
    ("outer", "inner"), [("iteration {}", ("batch", "step")), ("batch", ("iteration",)), ("step", ("step",))]
)
def test_of_two_that_cover_the_same_the_outermost_is_the_step(outer: str, inner: tuple[str, ...]) -> None:
    scope = scope_of(loop(outer, inner=inner))
    assert scope.steps.height == 5
    assert scope.steps["duration"].to_list() == [900 * US] * 5


def test_steps_are_inferred_inside_epochs() -> None:
    made = loop("Step {}", count=6)
    for number in range(2):
        made.span("annotation", f"epoch {number}", (3 * number + 1) * MS - US, (3 * number + 4) * MS - 2 * US)
    made.span("annotation", "training", 0, 20 * MS)
    assert inferred(made) == "Step #"


def test_few_repetitions_are_no_steps() -> None:
    assert inferred(loop(count=2)) is None
    assert inferred(loop(count=3)) == "iter_#"
    made = loop(count=2)  # a third one that launches nothing does not count
    made.span("annotation", "iter_9", 10 * MS, 11 * MS)
    assert inferred(made) is None


def test_less_than_half_of_the_work_is_no_step() -> None:
    made = loop()  # 5 × 500 µs in the steps, 100 µs before
    work(made, 20 * MS, 2400 * US)
    assert inferred(made) == "iter_#"
    work(made, 30 * MS, 2 * US)
    scope = scope_of(made)
    assert (scope.inferred_from, scope.window) == (None, "trace")


def test_ranges_of_other_meanings_are_no_steps() -> None:
    for name in ("optimizer_step", "Optimizer.step#Adam.step", "warmup", "epoch {}", "validation step {}"):
        assert inferred(loop(name)) is None


def test_a_range_around_the_optimizer_is_no_step_however_long_it_runs() -> None:
    made = loop("step")
    for number in range(5):
        made.span("annotation", "forward", (number + 1) * MS - 90 * US, (number + 1) * MS - 50 * US)
        made.span("annotation", "backward", (number + 1) * MS - 40 * US, (number + 1) * MS - 10 * US)
    assert inferred(made) is None
    made = loop("step")  # known from the operators alone
    for number in range(5):
        work(made, (number + 1) * MS - 50 * US, 10 * US, sequence=number)
    assert inferred(made) is None
    # The same inside of the range is a step.
    made = loop("step")
    for number in range(5):
        work(made, (number + 1) * MS + 50 * US, 10 * US, sequence=number)
        made.span("annotation", "forward", (number + 1) * MS + 10 * US, (number + 1) * MS + 30 * US)
    assert inferred(made) == "step"


def test_ranges_of_a_thread_that_launches_nothing_are_no_steps() -> None:
    made = Planted()
    for number in range(5):
        start = (number + 1) * MS
        made.span("annotation", f"batch {number}", start, start + 900 * US, 2)  # a loader's thread
        work(made, start + 100 * US, 500 * US)
    assert inferred(made) is None


def test_work_of_other_threads_belongs_to_the_step() -> None:
    made = loop()
    for number in range(5):
        work(made, (number + 1) * MS + 300 * US, 5 * MS, thread=2)
    scope = scope_of(made)
    assert scope.inferred_from == "iter_#"
    assert scope.activities.height == 10


def test_of_two_threads_with_the_same_ranges_one_is_taken() -> None:
    made = loop()
    for number in range(5):
        start = (number + 1) * MS + 200 * US
        made.span("annotation", f"iter_{number}", start, start + 900 * US, 2)
        work(made, start + 100 * US, 100 * US, thread=2)
    scope = scope_of(made)
    assert scope.steps["start"].to_list() == [(n + 1) * MS for n in range(5)]


def test_ranges_that_overlap_partly_are_no_steps() -> None:
    made = loop()
    made.span("annotation", "iter_99", MS + 500 * US, 2 * MS + 300 * US)
    assert inferred(made) is None


def test_a_trace_without_launches_goes_by_time() -> None:
    made = Planted()
    for number in range(4):
        made.span("annotation", f"step {number}", (number + 1) * MS, (number + 2) * MS - US)
        made.activity("gemm", (number + 1) * MS + 100 * US, 500 * US)
    scope = scope_of(made)
    assert (scope.inferred_from, scope.activities.height) == ("step #", 4)


def test_operators_take_the_place_of_a_device() -> None:
    made = Planted()
    made.span("op", "aten::mm", 0, 100 * US)
    for number in range(4):
        start = (number + 1) * MS
        made.span("annotation", f"Iteration {number}", start, start + 900 * US)
        made.span("op", "aten::mm", start + 100 * US, start + 600 * US)
    trace = made.trace(captured=frozenset({"ops"}), devices=())
    scope = select(trace)
    assert (scope.on_cpu, scope.inferred_from, scope.steps.height) == (True, "Iteration #", 4)
    assert (scope.start, scope.end) == (MS, 4 * MS + 900 * US)


def test_a_step_that_was_cut_by_an_excerpt_is_none() -> None:
    trace = loop().trace(captured=BARE)
    cut = Excerpt(start=MS + 500 * US, end=5 * MS, rows=1, total_rows=2, steps=0, total_steps=0)
    scope = select(replace(trace, meta=replace(trace.meta, excerpt=cut)))
    assert scope.steps["name"].to_list() == ["iter_0004", "iter_0005", "iter_0006"]


def test_no_trace_at_all() -> None:
    assert inferred(Planted()) is None
    made = Planted()
    for number in range(4):
        made.span("annotation", "step", number * MS, (number + 1) * MS - US)
    assert inferred(made) is None


def test_nested_ranges_that_match_are_one_step() -> None:
    """A range around another of its name holds the step; one of another name inside a step is a part of it."""
    made = loop("measure", 2, inner=("measure", "measure.copy"))
    scope = select(made.trace(captured=BARE), step="measure")
    assert scope.steps.select("name", "start", "duration").rows() == [
        ("measure", number * MS + 10 * US, 790 * US) for number in (1, 2)
    ]
