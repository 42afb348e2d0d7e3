"""`tracekit what-if`: its flags, its file of changes, and its formats."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from paths import ROOT

from tracekit.cli.main import main

SAMPLE = str(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz")


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as leave:
        main(["what-if", SAMPLE, *words])
    return int(leave.value.code or 0)


@pytest.mark.slow
def test_flags_and_a_file_of_changes_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "changes.toml"
    file.write_text('scale = ["layer:stages.1=0.5"]\nfaster-host = "2x"\nfuse = "optimizer"\n')
    assert (
        run("--scale", "layer:stages.1=0.5", "--fuse", "optimizer", "--faster-host", "2x", "-f", "json") == 0
    )
    by_flags = json.loads(capsys.readouterr().out)["what-if"]
    assert run("--changes", str(file), "-f", "json") == 0
    by_file = json.loads(capsys.readouterr().out)["what-if"]
    assert by_file == by_flags
    assert by_flags["scalars"]["after_ns"] < by_flags["scalars"]["before_ns"] / 2
    labels = [row["change"] for row in by_flags["tables"]["changes"]]
    assert labels == ["--scale layer:stages.1=0.5", "--faster-host 2x", "--fuse optimizer"]


@pytest.mark.slow
def test_graphs_of_several_layers_are_changes_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several only the last one counted."""
    trace, layers = str(ROOT / "sample_traces" / "dlrm_gpu_bf16" / "trace.json.gz"), ("bottom", "top")
    flags = [word for layer in layers for word in ("--cuda-graph", f"layer:{layer}")]
    file = tmp_path / "changes.toml"
    file.write_text('cuda-graph = ["layer:bottom", "layer:top"]\n')
    answers = []
    for words in (flags, ["--changes", str(file)]):
        with pytest.raises(SystemExit) as leave:
            main(["what-if", trace, *words, "-f", "json"])
        assert leave.value.code in (0, None)
        answers.append(json.loads(capsys.readouterr().out)["what-if"])
    assert answers[0] == answers[1]
    gains = [row["gain_ns"] for row in answers[0]["tables"]["changes"]]
    assert len(gains) == 2
    assert min(gains) > 0
    file.write_text('cuda-graph = true\nfaster-host = "2x"\n')
    with pytest.raises(SystemExit) as leave:
        main(["what-if", trace, "--cuda-graph", "layer:top", "--changes", str(file)])
    assert leave.value.code == 2
    assert "--cuda-graph step and --cuda-graph layer:top cannot both apply" in capsys.readouterr().err


def test_a_page_says_what_it_takes_for_granted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--fuse", "optimizer") == 0
    page = capsys.readouterr().out
    assert "A step would take" in page
    assert "assumed" in page
    assert "Operators by the shapes" not in page


def test_the_times_of_operators_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--scale", "category:convolution=0.5", "--table", "operators", "-f", "csv") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    (first, *_) = [row for row in rows if row["operator"] == "aten::convolution"]
    # What it calls beside the convolution takes as long as before.
    assert 0.5 <= int(first["call_after_ns"]) / int(first["call_ns"]) < 0.55
    assert int(first["bytes"]) > 0
    assert json.loads(first["shapes"])


