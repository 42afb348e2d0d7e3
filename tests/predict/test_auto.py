"""The default predictor: what it says of planted laws, and that it sees its training rows only."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from planted_tables import as_runs, described, planted

from tracekit.errors import InconclusiveError, UsageError
from tracekit.predict import grid_of, store
from tracekit.predict.auto import Predictor, fit
from tracekit.predict.describe import Description, description_of
from tracekit.predict.support import support_of
from tracekit.predict.table import Runs, read_runs, runs_from

FLOPS = {"gpus": "gpus", "batch": "batch", "flops": "flops"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return as_runs(planted(repetitions=1), tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def predictor(runs: Runs) -> Predictor:
    return fit(runs, "lattuada")


def test_a_predictor_is_kept_as_json_and_answers_the_same(
    runs: Runs, predictor: Predictor, tmp_path: Path
) -> None:
    again = store.load(store.save(predictor, tmp_path / "model.json"))
    assert again.predict(runs).equals(predictor.predict(runs))
    assert store.dumped(again) == store.dumped(predictor)


def test_one_configuration_and_a_constant_time_are_refused(tmp_path: Path) -> None:
    frame = planted(repetitions=1)
    with pytest.raises(InconclusiveError, match="the table has one configuration"):
        fit(as_runs(frame[:1], tmp_path))
    with pytest.raises(InconclusiveError, match="all times are the same"):
        fit(as_runs(frame.with_columns(time_s=pl.lit(3.0)), tmp_path))


def test_a_row_far_outside_has_no_answer_and_says_why(predictor: Predictor, tmp_path: Path) -> None:
    asked = planted(repetitions=1)[:2].with_columns(batch=pl.Series([256.0, 1e6]))
    answer = predictor.predict(as_runs(asked, tmp_path))
    assert answer["note"][0] == "batch 256 is 2 times the largest that was measured (128)"
    assert answer["predicted"][0] > 0
    assert answer["predicted"][1] is None
    assert answer["note"][1].startswith("too far outside: batch 1e+06 is")
    with pytest.raises(InconclusiveError, match=r"batch 1e.06 is 7.81e.03 times the largest that"):
        predictor.predict(as_runs(asked[1:], tmp_path))
    assert np.isfinite(answer["high"][0])


def test_members_terms_and_what_rows_have_in_common(predictor: Predictor, runs: Runs, tmp_path: Path) -> None:
    members = predictor.members()
    assert members.columns == ["question", "model", "weight", "mean_ape"]
    assert members.group_by("question").agg(pl.sum("weight"))["weight"].to_list() == pytest.approx(
        [1.0] * members["question"].n_unique()
    )
    assert {"inside", "outside", "gpus", "batch", "device"} <= set(members["question"])
    assert predictor.explain()[0].value
    assert predictor.summary().startswith(
        "fitted to 72 runs of 72 configurations; between these lattuada answers, "
    )
    assert predictor.known() == {}
    one = fit(as_runs(planted(repetitions=1).filter(gpus=1), tmp_path), "lattuada")
    assert one.known() == {"gpus": "1"}


@pytest.mark.slow
def test_a_fit_takes_one_thread_also_when_it_is_the_first(runs: Runs, tmp_path: Path) -> None:
    """Libraries that were loaded after the limit was set had none: they waited busily, and sums depended on the number of cores."""
    runs.frame.write_parquet(tmp_path / "rows.parquet")
    code = (
        "from pathlib import Path\n"
        "import tracekit.predict.auto as auto\n"
        "from threadpoolctl import threadpool_info\n"
        "with auto._one_thread():\n"
        "    import scipy.linalg, scipy.optimize, sklearn.ensemble, sklearn.linear_model\n"
        "    print({pool['num_threads'] for pool in threadpool_info()})\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "{1}\n"


def test_work_grows_with_the_batch_that_is_set(tmp_path: Path) -> None:
    """FLOPs that stayed those of the run made a step of any batch take the same time."""
    frame = planted(repetitions=1).with_columns(flops=pl.col("batch") * 1e9)
    described = replace(as_runs(frame, tmp_path).description, columns=FLOPS)
    frame.write_csv(tmp_path / "flops.csv")
    support = support_of(read_runs(tmp_path / "flops.csv", described))
    known = {"gpus": "1", "batch": "32", "flops": "32e9"}
    asked = grid_of({"batch": ["32", "64"]}, described, known, support)
    assert asked.numbers("flops").tolist() == [32e9, 64e9]
    asked = grid_of({"batch": ["64"], "flops": ["5"]}, described, known, support)
    assert asked.numbers("flops").tolist() == [5.0]
    with pytest.raises(UsageError, match="differ in flops; set it too: --set flops=…"):
        grid_of(
            {"layers": ["64"]},
            replace(described, columns={**FLOPS, "layers": "threads"}),
            known,
            replace(support, numbers={**support.numbers, "layers": (1, 2)}),
        )
    with pytest.raises(UsageError, match="differ in gpus, batch; set them too: --set gpus=…,batch=…"):
        grid_of({"flops": ["5"]}, described, {}, support)


def test_configurations_too_few_to_leave_one_out_have_no_error_and_wide_intervals(tmp_path: Path) -> None:
    """What could not be asked had an error of 200 % and an interval of 0.5 %."""
    four = planted(repetitions=1).filter(gflops=8000, threads=2.0, batch=32)
    four = pl.concat([four, planted(repetitions=1).filter(gflops=8000, threads=2.0, batch=64, gpus=1)])
    predictor = fit(as_runs(four, tmp_path), "structural")
    assert predictor.summary() == "fitted to 4 runs of 4 configurations; between these structural answers"
    answer = predictor.predict(as_runs(four, tmp_path))
    assert (answer["high"] / answer["predicted"]).to_list() == pytest.approx([2.0] * 4, rel=1e-3)
    assert predictor.members()["mean_ape"].is_null().all()
    again = store.restored(json.loads(store.dumped(predictor)), tmp_path)
    assert again.predict(as_runs(four, tmp_path)).equals(answer)


@pytest.mark.slow
def test_a_fitted_model_answers_without_scikit_learn(
    runs: Runs, predictor: Predictor, tmp_path: Path
) -> None:
    path = store.save(predictor, tmp_path / "model.json")
    runs.frame.write_parquet(tmp_path / "rows.parquet")
    code = (
        "import sys; sys.modules.update(sklearn=None, scipy=None)\n"
        "from pathlib import Path\n"
        "import polars as pl\n"
        "from tracekit.predict.store import load\n"
        "from tracekit.predict.table import Runs\n"
        f"predictor = load(Path({str(path)!r}))\n"
        f"runs = Runs(pl.read_parquet({str(tmp_path / 'rows.parquet')!r}), predictor.description)\n"
        "print(predictor.predict(runs)['predicted'].sum())\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(said) == pytest.approx(predictor.predict(runs)["predicted"].sum())


def test_rows_that_lack_a_value_have_no_answer_and_the_rest_has(
    predictor: Predictor, runs: Runs, tmp_path: Path
) -> None:
    asked = planted(repetitions=1)[:5].drop("time_s").cast(pl.String)
    asked = asked.with_columns(
        batch=pl.Series([None, "16", "32", "none", "64"]), gpus=pl.Series(["1", "", "2", "-1", "1e9"])
    )
    asked.write_csv(tmp_path / "asked.csv")
    rows = read_runs(tmp_path / "asked.csv", runs.description, measured=False)
    answer = predictor.predict(rows)
    assert answer["predicted"].is_null().to_list() == [True, True, False, True, True]
    assert answer["low"].is_null().to_list() == [True, True, False, True, True]
    assert answer["note"].to_list()[:4] == [
        "batch is missing, or is not a number above 0",
        "gpus is missing, or is not a number above 0",
        "",
        "gpus is missing, or is not a number above 0",
    ]
    assert answer["predicted"][2] == predictor.predict(rows.where(np.arange(5) == 2))["predicted"][0]
    with pytest.raises(InconclusiveError, match="no row can be predicted: batch is missing"):
        predictor.predict(rows.where(np.arange(5) == 0))


def test_rows_that_only_the_model_refuses_have_no_answer_and_the_rest_has(tmp_path: Path) -> None:
    rows = {"model": ["a", "b"] * 8, "device": ["Tesla T4"] * 8 + ["Tesla P4"] * 8}
    times = [(1 + row % 2) * (1 + 0.4 * (row > 7)) * (1 + row // 2 % 4) for row in range(16)]
    frame = pl.DataFrame({**rows, "batch": [1 + row // 2 % 4 for row in range(16)], "ms": times})
    said = {"target": {"column": "ms", "unit": "ms"}}
    described = description_of(
        {**said, "columns": {"network": "model", "device": "device", "batch": "batch"}}, tmp_path
    )
    fitted = fit(runs_from(frame.cast(pl.String), described, tmp_path), "devices")
    asked = frame[:3].with_columns(device=pl.Series(["Tesla P4", "Abacus 9", "Tesla T4"]))
    answer = fitted.predict(runs_from(asked.cast(pl.String), described, tmp_path, measured=False))
    assert answer["predicted"].is_null().to_list() == [False, True, False]
    assert "of device Abacus 9 is not known" in answer["note"][1]


def test_a_blank_cell_leaves_the_other_rows_their_answers_also_of_structural(
    runs: Runs, tmp_path: Path
) -> None:
    found = fit(runs, "structural")
    asked = planted(repetitions=1)[:3].with_columns(batch=pl.Series([None, 32.0, 64.0]))
    answers = found.predict(as_runs_to_ask(asked, tmp_path))
    assert answers["predicted"].is_null().to_list() == [True, False, False]
    assert answers["note"][0] == "batch is missing, or is not a number above 0"


def as_runs_to_ask(frame: pl.DataFrame, folder: Path, **columns: str) -> Runs:
    frame.drop("time_s").write_csv(folder / "asked.csv")
    return read_runs(folder / "asked.csv", described_with(**columns), measured=False)


def described_with(**columns: str) -> Description:
    return replace(described(), columns={**described().columns, **columns})


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        ("Tesla T4", "the peak of device Foo 3000 is not known"),
        ("ours-1", "device NVIDIA L4 was never measured, and the peaks of those that were are not known"),
    ],
)
def test_a_device_that_nothing_compares_with_those_measured_has_no_answer(
    measured: str, why: str, tmp_path: Path
) -> None:
    frame = planted(repetitions=1).filter(pl.col("gflops") == 8000).drop("gflops")
    frame = frame.with_columns(device=pl.lit(measured))
    said = described_with(device="device")
    said = replace(said, columns={role: name for role, name in said.columns.items() if name != "gflops"})
    frame.write_csv(tmp_path / "runs.csv")
    found = fit(read_runs(tmp_path / "runs.csv", said), "structural")
    grid = {"gpus": ["4"], "batch": ["32"], "iterations": ["2000"], "loader_threads": ["2"]}
    names = [measured, "NVIDIA L4", "Foo 3000"]
    answers = found.predict(grid_of({**grid, "device": names}, said, {}, found.support))
    assert why in answers["note"].to_list()
    assert answers["predicted"].is_not_null().to_list() == [True, measured == "Tesla T4", False]
