from __future__ import annotations

import pytest
from planted import MS, US
from planted_gloo import STEP, on_processors, steps_of


def test_objects_are_to_be_exchanged_as_tensors() -> None:
    """An exchange of objects had no advice, and its reads of sizes were called those of the program."""
    made = steps_of(
        [
            ("all_gather", 25_600, MS, "float"),
            ("all_gather", 1, MS, "long int"),
            ("all_gather", 31, MS, "unsigned char"),
        ]
    )
    frame = "torch/distributed/distributed_c10d.py(3438): all_gather_object"
    for number in range(6):
        at = number * STEP + 10 * MS
        made.span("python", frame, at, at + MS)
        for read in range(4):
            made.span("op", "aten::item", at + read * 10 * US, at + (read * 10 + 5) * US)
        made.span("op", "aten::item", at + 2 * MS, at + 2 * MS + 5 * US)
    objects = on_processors(made, "object_collectives")
    assert objects is not None
    assert objects.title.startswith("Python objects are exchanged between the ranks once a step")
    # From the operator that queues the first call to the end of the second.
    assert objects.ns_at_stake == 6 * (2 * MS + 20 * US)
    assert "31 B of a rank" in objects.evidence
    assert "tensors of a fixed size" in objects.advice
    reads = on_processors(made, "value_reads", "idle")
    assert reads is not None
    assert reads.title.endswith("once a step")


@pytest.mark.parametrize("second", [("all_gather", 31, MS, "float"), ("all_reduce", 31, MS, "unsigned char")])
def test_other_calls_after_a_number_are_no_objects(second: tuple[str, int, int, str]) -> None:
    assert on_processors(steps_of([("all_gather", 1, MS, "long int"), second]), "object_collectives") is None
