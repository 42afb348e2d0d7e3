from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from planted import MS, US, Planted, finding

from tracekit.readers.assemble import conform
from tracekit.trace import COLLECTIVE_SCHEMA, Trace

SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"


def trained(*, search: int, used: int = 4, kind: str = "Int", device: bool = True) -> Trace:
    """Two steps of 10 ms: 3 ms forward, a search after which the backward pass begins, and at its end an all-reduce of 300 µs over 4 numbers."""
    made = Planted()
    for number in range(2):
        begin = number * 10 * MS
        made.step(number, begin, begin + 10 * MS)
        made.span("op", "aten::mm", begin, begin + 20 * US)
        searched = begin + 3 * MS + search
        made.span("op", SEARCH, begin + 3 * MS, searched)
        made.span("op", "MmBackward0", searched, searched + 20 * US)
        for at in range(used):
            made.span("op", "torch::autograd::AccumulateGrad", searched + (30 + 5 * at) * US, searched + (34 + 5 * at) * US)  # fmt: skip
        made.span("op", "record_param_comms", searched + 60 * US, searched + 80 * US)
        if device:
            made.activity("gemm", begin + 10 * US, 3 * MS - 10 * US, launch=begin + 5 * US)
            made.activity("gemm", searched + 15 * US, 2 * MS, launch=searched + 5 * US)
            made.activity("ncclDevKernel_AllReduce_Sum_i32_RING_LL", searched + 2 * MS + 15 * US, 300 * US, launch=searched + 65 * US)  # fmt: skip
    trace = made.trace() if device else made.trace(devices=())
    spans = trace.host.filter(pl.col("name").cast(pl.String) == "record_param_comms")["span_id"]
    rows = pl.DataFrame(
        {"span_id": spans, "name": "allreduce", "elements_in": 4, "dtype": kind, "group_size": 2}
    )
    return replace(trace, collectives=conform(rows, COLLECTIVE_SCHEMA))


def test_the_search_and_the_sum_of_what_was_used_are_at_stake() -> None:
    found = finding(trained(search=500 * US), "breakdown", "unused_parameter_search")
    assert found is not None
    assert found.ns_at_stake == pytest.approx(2 * (500 + 300) * US, rel=0.05)
    assert "searches autograd's graph twice" in found.evidence
    assert "2 all-reduces of integers" in found.evidence
    assert "Every parameter got a gradient" in found.evidence
    assert "here every parameter was used" in found.advice


def test_unused_parameters_are_not_denied() -> None:
    found = finding(trained(search=500 * US, used=3), "breakdown", "unused_parameter_search")
    assert found is not None
    assert "Every parameter" not in found.evidence
    assert "static_graph=True" in found.advice


def test_on_processors_the_search_itself_takes_the_time() -> None:
    found = finding(trained(search=500 * US, device=False), "breakdown", "unused_parameter_search")
    assert found is not None
    assert found.ns_at_stake == 2 * 500 * US


def test_sums_that_were_not_recorded_are_not_told() -> None:
    """`0 all-reduces of integers take 0 ns` was told of a trace without them."""
    found = finding(trained(search=500 * US, kind="Float"), "breakdown", "unused_parameter_search")
    assert found is not None
    assert "all-reduce" not in found.evidence
    assert "Every parameter" not in found.evidence


def test_silent_where_it_takes_no_time() -> None:
    assert finding(trained(search=20 * US, kind="Float"), "breakdown", "unused_parameter_search") is None
    assert finding(Planted().trace(), "breakdown", "unused_parameter_search") is None
