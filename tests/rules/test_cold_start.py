from __future__ import annotations

from planted import MS, US, Planted, finding


def test_fires_on_a_first_launch_and_a_context() -> None:
    made = Planted()
    made.activity("a", 0, MS, launch=-10 * US)
    made.call("cudaFree", MS, 200 * MS)
    made.activity("b", 241 * MS, 9 * MS, launch=210 * MS, call_ns=30 * MS)
    found = finding(made.trace(), "launches", "cold_start")
    assert found is not None
    assert found.ns_at_stake == 230 * MS
    assert found.severity == "warning"
    assert found.title == "First-time work takes 92.0 % of the time"
    assert (
        found.evidence == "2 API calls of 1.00 ms or more left the device idle for 230 ms. "
        "cudaFree left it idle longest; the call takes 200 ms."
    )


def test_ranges_that_the_program_calls_measured_are_named() -> None:
    made = Planted()
    made.activity("a", 0, MS, launch=-10 * US)
    made.activity("b", 41 * MS, 9 * MS, launch=10 * MS, call_ns=30 * MS)
    made.span("annotation", "[net|warmup|forward]", 0, 45 * MS)
    made.span("annotation", "[net|measure|forward]", 45 * MS, 50 * MS)
    found = finding(made.trace(), "launches", "cold_start")
    assert found is not None
    assert found.advice.endswith("report the trace with --step measure.")


def test_a_launch_that_waits_for_a_full_queue_is_none() -> None:
    made = Planted()
    made.activity("a", 0, 20 * MS, launch=-10 * US)
    made.activity("b", 20 * MS, MS, launch=5 * MS, call_ns=15 * MS)
    assert finding(made.trace(), "launches", "cold_start") is None


def test_waits_copies_and_usual_calls_are_none() -> None:
    made = Planted()
    made.activity("a", 0, MS, launch=-10 * US)
    made.call("cudaDeviceSynchronize", MS, 5 * MS)
    made.copy("HtoD (Pageable -> Device)", 11 * MS, MS, 1000, launch=7 * MS, call_ns=5 * MS)
    made.activity("b", 13 * MS, MS, launch=12_990_000)
    assert finding(made.trace(), "launches", "cold_start") is None
