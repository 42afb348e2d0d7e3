"""Gates: what their texts mean, what fails them, and how often noise does."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import planted_sides
import polars as pl
import pytest
from noisy_runs import KINDS, STEP_NS, pair, run
from programs import mapped, total, trace_of, training_loop
from scipy import stats

from tests.diff.ranges import ranges
from tests.rules.planted import MS
from tests.rules.test_stalled_calls import OPERATORS, loop
from tracekit.diff.compared import compared
from tracekit.diff.gate import EXIT_CODES, Gate, judge, judge_runs, parse_gate, step_times, worst
from tracekit.diff.gated_layers import meant_layers
from tracekit.diff.notes import Stall
from tracekit.digest import Digest, digest_of
from tracekit.errors import UsageError
from tracekit.report.diff import diff_section

THREE = parse_gate("3%")


@pytest.mark.parametrize(
    ("text", "gate"),
    [
        ("3%", Gate("", "", 0.03)),
        (" 2.5 %", Gate("", "", 0.025)),
        ("0%", Gate("", "", 0.0)),
        ("idle:5%", Gate("idle", "", 0.05)),
        ("idle:launch_bound:5%", Gate("idle", "launch_bound", 0.05)),
        ("layer:encoder.layers.*:10%", Gate("layer", "encoder.layers.*", 0.1)),
        ("kernel:void at::native::copy<*>:.5%", Gate("kernel", "void at::native::copy<*>", 0.005)),
    ],
)
def test_the_threshold_is_the_last_part_and_names_hold_colons(text: str, gate: Gate) -> None:
    assert parse_gate(text) == gate
    assert parse_gate(str(gate)) == gate


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("3", "the gate '3' has no threshold; end it with one such as 3%"),
        ("", "has no threshold"),
        ("-1%", "has no threshold"),
        ("nan%", "has no threshold"),
        ("idel:3%", "a step has no 'idel'; did you mean idle?"),
        ("foo:3%", "a step has no 'foo'; choose one of compute, "),
        ("layer:3%", "names no layer; such as layer:NAME:3%"),
    ],
)
def test_nonsense_is_one_line_that_says_what_to_write(text: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_gate(text)
    assert says in str(raised.value)


# -- error rates ------------------------------------------------------------------------------------


def outcomes(kind: str, steps: int, runs: int, slower: float, pairs: int) -> dict[str, int]:
    """How often each outcome comes of pairs with noise of 3 %."""
    found = [
        judge(THREE, *pair((seed,), steps, kind, runs=runs, slower=slower)).outcome for seed in range(pairs)
    ]
    return {outcome: found.count(outcome) for outcome in EXIT_CODES}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_noise_does_not_fail_a_gate_and_five_percent_does(kind: str) -> None:
    assert outcomes(kind, 60, 1, 0.0, 20)["failed"] == 0
    assert outcomes(kind, 60, 1, 0.05, 20)["failed"] >= 18


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "runs"), [(30, 1), (30, 3)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(2)
def test_of_200_pairs_two_fail_by_noise_at_most_and_190_of_five_percent(
    kind: str, steps: int, runs: int
) -> None:
    assert outcomes(kind, steps, runs, 0.0, 200)["failed"] <= 2
    found = outcomes(kind, steps, runs, 0.05, 200)
    assert found["passed"] == 0
    if not (kind == "neighbours" and steps == 30 and runs == 1):
        assert found["failed"] >= 190
    else:
        assert found["failed"] >= 165  # of 184 at most


@pytest.mark.slow
def test_steps_that_drift_take_a_hundred_until_noise_fails_two_of_200() -> None:
    """Each correlates by 0.8 with the one before: 30 tell as much as 3.3."""
    assert outcomes("drift", 100, 1, 0.0, 200)["failed"] <= 2
    found = outcomes("drift", 100, 1, 0.05, 200)
    assert (found["passed"], found["failed"] >= 175) == (0, True)


def most_found(steps: int, *, false_alarms: float = 0.01) -> float:
    """Of 200 pairs of neighbouring steps how many the most powerful test proves 5 % slower that fails so often without a change.

    By Neyman and Pearson that is the likelihood ratio of the logarithms, here with noise and correlation known: the difference of
    the means, weighted by the inverse of the covariances.
    """
    apart = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    weight = float(np.linalg.solve(0.5**apart, np.ones(steps)).sum())
    error = 0.03 * (2 / weight) ** 0.5
    return 200 * float(stats.norm.sf(stats.norm.isf(false_alarms) - np.log(1.05) / error))


def test_no_test_finds_190_of_200_in_30_neighbouring_steps() -> None:
    assert most_found(30) == pytest.approx(184.7, abs=0.1)
    assert most_found(33) < 190 < most_found(34)


# -- judgements -------------------------------------------------------------------------------------


def test_the_sentence_states_estimate_interval_test_steps_and_limit() -> None:
    found = judge(THREE, *pair((1,), 50, "independent", slower=0.08))
    assert found.outcome == "failed"
    for part in ("The median step time grew by ", "95 % interval +", "p < 0.001, the rank test", "50 steps against ", "the limit is 3 %"):  # fmt: skip
        assert part in found.reason
    assert found.reason.count(".") == found.reason.rstrip(".").count(".") + 1


def test_faster_passes_and_few_steps_are_inconclusive() -> None:
    assert judge(THREE, *pair((2,), 30, "independent", slower=-0.1)).outcome == "passed"
    few = judge(THREE, *pair((2,), 3, "independent", slower=0.5))
    assert few.outcome == "inconclusive"
    assert few.reason.endswith("fewer than 5 steps prove nothing.")
    nothing = judge(THREE, [], [])
    assert nothing.outcome == "inconclusive"


def test_a_third_of_the_steps_fails_by_the_mean() -> None:
    base, new = pair((3,), 60, "independent")
    new[0][::3] = new[0][::3] * 13 // 10
    found = judge(THREE, base, new)
    assert (found.outcome, found.reason[:19]) == ("failed", "The mean step time ")


def test_growth_that_some_runs_have_anyway_is_not_proven() -> None:
    base, new = pair((4,), 50, "independent", runs=3, between=0.1, slower=0.05)
    assert judge(THREE, base, new).outcome == "inconclusive"


@pytest.mark.parametrize(
    ("base", "new", "outcome"),
    [
        (0, 0, "passed"),
        (0, STEP_NS // 2000, "passed"),  # 0.05 % of the step
        (0, STEP_NS // 50, "failed"),
        (STEP_NS // 4000, STEP_NS // 2000, "passed"),  # twice as much of nearly nothing
        (STEP_NS // 10, STEP_NS // 8, "failed"),
        (STEP_NS // 10, 0, "passed"),
    ],
)
def test_a_part_that_was_nothing_or_does_not_matter(base: int, new: int, outcome: str) -> None:
    steps = pair((5,), 40, "independent")
    random = np.random.default_rng(5)
    sides = [[run(random, 40, noise=0.02) * part // STEP_NS] for part in (base, new)]
    found = judge(parse_gate("idle:5%"), sides[0], sides[1], step_times=steps)
    assert found.outcome == outcome, found.reason


def test_the_worst_outcome_counts() -> None:
    good, bad = (judge(THREE, *pair((6,), 50, "independent", slower=each)) for each in (0.0, 0.1))
    unclear = judge(THREE, [[1, 2]], [[2, 3]])
    assert worst([]) == worst([good]) == "passed"
    assert worst([good, unclear]) == "inconclusive"
    assert worst([bad, unclear, good]) == "failed"
    assert [EXIT_CODES[each] for each in ("passed", "failed", "inconclusive")] == [0, 1, 4]


# -- on runs ----------------------------------------------------------------------------------------


@cache
def loops() -> tuple[Digest, Digest]:
    """A training loop, and one whose attention of one block is half as slow again."""
    base = training_loop()
    slow = mapped(base, lambda work: work.layer is not None and work.layer.startswith("blocks.1"), lambda work: replace(work, ns=work.ns * 3 // 2))  # fmt: skip
    assert total(slow) > total(base)
    return digest_of(trace_of(base, 1, on_cpu=False)), digest_of(trace_of(slow, 2, on_cpu=False))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gate", "outcome"),
    [
        ("layer:blocks.1:10%", "failed"),
        ("layer:blocks.?:200%", "passed"),
        ("layer:blocks.0:10%", "passed"),
        ("layer:*ocks.1*:10%", "failed"),
        ("phase:optimizer:15%", "passed"),
        ("communication:5%", "passed"),
        ("idle:allocation:5%", "passed"),  # a cause that no step has is 0 ns on both sides
        ("category:sort:5%", "passed"),
    ],
)
def test_a_gate_is_on_the_part_that_it_names(gate: str, outcome: str) -> None:
    base, new = loops()
    (found,) = judge_runs([parse_gate(gate)], [[base]], [[new]])
    assert found.outcome == outcome, found.reason


def test_the_times_of_all_parts_are_those_of_the_steps() -> None:
    base, _ = loops()
    gates = [parse_gate(f"{part}:1%") for part in ("compute", "communication", "memory", "idle")]
    found = judge_runs(gates, [[base]], [[base]])
    assert sum(each.change.base.mean for each in found) == pytest.approx(float(step_times([base]).mean()))


def test_a_part_that_no_run_has_is_an_error_with_the_nearest_name() -> None:
    base, new = loops()
    with pytest.raises(UsageError, match=r"no step has the layer 'block\.1'; did you mean blocks\.1"):
        judge_runs([parse_gate("layer:block.1:5%")], [[base]], [[new]])


@pytest.mark.parametrize(
    ("gate", "says"),
    [
        ("category:matrix multiplication:5%", "write category:gemm:LIMIT"),
        (
            "idle:data loading:5%",
            "no step has idle time by the cause 'data loading'; write idle:data_loading:",
        ),
        ("idle:nothing:5%", "choose one of synchronisation, data_loading, "),
        ("layer:encoder:5%", "the tables of the comparison have the names"),
        ("layer:mlp.up:5%", "write layer:*mlp.up:LIMIT"),
        ("kernel:128x:5%", "write kernel:*128x*:LIMIT"),
    ],
)
def test_a_name_that_a_table_shows_or_a_part_of_one_is_told_as_a_gate_writes_it(gate: str, says: str) -> None:
    base, new = loops()
    with pytest.raises(UsageError) as error:
        judge_runs([parse_gate(gate)], [[base]], [[new]])
    assert says in str(error.value)


def test_a_step_of_several_ranks_is_as_long_as_that_of_the_slowest() -> None:
    base, new = loops()
    both = step_times([base, new])
    assert (both == np.maximum(step_times([base]), step_times([new]))).all()


@pytest.mark.slow
@pytest.mark.parametrize("side", ["base", "new side"])
def test_a_side_that_stalled_proves_nothing(side: str) -> None:
    """A gate failed, and a step was "faster", beside the note that a side stalled for a third of its time."""
    stalls = {(step, OPERATORS[step % 6]): 8 * MS for step in range(0, 30, 2)} | {(1, OPERATORS[1]): 8 * MS}
    quiet, stood = (digest_of(loop(each, steps=30).trace(devices=())) for each in ({}, stalls))
    planted = 16 * 8 * MS / int(stood.steps["time_ns"].sum())
    pair = ([[stood]], [[quiet]]) if side == "base" else ([[quiet]], [[stood]])
    found = compared(*pair, [parse_gate("3%"), parse_gate("operator:aten::mm:3%")])
    said = f"the {side} stalled for {100 * planted:.1f} % of the time"
    for each in found.judgements:
        assert each.outcome == "inconclusive"
        assert each.reason.endswith(f", but {said}.")
    section = diff_section(found)
    assert section.tag == "inconclusive"
    assert section.answer.endswith(f" at the median, but {said}.")
    assert not any(change.sure for change in found.diff.changes)
    assert any(note.startswith(f"T{said[1:]}, probably because something else") for note in found.diff.notes)
    assert worst(compared([[stood]], [[stood]], [THREE]).judgements) == "passed", "it is the same run"


@pytest.mark.parametrize(("stalled", "outcome"), [(6, "failed"), (40, "failed"), (60, "inconclusive")])
def test_a_short_stall_explains_no_large_change(stalled: int, outcome: str) -> None:
    fast = [100, 101, 99, 100, 102, 98] * 5
    slow = [2 * each for each in fast]
    assert judge(THREE, [fast], [slow], stood=Stall("the base stalled", stalled)).outcome == outcome


def test_an_interval_that_says_nothing_has_no_ends() -> None:
    """`95 % interval −100.0 % to +32,568,972,500.0 %` was told of seven steps between 0.2 and 31 seconds."""
    base = [31100, 24900, 3100, 3090, 2100, 1900, 150, 141]
    new = [2580, 2300, 1800, 1790, 205, 200, 196]
    one = judge(THREE, [base], [new])
    assert one.outcome == "inconclusive"
    assert one.change.median.unbounded
    assert "95 % interval of more than a thousand times either way;" in one.reason


# -- on layers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gate", "outcome"),
    [("layer:encoder:10%", "failed"), ("layer:encoder:30%", "passed"), ("layer:head:10%", "passed"), ("layer:enc*:10%", "failed")],
)  # fmt: skip
def test_a_gate_on_a_layer_holds_the_ranges_inside_it(gate: str, outcome: str) -> None:
    """`layer:model/encoder:10%` passed though encoder/ffn was half as slow again, and `layer:model` was no layer."""
    base, new = (ranges(planted_sides.digest(slow)) for slow in ({}, {"encoder.1": 1.5}))
    (found,) = judge_runs([parse_gate(gate)], [[base]], [[new]])
    assert found.outcome == outcome, found.reason
    if gate.startswith("layer:encoder"):
        assert found.change.median.ratio == pytest.approx((3 + 2 * 1.5) / 5, rel=0.01)


@pytest.mark.parametrize("gate", ["layer:encoder/1:10%", "layer:encoder/ffn:10%", "layer:*r/1*:10%"])
def test_a_layer_with_another_name_is_the_same_part(gate: str) -> None:
    """`fell by 100 %` passed a layer that was renamed, and slower."""
    base, new = planted_sides.digest(), planted_sides.digest({"encoder.1": 1.5})
    sides = [[ranges(base)]], [[ranges(new, {"encoder.1": "encoder.ffn"})]]
    for order, slower in ((sides, 1.5), (sides[::-1], 1 / 1.5)):
        (found,) = judge_runs([parse_gate(gate)], *order)
        assert found.change.median.ratio == pytest.approx(slower, rel=0.01)
        assert found.outcome == ("failed" if slower > 1 else "passed")
        assert re.search(r"\(encoder/(1|ffn) (on the new side|in the base)\)", found.reason)


def test_a_layer_that_nothing_stands_for_is_inconclusive() -> None:
    base, new = planted_sides.digest(), planted_sides.digest()
    work = [pl.lit("aten::conv2d").alias("operator"), pl.lit("[[1, 1, 1]]").alias("shapes")]
    there = pl.col("layer") == "encoder.1"
    new = replace(new, leaves=new.leaves.with_columns(pl.when(there).then(each).otherwise(each.meta.output_name()).alias(each.meta.output_name()) for each in work))  # fmt: skip
    sides = [[ranges(base)]], [[ranges(new, {"encoder.1": "tail"})]]
    (found,) = judge_runs([parse_gate("layer:encoder/1:10%")], *sides)
    assert found.outcome == "inconclusive"
    assert found.reason.endswith("no layer of the new side stands for it, so nothing is compared.")


def test_one_numbered_layer_more_does_not_shift_what_a_gate_is_on() -> None:
    frame = pl.DataFrame(
        {
            "layer_id": range(4),
            "parent_layer_id": [None, 0, 0, 0],
            "base_path": ["b", None, "b.0", "b.1"],
            "new_path": ["b", "b.0", "b.1", "b.2"],
        }
    )
    known = ["b.0", "b.1"], ["b.0", "b.1", "b.2"]
    assert meant_layers("b.0", frame, known).paths == ({"b.0"}, {"b.1"})
    assert meant_layers("b.2", frame, known).paths == ({"b.1"}, {"b.2"})
    every = {"b.0", "b.1"}, {"b.0", "b.1", "b.2"}
    assert meant_layers("b.*", frame, known).paths == every, "the new one is one of them"
    assert meant_layers("b", frame, known).paths == (every[0] | {"b"}, every[1] | {"b"})


@pytest.mark.parametrize("gate", ["0%", "layer:encoder:0%", "idle:0%"])
def test_a_run_against_itself_passes_any_gate(gate: str) -> None:
    """It was inconclusive with `--gate 0%`."""
    one = planted_sides.digest()
    (found,) = judge_runs([parse_gate(gate)], [[one]], [[one]])
    assert found.outcome == "passed", found.reason
    assert found.reason.endswith("and both sides are the same.")
