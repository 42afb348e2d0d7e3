"""`tracekit predict` as a user runs it: fit, predict rows and grids, evaluate, explain, and what is wrong with tables and models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from commands import ok, run


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Jobs that follow a law, with 1 % noise."""
    noise, rows = np.random.default_rng(0), []
    for gpus in (1, 2, 4):
        for batch in (16, 32, 64, 128):
            step = batch / gpus * 0.005 + 0.01 + (gpus > 1) * 0.004 * gpus
            time = (20 + 1000 * step) * np.exp(noise.normal(0, 0.01))
            rows.append((f"r{len(rows)}", gpus, batch, 1000, time))
    path = tmp_path_factory.mktemp("predict") / "runs.csv"
    frame = pl.DataFrame(rows, ["run", "gpus", "batch", "steps", "time_s"], orient="row")
    frame.write_csv(path)
    (path.parent / "columns.toml").write_text(
        '[target]\ncolumn = "time_s"\nunit = "s"\n[columns]\ngpus = "gpus"\nbatch = "batch"\niterations = "steps"\n[rows]\nid = "run"\n'
    )
    return path


@pytest.fixture(scope="module")
def model(table: Path) -> Path:
    from tracekit.predict import fit, read_description, read_runs, save

    runs = read_runs(table, read_description(table.with_name("columns.toml")))
    return save(fit(runs, "structural"), table.with_name("model.json"))


