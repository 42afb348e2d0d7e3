from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding

from tracekit.findings import Finding
from tracekit.report.build import build_report


def offloading(order: str, *, back: int = 1 << 24) -> Planted:
    """Three steps that compute for 2 ms, and copy 4 times 16 MiB to the host (o) and as often back (i), 500 µs each."""
    made, at = Planted(), 0
    for number in range(3):
        begin = at
        made.activity("gemm", at + 20 * US, 2 * MS, launch=at + 10 * US)
        at += 2 * MS + 30 * US
        for way in order:
            direction, size = (
                ("DtoH (Device -> Pinned)", 1 << 24) if way == "o" else ("HtoD (Pinned -> Device)", back)
            )
            made.copy(direction, at, 500 * US, size, launch=at - 10 * US)
            at += 510 * US
        made.step(number, begin, at)
    return made


def found(made: Planted) -> Finding | None:
    return finding(made.trace(), "memory", "returned_copies")


def test_what_goes_to_the_host_and_comes_back() -> None:
    """Activations were offloaded from pinned memory for 75 % of the time, and no finding said so."""
    one = found(offloading("ooooiiii"))
    assert one is not None
    assert (
        "with the same number of bytes each way in every step, keep the device from computing for"
        in one.title
    )
    assert one.evidence.startswith(
        "12 copies to the host move 201 MB in 6.00 ms, and 12 copies back move 201 MB"
    )
    assert one.ns_at_stake == 24 * 500 * US
    advice = build_report(offloading("ooooiiii").trace()).verdict.advice
    assert advice[0].finding == "returned_copies"


@pytest.mark.parametrize(
    ("order", "back"), [("iiiioooo", 1 << 24), ("ooooiiii", 1 << 22), ("oooiii", 1 << 24)]
)
def test_batches_and_results_do_not_come_back(order: str, back: int) -> None:
    assert found(offloading(order, back=back)) is None


def test_copies_as_rocm_names_them_come_back_too() -> None:
    made = offloading("ooooiiii")
    for row in made.device:
        if row["kind"] == "memcpy":
            row["name"] = "CopyDeviceToHost" if "DtoH" in row["name"] else "CopyHostToDevice"
    assert found(made) is not None
