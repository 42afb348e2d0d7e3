from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding


def additions(count: int = 200, name: str = "aten::add", length: int = 3 * US) -> Planted:
    """Operators of 3 µs, one every 5 µs, in a step of 1 ms."""
    made = Planted()
    made.step(0, 0, MS)
    for number in range(count):
        made.span("op", name, number * 5 * US, number * 5 * US + length)
    return made


def test_fires_on_many_tiny_operators() -> None:
    found = finding(additions().trace(devices=()), "idle", "short_operators")
    assert found is not None
    # 600 µs in the operators and 400 µs of Python between them.
    assert found.ns_at_stake == MS
    assert found.severity == "critical"
    assert (
        "200 operators that typically take less than 20.0 µs take 600 µs in all. "
        "aten::add takes the largest share, in 200 calls." in found.evidence
    )
    assert "The Python code between operators takes 400 µs" in found.evidence


def test_shows_where_they_are_densest() -> None:
    made = additions()
    made.step(1, MS, 2 * MS)
    made.span("op", "aten::mm", MS, 2 * MS)
    found = finding(made.trace(devices=()), "idle", "short_operators")
    assert found is not None
    assert found.stretches == ((0, MS),)


@pytest.mark.parametrize(("reads", "mostly"), [(0, True), (40, False)])
def test_the_code_between_has_a_place_as_well(reads: int, mostly: bool) -> None:
    """Where most time lay between reads of values, it was "mostly in the optimizer", and fused=True was advised."""
    made = additions()
    made.span("annotation", "Optimizer.step#AdamW.step", 0, MS)
    for number in range(reads):
        made.span("op", "aten::item", MS + number * 50 * US, MS + (number * 50 + 1) * US)
    made.step(1, MS, MS + (reads + 1) * 50 * US)
    found = finding(made.trace(devices=()), "idle", "short_operators")
    assert found is not None
    assert (", mostly in the optimizer" in found.title, "fused=True" in found.advice) == (mostly, True)


def test_one_long_call_does_not_make_an_operator_long() -> None:
    made = additions(190)
    made.span("op", "aten::add", 950 * US, 990 * US)
    found = finding(made.trace(devices=()), "idle", "short_operators")
    assert found is not None
    assert "191 operators" in found.evidence


@pytest.mark.slow
def test_silent_when_few_or_not_what_takes_the_time_or_other_rules_speak() -> None:
    assert finding(additions(90).trace(devices=()), "idle", "short_operators") is None
    with_work = additions(100)
    with_work.step(1, MS, 3 * MS)
    with_work.span("op", "aten::mm", 500 * US, 3 * MS)
    assert finding(with_work.trace(devices=()), "idle", "short_operators") is None
    assert finding(additions(name="aten::item").trace(devices=()), "idle", "short_operators") is None
    loading = additions()
    loading.span("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, MS)
    assert finding(loading.trace(devices=()), "idle", "short_operators") is None
    on_device = additions()
    on_device.activity("k", 0, MS, launch=0)
    assert finding(on_device.trace(), "idle", "short_operators") is None


@pytest.mark.parametrize("shapes", [True, False])
def test_operators_on_large_inputs_were_tiny_because_most_calls_are_on_small_ones(shapes: bool) -> None:
    """An optimizer's square roots: of biases 3 µs, of weights 14 ms."""
    made = Planted()
    made.step(0, 0, 40 * MS)
    for number in range(150):
        at = number * 5 * US
        made.span("op", "aten::sqrt", at, at + 3 * US, shapes="[[64]]" if shapes else None)
    for number in range(2):
        at = (2 + 15 * number) * MS
        made.span("op", "aten::sqrt", at, at + 14 * MS, shapes="[[4096, 1568]]" if shapes else None)
    assert finding(made.trace(devices=()), "idle", "short_operators") is None
