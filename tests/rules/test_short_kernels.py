from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding


def test_fires_with_the_launch_time_that_nothing_hides() -> None:
    made = Planted()
    for number in range(30):
        start = number * 20 * US
        made.activity("add", start, 2 * US, launch=start - 8 * US, call_ns=8 * US)
    found = finding(made.trace(), "launches", "short_kernels")
    assert found is not None
    # Each call exceeds its kernel by 6 µs, all of it in idle time; the first has no time of the window before it.
    assert found.ns_at_stake == 29 * 6 * US
    assert found.severity == "critical"
    assert found.title == "100.0 % of the kernels take less than 10.0 µs"
    assert found.stretches == ()  # they are everywhere
    assert "30 kernels take less" in found.evidence
    assert "add is the most frequent, with 30 launches." in found.evidence
    assert "The device was idle for 174 µs during their launches." in found.evidence


def test_shows_where_they_are_densest() -> None:
    made = Planted()
    made.activity("gemm", 0, 3 * MS, launch=-8 * US)
    for number in range(30):
        start = 3 * MS + (number + 1) * 20 * US
        made.activity("add", start, 2 * US, launch=start - 8 * US, call_ns=8 * US)
    made.activity("gemm", 4 * MS, 2 * MS, launch=4 * MS - 8 * US)
    found = finding(made.trace(), "launches", "short_kernels")
    assert found is not None
    (place,) = found.stretches
    assert 3 * MS <= place[0] < place[1] <= 3 * MS + 620 * US
    assert place[1] - place[0] > 300 * US


def test_shows_steps_if_they_are_as_dense_everywhere() -> None:
    made = Planted()
    for step in range(3):
        made.step(step, step * MS, (step + 1) * MS)
        for start in range(step * MS, (step + 1) * MS, 20 * US):
            made.activity("add", start + 8 * US, 12 * US - 3 * US, launch=start, call_ns=18 * US)
    found = finding(made.trace(), "launches", "short_kernels")
    assert found is not None
    assert sorted(round(start / MS) for start, _ in found.stretches) == [0, 1, 2]
    assert all(0.9 * MS < end - start <= MS for start, end in found.stretches)


def test_silent_when_launches_hide_behind_running_kernels() -> None:
    made = Planted()
    for number in range(40):
        made.activity("add", number * 2 * US, 2 * US, launch=(number - 60) * 8 * US, call_ns=8 * US)
    assert finding(made.trace(), "launches", "short_kernels") is None


@pytest.mark.slow
def test_silent_on_long_kernels_few_kernels_and_a_cold_start() -> None:
    long = Planted()
    few = Planted()
    cold = Planted()
    for number in range(30):
        start = number * 100 * US
        long.activity("gemm", start, 50 * US, launch=start - 80 * US, call_ns=80 * US)
        if number < 15:
            few.activity("add", start, 2 * US, launch=start - 50 * US, call_ns=50 * US)
        cold.activity("add", start * 20, 2 * US, launch=start * 20 - MS, call_ns=MS)
    for made in (long, few, cold):
        assert finding(made.trace(), "launches", "short_kernels") is None


def test_kernels_of_a_graph_share_one_call() -> None:
    made = Planted()
    made.call("cudaGraphLaunch", 0, 500 * US, correlation=1)
    for number in range(30):
        made.activity("add", 500 * US + number * 10 * US, 2 * US)
        made.device[-1]["correlation"] = 1
    assert finding(made.trace(), "launches", "short_kernels") is None
