from __future__ import annotations

from planted import MS, Planted, finding


def steps_of(*times: int, work: tuple[int, ...] = ()) -> Planted:
    """Steps of these times in ms, in which the device works for as long, or for as long as `work` says."""
    made, start = Planted(), 0
    for number, time in enumerate(times):
        made.step(number, start, start + time * MS)
        busy = work[number] if work else time
        made.activity("k", start, busy * MS, launch=start)
        start += time * MS
    return made


def test_names_the_work_that_takes_longer() -> None:
    found = finding(steps_of(10, 10, 30, 10, 10).trace(), "steps", "step_variability")
    assert found is not None
    assert found.ns_at_stake == 20 * MS
    assert found.severity == "critical"
    assert found.title == "1 of 5 steps is slow, mostly by work of the device"
    assert "The median step takes 10.0 ms" in found.evidence
    assert "The slowest: ProfilerStep#2 30.0 ms" in found.evidence


def test_names_what_the_host_did_in_the_slow_steps_and_where() -> None:
    made = steps_of(10, 10, 30, 10, 10, work=(9, 9, 9, 9, 9))
    made.span("python", "train.py(40): save", 29 * MS, 50 * MS)
    found = finding(made.trace(), "steps", "step_variability")
    assert found is not None
    assert found.title == "1 of 5 steps is slow, mostly by Python"
    assert found.ns_at_stake == 20 * MS
    assert "train.py(40): save" in found.evidence


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
