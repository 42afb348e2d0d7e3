from __future__ import annotations

from planted import MS, US, Planted, finding

from tracekit.findings import Finding
from tracekit.report.build import build_report


def steps(*, copies: bool, last: int = 4, name: str = "aten::abs") -> Planted:
    """Four steps of 12 ms: a copy of 2 ms to the host if there are copies, an operator of 4 ms that launches nothing, a kernel."""
    made = Planted()
    for number in range(4):
        start = number * 12 * MS
        made.step(number, start, start + 12 * MS)
        made.activity("k", start, MS, launch=start)
        at = start + MS
        if copies:
            made.copy(
                "DtoH (Device -> Pageable)", at, 2 * MS, 1 << 24, launch=start + 10 * US, call_ns=3 * MS
            )
            at += 2 * MS + 20 * US
        end = at + (last if number == 3 else 4) * MS
        made.span("op", name, at, end, shapes="[[1000, 1000]]")
        made.activity("k", end + 14 * US, MS, launch=end + 10 * US)
    return made


def processor_operators(made: Planted) -> Finding | None:
    return finding(made.trace(), "idle", "processor_operators")


def test_names_the_operators_and_counts_the_copies_before_them() -> None:
    found = processor_operators(steps(copies=True))
    assert found is not None
    assert found.title == (
        "Operators that compute on the processor, and copies to the host before them, keep the device from computing for "
        "50.0 % of the time"
    )
    assert found.ns_at_stake == 4 * (4 + 2) * MS
    assert "idle for 16.0 ms meanwhile, longest in aten::abs (4 calls, 16.0 ms)" in found.evidence
    assert (
        "Before 4 of them, the thread's last launch was a copy from the device to the host" in found.evidence
    )
    assert "during 4 such copies, the device does nothing else for 8.00 ms" in found.evidence
    assert found.advice.startswith("Keep their inputs on the device")


def test_the_headline_says_so_too() -> None:
    """It was called operator dispatch, and the advice was to use CUDA graphs."""
    verdict = build_report(steps(copies=True).trace()).verdict
    assert "for operators that compute on the processor, mostly in aten::abs" in verdict.headline
    assert verdict.advice[0].finding == "processor_operators"
    assert not any("CUDA graphs" in advice.advice for advice in verdict.advice)


def test_an_optimizer_in_host_memory_is_told_from_other_operators() -> None:
    """Each of its operators took less than 1 ms, so 62 % of the time was called dispatch, and the advice was to use CUDA graphs."""
    made = Planted()
    for number in range(4):
        start = number * 12 * MS
        made.step(number, start, start + 12 * MS)
        made.activity("k", start, MS, launch=start)
        made.span("annotation", "Optimizer.step#AdamW.step", start + MS, start + 9 * MS)
        for each in range(20):
            at = start + MS + each * 400 * US
            made.span("op", "aten::lerp_", at + US, at + 390 * US, shapes="[[1000, 1000]]")
        made.activity("k", start + 9 * MS + 14 * US, MS, launch=start + 9 * MS + 10 * US)
    found = processor_operators(made)
    assert found is not None
    assert found.advice.startswith("The optimizer computes in host memory.")
    assert "80 operator calls launch nothing and take 100 µs or more" in found.evidence


def test_without_copies_nothing_is_said_of_them() -> None:
    found = processor_operators(steps(copies=False))
    assert found is not None
    assert found.ns_at_stake == 16 * MS
    assert "copies" not in found.title + found.evidence
    assert found.advice.startswith("Compute on the device")


def test_a_call_that_launches_work_does_not_compute_on_the_processor() -> None:
    made = steps(copies=False)
    for row in [row for row in made.host if row["kind"] == "op"]:
        row["duration"] += 20 * US
    assert processor_operators(made) is None


def test_a_call_that_waits_for_the_device_does_not() -> None:
    made = steps(copies=False)
    for row in [row for row in made.host if row["kind"] == "op"]:
        made.call("cudaStreamSynchronize", row["start"] + US, row["duration"] - 2 * US)
    assert processor_operators(made) is None


def test_one_call_that_stands_out_is_a_pause() -> None:
    """The others take too little to matter."""
    made = steps(copies=False, last=15)
    for row in [row for row in made.host if row["kind"] == "op"][:3]:
        row["duration"] = 20 * US
    assert processor_operators(made) is None
    assert finding(made.trace(), "idle", "long_calls") is not None
