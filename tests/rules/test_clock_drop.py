from __future__ import annotations

from pathlib import Path

import pytest
from planted import MS, US, Planted, finding
from synthetic.nsys_export import Program, write_sqlite

import tracekit


def planted(
    low: float = 1200, factor: float = 1.5, *, names: int = 1, series: str = "GPC Clock Frequency [MHz]"
) -> Planted:
    """Ten kernels of 1 ms at 1,800 MHz, then ten at a lower clock."""
    made, at = Planted(), 0
    for number in range(20):
        slow = number >= 10
        ns = round(MS * factor) if slow else MS
        made.activity("k", at, ns, grid="(8, 1, 1)")
        for name in range(names):
            row = {"name": f"GPU {name}", "series": series, "start": at + 10 * US, "duration": None}
            made.counters.append({**row, "value": low if slow else 1800.0})
        at += ns
    return made


def test_fires_when_the_same_kernels_take_longer_at_a_lower_clock() -> None:
    found = finding(planted().trace(), "counters", "clock_drop")
    assert found is not None
    assert found.ns_at_stake == 5 * MS
    assert (
        found.title
        == "The device's clock drops; kernels then take 1.50 times as long, which costs 20.0 % of the time"
    )
    assert (
        "reaches 1,800 MHz, but only 1,200 MHz (median) during 10 kernels that take 15.0 ms" in found.evidence
    )
    assert "take 5.00 ms less at the high clock" in found.evidence
    assert found.stretches[0] == (10 * MS, 11_500 * US)


@pytest.mark.parametrize(
    "made",
    [
        planted(factor=1.0),  # memory-bound: the clock does not matter
        planted(low=1750),
        planted(names=2),  # whose clock?
        planted(series="SMs Active [Throughput %]"),
    ],
)
def test_silent_if_nothing_shows_it(made: Planted) -> None:
    assert finding(made.trace(), "counters", "clock_drop") is None


def test_other_kernels_prove_nothing() -> None:
    made = planted()
    for number, row in enumerate(made.device):
        row["grid"] = f"({number}, 1, 1)"
    assert finding(made.trace(), "counters", "clock_drop") is None


def test_reads_the_clock_of_an_export(tmp_path: Path) -> None:
    made = Program()
    made.device()
    at, samples = 1000, []
    for number in range(20):
        ns = 1_500_000 if number >= 10 else 1_000_000
        made.call("cudaLaunchKernel_v7000", at - 900, at - 800, correlation=number + 1, tid=7)
        made.kernel("k", at, at + ns, correlation=number + 1)
        samples.append((at + 10, 1200 if number >= 10 else 1800))
        at += ns
    made.metric("GPC Clock Frequency [MHz]", samples)
    trace = tracekit.read(write_sqlite(made, tmp_path / "t.sqlite"))
    found = finding(trace, "counters", "clock_drop")
    assert found is not None
    assert found.ns_at_stake == 5 * MS
