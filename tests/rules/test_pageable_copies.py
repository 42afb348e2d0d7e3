from __future__ import annotations

from dataclasses import replace

import pytest
from planted import A100, MS, Planted, finding

from tracekit.analyses.memory import memory
from tracekit.analyses.rules.memory import pageable_copies
from tracekit.analyses.scope import select


def planted() -> Planted:
    made = Planted()
    made.activity("k", 0, 90 * MS)
    made.copy("HtoD (Pageable -> Device)", 90 * MS, 10 * MS, 50_000_000)  # 5 GB/s
    return made


def test_compared_with_pinned_copies_of_the_same_direction() -> None:
    made = planted()
    made.copy("HtoD (Pinned -> Device)", 10 * MS, 1 * MS, 25_000_000, stream=8)  # 25 GB/s
    made.copy("DtoH (Device -> Pageable)", 80 * MS, 10_000, 400, stream=8)
    found = finding(made.trace(), "memory", "pageable_copies")
    assert found is not None
    # 50 MB take 2 ms at 25 GB/s, which computation hides.
    assert found.ns_at_stake == 10 * MS
    assert found.severity == "warning"
    assert found.title == "Copies from pageable memory take 10.0 % of the time"
    assert found.evidence == (
        "HtoD: 1 copy moves 50.0 MB in 10.0 ms (5.0 GB/s). At the rate of the pinned copies in this trace, they would take "
        "2.00 ms; computation takes 90.0 ms."
    )


@pytest.mark.parametrize(("device", "stake"), [("NVIDIA A100-SXM4-40GB", 7 * MS), ("unknown", 10 * MS)])
def test_without_one_the_link_tells_what_pinned_memory_could_save(device: str, stake: int) -> None:
    made = Planted()
    made.activity("k", 0, MS)
    made.copy("HtoD (Pageable -> Device)", MS, 10 * MS, 100_000_000)
    # At 25 GB/s 4 ms, 1 ms of it beside the kernel.
    trace = made.trace(devices=(replace(A100, name=device),))
    found = finding(trace, "memory", "pageable_copies")
    assert found is not None
    assert found.ns_at_stake == stake
    assert ("about 25 GB/s, the rate of the link, they would take 4.00 ms" in found.evidence) == (
        stake == 7 * MS
    )


def test_without_a_pinned_copy_to_compare_with_the_time_that_nothing_hides_is_at_stake() -> None:
    found = finding(planted().trace(), "memory", "pageable_copies")
    assert found is not None
    assert (found.ns_at_stake, found.severity) == (10 * MS, "warning")
    made = planted()
    made.copy("HtoD (Pinned -> Device)", 10 * MS, 10_000, 4, stream=8)  # too small to tell
    made.activity("hides", 0, 1_000 * MS, stream=9)
    found = finding(made.trace(), "memory", "pageable_copies")
    assert found is not None
    assert found.ns_at_stake == 0


def test_silent_on_small_and_pinned_copies() -> None:
    made = Planted()
    made.activity("k", 0, 90 * MS)
    made.copy("HtoD (Pageable -> Device)", 90 * MS, 10_000, 400)
    made.copy("HtoD (Pinned -> Device)", 91 * MS, 9 * MS, 200_000_000)
    assert finding(made.trace(), "memory", "pageable_copies") is None


def test_the_advice_fits_the_direction() -> None:
    """Copies to the host were to be made faster with DataLoader(pin_memory=True)."""
    made = planted()
    made.copy("DtoH (Device -> Pageable)", 100 * MS, 10 * MS, 50_000_000)
    both = finding(made.trace(), "memory", "pageable_copies")
    assert both is not None
    assert both.title.startswith("Copies from or to pageable memory")
    assert "pin_memory" in both.advice
    assert "Copy to the host less often" in both.advice
    made = Planted()
    made.activity("k", 0, 90 * MS)
    made.copy("DtoH (Device -> Pageable)", 90 * MS, 10 * MS, 50_000_000)
    found = finding(made.trace(), "memory", "pageable_copies")
    assert found is not None
    assert found.title == "Copies to pageable memory take 10.0 % of the time"
    assert found.advice.startswith("Copy to the host less often, or into a buffer of pinned memory")
    assert "DataLoader" not in found.advice


def test_copies_of_one_step_are_said_to_be() -> None:
    made = Planted()
    for number in range(4):
        made.step(number, number * 20 * MS, (number + 1) * 20 * MS)
        made.activity("k", number * 20 * MS, 10 * MS, launch=number * 20 * MS)
    made.copy("DtoH (Device -> Pageable)", 51 * MS, 8 * MS, 50_000_000, launch=50 * MS)
    found = finding(made.trace(), "memory", "pageable_copies")
    assert found is not None
    assert found.title == "Copies to pageable memory take 10.0 % of the time, nearly all in ProfilerStep#2"
    made.copy("DtoH (Device -> Pageable)", 71 * MS, 8 * MS, 50_000_000, launch=70 * MS)
    found = finding(made.trace(), "memory", "pageable_copies")
    assert found is not None
    assert found.title == "Copies to pageable memory take 20.0 % of the time"


def test_copies_that_steps_in_disorder_leave_outside_of_the_window() -> None:
    """The window then overlaps no activity, and the largest stake of no device was a fault."""
    scope = select(planted().trace())
    outside = replace(scope, overlapping=scope.overlapping.clear())
    assert outside.device_ids == []
    assert pageable_copies(outside, memory(scope)) is not None


@pytest.mark.parametrize(("within", "place"), [(True, ", mostly in model.py(60): causal_mask"), (False, "")])
def test_tensors_that_a_layer_makes_on_the_host_need_no_pinned_memory(within: bool, place: str) -> None:
    """A mask that each forward pass makes on the host was told to be pinned; made on the device, it needs no copy."""
    made = Planted()
    made.span("module", "nn.Module: GPT_0", 10 * MS, 50 * MS)
    made.span("op", "aten::mm", 10 * MS, 11 * MS)
    made.activity("k", 10 * MS, 10 * MS, launch=10 * MS)
    at = 30 * MS if within else 60 * MS
    made.span("python", "model.py(60): causal_mask", at, at + 20 * MS - 1)
    made.span("op", "aten::copy_", at, at + 15 * MS)
    made.copy("HtoD (Pageable -> Device)", at + 2 * MS, 10 * MS, 50_000_000, launch=at + MS)
    made.activity("k", 70 * MS, 40 * MS, launch=69 * MS)
    found = finding(made.trace(), "memory", "pageable_copies")
    assert found is not None
    assert found.title == f"Copies from pageable memory take 10.0 % of the time{place}"
    assert ("The model launches them in the forward pass" in found.evidence) == within
    assert found.advice.startswith("Make these tensors on the device" if within else "Use pinned memory")
