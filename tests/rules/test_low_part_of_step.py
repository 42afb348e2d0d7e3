from __future__ import annotations

import dataclasses

import pytest
from planted import MS, Planted, finding

from tracekit.analyses.rules import run
from tracekit.analyses.rules.steps import LOW_PART_OF_STEP_LEAST_STEPS as LEAST_STEPS
from tracekit.analyses.scope import select


def folded(steps: int, *parts: tuple[int, float]) -> Planted:
    """Steps of the given parts: so many ms, of which the device works this share, ms by ms."""
    made, time = Planted(), 0
    for number in range(steps):
        begin = time
        for length, share in parts:
            for _ in range(length):
                made.activity("k", time, int(share * MS), launch=time)
                time += MS
        made.step(number, begin, time)
    return made


def test_fires_on_the_end_of_the_step() -> None:
    found = finding(folded(4, (80, 0.95), (20, 0.1)).trace(), "steps", "low_part_of_step")
    assert found is not None
    assert found.title == "The device is mostly idle at the end of each step"
    assert "busy 10.0 % of the time from 80 % to 100 % of the step, and 95.0 % in the rest" in found.evidence
    assert "It is idle there for 18.0 ms of a step of 100 ms (mean of 4 steps)." in found.evidence
    assert found.ns_at_stake is not None
    assert abs(found.ns_at_stake - 72 * MS) < MS
    assert found.severity == "warning"
    assert "at the beginning" not in found.advice


@pytest.mark.slow
def test_says_where() -> None:
    at_begin = finding(folded(3, (30, 0.2), (70, 1.0)).trace(), "steps", "low_part_of_step")
    assert at_begin is not None
    assert at_begin.title == "The device is mostly idle at the beginning of each step"
    assert at_begin.severity == "critical"
    inside = finding(folded(3, (30, 0.9), (30, 0.2), (40, 0.9)).trace(), "steps", "low_part_of_step")
    assert inside is not None
    assert inside.title == "The device is mostly idle in one part of each step"
    assert "from 30 % to 60 %" in inside.evidence
    assert "sual cause" not in inside.advice


def test_silent_when_it_is_not_the_same_part() -> None:
    made = Planted()
    time = 0
    for number in range(6):
        begin = time
        for place in range(60):
            low = number * 10 <= place < number * 10 + 10
            made.activity("k", time, int((0.1 if low else 0.95) * MS), launch=time)
            time += MS
        made.step(number, begin, time)
    assert finding(made.trace(), "steps", "low_part_of_step") is None


def test_silent_when_all_of_the_step_is_low_or_none() -> None:
    assert finding(folded(4, (60, 0.1), (40, 0.9)).trace(), "steps", "low_part_of_step") is None
    assert finding(folded(4, (100, 0.6)).trace(), "steps", "low_part_of_step") is None
    assert finding(folded(4, (95, 0.9), (5, 0.1)).trace(), "steps", "low_part_of_step") is None


@pytest.mark.slow
def test_silent_on_too_few_steps_and_without_steps() -> None:
    parts = ((80, 0.95), (20, 0.1))
    assert finding(folded(LEAST_STEPS, *parts).trace(), "steps", "low_part_of_step") is not None
    assert finding(folded(LEAST_STEPS - 1, *parts).trace(), "steps", "low_part_of_step") is None
    without = folded(4, *parts)
    without.host = [row for row in without.host if row["kind"] != "step"]
    assert finding(without.trace(), "steps", "low_part_of_step") is None


def test_work_that_runs_at_once_counts_once() -> None:
    made = folded(4, (80, 0.95), (20, 0.3))
    for row in list(made.device):
        made.device.append({**row, "stream_id": 8, "correlation": 0})
    assert finding(made.trace(), "steps", "low_part_of_step") is not None


@pytest.mark.slow
def test_silent_when_a_rule_of_its_own_tells_the_cause() -> None:
    made = folded(4, (80, 0.95), (20, 0.0))
    assert finding(made.trace(), "steps", "low_part_of_step") is not None
    for step in range(4):
        begin = (100 * step + 80) * MS
        made.span(
            "annotation",
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
            begin,
            begin + 20 * MS,
        )
    assert finding(made.trace(), "steps", "low_part_of_step") is None
    assert finding(made.trace(), "steps", "data_loading") is not None


def test_what_is_done_about_it_fits_what_the_trace_tells_of_the_host() -> None:
    """A wait for another device had the usual causes of a late host, and a trace without a host was searched for what that does."""
    made = folded(4, (60, 0.95), (40, 0.1))
    for activity in made.device:
        activity["start"] += 3 * MS  # each is launched long before it starts, after the one before
    found = finding(made.trace(), "steps", "low_part_of_step")
    assert found is not None
    assert found.advice.startswith("By then, the host has already launched the next work")
    made.host = [row for row in made.host if row["kind"] == "step"]
    found = finding(made.trace(), "steps", "low_part_of_step")
    assert found is not None
    assert found.advice.startswith("Record the host as well")


def test_a_wait_for_data_lies_at_the_end_of_an_inferred_step() -> None:
    """An inferred step begins with its first launch, and a loader was no usual cause of what lies at its end."""
    made = folded(4, (80, 0.95), (20, 0.1))
    made.span("annotation", "Optimizer.step#SGD.step", 0, 1000)
    scope = dataclasses.replace(select(made.trace()), periods=True)
    (found,) = [each for each in run("steps", scope).findings if each.id == "low_part_of_step"]
    assert found.title == "The device is mostly idle at the end of each step"
    assert "a wait for data (an inferred step begins with its first launch" in found.advice
