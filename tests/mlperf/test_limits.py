"""What limits a step to more chips, against planted laws whose parts are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, log2
from random import Random

import pytest

from tracekit.mlperf import Cell, LoggedRun, Results, steps_table
from tracekit.report.mlperf import mlperf_section

SIZES = (8, 16, 32, 64, 128, 256)
CHIP = 0.002
"""Seconds of a sample."""


def runs_of(
    step: Callable[[int, float], float],
    batch: Callable[[int], int],
    sizes: Sequence[int] = SIZES,
    noise: float = 0.0,
    seed: int = 0,
) -> list[LoggedRun]:
    """Runs of 20 epochs of 1,000,000 samples, each of one block, whose steps take so long on so many chips with so many samples of each."""
    random, runs = Random(seed), []
    for chips in sizes:
        run_s = 20e6 / batch(chips) * step(chips, batch(chips) / chips) * exp(random.gauss(0, noise))
        runs.append(LoggedRun(name="", organisation="we", benchmark="net", system=f"box-{chips}", accelerators=chips, status="success",
                              run_s=run_s, epochs=20.0, batch=batch(chips), blocks=((0.0, run_s, 20.0),)))  # fmt: skip
    return runs


def limits(runs: Sequence[LoggedRun]) -> list[str]:
    cells = [Cell("we", run.system, "net", run.accelerators, run.batch, (run,)) for run in runs]
    return steps_table(cells)["limited_by"].to_list()


MESSAGES: dict[str, Callable[[int], float]] = {
    "ring": lambda chips: 0.0008 * (chips - 1),
    "tree": lambda chips: 0.03 * log2(chips),
    "torus": lambda chips: 0.006 * ({8: 2 + 4, 16: 8, 32: 4 + 8, 64: 16, 128: 8 + 16, 256: 32}[chips] - 2),
}


@pytest.mark.parametrize("law", MESSAGES)
@pytest.mark.parametrize("seed", range(4))
def test_messages_that_cost_the_most_are_no_fault_of_the_batch(law: str, seed: int) -> None:
    """At one batch of all chips each step was batch-limited, even one that got longer with less work of a chip."""
    strong = runs_of(
        lambda chips, b: CHIP * b + 0.002 + MESSAGES[law](chips), lambda _: 8192, noise=0.005, seed=seed
    )
    assert limits(strong)[2:] == 3 * ["communication-limited"]


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_that_stays_limits_where_no_messages_grow(seed: int) -> None:
    for step in (lambda _, b: CHIP * b + 0.02, lambda _, b: 0.01 * b**0.7):
        strong = runs_of(step, lambda _: 4096, noise=0.005, seed=seed)
        assert limits(strong)[2:] == 3 * ["batch-limited"]


def test_of_a_fixed_part_and_messages_the_one_that_costs_more_limits() -> None:
    """By hand: of a sample messages cost 0.0008 (chips - 1) / b more, and what is fixed 0.06 / b."""

    def step(chips: int, b: float) -> float:
        return CHIP * b + 0.06 + MESSAGES["ring"](chips)

    grows = [0.0008 * ((2 * n - 1) * 2 * n - (n - 1) * n) > 0.06 * n for n in SIZES[:-1]]
    told = limits(runs_of(step, lambda _: 8192))
    expected = ["communication-limited" if more else "batch-limited" for more in grows]
    assert told == ["none", *expected[1:]]  # the first loses 4 %
    assert set(expected) == {"batch-limited", "communication-limited"}


def test_a_step_that_gets_longer_with_less_work_is_limited_by_communication() -> None:
    """Of three sizes, whose law nothing tells."""
    times = {8: 1.0, 16: 0.8, 32: 1.0}
    assert limits(runs_of(lambda chips, _: times[chips], lambda _: 1024, tuple(times))) == [
        "batch-limited",
        "communication-limited",
    ]


@pytest.mark.parametrize("power", [0.5, 0.6, 0.75])
@pytest.mark.parametrize("count", [3, 5, 6])
def test_a_batch_that_grows_less_than_the_chips_explains_what_is_fixed(power: float, count: int) -> None:
    """Training that consists of compute and a fixed part was communication-limited, since the batch grew by more than half of the chips."""
    runs = runs_of(lambda _, b: CHIP * b + 0.1, lambda chips: int(128 * (chips / 8) ** power), SIZES[:count])
    assert set(limits(runs)) == {"batch-limited"}


@pytest.mark.parametrize("law", MESSAGES)
@pytest.mark.parametrize("power", [0.9, 1.0])
def test_slower_than_the_batch_of_a_chip_explains_is_communication(law: str, power: float) -> None:
    """By hand: a step with less work that takes longer, though all of it were fixed, or one with as much work."""
    runs = runs_of(
        lambda chips, b: CHIP * b + 5 * MESSAGES[law](chips), lambda chips: int(64 * (chips / 8) ** power)
    )
    steps = [run.run_s * run.batch for run in runs if run.run_s and run.batch]
    assert all(large > 1.05 * small for small, large in pairwise(steps))
    assert set(limits(runs)) == {"communication-limited"}


def test_evaluations_without_blocks_or_epochs_leave_open_what_limits() -> None:
    """They were taken for training, and the step was batch-limited, whatever they took."""
    runs = [
        replace(run, blocks=(), evaluations=20)
        for run in runs_of(lambda _, b: CHIP * b + 0.1, lambda _: 1024)
    ]
    cells = [Cell("we", run.system, "net", run.accelerators, run.batch, (run,)) for run in runs]
    steps = steps_table(cells)
    assert set(steps["limited_by"]) == {"evaluation-, batch- or communication-limited"}
    assert steps["evaluation"].null_count() == steps.height
    assert (steps["speedup"] * steps["epochs"] * steps["training"]).to_list() == pytest.approx(steps["chips"].to_list())  # fmt: skip
    assert "the logs have neither blocks nor epochs" in mlperf_section(Results(tuple(runs))).answer
    assert set(limits([replace(run, evaluations=0) for run in runs])) == {"batch-limited"}


def test_the_words_hold_for_a_batch_that_stays_and_for_one_that_grows() -> None:
    """ "Although the batch grows with the chips" was the reason of all communication, "its batch hardly grows" of all others."""
    strong = runs_of(lambda chips, b: CHIP * b + MESSAGES["ring"](chips), lambda _: 8192)
    answer = mlperf_section(Results(tuple(strong))).answer
    assert "From 128 to 256 chips it is communication-limited: training per chip gets slower by more than the batch of a chip explains" in answer  # fmt: skip
    growing = runs_of(lambda _, b: CHIP * b + 0.5, lambda chips: 1024 * round((chips / 8) ** 0.75))
    assert (
        "batch-limited: its batch grows less than the chips" in mlperf_section(Results(tuple(growing))).answer
    )
