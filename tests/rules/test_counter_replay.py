from __future__ import annotations

from typing import Any

from planted import MS, Planted, finding


def planted(duration: int | None) -> Planted:
    made = Planted()
    made.activity("k", 0, MS)
    row: dict[str, Any] = {"name": "k", "duration": duration, "value": 1.0}
    made.counters = [{**row, "series": s, "start": t} for t in (0, 10) for s in ("dram__bytes.sum", "inst")]
    return made


def test_fires_on_counters_measured_over_ranges() -> None:
    found = finding(planted(5).trace(), "counters", "counter_replay")
    assert found is not None
    assert found.title == "The profiler replayed 2 kernels to measure their counters"
    assert "4 counter values" in found.evidence
    assert (found.severity, found.ns_at_stake) == ("info", None)


def test_silent_on_sampled_counters_and_without_any() -> None:
    assert finding(planted(None).trace(), "counters", "counter_replay") is None
    assert finding(Planted().trace(), "counters", "counter_replay") is None