def test_a_table_is_answered_row_by_row(
    table: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = pl.read_csv(table).drop("time_s").reverse()
    asked.write_csv(tmp_path / "asked.csv")
    ok(capsys, "predict", "run", model, "--table", tmp_path / "asked.csv", "-o", tmp_path / "answers.csv")
    answers = pl.read_csv(tmp_path / "answers.csv")
    assert answers.columns[:4] == ["id", "predicted", "low", "high"]
    assert answers["id"].to_list() == asked["run"].to_list()
    measured = pl.read_csv(table).reverse()["time_s"]
    assert float(((answers["predicted"] - measured).abs() / measured).mean()) < 0.02  # type: ignore[arg-type]
    assert (answers["low"] < answers["predicted"]).all()
    assert (answers["predicted"] < answers["high"]).all()


def test_questions_have_an_id_where_the_runs_had_none(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers to rows `a` and `b` were numbered 0 and 1."""
    runs, fitted, answers = (tmp_path / name for name in ("runs.csv", "m.json", "answers.csv"))
    frame = pl.read_csv(table).drop("run")
    frame.write_csv(runs)
    assert run(capsys, "predict", "fit", runs, "-o", fitted, "--model", "structural")[0] == 0
    asked = frame.drop("time_s").head(2).with_columns(id=pl.Series(["a", "b"]))
    asked.write_csv(tmp_path / "asked.csv")
    ok(capsys, "predict", "run", fitted, "--table", tmp_path / "asked.csv", "-o", answers)
    assert pl.read_csv(answers)["id"].to_list() == ["a", "b"]


def test_a_grid_is_sorted_by_its_price(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ok(capsys, "predict", "run", model, "--set", "batch=32,64,gpus=1,2,4", "--price", "3", "-f", "json")
    rows = json.loads(out)["prediction"]["tables"]["predictions"]
    costs = [row["cost"] for row in rows]
    assert len(costs) == 6
    assert costs == sorted(costs)
    row = rows[0]
    assert row["cost"] == pytest.approx(row["predicted_ns"] / 3.6e12 * row["gpus"] * 3)


def test_a_priced_grid_is_one_csv_on_stdout_and_its_figures_are_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`-f csv` asked for a folder for several files, and files had neither costs nor their order, nor figures beside them."""
    settings = ("--set", "batch=32,64,gpus=1,2,4", "--price", "3")
    out = ok(capsys, "predict", "run", model, *settings, "-f", "csv", "--figures", tmp_path / "figures")
    found = pl.read_csv(out.encode())
    assert found["cost"].is_sorted()
    assert found["cost"].to_list() == pytest.approx((found["predicted"] / 3600 * found["gpus"] * 3).to_list())
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["prediction.composition.svg"]


def test_the_figure_of_a_grid_has_the_order_of_its_table(model: Path) -> None:
    """Bars stood in the order of the grid, from seven on without labels."""
    from tracekit.predict import grid_of, load, settings_of
    from tracekit.report.predict import answers_section

    fitted = load(model)
    wanted = settings_of(["batch=16,32,64,gpus=1,2,4,iterations=1000"])
    asked = grid_of(wanted, fitted.description, {}, fitted.support)
    told = answers_section(fitted, asked, fitted.predict(asked))
    bars = told.figures[0].data["rows"]
    rows = told.tables[0].frame.head(len(bars)).rows(named=True)
    assert [bar["label"] for bar in bars] == [f"gpus {row['gpus']:g}, batch {row['batch']:g}" for row in rows]
    sums = [sum(part["value"] for part in bar["parts"]) for bar in bars]
    assert sums == pytest.approx([row["predicted_ns"] for row in rows])


def test_what_lies_beyond_the_runs_is_said_and_what_is_far_beyond_is_refused(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ok(capsys, "predict", "run", model, "--set", "batch=256,gpus=4")
    assert "Batch 256 is 2 times the largest that" in " ".join(out.split())
    code, _, err = run(capsys, "predict", "run", model, "--set", "batch=1000000,gpus=4")
    assert code == 4
    assert "batch" in err
    assert err.count("\n") == 1


def test_a_part_of_a_device_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`gpus=2.5` had a time, and exit code 0."""
    code, out, err = run(capsys, "predict", "run", model, "--set", "batch=64,gpus=2.5")
    assert (code, out) == (2, "")
    assert "gpus is 2.5, which is not a whole number; write --set gpus=8" in err


def test_one_network_does_not_tell_how_long_another_takes(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a network of which no run was in the table, `3.81 s to 7.63 s in 90 % of cases` was said."""
    runs, fitted = tmp_path / "runs.csv", tmp_path / "m.json"
    one = pl.read_csv(table).with_columns(network=pl.lit("net"))
    for networks, code in (([one], 4), ([one, one.with_columns(pl.lit("other").alias("network"))], 0)):
        pl.concat(networks).write_csv(runs)
        fitted.unlink(missing_ok=True)
        assert run(capsys, "predict", "fit", runs, "-o", fitted, "--model", "structural")[0] == 0
        asked = "network=zzz,batch=64,gpus=2,steps=1000"
        found, _, err = run(capsys, "predict", "run", fitted, "--set", asked)
        assert found == code
        assert ("one network does not tell how long another takes" in err) == (code == 4)
    ok(capsys, "predict", "run", fitted, "--set", "network=net,batch=64,gpus=2")


def test_a_model_explains_itself(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "12 configurations" in ok(capsys, "predict", "explain", model)


@pytest.mark.slow
def test_a_split_is_judged_beside_baselines(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "predict",
        "evaluate",
        table,
        "--describe",
        table.with_name("columns.toml"),
        "--split",
        "gpus>2",
    )
    out = " ".join(ok(capsys, *arguments, "--model", "structural", "--group", "batch").split())
    assert "structural predicts 4 runs left out by gpus>2" in out
    assert "power law" in out


@pytest.mark.slow
def test_columns_speak_for_themselves(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pl.read_csv(table).rename({"gpus": "num_gpus"}).write_csv(tmp_path / "runs.csv")
    model = tmp_path / "model.json"
    code, _, err = run(capsys, "predict", "fit", tmp_path / "runs.csv", "-o", model, "--model", "structural")
    assert code == 0
    assert "num_gpus as gpus" in err
    assert json.loads(model.read_text())["description"]["columns"]["gpus"] == "num_gpus"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("fit", "{table}", "-o", "{tmp}/m.json", "--model", "magic"), 2, "magic"),
        (("fit", "{tmp}/none.csv", "-o", "{tmp}/m.json"), 3, "no such file"),
        (("fit", "{table}", "-o", "{table}"), 2, "runs.csv"),
        (("run", "{table}", "--set", "batch=2"), 3, "not JSON"),
        (("run", "{model}"), 2, "--table"),
        (("run", "{model}", "--table", "{table}", "--set", "batch=2"), 2, "--table has rows of its own"),
        (("run", "{model}", "--set", "batch=2,gpus=1", "--price", "-1"), 2, "--price"),
        (("run", "{model}", "--set", "batsch=2"), 2, "batch"),
        (("run", "{model}", "--set", "batch=2"), 2, "gpus"),
        (("run", "{model}", "--set", "batch=minus,gpus=1"), 2, "batch"),
        (("run", "{model}", "--set", "batch=-3,gpus=1"), 4, "not a number above 0"),
        (("evaluate", "{table}", "--split", "gpus>>2"), 2, "gpus>>2"),
        (("evaluate", "{table}", "--split", "gpus>99"), 4, "gpus>99"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: tuple[str, ...],
    code: int,
    said: str,
    table: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [word.format(table=table, model=model, tmp=tmp_path) for word in words]
    found, _, err = run(capsys, "predict", *arguments)
    lines = [line for line in err.splitlines() if line.startswith("tracekit: error")]
    assert (found, len(lines)) == (code, 1), err
    assert said in lines[0]
