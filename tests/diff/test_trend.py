"""Trends: planted changes are found and flat series have none; figures are those of the reports; one figure in every format."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from commands import run
from planted_runs import BERT, CNN, DDP, planted, written
from scipy import stats

from tracekit.diff.runs import Run, keep
from tracekit.diff.sides import read_sides
from tracekit.diff.trend import _cuts, levels_of, median_interval, step_times, trend_of
from tracekit.report.build import build_report
from tracekit.report.trend import trend_section

MS = 10**6


def series(seed: int, size: int, jumps: dict[int, float], noise: float = 0.01) -> list[float]:
    """Times with this noise, whose level changes by these shares at these places."""
    chance, level, times = np.random.default_rng(seed), 1.0, []
    for at in range(size):
        level *= 1 + jumps.get(at, 0.0)
        times.append(30 * MS * level * float(np.exp(noise * chance.standard_normal())))
    return times


# -- the method -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "jumps", [{10: 0.05}, {15: -0.05}, {25: 0.05}, {8: 0.05, 20: -0.05}, {6: 0.05, 14: 0.05, 22: 0.05}]
)
def test_planted_jumps_are_found_within_one_run(jumps: dict[int, float]) -> None:
    found = [levels_of(series(seed, 30, jumps)).starts for seed in range(100)]
    hits = [
        len(own) == len(jumps) and all(abs(a - b) <= 1 for a, b in zip(own, jumps, strict=True))
        for own in found
    ]
    assert sum(hits) >= 97


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.003, 0.01, 0.05])
def test_flat_series_have_no_change(noise: float) -> None:
    false = sum(bool(levels_of(series(seed, 30, {}, noise)).starts) for seed in range(300))
    assert false <= 9  # 3 %; 5 % are allowed


def test_few_runs_and_runs_without_noise() -> None:
    assert levels_of(series(0, 5, {2: 0.5})).noise is None
    assert levels_of([100.0] * 5 + [110.0] * 5).starts == (5,)
    assert levels_of([100.0] * 10).starts == ()
    for size in (6, 7, 8):
        assert sum(bool(levels_of(series(seed, size, {})).starts) for seed in range(100)) <= 5


def test_one_slow_run_is_alone_and_no_level() -> None:
    for at in (0, 7, 29):
        times = series(4, 30, {})
        times[at] *= 1.3
        levels = levels_of(times)
        assert (levels.lone, levels.starts) == ((at,), ())
        assert at not in levels.members(30)[0]


def test_units_do_not_matter() -> None:
    times = series(7, 40, {13: 0.06, 30: -0.1})
    assert levels_of([each * 1e-6 for each in times]).starts == levels_of(times).starts == (13, 30)
    mirrored = levels_of(times[::-1]).starts
    assert [40 - each for each in mirrored[::-1]] == [13, 30]


def test_cuts_are_the_best_of_all() -> None:
    """By trying every way to cut."""

    def cost(values: Sequence[float], cuts: Sequence[int], penalty: float) -> float:
        pieces = [np.asarray(values[a:b]) for a, b in pairwise([0, *cuts, len(values)])]
        return sum(float(((piece - piece.mean()) ** 2).sum()) for piece in pieces) + penalty * len(cuts)

    chance = random.Random(0)
    for _ in range(60):
        size, penalty = chance.randint(2, 9), chance.choice([0.5, 2.0, 8.0])
        values = [chance.gauss(0, 1) + 2 * (at > 4) for at in range(size)]
        ways = [[at for at in range(1, size) if mask >> at & 1] for mask in range(0, 2**size, 2)]
        ways = [cuts for cuts in ways if all(b - a >= 2 for a, b in pairwise([0, *cuts, size]))]
        best = min(cost(values, cuts, penalty) for cuts in ways)
        assert cost(values, _cuts(np.asarray(values), penalty), penalty) == pytest.approx(best)


@pytest.mark.parametrize("size", [1, 5, 6, 7, 12, 30, 101])
def test_the_interval_of_a_median_is_that_of_the_binomial_distribution(size: int) -> None:
    interval = median_interval(list(range(size)))
    if interval is None:
        assert 2 * stats.binom.cdf(0, size, 0.5) > 0.05
        return
    low, high = interval
    assert high == size - 1 - low
    assert 2 * stats.binom.cdf(low, size, 0.5) <= 0.05 < 2 * stats.binom.cdf(low + 1, size, 0.5)


# -- figures of runs --------------------------------------------------------------------------------------


def test_figures_are_those_of_the_report() -> None:
    import tracekit

    (side,) = read_sides([[CNN]])
    (row,) = trend_of(side.runs).table.rows(named=True)
    report = build_report(tracekit.read(CNN), only=["breakdown", "workload", "steps"])
    (device,) = report.section("breakdown").table("devices").frame.rows(named=True)  # type: ignore[union-attr]
    workload = report.section("workload").scalars  # type: ignore[union-attr]
    assert row["step_ns"] == workload["step_ns"]
    assert row["throughput_per_s"] == pytest.approx(workload["throughput_per_s"])
    assert row["idle_share"] == pytest.approx(device["idle_ns"] / device["window_ns"])
    assert row["communication_share"] == 0


def test_a_step_of_several_ranks_is_that_of_the_slowest() -> None:
    (side,) = read_sides([[DDP]])
    (ddp,) = side.runs
    one, other = (each.steps["time_ns"].to_list() for each in ddp.digests)
    assert step_times(ddp, plain=False) == [max(pair) for pair in zip(one, other, strict=True)]
    (row,) = trend_of(side.runs).table.rows(named=True)
    parts = [each.values.join(each.leaves, on="leaf") for each in ddp.digests]
    idle = sum(rows.filter(pl.col("kind") == "idle")["ns"].sum() for rows in parts)
    assert row["idle_share"] == pytest.approx(idle / (sum(one) + sum(other)))


def nights(jumps: dict[int, float], **facts: object) -> list[Run]:
    noise = (0.99, 1.0, 1.01, 1.0, 0.995, 1.005, 1.0)
    return [
        planted(f"night-{at}", time, day=at, noise=noise, **facts)
        for at, time in enumerate(series(2, 24, jumps))
    ]


def test_runs_are_in_order_of_their_time() -> None:
    runs = nights({})
    shuffled = random.Random(0).sample(runs, len(runs))
    assert trend_of(shuffled).runs == tuple(runs)
    assert trend_of(shuffled).order == "recorded"
    by_name = trend_of(shuffled, by_name=True)
    assert [run.name for run in by_name.runs[:11]] == [f"night-{at}" for at in range(11)]
    unknown = [planted(f"n-{at}", MS, day=at, recorded_utc_ns=None) for at in (2, 0, 1)]
    assert [run.name for run in trend_of(unknown).runs] == ["n-0", "n-1", "n-2"]
    assert trend_of(unknown).order == "changed"
    nowhere = [Run("x", unknown[0].digests), unknown[1]]
    assert trend_of(nowhere).runs == tuple(nowhere)
    assert trend_of(nowhere).order == "given"


def test_a_change_says_since_when_by_how_much_and_what_differs() -> None:
    old = nights({12: 0.06})
    versions = old[0].digests[0].facts.versions
    later = nights({12: 0.06}, versions={**versions, "torch": "9.9"})
    trend = trend_of([*old[:12], *later[12:]])
    (change,) = trend.changes
    assert (change.at, change.told) == (12, (("torch", versions["torch"], "9.9"),))
    assert change.low < 1.06 < change.high
    assert abs(change.ratio - 1.06) < 0.01
    answer = trend_section(trend).answer
    assert "Since night-12 (2026-12-02 21:51) a step is " in answer
    assert f"differs from the one before it in torch ({versions['torch']} → 9.9)" in answer


def test_the_newest_run_is_compared_with_those_before_it() -> None:
    rows = nights({})
    slow = nights({len(rows) - 1: 0.2})
    answer = trend_section(trend_of([*rows[:-1], slow[-1]])).answer
    assert "slower than the runs before it; run it again" in answer


def test_what_changed_most_is_named() -> None:
    from dataclasses import replace

    def slower(run: Run, by: float) -> Run:
        """Matrix products take longer, and so do the steps, recorded ones too."""
        (one,) = run.digests
        conv = one.leaves.filter(pl.col("category") == "convolution")["leaf"].implode()
        more = pl.when(pl.col("leaf").is_in(conv)).then((pl.col("ns") * (1 + by)).round()).otherwise("ns")
        values = one.values.with_columns(more.cast(pl.Int64).alias("ns"))
        sums = values.group_by("step").agg(pl.col("ns").sum().alias("time_ns"))
        steps = one.steps.drop("time_ns").join(sums, on="step").select(one.steps.columns)
        return Run(run.name, (replace(one, steps=steps, values=values),), run.changed_ns)

    runs = [planted(f"r{at}", day=at, undisturbed_ns=()) for at in range(12)]
    trend = trend_of([slower(run, 0.2 if at >= 6 else 0.0) for at, run in enumerate(runs)])
    (change,) = trend.changes
    assert [name for name, _ in change.parts] == ["convolution"]
    before, after = (trend.categories["convolution_ns"][at] for at in (0, 11))
    assert change.parts[0][1] == pytest.approx(after - before)
    assert not trend.plain


def test_runs_of_another_program_and_without_steps_are_left_out() -> None:
    runs = [*nights({})[:3], planted("bert", MS, workload="bert")]
    trend = trend_of(runs)
    assert trend.left_out == (("bert", "it is a run of bert, not cnn"),)
    assert len(trend.runs) == 3


# -- the command ------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    place = tmp_path / "nights"
    place.mkdir()
    for one in nights({12: 0.06}):
        (place / f"{one.name}.runs").write_bytes(keep([one]))
    return place


@pytest.mark.slow
def test_one_figure_in_every_format(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "trend", saved, "-f", "json")
    assert (code, err) == (0, "")
    tables = json.loads(out)["trend"]["tables"]
    assert [row["since"] for row in tables["changes"]] == ["night-12"]
    for form in ("parquet", "csv"):
        assert run(capsys, "trend", saved, "-f", form, "-o", tmp_path / form)[0] == 0
        read = pl.read_parquet if form == "parquet" else pl.read_csv
        for name, rows in tables.items():
            assert read(tmp_path / form / f"trend.{name}.{form}").height == len(rows)
    frame = pl.read_parquet(tmp_path / "parquet" / "trend.runs.parquet")
    assert frame["step_ns"].to_list() == [row["step_ns"] for row in tables["runs"]]
    answer = " ".join(json.loads(out)["trend"]["answer"].split())
    for form in ("table", "md"):
        assert answer in " ".join(run(capsys, "trend", saved, "-f", form)[1].split())
    assert run(capsys, "trend", saved, "-o", tmp_path / "t.html", "--figures", tmp_path / "figures")[0] == 0
    assert "Step time of each run" in (tmp_path / "t.html").read_text()
    assert (tmp_path / "figures" / "trend.step_time.svg").stat().st_size > 1000


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, other = written(tmp_path / "ours.json"), written(tmp_path / "other.json", workload="bert")
    third, odd = written(tmp_path / "third.json"), tmp_path / "odd.json"
    odd.write_text("no trace")
    code, out, err = run(capsys, "trend", ours, other, third, odd)
    assert code == 0
    first, *rest = err.splitlines()
    assert first.startswith(f"tracekit: left out: {odd}: ")
    assert rest == [
        "tracekit: left out: other.json: it is a run of bert, not cnn",
    ]
    assert "2 runs are too few to tell a change from noise; 6 are needed." in " ".join(out.split())


def test_without_steps_there_is_no_trend(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "trend", BERT, "--window", "trace")
    assert (code, err.splitlines()[-1]) == (4, "tracekit: error: no run has steps; name the ranges that are steps with --step REGEX")  # fmt: skip


def test_step_times_that_scatter_do_not_stay_where_they_are() -> None:
    """`the step time stays at 19.3 ms` stood beside `varies by 82.1 %`."""
    rows = nights({})
    answer = trend_section(trend_of(rows)).answer
    assert f"Over {len(rows)} runs, the step time shows no lasting change; on average it is " in answer
