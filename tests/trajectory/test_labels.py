"""Every segment of planted sweeps gets its label under 3 % noise, and the algebra does not depend on units or on noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from planted_sweeps import KEY, made, sweep

from tracekit.report.trajectory import trajectory_section
from tracekit.trajectory import Point, Run, Swept, segment_of, trajectories_of

KINDS = ("parallel", "work", "choice")


def labels_of(seed: int, kind: str, **more: float) -> tuple[list[str], list[str]]:
    runs, truth = sweep(seed, kind, **more)  # type: ignore[arg-type]
    found = trajectories_of(Swept(tuple(reversed(runs)), (), ()), KEY[kind])
    return found.segments["label"].to_list(), truth


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_planted_sweeps_get_their_labels_under_noise(kind: str) -> None:
    for seed in range(15):
        found, truth = labels_of(seed, kind)
        assert found == truth, seed


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_planted_sweeps_get_their_labels_for_many_seeds(kind: str) -> None:
    wrong = [seed for seed in range(100, 250) for found, truth in [labels_of(seed, kind)] if found != truth]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_with_one_time_for_each_run_what_is_claimed_is_true(kind: str) -> None:
    """A single time with 3 % noise cannot show small changes, but it never shows one that is not there."""
    vague = {"no change", "gain of intensity", "loss of intensity", "contention", "scaling"}
    for seed in range(100):
        for found, truth in zip(*labels_of(seed, kind, steps=1), strict=True):
            along_a_falling_roof = found == "retrograde" and truth.endswith("saturated")
            assert found == truth or found in vague or along_a_falling_roof, (seed, found, truth)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_label_is_wrong_where_runs_differ_by_three_percent(kind: str) -> None:
    """One of 15 to 35 segments had a change that is none, since two runs were taken to differ by 1 %."""
    weaker = {"no change", "gain of intensity", "loss of intensity", "contention"}
    pairs = [
        pair
        for seed in range(150)
        for pair in zip(*labels_of(seed, kind, between=0.03), strict=True)
        if pair[0] != pair[1]
    ]
    assert len(pairs) < 15
    # A little contention may look like none.
    unseen = {"contention", "loss of intensity", "bandwidth-saturated", "compute-saturated"} if kind == "parallel" else set()  # fmt: skip
    assert [pair for pair in pairs if pair[0] not in weaker and not (pair[0] == "scaling" and pair[1] in unseen)] == []  # fmt: skip


def test_equal_runs_that_differ_by_three_percent_have_no_label() -> None:
    """3 of 32 segments of equal configurations were said to scale or to fall back."""
    for repeats in (1, 3):
        labels = []
        for seed in range(25):
            rng = np.random.default_rng(seed)
            off = np.exp(0.03 * rng.standard_normal((9, repeats)))
            runs = [made("workers", count, [round(1e9 * factor)] * 5) for count, row in enumerate(off) for factor in row]  # fmt: skip
            labels += trajectories_of(Swept(tuple(runs), (), ()), "workers").segments["label"].to_list()
        assert labels == ["no change"] * 200


def test_repetitions_show_what_one_run_of_each_does_not() -> None:
    """Where runs agree, a change of 8 % is one."""
    once = [made("workers", count, [10**9 * (100 - 8 * count)] * 5) for count in (0, 1)]
    again = [made("workers", count, [10**9 * (100 - 8 * count)] * 5) for count in (0, 1) for _ in range(7)]
    labels = [trajectories_of(Swept(tuple(runs), (), ()), "workers").segments["label"].item() for runs in (once, again)]  # fmt: skip
    assert labels == ["no change", "scaling"]


# -- the algebra -----------------------------------------------------------------------------------

ratios = st.floats(0.05, 20)
points = st.builds(
    Point,
    key=st.floats(1, 64),
    intensity=st.floats(0.1, 1000),
    flops_per_s=st.floats(1e6, 1e15),
    error=st.floats(0.001, 0.1),
    peak=st.none() | st.floats(1e6, 1e16),
    bandwidth=st.none() | st.floats(1e5, 1e13),
    measured_bytes=st.booleans(),
    work=st.sampled_from([1.0, 1.02, 5.0]),
    known=st.sampled_from([1.0, 0.99, 0.4]),
)


def in_units(point: Point, flop: float, byte: float) -> Point:
    return replace(
        point,
        intensity=point.intensity * flop / byte,
        flops_per_s=point.flops_per_s * flop,
        peak=None if point.peak is None else point.peak * flop,
        bandwidth=None if point.bandwidth is None else point.bandwidth * byte,
        work=point.work * flop,
    )


@given(points, points, st.sampled_from(KINDS), st.sampled_from([2.0**-20, 2.0**-3, 2.0**30]), st.sampled_from([2.0**-10, 8.0]))  # fmt: skip
def test_units_change_no_label(one: Point, other: Point, kind: str, flop: float, byte: float) -> None:
    before = segment_of(one, other, kind)  # type: ignore[arg-type]
    assume(all(abs(each - 1) > 1e-6 for each in (before.intensity_change / 1.05, before.intensity_change * 1.05)))  # fmt: skip
    after = segment_of(in_units(one, flop, byte), in_units(other, flop, byte), kind)  # type: ignore[arg-type]
    assert (before.label, before.intensity) == (after.label, after.intensity)


@pytest.mark.slow
@given(points, points, st.sampled_from(KINDS))
def test_noise_hides_every_change_of_performance(one: Point, other: Point, kind: str) -> None:
    found = segment_of(replace(one, error=100.0), replace(other, error=100.0), kind)  # type: ignore[arg-type]
    named = {"same": "no change", "gain": "gain of intensity", "not comparable": "not comparable"}
    assert found.label == named.get(found.intensity, "loss of intensity")


@given(points, points, st.sampled_from(KINDS))
def test_what_a_label_claims_holds(one: Point, other: Point, kind: str) -> None:
    found = segment_of(one, other, kind)  # type: ignore[arg-type]
    grows, falls = found.change > found.noise, found.change < 1 / found.noise
    per_key = found.change * one.key / other.key
    if found.label == "scaling":
        assert grows
        assert kind != "parallel" or per_key >= 1 / found.noise * (1 - 1e-9)
    if found.label == "retrograde":
        assert falls
    if found.label == "contention":
        assert kind == "parallel"
        assert per_key < 1 / found.noise
        assert found.intensity in ("same", "gain")
    if found.label == "not comparable":
        assert found.intensity == "not comparable"
        assert one.work != other.work
        assert one.known != other.known
    if found.label.endswith("saturated"):
        assert other.at_roof
        assert found.label == other.bound
    if found.label == "no change":
        assert found.intensity == "same"
        assert not grows
        assert not falls
    if found.intensity == "cache loss":
        assert one.measured_bytes
        assert other.measured_bytes


@given(points, points)
def test_the_way_back_of_growth_is_retrograde(one: Point, other: Point) -> None:
    if segment_of(one, other, "work").label == "scaling":
        assert segment_of(other, one, "work").label in ("retrograde", "bandwidth-saturated", "compute-saturated")  # fmt: skip


def known_for(run: Run, share: float, work: float = 1.0) -> Run:
    """The run with FLOPs that are known for this share of the time, and `work` times as many."""
    figures = [
        pl.lit(share).alias("covered_share"),
        *(pl.col(name) * work for name in ("flops", "bytes", "flops_per_s")),
    ]
    return replace(run, work=run.work.with_columns(figures))


@pytest.mark.parametrize("key", ["compile", "batch", "threads", "size"])
def test_less_known_work_is_no_lower_performance(key: str) -> None:
    """Twice as fast a run was retrograde, since the FLOPs of its compiled code are not known."""
    values = (False, True) if key == "compile" else (1, 2)
    runs = [made(key, value, [10**9 // (1 + at)] * 5, samples=8) for at, value in enumerate(values)]
    for shares, works, expected in (
        ((1.0, 0.4), (1.0, 0.4), "not comparable"),
        ((0.4, 1.0), (0.4, 1.0), "not comparable"),
        # The same work is known, and takes another share of the time.
        ((0.98, 0.6), (1.0, 1.0), "scaling"),
        # Other work, all of it known.
        ((1.0, 0.99), (1.0, 3.0), "scaling"),
    ):
        pair = [known_for(*each) for each in zip(runs, shares, works, strict=True)]
        found = trajectories_of(Swept(tuple(pair), (), ()), key)
        assert found.segments["label"].to_list() == [expected], (shares, works)
        told = "Not comparable: FLOPs are known for other parts of the work, so FLOP/s do not compare."
        assert (told in trajectory_section(found).answer) == (expected == "not comparable")


def test_a_point_far_above_its_roof_is_not_at_it() -> None:
    """Its bytes come from caches, so that the bandwidth of the memory is not what limits it."""
    roofs = {"error": 0.01, "peak": 100.0, "bandwidth": 10.0}
    served = [Point(key, 1.0, rate, **roofs) for key, rate in ((1, 30.0), (2, 30.0))]
    assert segment_of(*served, "work").label == "no change"
    fed = [Point(key, 1.0, rate, **roofs) for key, rate in ((1, 9.5), (2, 9.5))]
    assert segment_of(*fed, "work").label == "bandwidth-saturated"


def test_a_cache_loss_needs_measured_bytes() -> None:
    for source, expected in (("analytic", "loss"), ("counter", "cache loss")):
        runs = [made("batch", batch, [10**9] * 5, intensity, bytes_source=source) for batch, intensity in ((1, 20.0), (2, 12.0))]  # fmt: skip
        found = trajectories_of(Swept(tuple(runs), (), ()), "batch")
        assert found.segments["intensity"].to_list() == [expected]
        assert found.segments["label"].to_list() == ["loss of intensity"]
