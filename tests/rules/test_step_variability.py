from __future__ import annotations

from planted import MS, Planted, finding


def steps_of(*times: int) -> Planted:
    made, start = Planted(), 0
    for number, time in enumerate(times):
        made.step(number, start, start + time * MS)
        made.activity("k", start, time * MS, launch=start)
        start += time * MS
    return made


def test_fires_on_a_slow_outlier() -> None:
    found = finding(steps_of(10, 10, 30, 10, 10).trace(), "steps", "step_variability")
    assert found is not None
    assert found.ns_at_stake == 20 * MS
    assert found.severity == "critical"
    assert found.title.endswith("1 of 5 steps is slow")
    assert "The median step takes 10.0 ms" in found.evidence
    assert "The slowest steps: ProfilerStep#2 30.0 ms" in found.evidence


def test_without_outliers_all_steps_above_the_median_count() -> None:
    found = finding(steps_of(8, 10, 12, 8, 10, 12).trace(), "steps", "step_variability")
    assert found is not None
    assert found.ns_at_stake == 2 * 2 * MS
    assert found.title == "Step times vary by 17.9 %"


def test_silent_on_steady_fast_and_few_steps() -> None:
    assert finding(steps_of(10, 10, 10, 10).trace(), "steps", "step_variability") is None
    assert finding(steps_of(10, 30, 10).trace(), "steps", "step_variability") is None
    assert finding(Planted().trace(), "steps", "step_variability") is None
