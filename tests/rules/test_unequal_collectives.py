from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from planted import MS, US, Planted, finding

from tracekit.readers.assemble import conform
from tracekit.trace import COLLECTIVE_SCHEMA, Trace

NAME = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)"


def planted(*times: int, steps: bool = True, compute: int = 0) -> Planted:
    """Steps of 10 ms with 5 ms of computation and a collective of each of these times (µs), with so much computation beside it."""
    made = Planted()
    for number, time in enumerate(times):
        start = number * 10 * MS
        if steps:
            made.step(number, start, start + 10 * MS)
        made.activity("compute", start, 5 * MS, launch=start)
        made.span("op", "record_param_comms", start + MS, start + 2 * MS)
        made.activity(NAME, start + 5 * MS, time * US, stream=20, launch=start + MS + US)
        if compute:
            made.activity("compute", start + 5 * MS, compute, launch=start + 3 * MS)
    return made


def sized(trace: Trace, *elements: int, name: str = "allreduce") -> Trace:
    spans = trace.host.filter(pl.col("name").cast(pl.String) == "record_param_comms")["span_id"]
    rows = pl.DataFrame({"span_id": spans, "name": name, "elements_in": list(elements), "dtype": "Float"})
    return replace(trace, collectives=conform(rows, COLLECTIVE_SCHEMA))


def test_fires_on_the_same_collective_of_each_step() -> None:
    found = finding(planted(500, 2500, 500, 1500).trace(), "breakdown", "unequal_collectives")
    assert found is not None
    assert found.ns_at_stake == 3 * MS
    assert found.title == (
        "Equal collectives take 500 µs to 2.50 ms; 7.5 % of the time may be spent waiting for slower ranks"
    )
    assert (
        "4 ncclDevKernel_AllReduce_Sum_bf16_RING_LL calls at the same place in their steps" in found.evidence
    )
    assert "(1 : 5.0)" in found.evidence
    assert "does not show whether another rank arrived late or the network was slow" in found.evidence
    assert "Compare the ranks" in found.advice


def test_what_waits_is_not_at_stake_for_overlap() -> None:
    made = planted(1000, 5000, 1000, 5000).trace()
    assert finding(made, "breakdown", "unequal_collectives").ns_at_stake == 8 * MS  # type: ignore[union-attr]
    found = finding(made, "breakdown", "exposed_communication")
    assert found is not None
    assert found.ns_at_stake == 4 * MS


@pytest.mark.parametrize(
    ("times", "most"), [((1000, 5000, 1000, 5000), True), ((1000, 3000, 1000, 1000), False)]
)
def test_waits_that_are_not_at_stake_are_told(times: tuple[int, ...], most: bool) -> None:
    """Half of the time was exposed communication, and a seventieth was at stake: nothing said where the rest was."""
    found = finding(planted(*times).trace(), "breakdown", "exposed_communication")
    assert found is not None
    assert found.title.endswith(", most of which may be waits for other ranks") == most
    assert (
        f" {8 if most else 2}.00 ms of the exposed time may be spent waiting for other ranks"
        in found.evidence
    )


def test_recorded_sizes_tell_which_are_equal() -> None:
    made = planted(500, 2500, 500, 2500).trace()
    assert finding(sized(made, 10, 50, 10, 50), "breakdown", "unequal_collectives") is None
    found = finding(sized(made, 10, 10, 10, 10), "breakdown", "unequal_collectives")
    assert found is not None
    assert "of the same size take between" in found.evidence


def test_silent_without_steps_and_sizes() -> None:
    assert (
        finding(planted(500, 2500, 500, 2500, steps=False).trace(), "breakdown", "unequal_collectives")
        is None
    )


def test_silent_if_computation_hides_them_or_they_hardly_differ() -> None:
    made = planted(500, 2500, 500, 2500, compute=4 * MS)
    assert finding(made.trace(), "breakdown", "unequal_collectives") is None
    assert finding(planted(2000, 4000, 2000, 4000).trace(), "breakdown", "unequal_collectives") is None


def test_a_receive_waits_for_the_stage_before_it_and_is_no_collective() -> None:
    """In a pipeline, the rank with the shortest receives was to get less work, as if all ranks waited for it."""
    trace = sized(planted(500, 2500, 500, 1500).trace(), *[1_000_000] * 4, name="recv")
    found = finding(trace, "breakdown", "unequal_collectives")
    assert found is not None
    assert found.title == (
        "Equal receives take 500 µs to 2.50 ms; 7.5 % of the time may be spent waiting for the rank that sends"
    )
    assert found.evidence.startswith("4 recv calls of the same size take between 500 µs and 2.50 ms")
    assert found.advice.startswith("In a pipeline, a stage waits until the one before it has a result")
    assert "shortest" not in found.advice
    exposed = finding(trace, "breakdown", "exposed_communication")
    assert exposed is not None
    assert "irecv" in exposed.advice
