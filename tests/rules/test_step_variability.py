from __future__ import annotations

import pytest
from planted import MS, Planted, finding

from tracekit.analyses.rules import run
from tracekit.analyses.scope import select
from tracekit.findings import Finding
from tracekit.report.build import build_report


def steps_of(*times: int, work: tuple[int, ...] = (), grid: str | None = "(8, 1, 1)") -> Planted:
    """Steps of these times in ms, in which the device works for as long, or for as long as `work` says."""
    made, start = Planted(), 0
    for number, time in enumerate(times):
        made.step(number, start, start + time * MS)
        busy = work[number] if work else time
        made.activity("k", start, busy * MS, launch=start, grid=grid)
        start += time * MS
    return made


def test_names_the_work_that_takes_longer() -> None:
    found = finding(steps_of(10, 10, 30, 10, 10).trace(), "steps", "step_variability")
    assert found is not None
    assert found.ns_at_stake == 20 * MS
    assert found.severity == "critical"
    assert found.title == "1 of 5 steps is slow, mostly because of kernels that take longer"
    assert "kernels that take longer, with the same grids as in the other steps" in found.evidence
    assert "The median step takes 10.0 ms" in found.evidence
    assert "The slowest: ProfilerStep#2 30.0 ms" in found.evidence


def test_the_first_steps_are_a_warm_up() -> None:
    """Steps that autotune or find a low clock were told to look for other programs, without a word that they are the first."""
    found = finding(steps_of(30, 30, 10, 10, 10, 10, 10).trace(), "steps", "step_variability")
    assert found is not None
    assert found.title == "The first 2 of 7 steps are slow, mostly because of kernels that take longer"
    assert (found.ns_at_stake, found.severity) == (40 * MS, "warning")
    assert found.advice.startswith("Let the program warm up: run more steps before you record")
    one = finding(steps_of(30, 10, 10, 10).trace(), "steps", "step_variability")
    assert one is not None
    assert one.title == "The first of 4 steps is slow, mostly because of kernels that take longer"


def test_the_first_of_selected_steps_are_no_warm_up() -> None:
    chosen = select(steps_of(10, 10, 30, 10, 10, 10).trace(), step="ProfilerStep#[2-5]")
    found = [each for each in run("steps", chosen).findings if each.id == "step_variability"]
    assert [each.title[:15] for each in found] == ["1 of 4 steps is"]


def test_without_grids_and_shapes_the_inputs_may_be_larger() -> None:
    found = finding(steps_of(10, 10, 30, 10, 10, grid=None).trace(), "steps", "step_variability")
    assert found is not None
    assert (found.ns_at_stake, found.severity) == (None, "info")
    assert "so the inputs may be larger there" in found.evidence


def test_inputs_of_another_size_are_no_fault() -> None:
    made = steps_of(10, 10, 30, 10, 10)
    made.device[2]["grid"] = "(24, 1, 1)"
    assert finding(made.trace(), "steps", "step_variability") is None


def test_names_the_work_that_only_the_slow_step_has() -> None:
    made = steps_of(10, 10, 30, 10, 10, work=(10, 10, 10, 10, 10))
    made.activity("k", 30 * MS, 20 * MS, launch=21 * MS, grid="(8, 1, 1)")
    made.span("python", "train.py(80): validate", 20 * MS + 1, 22 * MS)
    for number in range(5):
        made.span("python", "train.py(50): step", 10 * MS * number, 10 * MS * number + 1)
    found = finding(made.trace(), "steps", "step_variability")
    assert found is not None
    assert found.ns_at_stake == 20 * MS
    assert "launched in train.py(80): validate, which only this step runs" in found.evidence
    assert found.advice.startswith("Evaluate less often")


def test_ranges_named_after_their_step_are_in_all_steps() -> None:
    made = steps_of(10, 10, 30, 10, 10, work=(10, 10, 10, 10, 10))
    made.activity("k", 30 * MS, 20 * MS, launch=21 * MS, grid="(8, 1, 1)")
    for number, start in enumerate((0, 10, 20, 50, 60)):
        made.span("annotation", f"iteration {number}", start * MS + 1, start * MS + 2 * MS)
    found = finding(made.trace(), "steps", "step_variability")
    assert found is not None
    assert "(2 activities a step instead of 1)" in found.evidence


