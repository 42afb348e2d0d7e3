from __future__ import annotations

from planted import MS, US, Planted, finding


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
    assert found.evidence == "They move 40.0 kB in 200 µs, 1.00 kB a copy on average."
    assert found.ns_at_stake == 200 * US
    assert found.severity == "info"
    assert [start for start, _ in found.stretches] == [9 * MS, 19 * MS]
    assert {end - start for start, end in found.stretches} == {195 * US}


def test_silent_on_few_and_on_large_copies() -> None:
    assert finding(planted(19).trace(), "memory", "small_copies") is None
    assert finding(planted(20, size=100_000).trace(), "memory", "small_copies") is None
