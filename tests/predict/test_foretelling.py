"""Planted laws are recovered, intervals cover what they say, and a fit sees its training rows only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from planted_tables import as_runs, law, planted

from tracekit.errors import InconclusiveError, UsageError
from tracekit.predict import store
from tracekit.predict.auto import fit
from tracekit.predict.conformal import intervals_of
from tracekit.predict.evaluate import BASELINES, evaluate
from tracekit.predict.protocols import folds_of
from tracekit.predict.questions import of_two
from tracekit.predict.support import INSIDE, Places, support_of
from tracekit.predict.table import Runs
from tracekit.report.predict import evaluation_section

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return as_runs(planted(repetitions=2), tmp_path_factory.mktemp("planted"))


@pytest.mark.parametrize(
    ("split", "model"),
    [
        ("device=fast", "structural"),
        *(
            pytest.param(split, "auto", marks=pytest.mark.slow)
            for split in ("batch>p75", "device=fast", "device=slow", "gpus>4")
        ),
    ],
)
@pytest.mark.sampled(2)
def test_a_planted_law_is_foretold_beyond_its_rows(split: str, model: str, tmp_path: Path) -> None:
    runs = as_runs(planted(repetitions=2, most_gpus=8.0 if "gpus" in split else 4.0), tmp_path)
    (fold,) = folds_of(runs, split)
    test = runs.where(fold.test)
    answer = fit(runs.where(fold.train), model).predict(test)
    truth = law(
        test.numbers("gpus"), test.numbers("batch"), test.numbers("iterations"), test.numbers("peak_gflops")
    )
    said = answer["predicted"].to_numpy()
    assert 100 * np.abs(said / truth - 1).mean() <= 4
    # Configurations whose times differ by more than the noise stand in their order.
    order = np.argsort(truth)
    steps = np.diff(said[order])[np.diff(np.log(truth[order])) > 0.1]
    assert (steps > 0).all()
    inside = (test.target >= answer["low"].to_numpy()) & (test.target <= answer["high"].to_numpy())
    assert inside.mean() >= 0.85


@pytest.mark.parametrize("model", ["lattuada", pytest.param("boosting", marks=pytest.mark.slow)])
def test_a_fit_sees_the_training_rows_only(model: str, tmp_path: Path) -> None:
    frame = planted(repetitions=1).filter(pl.col("threads") == 2)
    beyond = pl.col("batch") > 64
    clean, poisoned = (
        as_runs(
            frame.with_columns(time_s=pl.when(beyond).then(value).otherwise("time_s")),
            tmp_path,
            f"{name}.csv",
        )
        for name, value in {"clean": pl.col("time_s"), "poisoned": pl.lit(1e12)}.items()
    )
    (fold,) = folds_of(clean, "batch>64")
    kept = [store.dumped(fit(each.where(fold.train), model)) for each in (clean, poisoned)]
    assert kept[0] == kept[1]
    answers = [evaluate(each, "batch>64", models=[model]).rows for each in (clean, poisoned)]
    told = ("model", "id", "predicted", "low", "high")
    assert answers[0].select(told).equals(answers[1].select(told))
    errors = [each.filter(model=model)["ape"].mean() for each in answers]
    assert errors[0] < 50  # what was poisoned is what is judged
    assert errors[1] > 99


def test_intervals_cover_what_they_say() -> None:
    random = np.random.default_rng(0)
    covered = []
    for _ in range(60):
        known, asked = random.normal(0, 0.1, 80), random.normal(0, 0.1, 200)
        places = Places(
            np.full(80, INSIDE, dtype=object),
            {},
            np.full(80, "", dtype=object),
            np.zeros(80, dtype=bool),
        )
        intervals = intervals_of(known, np.ones(80), places, np.zeros(80, dtype=np.int64))
        covered.append(np.mean(np.abs(asked) <= intervals.half_widths(places)[0]))
    assert 0.88 <= np.mean(covered) <= 0.93


def test_intervals_widen_with_the_distance() -> None:
    def places(*rows: dict[str, float]) -> Places:
        nothing = np.full(len(rows), "", dtype=object)
        axes = {axis: np.array([row.get(axis, 0.0) for row in rows]) for axis in ("batch", "device", "gpus")}
        kinds = np.array([next(iter(row), INSIDE) for row in rows], dtype=object)
        return Places(kinds, axes, nothing, np.zeros(len(rows), dtype=bool))

    known = places(*[{}] * 20, *[{"batch": 1.0}] * 20, *[{"device": 1.0}] * 20)
    residuals = np.concatenate([np.linspace(low, 2 * low, 20) for low in (0.01, 0.04, 0.2)])
    intervals = intervals_of(residuals, np.ones(60), known, np.repeat([0, 1, 2, 3], [20, 20, 10, 10]))
    asked = places({}, {"batch": 1.0}, {"batch": 3.0}, {"device": 1.0, "batch": 1.0}, {"gpus": 1.0})
    inside, near, far, both, other = intervals.half_widths(asked)
    assert inside < near < far == pytest.approx(3 * near)
    device = intervals.half_widths(places({"device": 1.0}))[0]
    assert both == pytest.approx(np.hypot(near, device))
    assert near < other <= device


@pytest.mark.slow
def test_an_axis_that_never_varied_has_the_room_that_a_doubling_has(tmp_path: Path) -> None:
    frame = planted(repetitions=1)
    one = as_runs(frame.filter(gpus=1.0), tmp_path)
    assert "gpus" in support_of(one).constant
    predictor = fit(one, "structural")
    asked = as_runs(frame.filter(pl.col("gpus") > 1), tmp_path)
    answer = predictor.predict(asked)
    # Of what further devices cost one device tells nothing: here they cost up to half the time.
    inside = (asked.target >= answer["low"].to_numpy()) & (asked.target <= answer["high"].to_numpy())
    assert inside.mean() >= 0.85
    assert (answer["high"] / answer["predicted"]).min() >= 2**0.5  # type: ignore[operator]


@pytest.mark.slow
def test_a_second_device_has_the_room_of_an_axis_that_never_varied(tmp_path: Path) -> None:
    """Errors along other axes say nothing of it: of a set on one device four in ten were within the interval."""
    frame = planted(repetitions=1)
    predictor = fit(as_runs(frame.filter(gflops=4000), tmp_path), "structural")
    assert "device" in predictor.support.constant
    answer = predictor.predict(as_runs(frame.filter(gflops=8000), tmp_path))
    assert (answer["high"] / answer["predicted"]).min() >= 0.999 * 2**0.5  # type: ignore[operator]


@pytest.mark.slow
def test_an_axis_with_two_values_has_half_that_room(tmp_path: Path) -> None:
    """Nothing could be asked along it, and errors along others say nothing of it."""
    frame = planted(repetitions=1, most_gpus=8.0).filter(gflops=8000)
    few = as_runs(frame.filter(pl.col("gpus") <= 2), tmp_path)
    assert of_two(few) == ["gpus", "loader_threads"]
    predictor = fit(few, "structural")
    asked = as_runs(frame.filter(pl.col("gpus") > 2), tmp_path)
    answer = predictor.predict(asked)
    inside = (asked.target >= answer["low"].to_numpy()) & (asked.target <= answer["high"].to_numpy())
    assert inside.mean() >= 0.85
    assert (answer["high"] / answer["predicted"]).min() >= 0.999 * 2**0.25  # type: ignore[operator]


@pytest.mark.slow
def test_a_longer_run_is_no_question_for_trees(tmp_path: Path) -> None:
    """Beyond the iterations that were measured they would answer with the longest run that they know."""
    random = np.random.default_rng(5)
    frame = pl.concat([planted(repetitions=1, seed=seed) for seed in range(2)])
    steps = np.round(np.exp(random.uniform(np.log(500), np.log(8000), frame.height)))
    time = law(*(frame[name].to_numpy() for name in ("gpus", "batch")), steps, frame["gflops"].to_numpy())
    frame = frame.with_columns(iterations=steps, time_s=time * np.exp(random.normal(0, 0.03, steps.size)))
    short = as_runs(frame.filter(pl.col("iterations") <= 2000), tmp_path)
    long = as_runs(frame.filter(pl.col("iterations") > 2000), tmp_path)
    predictor = fit(short)
    assert set(predictor.support.places(long).kind) == {"iterations"}
    assert predictor.weights["iterations"] == {"structural": 1.0}
    assert "iterations" in predictor.intervals.widths
    answer = predictor.predict(long)
    assert np.abs(answer["predicted"].to_numpy() / long.target - 1).mean() < 0.04
    inside = (long.target >= answer["low"].to_numpy()) & (long.target <= answer["high"].to_numpy())
    assert inside.mean() >= 0.85


def test_an_interval_for_a_new_device_covers_what_few_devices_can_tell_of_it() -> None:
    random = np.random.default_rng(1)
    for devices in (2, 3, 6):
        covered, rows = [], 20 * devices
        fold = np.repeat(np.arange(devices), 20)
        places = Places(
            np.full(rows, "device", dtype=object),
            {"device": np.ones(rows)},
            np.full(rows, "", dtype=object),
            np.zeros(rows, dtype=bool),
        )
        for _ in range(400):
            known, asked = random.normal(0, 0.2, devices), random.normal(0, 0.2)
            residuals = known[fold] + random.normal(0, 0.05, rows)
            half = intervals_of(residuals, np.ones(rows), places, fold).half_widths(places)[0]
            covered.append(np.mean(np.abs(asked + random.normal(0, 0.05, 20)) <= half))
        assert 0.86 <= np.mean(covered) <= 0.96


@pytest.mark.slow
def test_intervals_cover_configurations_that_were_left_out(runs: Runs) -> None:
    found = evaluate(runs, "kfold:3", "gpus", ["auto"])
    row = found.models.row(by_predicate=pl.col("model") == "auto", named=True)
    assert 85 <= row["coverage"] <= 97
    assert row["mean_ape"] < 4
    assert found.spread < row["mean_ape"]


def test_an_evaluation_lists_models_beside_baselines(runs: Runs) -> None:
    found = evaluate(runs, "gpus>2", "batch", ["lattuada"])
    assert found.models["model"].to_list() == ["lattuada", *BASELINES]
    assert found.groups.filter(model="lattuada")["group"].to_list() == ["16", "32", "64", "128"]
    assert found.models["rows"].unique().to_list() == [48]
    by_model = dict(zip(found.models["model"], found.models["mean_ape"], strict=True))
    assert by_model["Amdahl"] < by_model["mean"]
    rows = found.rows.filter(model="lattuada")
    assert rows["distance"].unique().to_list() == [1.0]
    assert rows["note"][0] == "gpus 4 is 2 times the largest that was measured (2)"
    expected = (100 * (rows["predicted"] / rows["measured"] - 1).abs()).mean()
    assert by_model["lattuada"] == pytest.approx(expected)
    # `no model can do much better` read as if the error of the model were the best there can be.
    answer = evaluation_section(replace(found, spread=0.1)).answer
    assert "from their median by 0.1 %: no model's error can be much smaller than that." in answer


def test_runs_without_repetitions_do_not_make_repetitions_agree(tmp_path: Path) -> None:
    """Single runs counted as repetitions that differ by nothing: of 5 % in one configuration among many, 0.1 % was left."""
    frame = planted(repetitions=1).filter(pl.col("threads") == 2, pl.col("gflops") == 8000)
    again = frame[:1].with_columns(pl.col("time_s") * 1.1)
    found = evaluate(as_runs(pl.concat([frame, again]), tmp_path), "batch=16", models=["lattuada"])
    assert found.spread == pytest.approx(100 * np.mean([1.05 / 1 - 1, 1 - 1.05 / 1.1]), rel=1e-6)


def test_what_cannot_be_evaluated(runs: Runs, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no model 'magic'"):
        evaluate(runs, models=["magic"])
    with pytest.raises(UsageError, match="there is no column 'colour'"):
        evaluate(runs, group="colour")
    with pytest.raises(InconclusiveError, match="no model could be evaluated"):
        evaluate(as_runs(planted(repetitions=1)[:8], tmp_path), "threads>2", models=["lattuada"])


def test_places_name_the_axis(runs: Runs, tmp_path: Path) -> None:
    frame = planted(repetitions=1)[:3].with_columns(
        batch=pl.Series([64.0, 4.0, 1024.0]), gflops=pl.Series([4000.0, 4000.0, 32000.0])
    )
    places = support_of(runs).places(as_runs(frame, tmp_path))
    assert places.kind.tolist() == [INSIDE, "batch", "device"]
    assert places.note[0] == ""
    assert places.note[1] == "batch 4 is 1/4 of the smallest that was measured (16)"
    assert "device of 32000 GFLOP/s was never measured" in places.note[2]
    assert "batch 1024 is 8 times the largest that was measured (128)" in places.note[2]
    assert not places.refused.any()
    assert (places.distance[:2] == [0, 2]).all()
