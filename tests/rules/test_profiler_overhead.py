from __future__ import annotations

from planted import MS, US, Planted, finding


def planted() -> Planted:
    made = Planted()
    made.activity("a", 0, 10 * MS, launch=-10 * US)
    return made


def test_fires_on_the_union_of_the_profilers_own_spans() -> None:
    made = planted()
    made.span("overhead", "Activity Buffer Request", 1 * MS, 2 * MS)
    made.span("overhead", "CUPTI Buffer Flush", 1500 * US, 3 * MS, thread=2)
    made.span("overhead", "CUPTI Buffer Flush", 20 * MS, 30 * MS)  # after the window
    found = finding(made.trace(), "launches", "profiler_overhead")
    assert found is not None
    assert found.ns_at_stake == 2 * MS
    assert found.severity == "critical"
    assert found.title == "The profiler itself takes 20.0 % of the time"
    assert "2 profiler spans took" in found.evidence
    assert "CUPTI Buffer Flush took the most, 1.50 ms." in found.evidence


def test_silent_below_two_percent() -> None:
    made = planted()
    assert finding(made.trace(), "launches", "profiler_overhead") is None
    made.span("overhead", "Activity Buffer Request", 1 * MS, 1 * MS + 199 * US)
    assert finding(made.trace(), "launches", "profiler_overhead") is None
