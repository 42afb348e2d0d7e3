from __future__ import annotations

import pytest
from planted import MS, Planted, finding

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
MULTI = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def two_steps(name: str, loading: int) -> Planted:
    made = Planted()
    for number in range(2):
        start = number * 10 * MS
        made.step(number, start, start + 10 * MS)
        made.span("annotation", name, start, start + loading)
        made.activity("gemm", start + loading, 10 * MS - loading, launch=start + loading)
    return made


@pytest.mark.parametrize(
    ("name", "advice"),
    [(SINGLE, "Set num_workers > 0"), (MULTI, "Raise num_workers"), ("tracekit.phase/data", "Raise")],
)
def test_fires_on_loading_that_nothing_hides(name: str, advice: str) -> None:
    found = finding(two_steps(name, 3 * MS).trace(), "steps", "data_loading")
    assert found is not None
    assert found.title == "Data loading takes 30.0 % of the time"
    assert (
        found.evidence
        == "The data loader took 6.00 ms of 20.0 ms in 2 steps, 3.00 ms a step, while no device worked."
    )
    assert advice in found.advice
    assert "pin_memory=True" not in found.advice, "no copy is from pageable memory"
    assert (found.ns_at_stake, found.severity) == (6 * MS, "critical")


def test_on_the_cpu_nothing_is_pinned() -> None:
    made = Planted()
    made.step(0, 0, 10 * MS)
    made.span("annotation", SINGLE, 0, 2 * MS)
    made.span("op", "aten::mm", 2 * MS, 10 * MS)
    found = finding(made.trace(devices=()), "steps", "data_loading")
    assert found is not None
    assert found.ns_at_stake == 2 * MS
    assert "pin_memory" not in found.advice


def test_silent_when_the_loader_keeps_up_or_the_device_works_meanwhile() -> None:
    assert finding(two_steps(MULTI, 400_000).trace(), "steps", "data_loading") is None
    made = two_steps(SINGLE, 3 * MS)
    for number in range(2):
        made.activity("other", number * 10 * MS, 3 * MS, launch=number * 10 * MS, stream=9)
    assert finding(made.trace(), "steps", "data_loading") is None
