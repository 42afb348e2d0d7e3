from __future__ import annotations

from planted import MS, US, Planted, finding


def contended(wait: int, count: int = 30) -> Planted:
    """Operators of 1 ms, and after each a wait in ns."""
    made, clock = Planted(), 0
    for _ in range(count):
        made.span("op", "aten::mm", clock, clock + MS)
        clock += MS + wait
    made.span("op", "aten::mm", clock, clock + MS)
    return made


def test_waits_of_one_switch_interval_are_those_for_the_lock() -> None:
    found = finding(contended(5 * MS + 200 * US).trace(devices=()), "idle", "interpreter_lock")
    assert found is not None
    assert found.ns_at_stake == 30 * (5 * MS + 200 * US)
    assert (
        found.title == "Another Python thread holds the global interpreter lock (GIL) for 83.4 % of the time"
    )
    assert "waited 30 times, 156 ms in all" in found.evidence
    assert found.stretches[0] == (MS, MS + 5 * MS + 200 * US)
    assert finding(contended(5 * MS + 200 * US).trace(devices=()), "idle", "code_outside_operators") is None


def test_silent_on_few_and_on_other_waits() -> None:
    assert finding(contended(5 * MS, 10).trace(devices=()), "idle", "interpreter_lock") is None
    for wait in (2 * MS, 4 * MS, 8 * MS):
        assert finding(contended(wait).trace(devices=()), "idle", "interpreter_lock") is None