def test_updates_after_several_steps_are_no_fault() -> None:
    made = steps_of(10, 10, 30, 10, 10, work=(10, 10, 10, 10, 10))
    made.activity("k", 30 * MS, 20 * MS, launch=21 * MS, grid="(8, 1, 1)")
    made.span("annotation", "Optimizer.step#SGD.step", 20 * MS + 1, 22 * MS)
    assert finding(made.trace(), "steps", "step_variability") is None


def test_more_batches_before_an_update_are_no_fault() -> None:
    """Steps with four batches instead of two were slow, and the advice was about data loading, checkpoints and logging."""
    made, at = Planted(), 0
    for number, batches in enumerate((2, 2, 4, 2, 2)):
        begin = at
        for _ in range(batches):
            made.span("op", "aten::mm", at, at + MS, sequence=at)
            made.activity("k", at + MS, 4 * MS, launch=at + 1, grid="(8, 1, 1)")
            made.span("op", "MmBackward0", at + 2 * MS, at + 3 * MS, sequence=at)
            made.activity("k", at + 5 * MS, 5 * MS, launch=at + 2 * MS + 1, grid="(8, 1, 1)")
            at += 10 * MS
        made.step(number, begin, at)
    assert finding(made.trace(), "steps", "step_variability") is None


def test_names_what_the_host_did_in_the_slow_steps_and_where() -> None:
    made = steps_of(10, 10, 30, 10, 10, work=(9, 9, 9, 9, 9))
    made.span("python", "train.py(40): save", 29 * MS, 50 * MS)
    found = finding(made.trace(), "steps", "step_variability")
    assert found is not None
    assert found.title == "1 of 5 steps is slow, mostly because of Python"
    assert found.ns_at_stake == 20 * MS
    assert "train.py(40): save" in found.evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "said", "advice"),
    [
        ("<built-in function sleep>", "the host sleeping", "Remove the pause"),
        ("queue.py(154): get", "the host waiting for something else", "See what it waits for there"),
    ],
)
def test_a_host_that_stands_still_runs_no_python(call: str, said: str, advice: str) -> None:
    """A step in which the host slept, or waited in a queue, was slow mostly by Python."""
    made = steps_of(10, 10, 30, 10, 10, work=(9, 9, 9, 9, 9))
    made.span("annotation", "Optimizer.step#SGD.step", 1, 2)
    made.span("python", "train.py(40): next_batch", 29 * MS, 50 * MS)
    made.span("python", call, 29 * MS, 50 * MS)
    found = finding(made.trace(), "steps", "step_variability")
    assert found is not None
    assert found.title == f"1 of 5 steps is slow, mostly because of {said}"
    assert f"20.0 ms of that is {said} (mostly in train.py(40): next_batch" in found.evidence
    assert found.advice.startswith(advice)
    titles = [each.title for each in build_report(made.trace()).verdict.advice]
    assert any("train.py(40): next_batch" in title for title in titles)
    assert found.title not in titles, "said twice"


def test_requests_come_as_they_come() -> None:
    """A server whose requests came irregularly was told that a part of its steps is slow."""
    made = steps_of(10, 30, 10, 20, 10, work=(1, 1, 1, 1, 1))
    for row in [row for row in made.host if row["kind"] == "step"]:
        end = row["start"] + row["duration"]
        made.span("op", "aten::mm", row["start"], row["start"] + 6_000)
        made.span("python", "server.py(20): next_request", row["start"] + MS, end)
        made.span("python", "queue.py(154): get", row["start"] + MS, end)
    assert finding(made.trace(), "steps", "step_variability") is None
    made.span("annotation", "Optimizer.step#SGD.step", 1, 2)
    found = finding(made.trace(), "steps", "step_variability")
    assert found is not None
    assert found.title == "2 of 5 steps are slow, mostly because of the host waiting for something else"


