from __future__ import annotations

import dataclasses

import pytest
from planted import A100, MS, US, Planted, finding

from tracekit.report.build import build_report
from tracekit.trace import Trace

DEVICES = (A100, dataclasses.replace(A100, device_id=1))


def planted(
    *, second: int = 0, share: float = 1.0, copies: int = 6, steps: int = 5, waits: bool = False
) -> Trace:
    """In steps of 20 ms, 9 ms of kernels on each device; those of device 1 begin `second` ns into the step, or after the copy of
    the first results. `waits`: the host waits for each device before it launches for the next.
    """
    made = Planted()
    for number in range(steps):
        start = 20 * MS * number
        made.step(number, start, start + 20 * MS)
        begin = start + (second or 9_600 * US)
        for each in range(9):
            made.activity(
                "gemm", start + 100 * US + each * MS, MS, launch=start + 10 * US * each, call_ns=2 * US
            )
            made.activity(
                "gemm",
                begin + each * MS,
                round(share * MS),
                device=1,
                launch=start + 100 * US + 10 * US * each,
                call_ns=2 * US,
            )
        if waits:
            made.call("cudaDeviceSynchronize", start + 95 * US, 2 * US)
            made.call("cudaDeviceSynchronize", start + 200 * US, 19 * MS)
        if number < copies:
            name = "Memcpy PtoP (Device -> Device)"
            made.activity(
                name, start + 9_200 * US, 300 * US, kind="memcpy", launch=start + (45 if waits else 300) * US
            )
    return made.trace(devices=DEVICES)


def test_fires_for_a_model_on_two_devices_that_work_one_after_the_other() -> None:
    """The wait for the other device was called a gap between queued kernels, or a wait of the host."""
    trace = planted()
    found = finding(trace, "breakdown", "devices_take_turns")
    assert found is not None
    assert found.ns_at_stake == pytest.approx(45 * MS, rel=0.05)
    assert found.title.startswith("The 2 devices take turns: for 9")
    assert found.evidence == (
        "They are busy for 46.5 % (device 0) and 45.0 % (device 1) of the window, and more than one at a time for 0.0 %. "
        "5 copies moved data from one device to another."
    )
    assert "micro-batches" in found.advice
    verdict = build_report(trace).verdict
    assert verdict.advice[0].finding == "devices_take_turns"
    assert verdict.headline.endswith("of the time, taking turns with the other device.")


def test_turns_that_the_host_makes_end_without_its_waits() -> None:
    """Each device had its own part of the batch, and a pipeline was advised where the host waited for one before it launched for the other."""
    found = finding(planted(waits=True), "breakdown", "devices_take_turns")
    assert found is not None
    assert "On 9 of 9 turns, the host waited for a device and copied nothing" in found.evidence
    assert found.advice.startswith(
        "Let them work at the same time: launch work on all of them before the host waits"
    )
    assert "micro-batches" not in found.advice


@pytest.mark.parametrize(
    "trace",
    [
        planted(second=100 * US),  # both work at the same time
        planted(second=5 * MS),  # for half of it
        planted(share=0.1),  # one of them hardly works
        planted(copies=4),  # not each step passes anything on
    ],
)
def test_silent_if_devices_work_at_the_same_time_or_on_their_own(trace: Trace) -> None:
    assert finding(trace, "breakdown", "devices_take_turns") is None
