from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding

from tracekit.report.build import build_report


def planted(copies: int, size: int = 1_000) -> Planted:
    made = Planted()
    for number in range(2):
        start = number * 10 * MS
        made.step(number, start, start + 10 * MS)
        made.activity("k", start, 9 * MS, launch=start)
        for index in range(copies):
            at = start + 9 * MS + index * 10 * US
            made.copy("HtoD (Pinned -> Device)", at, 5 * US, size, launch=at - 5 * US)
    return made


def test_fires_from_twenty_copies_a_step() -> None:
    found = finding(planted(20).trace(), "memory", "small_copies")
    assert found is not None
    assert found.title == "There are 40 small copies between host and device, 20 a step"
    # Each copy was launched 5 µs before, when the one before ended, and the first of a step while the kernel ran.
    assert found.evidence == "They move 40.0 kB in 200 µs, 1.00 kB a copy on average."
    assert found.ns_at_stake == 390 * US
    assert found.severity == "info"
    assert [start for start, _ in found.stretches] == [9 * MS, 19 * MS]
    assert {end - start for start, end in found.stretches} == {195 * US}


def test_silent_on_few_and_on_large_copies() -> None:
    assert finding(planted(19).trace(), "memory", "small_copies") is None
    assert finding(planted(20, size=100_000).trace(), "memory", "small_copies") is None


def test_the_host_prepares_each_copy() -> None:
    """Real traces of tensors that are made of lists: the copies took 0.4 % of the time, and the idle time before them 45 %."""
    made = Planted()
    for number in range(2):
        at = number * 10 * MS
        made.step(number, at, at + 10 * MS)
        made.activity("k", at, 4 * MS, launch=at)
        for index in range(20):
            start = at + 4 * MS + (index + 1) * 100 * US
            made.copy("HtoD (Pageable -> Device)", start, US, 1_000, launch=start - 5 * US)
            made.call("cudaStreamSynchronize", start, US)
    found = finding(made.trace(), "memory", "small_copies")
    assert found is not None
    assert found.title.endswith("20 a step; they and the idle time before them take 20.0 % of the time")
    assert found.ns_at_stake == 2 * (20 * 100 + 1) * US


@pytest.mark.parametrize("rule", ["small_copies", "pageable_copies"])
def test_a_read_of_a_value_is_no_copy_to_advise_about(rule: str) -> None:
    """For 144 .item() a step the advice was to create tensors on the device."""
    made = Planted()
    for number in range(2):
        begin = number * 10 * MS
        made.step(number, begin, begin + 10 * MS)
        made.activity("k", begin, 4 * MS, launch=begin)
        for at in range(begin + 4 * MS, begin + 9 * MS, 100 * US):
            made.span("op", "aten::item", at, at + 90 * US)
            made.span("op", "aten::_local_scalar_dense", at + US, at + 89 * US)
            made.copy("DtoH (Device -> Pageable)", at + 10 * US, 5 * US, 4, launch=at + 5 * US)
    assert finding(made.trace(), "memory", rule) is None


def simulating(copies: bool) -> Planted:
    """Two steps of 25 passes of 0.7 ms, each after 0.6 ms in a simulator, and maybe a small copy of what it observes."""
    made = Planted()
    for number in range(2):
        begin = number * 25 * 700 * US
        made.step(number, begin, begin + 25 * 700 * US)
        for at in range(begin, begin + 25 * 700 * US, 700 * US):
            made.span("python", "ppo.py(50): rollout", at, at + 700 * US)
            made.span("python", "envs.py(30): step", at + US, at + 600 * US)
            if copies:
                made.span("op", "aten::to", at + 605 * US, at + 620 * US)
                made.copy("HtoD (Pageable -> Device)", at + 618 * US, US, 1_000, launch=at + 610 * US)
            made.activity("k", at + 640 * US, 40 * US, launch=at + 630 * US)
    return made


def test_a_simulator_before_each_copy_is_no_cost_of_the_copies() -> None:
    """Of 154 ms, 121 were said to be those of copies; without the copies the run took 149."""
    found = finding(simulating(copies=True).trace(), "memory", "small_copies")
    assert found is not None
    assert found.ns_at_stake is not None
    assert 25 * 15 * US < found.ns_at_stake < 2 * 25 * 30 * US
    assert "envs.py" not in found.evidence


@pytest.mark.parametrize("copies", [True, False])
def test_the_place_with_most_of_the_time_stands_before_launches_and_copies(copies: bool) -> None:
    """A simulator of 0.6 ms was taken for the launches after it, and no advice named it."""
    verdict = build_report(simulating(copies=copies).trace()).verdict
    assert verdict.bound == "host-bound"
    title = verdict.advice[0].title
    assert title.startswith("The device waits for Python code ")
    assert title.endswith(", mostly in envs.py(30): step")
