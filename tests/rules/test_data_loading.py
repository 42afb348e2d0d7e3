from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding

from tracekit.analyses.rules import run
from tracekit.analyses.scope import select
from tracekit.verdict.decide import VERDICT_NEEDS, decide
from tracekit.verdict.model import Verdict

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
MULTI = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def two_steps(name: str, loading: int) -> Planted:
    made = Planted()
    for number in range(2):
        start = number * 10 * MS
        made.step(number, start, start + 10 * MS)
        made.span("annotation", name, start, start + loading)
        made.activity("gemm", start + loading, 10 * MS - loading, launch=start + loading)
    return made


@pytest.mark.parametrize(
    ("name", "advice"),
    [(SINGLE, "Set num_workers > 0"), (MULTI, "Raise num_workers"), ("tracekit.phase/data", "Raise")],
)
def test_fires_on_loading_that_nothing_hides(name: str, advice: str) -> None:
    found = finding(two_steps(name, 3 * MS).trace(), "steps", "data_loading")
    assert found is not None
    assert found.title == "Data loading takes 30.0 % of the time"
    assert (
        found.evidence
        == "The data loader took 6.00 ms of 20.0 ms in 2 steps, 3.00 ms a step, while no device worked."
    )
    assert advice in found.advice
    assert "pin_memory=True" not in found.advice, "no copy is from pageable memory"
    assert (found.ns_at_stake, found.severity) == (6 * MS, "critical")


@pytest.mark.parametrize(
    ("loading", "says"), [(3, ""), (5, ""), (8, "At least 4 workers are needed to hide it.")]
)
def test_says_how_many_workers_it_takes(loading: int, says: str) -> None:
    """A single worker, as it seemed to be enough, gained nothing where six were needed."""
    found = finding(two_steps(SINGLE, loading * MS).trace(), "steps", "data_loading")
    assert found is not None
    assert says in found.advice
    assert ("needed to hide it" in found.advice) == bool(says)