def copying(*steps: int, direction: str = "DtoH (Device -> Pageable)", work: int = 9) -> Planted:
    """Steps of 10 ms, but 30 ms for the one in the middle, each with a copy of such a time in ms after its kernel."""
    made = steps_of(10, 10, 30, 10, 10, work=(9, 9, work, 9, 9))
    for number, copied in enumerate(steps):
        start = (0, 10, 20, 50, 60)[number]
        made.copy(direction, (start + 9) * MS, copied * MS, 1000, launch=start * MS + 1)
    return made


def test_copies_that_only_a_slow_step_makes_are_a_part_of_the_reason() -> None:
    """A checkpoint takes half of its time for copies, which stood beside the slow step as something else."""
    found = finding(copying(0, 0, 9, 0, 0).trace(), "steps", "step_variability")
    assert found is not None
    assert found.title == "1 of 5 steps is slow, mostly because of Python and copies to the host"
    assert found.ns_at_stake == 20 * MS
    assert "20.0 ms of that is Python and copies to the host, 11.0 ms and 9.00 ms" in found.evidence
    assert found.advice.startswith("Do this less often, or alongside the steps")


def test_copies_alone_can_be_the_reason() -> None:
    found = finding(
        copying(0, 0, 20, 0, 0, direction="HtoD (Pageable -> Device)").trace(), "steps", "step_variability"
    )
    assert found is not None
    assert found.title == "1 of 5 steps is slow, mostly because of copies to the device"
    assert found.ns_at_stake == 20 * MS


def test_copies_that_all_steps_make_are_none() -> None:
    made = copying(1, 1, 1, 1, 1)
    found = finding(made.trace(), "steps", "step_variability")
    assert found is not None
    assert found.title == "1 of 5 steps is slow, mostly because of Python"


def test_silent_if_nothing_has_half_of_the_difference() -> None:
    made = steps_of(10, 10, 30, 10, 10, work=(9, 9, 15, 9, 9))
    made.call("cudaMalloc", 35 * MS, 7 * MS)
    assert finding(made.trace(), "steps", "step_variability") is None


def test_silent_if_the_device_never_felt_it() -> None:
    """The host begins a step late, while the device still works on the one before."""
    made = Planted()
    for number, start in enumerate((0, 2, 9, 11, 13)):
        made.step(number, start * MS, (0, 2, 9, 11, 13, 15)[number + 1] * MS)
        made.activity("k", number * 10 * MS, 10 * MS, launch=start * MS)
    assert finding(made.trace(), "steps", "step_variability") is None


def test_silent_on_steady_fast_and_few_steps() -> None:
    assert finding(steps_of(10, 10, 10, 10).trace(), "steps", "step_variability") is None
    assert finding(steps_of(10, 30, 10).trace(), "steps", "step_variability") is None
    assert finding(Planted().trace(), "steps", "step_variability") is None


def test_a_first_step_that_fills_an_empty_device_is_not_slow() -> None:
    """The first copy is beside no kernel yet, and the first launches wait for the host: later steps hide both."""
    made = Planted()
    made.copy("HtoD (Pinned -> Device)", MS, 12 * MS, 1000, launch=MS)
    for number in range(5):
        made.step(number, number * 2 * MS, (number + 1) * 2 * MS)
        made.activity("k", (13 + 10 * number) * MS, 10 * MS, launch=(2 * number + 1) * MS, grid="(8, 1, 1)")
    assert finding(made.trace(), "steps", "step_variability") is None


# -- without a device --------------------------------------------------------------------------------


def on_processors(*times: int, extra: dict[int, str] | None = None, same: bool = True) -> Planted:
    """Steps of these times in ms that run one operator each, as long as the step or for 9 ms, and what one of them adds."""
    made, start = Planted(), 0
    for number, time in enumerate(times):
        end = start + time * MS
        made.step(number, start, end)
        made.span("op", "aten::mm", start, end if same else start + 9 * MS)
        if extra and number in extra:
            kind, name = extra[number].split("|")
            made.span(kind, name, start + 9 * MS, end)
        start = end
    return made


