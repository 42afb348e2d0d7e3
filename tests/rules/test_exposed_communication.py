from __future__ import annotations

import pytest
from planted import MS, Planted, finding

from tracekit.facts.collectives import collective_name

DDP = ("annotation", "DistributedDataParallel.forward")
FSDP = ("annotation", "FSDP::pre_forward (layer.0)")
BACKWARD = ("op", "AddmmBackward0")


@pytest.mark.parametrize(
    ("name", "spans", "word"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", [DDP, BACKWARD], "no_sync()"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", [BACKWARD], "as DistributedDataParallel does"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", [], "computation that does not need its result"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)", [FSDP], "forward_prefetch"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)", [], "Start it earlier"),
        ("ncclDevKernel_SendRecv(args)", [], "exchange"),
        ("ncclDevKernel_Broadcast_RING_LL(args)", [], "Start collectives earlier"),
    ],
)
def test_fires_and_fits_the_advice_to_the_collective_and_the_run(
    name: str, spans: list[tuple[str, str]], word: str
) -> None:
    planted = Planted()
    for kind, span in spans:
        planted.span(kind, span, 0, MS)
    planted.activity("compute", 0, 6 * MS)
    planted.activity(name, 5 * MS, 5 * MS, stream=20)
    found = finding(planted.trace(), "breakdown", "exposed_communication")
    assert found is not None
    assert found.title == "Exposed communication takes 40.0 % of the time"
    assert "4.00 ms of 5.00 ms" in found.evidence
    assert f" 4.00 ms of it is {collective_name(name)}, once." in found.evidence
    assert word in found.advice
    assert (found.ns_at_stake, found.severity) == (4 * MS, "critical")


def test_silent_when_computation_hides_it() -> None:
    planted = Planted()
    planted.activity("compute", 0, 10 * MS)
    planted.activity("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 5 * MS, 5_400_000, stream=20)
    assert finding(planted.trace(), "breakdown", "exposed_communication") is None


@pytest.mark.parametrize(("elements", "waits"), [(1_000, True), (1_000_000, False)])
def test_collectives_that_send_little_wait_for_other_ranks(elements: int, waits: bool) -> None:
    planted = Planted()
    planted.span("op", "aten::mm", 0, 10 * MS)
    planted.span("op", "c10d::allreduce_", 10 * MS, 15 * MS, shapes=f"[[[{elements}]], [], []]")
    planted.span("annotation", "gloo:all_reduce", 10 * MS, 15 * MS, 2, shapes=f"[[{elements}]]")
    found = finding(planted.trace(devices=()), "breakdown", "exposed_communication")
    assert found is not None
    assert ("All collectives send only 4.00 kB, so they mostly wait for other ranks." in found.evidence) == waits
    assert ("cores of their own" in found.advice) == waits
