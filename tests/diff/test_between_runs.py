"""How sure a change is where sides have several runs: runs of one program differ by more than their steps show."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import planted_sides
import pytest

from tests.digest.made import digest_from
from tracekit.diff import diff_of
from tracekit.diff.model import Diff
from tracekit.digest import Digest

LAYERS = ("encoder.0.attention", "encoder.1", "head", "idle")


def run(factor: float, seed: int, *, slower: float = 1.0) -> Digest:
    """A run in which all takes so many times as long, and one layer besides."""
    scale = {**dict.fromkeys(LAYERS, factor), "encoder.1": factor * slower}
    return planted_sides.digest(scale, seed=seed, noise=0.01)


def factors(seed: int, runs: int, spread: float = 0.03) -> list[float]:
    return [*np.exp(spread * np.random.default_rng(seed).standard_normal(runs))]


def of(base: Sequence[Digest], new: Sequence[Digest], *, paired: bool = False) -> Diff:
    return diff_of(base, new, ([1] * len(base), [1] * len(new)), paired=paired)


def test_what_runs_of_one_program_differ_by_is_no_sure_change() -> None:
    """In 7 of 8 comparisons of three runs a side of one program a change was told as sure, by the spread of the steps."""
    sure = 0
    for seed in range(20):
        runs = [run(each, 100 * seed + at) for at, each in enumerate(factors(seed, 6))]
        found = of(runs[:3], runs[3:])
        sure += any(change.sure for change in found.changes)
        assert found.rest + sum(change.delta for change in found.changes) == found.change
    assert sure <= 1


@pytest.mark.parametrize("runs", [(3, 3), (5, 2), (1, 4)])
def test_the_error_of_a_change_is_that_between_runs(runs: tuple[int, int]) -> None:
    """Against means of runs by themselves; a side of one run varies as the other does."""
    base, new = ([run(each, seed, slower=slower) for seed, each in enumerate(factors(count, count))] for count, slower in zip(runs, (1.0, 3.0), strict=True))  # fmt: skip
    change = next(each for each in of(base, new).changes if each.place.get("layer") == "encoder.1")
    means = [[_of_layer(each) for each in side] for side in (base, new)]
    spreads = [np.std(side, ddof=1) / np.mean(side) for side in means if len(side) > 1]
    squares = [((spreads[at] if len(spreads) > 1 else spreads[0]) * np.mean(side)) ** 2 / len(side) for at, side in enumerate(means)]  # fmt: skip
    student = {4: 2.776, 5: 2.571, 3: 3.182}[sum(runs) - sum(count > 0 for count in runs)] / 1.960
    assert change.noise_ns is not None
    assert change.noise_ns == pytest.approx(student * math.sqrt(sum(squares)), rel=0.25)


def _of_layer(one: Digest) -> float:
    """What the layer takes in a step."""
    leaves = one.leaves.with_row_index("at").filter(one.leaves["layer"] == "encoder.1")["at"].to_list()
    return float(one.values.filter(one.values["leaf"].is_in(leaves))["ns"].sum()) / one.steps.height


def test_what_pairs_have_in_common_does_not_hide_a_change() -> None:
    """Both runs of a pair are slower in a busy hour; a twentieth more in one layer is found in each pair."""
    hours = factors(4, 5, spread=0.1)
    base = [run(each, seed) for seed, each in enumerate(hours)]
    new = [run(each, 50 + seed, slower=1.05) for seed, each in enumerate(hours)]
    first = of(base, new, paired=True).changes[0]
    assert (first.sure, first.place["layer"]) == (True, "encoder.1")
    assert first.delta_ns == pytest.approx(0.05 * 2_000_000 * np.mean(hours), rel=0.1)
    assert not any(change.sure for change in of(base, new).changes)


def test_ranks_of_one_run_are_no_runs() -> None:
    """A rank that does more than another is no noise of the program."""
    base, new = ([run(1.0, at), run(1.1, 10 + at, slower=slower)] for at, slower in ((0, 1.0), (100, 1.2)))
    assert diff_of(base, new, ([2], [2])).changes[0].sure
    assert not of(base, new).changes[0].sure


@pytest.mark.filterwarnings("error")
def test_runs_of_different_length_whose_steps_do_not_vary() -> None:
    """The variance was a little below 0, of which NumPy took the root with a warning."""
    leaf = dict.fromkeys(("name", "shapes", "dtypes", "type"))
    leaves = [{"kind": "compute", "category": "gemm", "operator": "aten::mm", "layer": "net", "phase": "forward", **leaf}]  # fmt: skip
    runs = [digest_from(leaves, [[(1_000_003, 1)]] * steps) for steps in (7, 11, 13, 29)]
    assert of(runs[:2], runs[2:]).changes == ()
    assert diff_of(runs[:2], runs[2:]).changes == ()
