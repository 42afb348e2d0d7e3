from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from planted import MS, US, Planted, finding
from planted_gloo import on_processors, steps_of

from tracekit.readers.assemble import conform
from tracekit.trace import COLLECTIVE_SCHEMA

NAME = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)"


def planted(count: int, ns: int, *, hidden: bool = False) -> Planted:
    """Computation of 5 ms, and beside or after it collectives of the same length."""
    made = Planted()
    made.activity("compute", 0, 5 * MS)
    for number in range(count):
        made.span("op", "record_param_comms", number * 10 * US, number * 10 * US + 9 * US)
        at = number * ns + (0 if hidden else 5 * MS)
        made.activity(NAME, at, ns, stream=20, launch=number * 10 * US + 2 * US)
    return made


def test_fires_on_many_short_ones() -> None:
    found = finding(planted(50, 20 * US).trace(), "breakdown", "small_collectives")
    assert found is not None
    assert found.title == ("There are 50 short collectives, which run alone for 16.7 % of the time")
    assert (
        found.evidence
        == "They take 20.0 µs each on average and 1.00 ms in all; for 1.00 ms of that, no computation runs."
    )
    assert (found.ns_at_stake, found.severity) == (MS, "warning")
    assert "larger collectives" in found.advice
    assert found.stretches == ((5 * MS, 6 * MS),)


@pytest.mark.parametrize(
    ("span", "word"),
    [
        ("DistributedDataParallel.forward", "raise bucket_cap_mb"),
        ("FSDP::pre_forward (layer.0)", "Shard larger parts"),
        ("Optimizer.step#SGD.step", "flatten them into one tensor"),
    ],
)
def test_the_advice_fits_the_program(span: str, word: str) -> None:
    made = planted(50, 20 * US)
    made.span("annotation", span, 0, 10 * US)
    found = finding(made.trace(), "breakdown", "small_collectives")
    assert found is not None
    assert word in found.advice


@pytest.mark.parametrize(
    ("op", "word"),
    [("SyncBatchNorm", "SyncBatchNorm exchanges its statistics"), ("Linear", "not gradient reductions")],
)
def test_collectives_of_layers_are_no_reductions_of_gradients(op: str, word: str) -> None:
    """The statistics of SyncBatchNorm were to be flattened into one tensor, as gradients are."""
    made = planted(50, 20 * US)
    made.span("op", op, 0, 500 * US)
    made.span("annotation", "forward", 0, 500 * US)
    made.span("annotation", "Optimizer.step#SGD.step", 5 * MS, 5 * MS + 10 * US)
    found = finding(made.trace(), "breakdown", "small_collectives")
    assert found is not None
    assert word in found.advice
    assert "flatten" not in found.advice


def test_gives_their_size_if_it_was_recorded() -> None:
    trace = planted(50, 20 * US).trace()
    spans = trace.host.filter(pl.col("name").cast(pl.String) == "record_param_comms")["span_id"]
    rows = pl.DataFrame({"span_id": spans, "name": "allreduce", "elements_in": 1000, "dtype": "BFloat16"})
    recorded = replace(trace, collectives=conform(rows, COLLECTIVE_SCHEMA))
    found = finding(recorded, "breakdown", "small_collectives")
    assert found is not None
    assert found.evidence.endswith("A rank puts 2.00 kB into each on average.")


def test_silent_on_few_long_and_hidden_ones() -> None:
    assert finding(planted(19, 90 * US).trace(), "breakdown", "small_collectives") is None
    assert finding(planted(50, 100 * US).trace(), "breakdown", "small_collectives") is None
    assert finding(planted(50, 20 * US, hidden=True).trace(), "breakdown", "small_collectives") is None


# -- without a device -------------------------------------------------------------------------------


def test_one_call_for_each_parameter_is_to_be_one_call_for_all() -> None:
    """A reduction of each parameter was to send fewer bytes, though a call of 768 B took as long as one of 147 kB."""
    calls = [
        ("all_reduce", 192 * (192 if at % 2 else 1), (200 if at % 2 else 150) * US, "float")
        for at in range(32)
    ]
    small = on_processors(steps_of(calls), "small_collectives")
    assert small is not None
    assert small.title.startswith("There are 192 small collectives, 32 a step")
    assert "The shortest of 147 kB takes 200 µs, that of 768 B 150 µs" in small.evidence
    assert "one flat tensor" in small.advice
    assert "bucket_cap_mb" not in small.advice
    # One call of the 32 remains.
    assert small.ns_at_stake == 6 * (16 * 350 * US) * 31 // 32
    exposed = on_processors(steps_of(calls), "exposed_communication")
    assert exposed is not None
    assert "fewer bytes" not in exposed.advice


def test_small_buckets_are_to_be_larger() -> None:
    """Buckets of 148 kB were to be reduced in bf16."""
    small = on_processors(
        steps_of([("all_reduce", 37_056, 300 * US, "float")] * 16, ddp=True), "small_collectives"
    )
    assert small is not None
    assert small.advice.startswith("Raise bucket_cap_mb")
    assert "flat tensor" not in small.advice
    # Of 2.37 MB, DistributedDataParallel makes two buckets.
    assert small.ns_at_stake == 6 * 16 * 300 * US * 14 // 16


@pytest.mark.parametrize(
    "calls",
    [
        [("all_reduce", 192, 300 * US, "float")] * 9,  # few
        [("all_reduce", 37_056, 300 * US, "float")] * 16,  # of one size, so nothing shows what the bytes cost
        [
            ("all_reduce", 10_000 * (8 if at % 2 else 1), (800 if at % 2 else 100) * US, "float")
            for at in range(16)
        ],
    ],
)
def test_calls_whose_time_may_be_that_of_their_bytes_are_not_small(
    calls: list[tuple[str, int, int, str]],
) -> None:
    assert on_processors(steps_of(calls), "small_collectives") is None