def test_rank_tries_what_findings_advise(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--rank", "-f", "json") == 0
    assert "optimizer_not_fused" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "no change is given"),
        (["--rank", "--remove-sync"], "--rank tries changes of its own"),
        (["--scale", "category:gemm"], "has no factor"),
        (["--scale", "category:gemm=fast"], "is not a number"),
        (["--faster-host", "0x"], "is not a factor"),
        (["--fuse", "everything"], "is not known"),
        (["--remove", "layer:nowhere"], "no layer in the window matches"),
        (["--shard-optimizer", "2.5"], "is not a number of devices"),
        (["--shard-optimizer", "0"], "is not a number of devices"),
        (["--scale", "op:aten::mm=2", "--remove", "op:aten::mm"], "cannot both apply"),
        (["--scale", "op:aten::mm=2", "--scale", "op:aten::mm=0.5"], "cannot both apply"),
        (["--remove", "op:aten::mm", "--remove", "op:aten::mm"], "is given twice"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    words: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    error = capsys.readouterr().err.strip()
    assert fault in error
    assert "\n" not in error


def test_a_name_with_brackets_selects_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.json"
    spans = (
        ("user_annotation", "ProfilerStep#1", 0, 1000),
        ("user_annotation", "[warmup|a?]", 50, 600),
        ("cpu_op", "aten::mm", 100, 400),
    )
    rows = [
        {"ph": "X", "pid": 1, "tid": 1, "cat": cat, "name": name, "ts": ts, "dur": dur}
        for cat, name, ts, dur in spans
    ]
    file.write_text(json.dumps({"traceEvents": rows}))
    for selector, after in (("[warmup|a?]", 400_000), ("[warm*]", 400_000), ("*", 400_000)):
        with pytest.raises(SystemExit) as leave:
            main(["what-if", str(file), "--remove", f"layer:{selector}", "-f", "json"])
        assert not leave.value.code
        assert json.loads(capsys.readouterr().out)["what-if"]["scalars"]["after_ns"] == after
    with pytest.raises(SystemExit) as leave:
        main(["what-if", str(file), "--remove", "layer:[warmup|ab]"])
    assert leave.value.code == 2


def test_a_change_that_gains_nothing_keeps_its_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--scale", "category:convolution=1") == 0
    assert "alone it gains" in capsys.readouterr().out


def test_a_page_shows_the_times_of_a_call_and_short_paths_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--faster-host", "2", "-o", str(tmp_path / "page.html")) == 0
    page = (tmp_path / "page.html").read_text()
    assert "<td>stages.0.1.conv2</td>" in page
    assert page.index(">time of a call<") < page.index(">time after<") < page.index(">moved by a call<")


def test_a_figure_stays_on_the_line_of_its_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("--faster-host", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    (first,) = [number for number, line in enumerate(lines) if line.startswith("before 110 ms")]
    assert lines[first].endswith("·")
    assert lines[first + 1].startswith(("low end", "high end", "step before", "step after"))


def test_the_path_of_a_run_on_processors_does_not_speak_of_a_device(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as leave:
        main(["critical-path", SAMPLE])
    assert not leave.value.code
    page = capsys.readouterr().out
    assert "device" not in page
    assert "operators 82.5 ms" in page


def test_only_layers_with_work_are_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--remove", "layer:*FSDP*") == 2
    assert "<FSDP>" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "colour = 1",
        "remove-sync = 2",
        "scale = 3",
        "shard-optimizer = inf",
        'shard-optimizer = "many"',
        "\0",
    ],
)
def test_a_file_that_holds_something_else_is_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "changes.toml"
    file.write_text(text)
    assert run("--changes", str(file)) == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    assert "changes.toml: " in error


def test_a_trace_without_work_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`the window holds no work` had exit code 2, and no file."""
    file = tmp_path / "zero.json"
    file.write_text('{"traceEvents": []}')
    with pytest.raises(SystemExit) as leave:
        main(["what-if", str(file), "--faster-host", "2x"])
    assert leave.value.code == 4
    assert f"{file}: the window holds no work; give a trace" in capsys.readouterr().err


@pytest.mark.slow
def test_two_files_of_one_name_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    other = SAMPLE.replace("cnn_cpu", "encoder_cpu")
    for words in (["critical-path", SAMPLE, other], ["what-if", SAMPLE, other, "--faster-host", "2"]):
        with pytest.raises(SystemExit) as leave:
            main(words)
        assert not leave.value.code
        page = capsys.readouterr().out
        assert "══ cnn_cpu/trace.json.gz" in page
        assert "══ encoder_cpu/trace.json.gz" in page


@pytest.mark.slow
def test_two_ranks_are_answered_as_one_job(capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(ROOT / "sample_traces" / "bert_cpu_ddp")
    for words in (["critical-path", folder], ["what-if", folder, "--scale", "rank:1=0.5"]):
        with pytest.raises(SystemExit) as leave:
            main([*words, "-f", "json"])
        assert not leave.value.code
        section = json.loads(capsys.readouterr().out)[words[0]]
        assert {row["rank"] for row in section["tables"]["steps"]} == {0, 1}
    assert 0 < section["scalars"]["after_ns"] < section["scalars"]["before_ns"]


@pytest.mark.slow
def test_changes_that_findings_advise_are_ranked_for_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(ROOT / "sample_traces" / "bert_cpu_ddp")
    said = []
    for words in (["--rank"], ["--fuse", "optimizer"]):
        with pytest.raises(SystemExit) as leave:
            main(["what-if", folder, *words, "-f", "json"])
        assert not leave.value.code
        said.append(json.loads(capsys.readouterr().out)["what-if"])
    ranked, fused = said
    assert "of the job of 2 ranks" in ranked["answer"]
    gains = {row["change"]: row["gain_ns"] for row in ranked["tables"]["ranked"]}
    assert ranked["scalars"]["before_ns"] == fused["scalars"]["before_ns"]
    assert gains["--fuse optimizer"] == fused["scalars"]["before_ns"] - fused["scalars"]["after_ns"]
