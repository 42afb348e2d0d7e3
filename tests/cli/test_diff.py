"""`tracekit diff` as a user meets it: sides, gates and their exit codes, saved baselines, formats, wrong usage."""

from __future__ import annotations

import json
from pathlib import Path

import planted_sides
import pytest
from commands import ok, run
from paths import ROOT

from tracekit.report.json.schema import diff_schema

SAMPLE = ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz"
OTHER = ROOT / "sample_traces" / "encoder_cpu"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    slower = planted_sides.digest({"encoder.1": 1.3}, seed=1, name="after")
    return (
        planted_sides.kept(folder / "before.runs", planted_sides.digest(name="before")),
        planted_sides.kept(folder / "after.runs", slower),
    )


def test_a_trace_against_itself_did_not_change(capsys: pytest.CaptureFixture[str]) -> None:
    out = ok(capsys, "diff", SAMPLE, SAMPLE, "--gate", "3%", "--gate", "idle:1%")
    assert out.splitlines()[1].startswith("SAME  Nothing changed: a step takes")
    assert out.count("passed") >= 2
    assert "By layer" not in out


def test_a_regression_fails_the_gate(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    few, many = pair
    code, out, err = run(capsys, "diff", few, many, "--gate", "3%", "--gate", "900%")
    assert (code, err) == (1, "tracekit: error: gate failed: 3%; the result says why\n")
    assert out.splitlines()[1].startswith("SLOWER  ")
    assert "3% failed. The " in out
    assert "900% passed. The " in out
    assert run(capsys, "diff", many, few, "--gate", "3%")[0] == 0, "faster is no regression"


@pytest.mark.slow
def test_too_few_steps_are_inconclusive(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "diff", SAMPLE, OTHER, "--gate", "3%")
    assert code == 4
    assert err == "tracekit: error: gate inconclusive: 3%; the result says why\n"
    assert "prove nothing" in out
    assert run(capsys, "diff", SAMPLE, OTHER)[0] == 0, "without a gate it is an answer as any other"


def test_two_recordings_of_nothing_are_not_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`SAME  Nothing changed: the window takes 0 ns on both sides`, with a gate whose interval "reaches beyond" the limit."""
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text('{"traceEvents": []}')
    code, out, _ = run(capsys, "diff", tmp_path / "a.json", tmp_path / "b.json", "--gate", "3%")
    assert code == 4
    assert out.splitlines()[1] == "INCONCLUSIVE  No time was recorded on either side, so nothing is compared."
    assert "the limit is" not in out


@pytest.mark.slow
def test_json_has_every_gate_and_follows_its_schema(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    import jsonschema  # takes a second, and every process of a parallel run imports this file

    code, out, _ = run(capsys, "diff", *pair, "--gate", "3%", "-f", "json")
    document = json.loads(out)
    assert code == 1
    jsonschema.validate(document, diff_schema())
    (gate,) = document["diff"]["tables"]["gates"]
    assert (gate["gate"], gate["outcome"]) == ("3%", "failed")
    assert gate["low"] < gate["ratio"] < gate["high"]
    ratio = document["diff"]["tables"]["ratios"][0]
    assert {key: ratio[key] for key in ("ratio", "low", "high", "p")} == {
        key: gate[key] for key in ("ratio", "low", "high", "p")
    }


@pytest.mark.slow
def test_formats_and_figures(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ok(capsys, "diff", *pair, "-f", "md").startswith("## What changed")
    assert ok(capsys, "diff", *pair, "-o", tmp_path / "d.html", "--figures", tmp_path / "figures") == ""
    assert "Content-Security-Policy" in (tmp_path / "d.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        "diff.layers.svg",
        "diff.step_times.svg",
    ]
    assert ok(capsys, "diff", *pair, "-f", "csv", "-o", tmp_path / "tables") == ""
    assert (tmp_path / "tables" / "diff.phase.csv").read_text(encoding="utf-8").startswith("phase,")


def test_more_runs_are_pooled_and_paired(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few, many = pair
    again = planted_sides.kept(tmp_path / "again.runs", planted_sides.digest(seed=5))
    after = planted_sides.kept(tmp_path / "after.runs", planted_sides.digest({"encoder.1": 1.3}, seed=6))
    data = json.loads(
        ok(capsys, "diff", few, many, "--base", again, "--new", after, "--paired", "-f", "json")
    )
    assert [row["runs"] for row in data["diff"]["tables"]["steps"]] == [2, 2]
    assert "pairs of runs" in data["diff"]["points"][0]["text"]
    code, _, err = run(capsys, "diff", few, many, "--base", again, "--paired")
    assert code == 2
    assert "2 runs of the base and 1 of the new side cannot be paired" in err


def test_against_a_saved_baseline(
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    few, many = pair
    monkeypatch.setenv("TRACEKIT_BASELINES", str(tmp_path / "kept"))
    assert run(capsys, "baseline", "save", "main", few)[0] == 0
    saved = json.loads(ok(capsys, "diff", many, "--against", "main", "-f", "json"))
    direct = json.loads(ok(capsys, "diff", few, many, "-f", "json"))
    assert saved == direct
    code, _, err = run(capsys, "diff", many, "--against", "mian")
    assert code == 2
    assert "did you mean main?" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([SAMPLE], 2, "there is nothing to compare it with"),
        (
            [SAMPLE, SAMPLE, SAMPLE],
            2,
            "3 runs, but there are two sides; name more runs of a side with --base and --new",
        ),
        ([SAMPLE, SAMPLE, "--against", "main"], 2, "--against names the base already"),
        ([SAMPLE, "--against", "main", "--base", SAMPLE], 2, "--against names the base already"),
        ([SAMPLE, SAMPLE, "--gate", "3"], 2, "the gate '3' has no threshold"),
        ([SAMPLE, SAMPLE, "--gate", "layr:x:3%"], 2, "did you mean layer?"),
        ([SAMPLE, "nowhere.json"], 3, "nowhere.json: no such file"),
        ([SAMPLE, ROOT / "README.md"], 3, "README.md: it is not a JSON trace"),
        ([SAMPLE, SAMPLE, "-f", "csv"], 2, "diff writes several csv files"),
        ([SAMPLE, SAMPLE, "-f", "collapsed"], 2, "diff writes table, html, json, md, csv or parquet"),
        ([SAMPLE, SAMPLE, "-o", SAMPLE], 2, "it is an input of this command"),
        (
            [SAMPLE, SAMPLE, "--new", SAMPLE, "-o", OTHER / "trace.txt", "--window", "week"],
            2,
            "'week' is not one of",
        ),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[object], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    left, out, err = run(capsys, "diff", *arguments)
    assert (left, out, err.count("\n")) == (code, "", 1)
    assert said in err