def test_pinning_is_no_matter_of_more_workers() -> None:
    """A script that pins its batches itself was to raise the number of workers of a loader that takes no time."""
    made = two_steps(SINGLE, MS // 10)
    for number in range(2):
        at = number * 10 * MS
        made.span("op", "aten::pin_memory", at + MS // 2, at + 3 * MS)
        made.activity("other", at + 3 * MS, MS, launch=at + 3 * MS)
    made.device = [row for row in made.device if row["name"] != "gemm"]
    found = finding(made.trace(), "steps", "data_loading")
    assert found is not None
    assert found.title.startswith("Pinning batches takes")
    assert "pin_memory=True" in found.advice
    assert "workers" not in found.advice


def test_on_the_cpu_nothing_is_pinned() -> None:
    made = Planted()
    made.step(0, 0, 10 * MS)
    made.span("annotation", SINGLE, 0, 2 * MS)
    made.span("op", "aten::mm", 2 * MS, 10 * MS)
    found = finding(made.trace(devices=()), "steps", "data_loading")
    assert found is not None
    assert found.ns_at_stake == 2 * MS
    assert "pin_memory" not in found.advice


def test_workers_that_start_anew_for_each_epoch_on_a_processor() -> None:
    """The advice was to raise num_workers, which made each epoch twice as long: its first step had nearly all of the time."""
    made = Planted()
    for number in range(8):
        start = number * 10 * MS
        made.step(number, start, start + 10 * MS)
        loading = 5 * MS if number == 4 else 10 * US
        made.span("annotation", MULTI, start, start + loading)
        made.span("op", "aten::mm", start + loading, start + 10 * MS)
    found = finding(made.trace(devices=()), "steps", "data_loading")
    assert found is not None
    assert "nearly all of that in 1 of 8 steps" in found.evidence
    assert "persistent_workers=True" in found.advice
    assert "num_workers" not in found.advice


def test_silent_when_the_loader_keeps_up_or_the_device_works_meanwhile() -> None:
    assert finding(two_steps(MULTI, 400_000).trace(), "steps", "data_loading") is None
    made = two_steps(SINGLE, 3 * MS)
    for number in range(2):
        made.activity("other", number * 10 * MS, 3 * MS, launch=number * 10 * MS, stream=9)
    assert finding(made.trace(), "steps", "data_loading") is None


def steps_with_loader(first: int, *later: int, before: bool = False, name: str = MULTI) -> Planted:
    """Steps whose kernel of 10 ms comes after so many ms of loading; `before`: the device works when the first one begins."""
    made, start = Planted(), 0
    if before:
        made.activity("gemm", -10 * MS, 10 * MS, launch=-10 * MS)
    for number, loading in enumerate((first, *later)):
        end = start + loading * MS
        made.step(number, start, end + 10 * MS)
        made.span("annotation", name, start, end)
        made.activity("gemm", end, 10 * MS, launch=end, grid="(864, 1, 1)")
        start = end + 10 * MS
    return made


def test_the_wait_for_the_first_batch_is_no_cost_of_the_steps() -> None:
    """A loader that later steps hide was slow in a recording that found the device empty, and more workers were the advice."""
    trace = steps_with_loader(15, 0, 0, 0).trace()
    found = finding(trace, "steps", "data_loading")
    assert found is not None
    assert (
        found.title
        == "The device waits for the first batch 27.3 % of the time, and hardly at all for later ones"
    )
    assert "the device waited 15.0 ms for the data loader, and in a median later step 0 ns" in found.evidence
    assert "more workers do not help" in found.advice
    assert (found.ns_at_stake, found.severity) == (15 * MS, "info")
    assert finding(trace, "steps", "step_variability") is None
    warm = finding(steps_with_loader(15, 0, 0, 0, before=True).trace(), "steps", "data_loading")
    assert warm is not None
    assert warm.title == "Data loading takes 27.3 % of the time"


def test_the_first_step_counts_as_much_as_a_median_later_one() -> None:
    """The time at stake was twice what later steps wait for."""
    trace = steps_with_loader(20, 3, 3, 3, 3).trace()
    found = finding(trace, "steps", "data_loading")
    assert found is not None
    assert found.ns_at_stake == 15 * MS
    assert "took 15.0 ms of 82.0 ms in 5 steps, 3.00 ms a step" in found.evidence
    assert "Before the first kernel it took 17.0 ms more" in found.evidence
    assert finding(trace, "steps", "step_variability") is None


def test_the_verdict_does_not_ask_for_a_faster_loader_at_the_start() -> None:
    scope = select(steps_with_loader(60, *[3] * 11).trace())
    verdict = decide(scope, {name: run(name, scope) for name in VERDICT_NEEDS})
    titles = [each.title for each in verdict.advice]
    assert titles[0].startswith("Data loading takes")
    assert "Load data faster" not in titles


def verdict_on_code(*steps: int, before: bool = False) -> Verdict:
    """The verdict on steps whose kernel comes after so many ms of Python code."""
    made = steps_with_loader(*steps, before=before)
    for row in made.host:
        if row["name"] == MULTI:
            row.update(kind="python", name="train.py(20): build_index")
    scope = select(made.trace())
    return decide(scope, {name: run(name, scope) for name in VERDICT_NEEDS})


def test_code_that_only_the_start_of_a_recording_shows_is_not_at_stake() -> None:
    """An index built once, before the first kernel, took 68 % of the time, and the advice was to do it less often."""
    advice = verdict_on_code(60, *[0] * 9).advice
    assert advice[0].title.endswith(
        "mostly in train.py(20): build_index, once, before the first kernel of the recording"
    )
    assert advice[0].advice.startswith("Record from a later step on.")
    assert advice[0].ns_at_stake is None
    assert "Keep the device busy" not in [each.title for each in advice]
    warm = verdict_on_code(60, *[0] * 9, before=True).advice
    assert warm[0].advice.startswith("Do this work less often")
    assert warm[0].ns_at_stake == 60 * MS


def test_the_first_step_s_code_counts_as_much_as_that_of_a_later_step() -> None:
    """The rest of the first step's wait is the recording's."""
    first = verdict_on_code(60, *[20] * 9).advice[0]
    assert first.ns_at_stake == 10 * 20 * MS
    assert first.advice.endswith(
        "40.0 ms of this happens only once, before the first kernel of the recording."
    )


def test_few_steps_have_no_mean_step() -> None:
    """42 ms a step stood where one of eight steps waited for all of it."""
    found = finding(steps_with_loader(0, 0, 0, 40, 0).trace(), "steps", "data_loading")
    assert found is not None
    assert (
        "took 40.0 ms of 90.0 ms, nearly all of that in 1 of 5 steps, while no device worked"
        in found.evidence
    )
    assert "If an epoch begins there, persistent_workers=True keeps the workers" in found.advice
    single = finding(steps_with_loader(0, 0, 0, 40, 0, name=SINGLE).trace(), "steps", "data_loading")
    assert single is not None
    assert single.advice.startswith("Set num_workers > 0")
