"""The comparison of step times: against scipy, against what was planted, and laws that hold of all times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noisy_runs import KINDS, pair, run
from scipy import stats

from tracekit.diff.noise import FEWEST_STEPS, StepComparison, _chance, _tail, compare_times

TIMES = st.lists(st.integers(1_000, 100_000), min_size=12, max_size=40)


def ratio(change: StepComparison) -> tuple[float, float, float]:
    """Ratio and interval of the medians, of which there are both."""
    found = change.median
    assert found.ratio is not None
    assert found.low is not None
    assert found.high is not None
    return found.low, found.ratio, found.high


# -- laws -------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(TIMES)
def test_a_side_is_the_same_as_itself(times: list[int]) -> None:
    found = compare_times([times], [list(times)])
    assert ratio(found) == (1.0, 1.0, 1.0)
    assert found.verdict == "same"


@settings(max_examples=30)
@given(TIMES, TIMES)
def test_the_ratio_lies_in_its_interval_and_turns_over_with_the_sides(
    base: list[int], new: list[int]
) -> None:
    there, back = compare_times([base], [new]), compare_times([new], [base])
    low, estimate, high = ratio(there)
    assert low <= estimate <= high
    assert estimate * ratio(back)[1] == pytest.approx(1)
    assert there.median.p == pytest.approx(back.median.p_faster, abs=1e-6)
    assert there.mean.p == pytest.approx(back.mean.p_faster, abs=0.1), "the draws differ"


def test_runs_that_are_many_times_slower_are_slower() -> None:
    """Of three pairs with ratios of 7, 14 and 20 the interval was 0 to 20, so a step 14 times as long was inconclusive."""
    random = np.random.default_rng(3)
    base, new = (
        [[int(level * each) for each in random.lognormal(0, 0.03, 50)] for level in levels]
        for levels in ([1e6, 1.1e6, 0.9e6], [7e6, 15e6, 18e6])
    )
    found = compare_times(base, new, paired=True)
    low, middle, high = ratio(found)
    assert found.verdict == "slower"
    assert 1 < low < 7 < middle < high
    back = compare_times(new, base, paired=True)
    assert back.verdict == "faster"


@settings(max_examples=30)
@given(TIMES, TIMES, st.sampled_from([1_000, 1_000_000]))
def test_units_change_nothing(base: list[int], new: list[int], unit: int) -> None:
    small = compare_times([base], [new])
    large = compare_times([[unit * each for each in base]], [[unit * each for each in new]])
    assert ratio(large) == pytest.approx(ratio(small))
    assert large.median.p == pytest.approx(small.median.p)
    assert (large.verdict, large.notes) == (small.verdict, small.notes)


@settings(max_examples=20)
@given(st.lists(TIMES, min_size=2, max_size=4))
def test_a_comparison_is_deterministic(runs: list[list[int]]) -> None:
    assert compare_times(runs, runs[1:]) == compare_times(runs, runs[1:])


# -- against scipy ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("levels", [8, 10**6])
def test_the_rank_test_is_that_of_scipy_with_ties_and_without(levels: int) -> None:
    random = np.random.default_rng(levels)
    compared = 0
    for _ in range(10):
        base, new = (random.integers(9 * levels, 10 * levels, 300) for _ in "ab")
        found = compare_times([base], [new])
        if found.base.independent == found.base.steps:  # chance made neighbours no more alike than others
            compared += 1
            expected = stats.mannwhitneyu(new, base, alternative="greater", use_continuity=False, method="asymptotic")  # fmt: skip
            assert found.median.p == pytest.approx(expected.pvalue, rel=0.02, abs=1e-3)
    assert compared


@pytest.mark.parametrize("freedom", [2, 3, 4, 8, 30, 1000])
def test_the_tail_is_that_of_students_distribution(freedom: int) -> None:
    for p in (0.4, 0.1, 0.02, 0.01, 0.005):
        t = float(stats.t.isf(p, freedom))
        assert _tail(t, freedom) == pytest.approx(p, rel={2: 0.25, 3: 0.1}.get(freedom, 0.06))
        assert _tail(-t, freedom) == pytest.approx(1 - _tail(t, freedom))


@given(st.integers(0, 12), st.integers(1, 60), st.integers(0, 12), st.integers(1, 60))
def test_uneven_outliers_are_judged_as_by_fisher(hits: int, more: int, others: int, more_others: int) -> None:
    found = _chance([hits, others], [hits + more, others + more_others])
    table = [[hits, more], [others, more_others]]
    tails = [stats.fisher_exact(table, alternative=side).pvalue for side in ("less", "greater")]
    assert found == pytest.approx(min(1, 2 * min(tails)), rel=1e-6)


# -- which steps count ------------------------------------------------------------------------------


def test_a_warm_up_in_front_of_a_run_changes_nothing() -> None:
    base, new = pair((1,), 40, "independent", slower=0.05)
    warm = np.concatenate([(new[0][:4] * [4, 2.5, 1.6, 1.3]).astype(np.int64), new[0]])
    alone, with_it = compare_times(base, new), compare_times(base, [warm])
    assert with_it.new.warm_up == 4
    assert ratio(with_it) == ratio(alone)
    assert "Not counted: 4 warm-up steps of the new side." in with_it.notes


def test_a_slow_first_half_is_no_warm_up() -> None:
    base, new = pair((2,), 40, "independent")
    new[0][:20] *= 2
    found = compare_times(base, new)
    assert found.new.warm_up == found.new.outliers == 0
    assert found.new.steps == 40


def test_few_long_steps_do_not_count() -> None:
    base, new = pair((3,), 60, "independent")
    base[0], new[0] = (np.clip(side[0], 9_500_000, 10_500_000) for side in (base, new))
    base[0][[20, 41]] *= 3
    new[0][[11, 30, 50]] *= 4
    found = compare_times(base, new)
    assert (found.base.outliers, found.new.outliers) == (2, 3)
    assert found.mean.ratio == pytest.approx(1, abs=0.02)
    assert [int(each.sum()) for each in (*found.base.kept, *found.new.kept)] == [58, 57]


@pytest.mark.parametrize("every", [2, 3])
def test_a_change_of_every_second_or_third_step_counts(every: int) -> None:
    base, new = pair((4,), 60, "independent")
    new[0][::every] = new[0][::every] * 13 // 10
    found = compare_times(base, new)
    assert found.new.steps >= 58
    assert found.mean.ratio == pytest.approx(1 + 0.3 / every, abs=0.03)
    assert found.mean.p < 0.001


def test_long_steps_of_one_side_alone_count_once_chance_cannot_explain_them() -> None:
    base, new = pair((5,), 400, "independent")
    new[0][10::20] *= 4  # 5 %, fewer than a tenth
    found = compare_times(base, new)
    assert found.new.outliers == 0
    assert found.mean.ratio == pytest.approx(1.15, abs=0.02)
    assert (
        "Steps far from the median of their side are counted, since they are more uneven than chance would make them: "
        "0 of 400 steps of the base, 20 of 400 steps of the new side."
    ) in found.notes


def test_the_whole_step_decides_which_steps_of_a_part_count() -> None:
    steps = pair((6,), 40, "independent")
    steps[1][0][[10, 20]] *= 3
    parts = [[each // 10 for each in side] for side in steps]
    parts[0][0][5] *= 20  # within a step that is not long
    found = compare_times(*parts, step_times=steps)
    assert (found.base.outliers, found.new.outliers) == (0, 2)


# -- how sure it is ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runs", [1, 3])
def test_the_interval_holds_what_was_planted(kind: str, runs: int) -> None:
    held = 0
    for seed in range(40):
        low, _, high = ratio(compare_times(*pair((seed,), 40, kind, runs=runs, slower=0.05)))
        held += low <= 1.05 <= high
    assert held >= 36


@pytest.mark.slow
def test_the_interval_holds_the_truth_when_runs_differ_more_than_steps() -> None:
    held = [[0, 0], [0, 0]]
    for seed in range(40):
        base, new = pair((seed, 7), 40, "independent", runs=4, between=0.05)
        for at, sides in enumerate([(base, new), (base[:1], new[:1])]):
            low, _, high = ratio(compare_times(*sides))
            held[at][low <= 1 <= high] += 1
    assert held[0][True] >= 36
    assert held[1][True] <= 20, "one run does not show how much runs differ"


def test_one_run_of_a_side_is_said() -> None:
    base, new = pair((8,), 30, "independent", runs=3)
    assert compare_times(base, new).notes == ()
    assert compare_times(base[:1], new).notes == (
        "A side is one run, which does not show how much runs differ.",
    )
    assert compare_times(base[:1], new[:1]).notes == (
        "Each side is one run, which does not show how much runs differ.",
    )


def test_what_pairs_have_in_common_is_not_in_their_interval() -> None:
    random = np.random.default_rng(9)
    weather = np.exp(0.2 * random.standard_normal(6)) - 1
    base = [run(random, 60, slower=each) for each in weather]
    new = [run(random, 60, slower=1.05 * (1 + each) - 1) for each in weather]
    apart, paired = compare_times(base, new), compare_times(base, new, paired=True)
    assert apart.verdict == "inconclusive"
    assert paired.verdict == "slower"
    assert paired.median.ratio == apart.median.ratio
    low, estimate, high = ratio(paired)
    assert high - low < 0.05
    assert estimate == pytest.approx(1.05, abs=0.02)
    assert "pairs" in paired.median.test
    with pytest.raises(ValueError, match="6 and 5 runs cannot be paired"):
        compare_times(base, new[:5], paired=True)


def test_a_run_is_worth_one_independent_step_at_least() -> None:
    """`1 step (worth 0.5 independent ones) of the base` stood beside a run whose steps are alike."""
    alike = np.cumsum(np.random.default_rng(1).integers(-50, 51, 60)) + 10_000
    found = compare_times([alike[:1], alike[1:2]], [alike])
    assert (found.base.steps, found.base.independent) == (2, 2)
    assert 1 <= found.new.independent < 30


@pytest.mark.parametrize("steps", range(FEWEST_STEPS))
def test_few_steps_prove_nothing(steps: int) -> None:
    found = compare_times([[100] * steps], [[200] * steps])
    assert (found.verdict, found.median.low) == ("inconclusive", None)


def test_a_side_without_steps_has_no_ratio() -> None:
    found = compare_times([], [[100] * 10])
    assert (found.verdict, found.median.ratio, found.base.steps) == ("inconclusive", None, 0)


def test_times_without_noise_have_an_interval_without_width() -> None:
    found = compare_times([[100] * 20], [[105] * 20])
    assert ratio(found) == (1.05, 1.05, 1.05)
    assert found.median.p < 0.001
    assert compare_times([[100] * 20], [[100] * 30]).verdict == "same"


def test_parts_that_are_zero_in_base_have_no_ratio() -> None:
    found = compare_times([[0] * 20], [[5] * 20])
    assert (found.median.ratio, found.median.low) == (None, None)
    assert found.median.p < 0.001


def test_runs_that_differ_a_thousandfold_drew_times_below_zero() -> None:
    runs = [[[ns] * 12 for ns in side] for side in ((10**6, 1000), (1000, 10**9, 10**9))]
    found = compare_times(*runs)
    assert found.verdict == "inconclusive"
    assert found.median.low is not None
    assert found.median.low >= 0


@pytest.mark.parametrize(("base", "new", "grid"), [(5, 6, 0), (10, 10, 0), (31, 32, 0), (40, 60, 0), (20, 25, 50), (30, 30, 3)])  # fmt: skip
def test_the_p_value_is_that_of_the_test_whose_name_it_has(base: int, new: int, grid: int) -> None:
    """`p = 0.0113, the rank test of Mann and Whitney` stood where that test gives 0.0057: it was of Student's distribution."""
    tried = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        sides = [(1000 * (1 + 0.03 * random.standard_normal(n))).round(6) for n in (base, new)]
        runs = [(np.round(side / grid) * grid if grid else side * 10**6).astype(np.int64) for side in sides]
        found = compare_times([runs[0]], [runs[1]])
        if found.median.test != "the rank test of Mann and Whitney":
            assert found.base.independent < found.base.steps
            continue
        kept = [each[side.kept[0]] for each, side in zip(runs, (found.base, found.new), strict=True)]
        method = "exact" if not grid and base * new <= 1000 else "asymptotic"
        for told, way in ((found.median.p, "greater"), (found.median.p_faster, "less")):
            oracle = stats.mannwhitneyu(kept[1], kept[0], alternative=way, method=method)
            assert told == pytest.approx(float(oracle.pvalue), rel=1e-9)
        tried += 1
    assert tried >= 10
