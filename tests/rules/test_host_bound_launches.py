from __future__ import annotations

from planted import EVERYTHING, MS, US, Planted, finding


def launched_late(count: int = 30) -> Planted:
    """Kernels of 10 µs every 100 µs, each launched 5 µs before it starts."""
    made = Planted()
    for number in range(count):
        start = number * 100 * US
        made.activity("k", start, 10 * US, launch=start - 5 * US)
    return made


def test_fires_on_many_short_gaps_with_an_empty_queue() -> None:
    found = finding(launched_late().trace(), "idle", "host_bound_launches")
    assert found is not None
    # 29 gaps of 90 µs in a window of 2,910 µs; each activity waited 5 µs of some 100.
    assert found.ns_at_stake == 29 * 90 * US
    assert found.severity == "critical"
    assert found.title == "The device waits for launches of the host 89.7 % of the time"
    assert "had 29 gaps" in found.evidence
    assert "0.05 activities were queued" in found.evidence
    assert "Python stacks" in found.evidence


def test_stacks_are_mentioned_only_when_recorded() -> None:
    found = finding(launched_late().trace(captured=EVERYTHING - {"stacks"}), "idle", "host_bound_launches")
    assert found is not None
    assert "Python stacks" not in found.evidence


def test_gaps_of_a_ms_or_more_have_another_cause() -> None:
    made = launched_late()
    end = 29 * 100 * US + 10 * US
    made.activity("k", end + 50 * MS, 10 * US, launch=end + 50 * MS - 5 * US)
    assert finding(made.trace(), "idle", "host_bound_launches") is None


def test_work_of_another_stream_hides_the_gaps() -> None:
    made = launched_late()
    made.activity("long", 0, 29 * 100 * US, launch=-10 * US, stream=8)
    assert finding(made.trace(), "idle", "host_bound_launches") is None


def test_silent_when_the_host_runs_ahead_and_when_few_kernels_ran() -> None:
    ahead = Planted()
    for number in range(30):
        ahead.activity("k", number * 100 * US, 90 * US, launch=(number - 40) * 10 * US)
    assert finding(ahead.trace(), "idle", "host_bound_launches") is None
    assert finding(launched_late(15).trace(), "idle", "host_bound_launches") is None
