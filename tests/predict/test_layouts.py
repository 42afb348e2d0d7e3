"""Layouts of transformers: a planted law is found again, extrapolates and is monotone; what a file says is checked."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from paths import VTRAIN

from tracekit.errors import InconclusiveError
from tracekit.predict.describe import Description, description_of
from tracekit.predict.evaluate import evaluate
from tracekit.predict.models.layouts import MODEL, FittedLayouts
from tracekit.predict.table import Runs, read_runs, runs_from

ROLES = {
    "gpus": "gpus",
    "batch": "global_batch",
    "micro_batch": "micro_batch",
    "hidden": "hidden",
    "heads": "heads",
    "layers": "layers",
    "sequence": "seq",
    "tensor_parallel": "tp",
    "data_parallel": "dp",
    "pipeline_parallel": "pp",
}
LAW = {
    "flop_rate": 1.6e14,
    "half_width": 150.0,
    "intensity": 110.0,
    "host": 1.5e-3,
    "start": 2e-5,
    "link": 1.5e11,
    "stage_link": 4e10,
    "vocabulary": 6e4,
    "logit_bytes": 80.0,
    "head": 1e-3,
    "optimizer_bytes": 20.0,
    "fixed": 3e-3,
}
PLANTED = MODEL.restore({"law": LAW, "shapes": {"layers": [], "head": []}})


def _description(**columns: str) -> Description:
    return description_of(
        {"target": {"column": "time_ms", "unit": "ms"}, "columns": columns or ROLES}, Path("columns.toml")
    )


def _table(
    gpus: tuple[int, ...], hidden: tuple[int, ...] = (1024, 2048), layers: tuple[int, ...] = (8, 16)
) -> pl.DataFrame:
    ways = [way for way in product((1, 2, 4, 8), repeat=3) if np.prod(way) in gpus]
    rows = [
        (tp * dp * pp, dp * micro * slots, micro, width, 16, depth, 1024, tp, dp, pp)
        for (tp, dp, pp), micro, slots, width, depth in product(ways, (1, 4), (2, 8), hidden, layers)
    ]
    return pl.DataFrame(rows, schema=list(ROLES.values()), orient="row").with_columns(time_ms=1.0)


def _runs(table: pl.DataFrame, description: Description | None = None, noise: float = 0.0) -> Runs:
    runs = runs_from(table.cast(pl.String), description or _description(), Path("runs.csv"))
    spread = np.exp(noise * np.random.default_rng(3).normal(size=runs.height))
    return replace(runs, frame=runs.frame.with_columns(target=pl.Series(PLANTED.predict(runs) * spread)))


def _error(fitted: FittedLayouts, runs: Runs) -> float:
    return float(100 * np.abs(fitted.predict(runs) / runs.target - 1).mean())


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (_table((2, 4)), _table((8,))),
        (_table((1, 2, 4)).filter(pl.col("pp") == 1), _table((2, 4)).filter(pl.col("pp") > 1)),
        (_table((2, 4), layers=(4, 8)), _table((2, 4), layers=(32,))),
        (_table((2, 4), hidden=(512, 1024, 2048)), _table((2, 4), hidden=(4096,))),
    ],
    ids=["gpus", "pipeline", "layers", "hidden"],
)
def test_a_planted_law_extrapolates_from_noisy_rows(train: pl.DataFrame, test: pl.DataFrame) -> None:
    fitted = MODEL.fit(_runs(train, noise=0.03))
    assert _error(fitted, _runs(test)) < 4


def test_more_work_never_takes_less_time() -> None:
    fitted = MODEL.fit(_runs(_table((2, 4)), noise=0.03))
    base = _table((4,), hidden=(4096,), layers=(16,))
    for column, factor in (("layers", 2), ("global_batch", 3), ("hidden", 2), ("seq", 2)):
        more = base.with_columns(pl.col(column) * factor)
        assert (fitted.predict(_runs(more)) > fitted.predict(_runs(base))).all(), column


def test_the_parts_sum_to_the_time_and_a_pipeline_of_one_stage_is_not_filled() -> None:
    runs = _runs(_table((2, 4)))
    parts = PLANTED.parts(runs)
    assert np.allclose(sum(parts.values()), PLANTED.predict(runs))
    one = runs.numbers("pipeline_parallel") == 1
    assert not parts["filling the pipeline"][one].any()
    assert parts["filling the pipeline"][~one].all()
    alone = runs.numbers("data_parallel") == 1
    assert not parts["gradient all-reduce"][alone].any()


def test_slots_are_micro_batches_and_the_stages_before_the_last() -> None:
    runs = _runs(_table((4,)))
    columns = {name: runs.numbers(name) for name in runs.roles}
    slots = columns["batch"] / columns["data_parallel"] / columns["micro_batch"]
    parts = PLANTED.parts(runs)
    ratio = parts["filling the pipeline"] / (parts["layers"] + parts["tensor-parallel all-reduce"])
    assert np.allclose(ratio, (columns["pipeline_parallel"] - 1) / slots)


def test_a_layout_that_the_devices_tell_need_not_be_a_column() -> None:
    table = _table((2, 4))
    whole = MODEL.fit(_runs(table))
    roles = {role: column for role, column in ROLES.items() if role != "data_parallel"}
    told = _runs(table, _description(**roles))
    assert MODEL.lacks(told) is None
    assert np.allclose(MODEL.fit(told).predict(told), whole.predict(_runs(table)))


def test_a_total_over_iterations_is_that_many_times_one_iteration() -> None:
    runs = _runs(_table((2,)))
    ten = replace(
        runs, frame=runs.frame.with_columns(pl.lit(10.0).alias("iterations"), pl.col("target") * 10)
    )
    assert np.allclose(PLANTED.predict(ten), 10 * PLANTED.predict(runs))
    assert np.allclose(MODEL.fit(ten).predict(ten), 10 * MODEL.fit(runs).predict(runs))


def test_what_is_missing_is_said() -> None:
    runs = _runs(_table((2, 4)))
    without = replace(runs, frame=runs.frame.drop("hidden", "sequence"))
    assert MODEL.lacks(without) == "it needs a column for hidden and sequence"
    assert "8 configurations" in str(MODEL.lacks(runs.where(np.arange(runs.height) < 5)))
    two = replace(runs, frame=runs.frame.drop("tensor_parallel", "pipeline_parallel"))
    assert MODEL.lacks(two) == "it needs a column for tensor_parallel and pipeline_parallel"
    odd = replace(runs, frame=runs.frame.with_columns(gpus=pl.lit(3.0)))
    assert "not the product" in str(MODEL.lacks(odd))
    with pytest.raises(InconclusiveError, match="not the product"):
        PLANTED.predict(odd)


def test_a_state_is_json_and_one_that_is_none_is_refused() -> None:
    runs = _runs(_table((2, 4)), noise=0.03)
    fitted = MODEL.fit(runs)
    state = json.loads(json.dumps(fitted.state()))
    assert np.array_equal(MODEL.restore(state).predict(runs), fitted.predict(runs))
    assert all(np.isfinite(term.value) for term in fitted.explain())
    shape = state["shapes"]["head"][0]
    for law, shapes in [
        ({**state["law"], "host": "1"}, {}),
        ({**state["law"], "host": -1.0}, {}),
        ({**state["law"], "host": float("nan")}, {}),
        ({**state["law"], "more": 1.0}, {}),
        (state["law"], {"head": [shape[1:]]}),
        (state["law"], {"head": [[*shape[:-1], 1e9]]}),
        (state["law"], {"head": [shape] * 1000}),
    ]:
        with pytest.raises(ValueError):  # noqa: PT011 — any sentence will do
            MODEL.restore({"law": law, "shapes": {**state["shapes"], **shapes}})


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_times_that_follow_no_law_still_give_a_model_that_can_be_kept(scale: float) -> None:
    runs = _runs(_table((2, 4)))
    odd = scale * np.random.default_rng(1).lognormal(0, 3, runs.height)
    fitted = MODEL.fit(replace(runs, frame=runs.frame.with_columns(target=pl.Series(odd))))
    told = MODEL.restore(json.loads(json.dumps(fitted.state()))).predict(runs)
    assert np.isfinite(told).all()
    assert (told > 0).all()


@pytest.fixture(scope="module")
def vtrain() -> Runs:
    if not VTRAIN.exists():
        pytest.skip("no ../shared/data")
    return read_runs(VTRAIN, _description())


def _split(runs: Runs, held: npt.NDArray[np.bool_]) -> float:
    return _error(MODEL.fit(runs.where(~held)), runs.where(held))


def test_four_devices_follow_from_two(vtrain: Runs) -> None:
    assert _split(vtrain, vtrain.numbers("gpus") > 2) < 3.5


@pytest.mark.slow
@pytest.mark.parametrize(("split", "most"), [("gpus>2", 4.0), ("pipeline_parallel>1", 3.0)])
def test_the_default_answers_with_this_model_what_was_never_asked(
    vtrain: Runs, split: str, most: float
) -> None:
    # Fits hold one number of devices, or of stages, so that nothing tells which model is the better one for others.
    row = evaluate(vtrain, split, models=["auto"]).models.row(
        by_predicate=pl.col("model") == "auto", named=True
    )
    assert row["mean_ape"] < most
    assert row["coverage"] >= 85


def test_pipelines_follow_from_single_stages(vtrain: Runs) -> None:
    assert _split(vtrain, vtrain.numbers("pipeline_parallel") > 1) < 3


def test_more_layers_follow_from_fewer(vtrain: Runs) -> None:
    assert _split(vtrain, vtrain.numbers("layers") > 16) < 2


def test_wider_layers_and_more_ways_follow_roughly(vtrain: Runs) -> None:
    assert _split(vtrain, vtrain.numbers("hidden") > 1024) < 10
    assert _split(vtrain, vtrain.numbers("tensor_parallel") > 2) < 12
