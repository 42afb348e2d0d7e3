"""`tracekit layers`, `kernels --by` and `ops --by-shape` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from commands import ok, run
from paths import ROOT, SAMPLES

import tracekit
from tracekit.analyses.layers import layers
from tracekit.analyses.layers.stacks import layer_stacks
from tracekit.analyses.scope import select
from tracekit.report.stacks import collapsed

SAMPLE = ROOT / "sample_traces" / "bert_cpu" / "trace.json.gz"


def names(text: str, table: str = "Layers") -> list[str]:
    """The first words of the rows of a table, without indentation."""
    rows = text.partition(f"  {table}")[2].splitlines()[2:]
    found: list[str] = []
    for row in rows:
        if not row.startswith("  ") or row.startswith(("  By ", "  How ")):
            break
        found.append(row.split()[0])
    return found


@pytest.mark.slow
def test_the_tree_and_its_flags(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # names are cut where there is less room
    tree = layers(tracekit.read(SAMPLE)).tree
    text = ok(capsys, "layers", SAMPLE)
    assert "2 × BertLayer" in text.partition("Tree of every layer")[0]
    assert names(text, "Tree of every layer")[:3] == ["<root>", "bert", "encoder"]
    assert len(names(text, "Tree of every layer")) == 20
    assert "By phase" in text
    shallow = names(ok(capsys, "layers", SAMPLE, "--depth", "2", "--top", "100"))
    assert sorted(shallow) == sorted(tree.filter(pl.col("depth") < 2)["name"])
    in_order = names(ok(capsys, "layers", SAMPLE, "--sort", "execution", "--top", "100"))
    assert in_order == tree["name"].to_list()
    backward = names(
        ok(capsys, "layers", SAMPLE, "--phase", "backward", "--top", "100"), "Tree of every layer"
    )
    assert len(backward) == tree.filter(pl.col("backward_ns") > 0).height
    assert "<optimizer>" not in backward
    by_calls = ok(capsys, "layers", SAMPLE, "--sort", "calls", "--top", "3")
    assert names(by_calls)[0] in ("<data>", "<optimizer>")


@pytest.mark.slow
def test_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = ok(capsys, "layers", SAMPLE, "--by", "type", "--top", "3")
    assert names(text, "By type of layer") == ["<optimizer>", "Linear", "BertSelfAttention"]
    rows = ok(capsys, "layers", SAMPLE, "--by", "pattern", "-f", "csv")
    assert "bert.encoder.layer.*.attention.self,BertSelfAttention,2," in rows
    only = json.loads(ok(capsys, "layers", SAMPLE, "--by", "type", "-f", "json"))
    assert list(only["analyses"]["layers"]["tables"]) == ["by_type"]


@pytest.mark.slow
def test_data_formats_hold_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = layers(tracekit.read(SAMPLE)).tree
    ok(capsys, "layers", SAMPLE, "-o", tmp_path / "t.json")
    tables = json.loads((tmp_path / "t.json").read_text())["analyses"]["layers"]["tables"]
    assert set(tables) == {"tree", "by_type", "by_pattern", "by_phase", "coverage"}
    assert [row["path"] for row in tables["tree"]] == tree["path"].to_list()
    ok(capsys, "layers", SAMPLE, "-o", tmp_path / "t.parquet")
    assert pl.read_parquet(tmp_path / "t.parquet")["device_own_ns"].sum() == tree["device_own_ns"].sum()
    short = ok(capsys, "layers", SAMPLE, "-f", "csv", "--top", "2").splitlines()
    assert [line.split(",")[2] for line in short[1:]] == ["<root>", "bert"]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("flags", "file"),
    [
        (["-f", "collapsed"], None),
        ([], "x.collapsed"),
        ([], "x.folded"),
        (["-f", "speedscope"], None),
        ([], "x.speedscope.json"),
    ],
)
def test_stacks(
    flags: list[str], file: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = [] if file is None else ["-o", str(tmp_path / file)]
    text = ok(capsys, "layers", SAMPLE, *flags, *target)
    if file is not None:
        assert text == ""
        text = (tmp_path / file).read_text()
    trace = tracekit.read(SAMPLE)
    if "speedscope" in f"{flags}{file}":
        assert sum(p["endValue"] for p in json.loads(text)["profiles"]) == int(
            select(trace).activities["duration"].sum()
        )
    else:
        assert text == collapsed(layer_stacks(trace))


def test_stacks_of_a_phase_and_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    text = ok(
        capsys, "layers", SAMPLE, "-f", "collapsed", "--phase", "optimizer", "--step", "^ProfilerStep#3$"
    )
    assert {line.partition(";")[0] for line in text.splitlines()} == {"<optimizer>"}


@pytest.mark.slow
def test_kernels_and_ops(capsys: pytest.CaptureFixture[str]) -> None:
    by_layer = ok(capsys, "kernels", SAMPLE, "--by", "layer", "-f", "csv")
    assert by_layer.splitlines()[0].startswith("layer,name,category,count,total_ns")
    text = ok(capsys, "kernels", SAMPLE, "--by", "category")
    assert "By category" in text
    assert "By name" not in text
    shaped = ok(capsys, "ops", SAMPLE, "--by-shape", "-f", "csv")
    assert shaped.startswith("operator,shapes,dtypes,calls")
    plain = ok(capsys, "ops", SAMPLE)
    assert "By operator  " in plain
    assert "and shape" not in plain


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["layers", SAMPLE, "--phase", "sideways"], "sideways"),
        (["layers", SAMPLE, "--by", "colour"], "colour"),
        (["layers", SAMPLE, "--sort", "nope"], "no column 'nope'"),
        (["layers", SAMPLE, "--depth", "0"], "--depth"),
        (["layers", *SAMPLES[1:3], "-f", "collapsed"], "one collapsed file holds one trace"),
        (["layers", SAMPLE, "--by", "type", "--table", "tree"], "no table 'tree'"),
        (["kernels", SAMPLE, "--by", "colour"], "colour"),
        (["layers", SAMPLE, "-o", str(Path(__file__) / "x.collapsed")], "cannot"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[object], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert fault in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_trace_without_layers_or_shapes_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    path = tmp_path / "plain.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    assert "with_stack=True" in ok(capsys, "layers", path)
    code, _, err = run(capsys, "kernels", path, "--by", "layer")
    assert code == 2
    assert "with_stack=True" in err
    code, _, err = run(capsys, "ops", path, "--by-shape")
    assert code == 2
    assert "record_shapes=True" in err
