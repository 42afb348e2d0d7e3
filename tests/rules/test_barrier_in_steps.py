from __future__ import annotations

from planted import MS, US
from planted_gloo import on_processors, steps_of


def test_a_barrier_in_each_step_is_to_be_removed() -> None:
    """The advice about a barrier was to start collectives earlier."""
    made = steps_of([("all_reduce", 100_000, 2 * MS, "float"), ("barrier", 1, 5 * MS, "unsigned char")])
    barrier = on_processors(made, "barrier_in_steps")
    assert barrier is not None
    assert barrier.title == "A barrier in each step takes 25.0 % of the time"
    assert barrier.ns_at_stake == 6 * 5 * MS
    assert barrier.advice.startswith("Remove the barrier")
    exposed = on_processors(made, "exposed_communication")
    assert exposed is not None
    assert exposed.ns_at_stake == 6 * (2 * MS + 2 * 8 * US)  # with the operators that queue them
    assert "30.0 ms of the exposed time has findings of its own" in exposed.evidence
    assert "all_reduce of 400 kB" in exposed.evidence


def test_a_barrier_now_and_then_is_none_of_each_step() -> None:
    made = steps_of([("all_reduce", 100_000, 2 * MS, "float")])
    made.span("annotation", "gloo:barrier", 5 * MS, 15 * MS, 2)
    assert on_processors(made, "barrier_in_steps") is None
