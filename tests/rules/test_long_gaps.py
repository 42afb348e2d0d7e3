from __future__ import annotations

from planted import MS, Planted, finding


def with_gaps(*gaps: int, step: int = 100) -> Planted:
    """Steps of `step` ms, each with one gap of so many ms (0: none) in the middle of the device's work."""
    made = Planted()
    for number, gap in enumerate(gaps):
        start = number * step * MS
        made.step(number, start, start + step * MS)
        half = (step - gap) * MS // 2
        made.activity("k", start, half, launch=start)
        made.activity("k", start + half + gap * MS, half, launch=start + half + gap * MS - 10_000)
    return made


def test_fires_on_few_long_gaps() -> None:
    planted = with_gaps(20, 0, 30, 0)
    found = finding(planted.trace(), "idle", "long_gaps")
    assert found is not None
    assert found.title == "The device is idle in 2 long gaps for 12.5 % of the time"
    assert (found.ns_at_stake, found.severity) == (50 * MS, "warning")
    assert (
        "Device 0 is idle for 50.0 ms in gaps of 5.00 ms or more, which is 100.0 % of its idle time; "
        "the main cause is Python." in found.evidence
    )
    assert (
        "The longest gap takes 30.0 ms and begins 235 ms into the trace, during ProfilerStep#2."
        in found.evidence
    )


def test_fires_without_steps_relative_to_the_window() -> None:
    planted = Planted()
    planted.activity("k", 0, 40 * MS, launch=0)
    planted.activity("k", 60 * MS, 40 * MS, launch=59 * MS)
    found = finding(planted.trace(), "idle", "long_gaps")
    assert found is not None
    assert found.title == "The device is idle in one long gap for 20.0 % of the time"
    assert found.severity == "critical"


def test_a_wait_of_many_ms_is_no_latency_of_a_launch() -> None:
    """What was launched at the begin of a gap of 20 ms waited for another device, and its launch was blamed."""
    planted = Planted()
    planted.activity("k", 0, 40 * MS, launch=0)
    planted.activity("k", 60 * MS, 40 * MS, launch=40 * MS + 1)
    found = finding(planted.trace(), "idle", "long_gaps")
    assert found is not None
    assert "of its idle time; for most of that, work had been launched but had not started." in found.evidence


def test_names_the_device_with_the_longest_gaps() -> None:
    planted = with_gaps(10, 10)
    planted.activity("k", 0, 60 * MS, device=1)
    planted.activity("k", 120 * MS, 60 * MS, device=1)
    found = finding(planted.trace(), "idle", "long_gaps")
    assert found is not None
    assert "Device 1 is idle for 60.0 ms" in found.evidence
    # its idle time after its last activity is no gap
    assert found.ns_at_stake == 60 * MS


def test_silent_on_many_short_gaps() -> None:
    planted = Planted()
    planted.step(0, 0, 100 * MS)
    for start in range(100):
        planted.activity("k", start * MS, MS // 2, launch=start * MS)
    assert finding(planted.trace(), "idle", "long_gaps") is None
    # one long gap among them is not what the idle time is made of
    planted.activity("k", 130 * MS, MS // 2, launch=99 * MS)
    assert finding(planted.trace(), "idle", "long_gaps") is None


def test_silent_when_the_gaps_are_too_little_of_the_window() -> None:
    assert finding(with_gaps(6, 0, 0).trace(), "idle", "long_gaps") is None
    assert finding(with_gaps(0, 0, 0).trace(), "idle", "long_gaps") is None


def test_what_the_profiler_took_is_no_gap() -> None:
    planted = with_gaps(30, 0, 0)
    assert finding(planted.trace(), "idle", "long_gaps") is not None
    planted.span("overhead", "Buffer Flush", 34 * MS, 66 * MS)
    assert finding(planted.trace(), "idle", "long_gaps") is None


def test_silent_on_the_cpu() -> None:
    on_cpu = Planted()
    on_cpu.span("op", "aten::mm", 0, MS)
    on_cpu.span("op", "aten::mm", 9 * MS, 10 * MS)
    assert finding(on_cpu.trace(devices=()), "idle", "long_gaps") is None


def test_silent_when_a_rule_of_its_own_tells_the_cause() -> None:
    planted = with_gaps(20, 0, 30, 0)
    planted.span(
        "annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 40 * MS, 60 * MS
    )
    planted.span(
        "annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 235 * MS, 265 * MS
    )
    assert finding(planted.trace(), "idle", "long_gaps") is None
    assert finding(planted.trace(), "steps", "data_loading") is not None


def test_gaps_before_work_that_was_launched_are_not_the_host_s() -> None:
    """A hole inside a graph was to be looked for on the host, which had launched all steps long before."""
    made = Planted()
    made.step(0, 0, 100 * MS)
    for number, start in enumerate((1_000, 20 * MS, 60 * MS)):
        made.activity(f"k{number}", start, 10 * MS, launch=number * 10)
    found = finding(made.trace(), "idle", "long_gaps")
    assert found is not None
    assert found.advice.startswith("The host has already launched the next work by then")