def variability(made: Planted) -> Finding | None:
    return finding(made.trace(devices=()), "steps", "step_variability")


def test_the_same_operators_that_take_longer_are_no_finding() -> None:
    """Another program takes the processors."""
    assert variability(on_processors(10, 10, 40, 10, 10)) is None


def test_operators_that_other_steps_do_not_run_are() -> None:
    made = on_processors(10, 10, 60, 10, 10, same=False, extra={2: "op|aten::conv2d"})
    made.span("python", "train.py(48): evaluate", 29 * MS, 80 * MS)
    found = variability(made)
    assert found is not None
    assert (
        found.title
        == "1 of 5 steps is slow, mostly because of operators that the other steps do not run, in train.py(48): evaluate"
    )
    assert found.ns_at_stake == 50 * MS
    assert found.advice == "Run them less often, or outside the loop."


def test_inputs_of_another_shape_are_named() -> None:
    made = Planted()
    for number, (start, end, shape) in enumerate(((0, 10, 8), (10, 20, 8), (20, 50, 32), (50, 60, 8))):
        made.step(number, start * MS, end * MS)
        made.span("op", "aten::mm", start * MS, end * MS, shapes=f"[[{shape}, 8]]")
    found = variability(made)
    assert found is not None
    assert found.title == "1 of 4 steps is slow, mostly because of inputs of different shapes"
    assert found.ns_at_stake == 20 * MS


def test_a_pause_is_named_by_the_code_that_only_its_step_runs() -> None:
    made = on_processors(10, 10, 60, 10, 10, same=False, extra={2: "python|train.py(70): save_checkpoint"})
    found = variability(made)
    assert found is not None
    assert found.title == "1 of 5 steps is slow, mostly because of Python, in train.py(70): save_checkpoint"
    assert found.ns_at_stake == 50 * MS
    assert found.advice == "Save checkpoints less often, or write them in another thread or process."


def test_a_pause_without_stacks_must_be_longer_than_other_programs_explain() -> None:
    found = variability(on_processors(10, 10, 60, 10, 10, same=False))
    assert found is not None
    assert found.title == "1 of 5 steps is slow, mostly because of Python"
    assert found.advice.startswith("The usual causes are checkpoints")
    assert variability(on_processors(10, 10, 25, 10, 10, same=False)) is None


def test_a_step_that_loads_for_long_is_told_about_the_loader() -> None:
    """It was told to log less often and to save checkpoints in another thread."""
    loader = "annotation|enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    found = variability(on_processors(10, 10, 60, 10, 10, same=False, extra={2: loader}))
    assert found is not None
    assert found.title.startswith("1 of 5 steps is slow, mostly because of data loading")
    assert found.advice == "Load data in other processes (DataLoader(num_workers=…)), which work ahead."


@pytest.mark.parametrize("shapes", [(32, 64, 128, 64), (32, 64, 16, 48)], ids=["as-another-step", "smaller"])
def test_inputs_that_explain_nothing_were_blamed(shapes: tuple[int, ...]) -> None:
    """A slow step on the inputs of a quick one, or on the smallest of all, was slow for them."""
    made, clock = Planted(), 0
    slow = 3 if shapes[1] == shapes[3] else 2
    for number, shape in enumerate(shapes):
        end = clock + (30 if number == slow else 10)
        made.step(number, clock * MS, end * MS)
        made.span("op", "aten::mm", clock * MS, end * MS, shapes=f"[[{shape}, 8]]")
        clock = end
    found = variability(made)
    assert found is None or "different shapes" not in found.title


def test_an_unknown_cause_is_no_reason() -> None:
    """A step was slow, `mostly by unknown cause`."""
    made = steps_of(10, 10, 30, 10, 10, work=(9, 9, 9, 9, 9))
    made.activity("k", 48 * MS, MS, launch=20 * MS + 20_000, grid="(8, 1, 1)")
    found = finding(made.trace(), "steps", "step_variability")
    assert found is not None
    assert found.title == "1 of 5 steps is slow, mostly because of idle time of unknown cause"
    assert " of that is idle time of unknown cause" in found.evidence
