from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding

from tracekit.analyses.registry import get_analysis
from tracekit.analyses.rules import run
from tracekit.analyses.scope import select


def reading(times: int, length: int = 20 * US, around: str | None = None) -> Planted:
    """Two steps of 1 ms, each with this many `.item()`."""
    made = Planted()
    for number in range(2):
        start = number * MS
        made.step(number, start, start + MS)
        made.span("python", "loss.py(42): log", start, start + MS)
        if around is not None:
            made.span("annotation", around, start, start + MS)
        for turn in range(times):
            at = start + turn * 100 * US
            made.span("op", "aten::item", at, at + length)
            made.span("op", "aten::_local_scalar_dense", at + 1, at + length - 1)
        made.span("op", "aten::mm", start + 600 * US, start + MS)
    return made


def test_fires_on_values_read_in_every_step_and_names_the_line() -> None:
    found = finding(reading(3).trace(devices=()), "idle", "value_reads")
    assert found is not None
    assert found.title == "Python reads tensor values (.item()) 3 times a step"
    assert found.ns_at_stake == 6 * 20 * US
    assert "6 times and took 120 µs, 6.0 % of the time, most often in loss.py(42): log" in found.evidence


def test_a_window_that_is_not_the_steps_has_no_count_a_step() -> None:
    scope = select(reading(3).trace(devices=()), window="trace")
    (found,) = [each for each in run(get_analysis("idle"), scope).findings if each.id == "value_reads"]
    assert found.title == "Python reads tensor values (.item()) 6 times"


def test_what_costs_nothing_here_may_cost_much_on_a_device() -> None:
    found = finding(reading(1, 2 * US).trace(devices=()), "idle", "value_reads")
    assert found is not None
    assert (found.ns_at_stake, found.severity) == (None, "info")


@pytest.mark.slow
def test_silent_without_reads_in_the_optimizer_in_the_loader_and_on_a_device() -> None:
    assert finding(reading(0).trace(devices=()), "idle", "value_reads") is None
    assert (
        finding(reading(3, around="Optimizer.step#Adam.step").trace(devices=()), "idle", "value_reads")
        is None
    )
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert finding(reading(3, around=loader).trace(devices=()), "idle", "value_reads") is None
    on_device = reading(3)
    on_device.activity("k", 0, MS, launch=0)
    assert finding(on_device.trace(), "idle", "value_reads") is None


def test_many_reads_are_no_log_of_losses() -> None:
    """A loop that slices with tensors read 128 indices a step, and was to accumulate its losses."""
    made = Planted()
    made.step(0, 0, 10 * MS)
    for number in range(64):
        at = number * 100 * US
        made.span("op", "aten::item", at, at + 20 * US)
    found = finding(made.trace(devices=()), "idle", "value_reads")
    assert found is not None
    assert found.advice.startswith("Read many values at once")


def reads_in(frame: str, inside: int, of: int = 5) -> Planted:
    """Two steps of 1 ms, each with `of` reads, some of them `inside` this frame."""
    made = reading(of)
    for number in range(2):
        for turn in range(inside):
            at = number * MS + turn * 100 * US
            made.span("python", frame, at - US if turn else at, at + 21 * US)
    return made


def test_a_printed_tensor_is_not_read_by_the_loop() -> None:
    """84 of 86 reads a step were one print(), and the advice was to read many values at once."""
    made = reads_in("torch/_tensor_str.py(356): _str_intern", 4)
    found = finding(made.trace(devices=()), "idle", "value_reads")
    assert found is not None
    assert found.title == "Printing tensors reads their values 5 times a step"
    assert found.advice.startswith("Print tensors less often")


def test_reads_that_check_the_arguments_of_distributions_are_told() -> None:
    made = reads_in("torch/distributions/distribution.py(48): __init__", 2)
    found = finding(made.trace(devices=()), "idle", "value_reads")
    assert found is not None
    assert found.advice.endswith("create distributions with validate_args=False.")
    assert "torch.distributions makes 40.0 % of the reads" in found.advice
    few = finding(
        reads_in("torch/distributions/distribution.py(48): __init__", 0).trace(devices=()),
        "idle",
        "value_reads",
    )
    assert few is not None
    assert "validate_args" not in few.advice
