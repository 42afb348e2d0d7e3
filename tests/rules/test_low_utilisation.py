from __future__ import annotations

from planted import MS, Planted, finding


def test_fires_on_the_busiest_device() -> None:
    planted = Planted()
    planted.activity("k", 0, 3 * MS)
    planted.activity("k", 9 * MS, 1 * MS)
    planted.activity("k", 2 * MS, 1 * MS, device=1)
    found = finding(planted.trace(), "breakdown", "low_utilisation")
    assert found is not None
    assert found.title == "Device 0 is busy only 40.0 % of the time"
    assert found.evidence == (
        "It is idle for 6.00 ms of 10.0 ms and busy for 4.00 ms. It is the busiest of 2 devices."
    )
    assert (found.ns_at_stake, found.severity) == (6 * MS, "critical")
    assert found.stretches == ((3 * MS, 9 * MS),)  # when that device is idle, whatever the other does


def test_idle_time_that_is_everywhere_has_no_place() -> None:
    planted = Planted()
    for start in range(0, 100 * MS, MS):
        planted.activity("k", start, MS // 2)
    found = finding(planted.trace(), "breakdown", "low_utilisation")
    assert found is not None
    assert found.stretches == ()


def test_a_tenth_idle_is_a_warning() -> None:
    planted = Planted()
    planted.activity("k", 0, 8 * MS)
    planted.activity("k", 9500_000, 500_000)
    found = finding(planted.trace(), "breakdown", "low_utilisation")
    assert found is not None
    assert (found.ns_at_stake, found.severity) == (1_500_000, "warning")


def test_silent_on_a_busy_device_and_on_the_cpu() -> None:
    planted = Planted()
    planted.activity("k", 0, 9 * MS)
    planted.activity("k", 9500_000, 500_000)
    assert finding(planted.trace(), "breakdown", "low_utilisation") is None
    on_cpu = Planted()
    on_cpu.span("op", "aten::mm", 0, MS)
    on_cpu.span("op", "aten::mm", 9 * MS, 10 * MS)
    assert finding(on_cpu.trace(devices=()), "breakdown", "low_utilisation") is None
