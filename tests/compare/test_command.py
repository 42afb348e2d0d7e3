"""`tracekit compare` as a user runs it: its words, its formats, runs and tables together, and inputs that do not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import polars as pl
import pytest

from tracekit.cli.main import main
from tracekit.manifest import Run, Settings, read_manifest

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLES = ROOT / "sample_traces"
TABLE = """model,device,precision,batch,latency_ms,flops,parameters,accuracy
small,old,fp32,8,8,1e9,3e6,70
small,new,fp32,8,2,1e9,3e6,70
small,new,bf16,8,1,1e9,3e6,70
large,old,fp32,8,18,8e9,5e6,75
large,new,fp32,8,2,8e9,5e6,75
wide,old,fp32,8,20,2e9,9e6,73
"""


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as leave:
        main(["compare", *map(str, arguments)])
    text = capsys.readouterr()
    assert (leave.value.code or 0) == code, text.err
    return " ".join(text.out.split()), text.err


def capture(folder: Path, sample: str, ms: float, *, trace: bool = True, device_name: str | None = None, **settings: object) -> Path:  # fmt: skip
    """A sample's capture with these settings and steps of so many ms, with its trace or without."""
    shutil.copytree(SAMPLES / sample, folder)
    manifest = read_manifest(folder / "manifest.json")
    own = msgspec.structs.replace(manifest.settings or Settings(), **settings)
    traced = [run for run in manifest.runs if trace and run.level == "MLG"]
    changed = msgspec.structs.replace(
        manifest,
        settings=own,
        runs=[*traced, Run(level="M", step_times_ns=[round(ms * 1e6)] * 4)],
        device_name=device_name or manifest.device_name,
    )
    (folder / "manifest.json").write_bytes(changed.to_json())
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "latencies.csv"
    path.write_text(TABLE)
    return path


def test_what_it_says_of_a_table(capsys: pytest.CaptureFixture[str], table: Path) -> None:
    text, errors = answer(capsys, table)
    assert errors == ""
    assert "new is 6.00 times as fast as old in the geometric mean over the 2 cases that both have (from 4.00 times for small to 9.00 times for large)." in text  # fmt: skip
    assert "It is the fastest in all 2 cases in which it is compared." in text
    assert "On new, bf16 is 2.00 times as fast as fp32 in the one case that both have (small)." in text
    assert "Kendall's τ of FLOPs and latency is 0.33 over 3 models on old (fp32)." in text
    assert "FLOPs mislead most about large, which is faster than they suggest: of 3 models on old (fp32) it is number 3 by FLOPs and number 2 by latency" in text  # fmt: skip
    assert "Of 3 models on old (fp32), small is in the Pareto set of latency and parameters." in text
    assert "models 3 · cases 4 · measured 6 · not measured 2" in text
    assert "wide fp32 – 20.0 ms" in text, "what was not measured is no zero"


@pytest.mark.slow
def test_every_format_has_the_same_figures(capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path) -> None:  # fmt: skip
    whole = json.loads(answer(capsys, table, "-f", "json")[0])["compare"]
    assert whole["tables"]["speedups"][0]["speedup"] == pytest.approx(6.0)
    assert [row["latency_ns new"] for row in whole["tables"]["latency"]] == [2e6, 2e6, 1e6, None]
    page = tmp_path / "page.html"
    answer(capsys, table, "-o", page, "--figures", tmp_path / "figures")
    assert page.read_text().count('<svg class="curve"') == 3
    assert "6.00 times as fast" in page.read_text()
    assert "Not captured</span> layer types" in page.read_text()
    names = ["flops", "pareto_accuracy", "pareto_size", "speedups"]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [f"compare.{name}.svg" for name in names]  # fmt: skip
    answer(capsys, table, "-f", "csv", "-o", tmp_path / "tables")
    assert pl.read_csv(tmp_path / "tables" / "compare.speedups.csv")["speedup"].to_list() == pytest.approx(
        [6.0]
    )
    assert "| 6 |" in answer(capsys, table, "-f", "md")[0]


def test_threads_are_devices_of_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runs = [
        capture(tmp_path / f"{name}{threads}", name, ms / threads, threads=threads, trace=trace)
        for name, ms, trace in (("cnn_cpu", 30, True), ("bert_cpu", 40, False))
        for threads in (1, 2)
    ]
    text, errors = answer(capsys, *runs, "-f", "json")
    assert errors == ""
    found = json.loads(text)["compare"]
    assert "cpu, 2 threads is 2.00 times as fast as cpu, 1 thread in each of the 2 cases that both have" in found["answer"]  # fmt: skip
    assert {row["model"]: row["size"] for row in found["tables"]["cases"]} == {"cnn": 175258, "bert": 38402}
    assert all(row["flops"] for row in found["tables"]["cases"])
    types = found["tables"]["layer_types"]
    assert {(row["model"], row["one"], row["other"]) for row in types} == {("cnn", "cpu, 2 threads", "cpu, 1 thread")}  # fmt: skip
    assert "Conv2d" in {row["type"] for row in types}
    assert all(row["difference_ns"] == 0 and row["share"] is None for row in types), "they have one trace"


def test_runs_and_tables_together(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = capture(tmp_path / "run", "bert_cpu", 30, trace=False)
    (tmp_path / "t.csv").write_text(
        "model,device,precision,latency_ms,batch,tiny\nbert,paper,fp32,10,2,True\n"
    )
    text, _ = answer(capsys, run, tmp_path / "t.csv")
    assert "paper is 3.00 times as fast as cpu, 1 thread in the one case that both have (bert)" in text


def test_runs_of_other_batches_have_no_case_in_common(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs = [capture(tmp_path / f"t{n}", "cnn_cpu", 30, trace=False, threads=n, batch=n) for n in (1, 2)]
    text, _ = answer(capsys, *runs)
    assert "The two devices have no case in common; if batch is ignored, they would." in " ".join(
        text.split()
    )
    assert "cnn batch 1 fp32" in text


def test_several_processors_have_their_names_and_host_threads_of_a_device_do_not_count(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:  # fmt: skip
    runs = [
        capture(tmp_path / name, "cnn_cpu", ms, trace=False, device=device, device_name=name, threads=threads)
        for name, device, threads, ms in (
            ("EPYC", "cpu", 4, 40),
            ("Xeon", "cpu", 4, 60),
            ("H100", "cuda", None, 2),
        )
    ]
    text, _ = answer(capsys, *runs)
    assert "H100 is the fastest of 3 devices: 20.00 times as fast as EPYC, 4 threads in the one case" in text


def test_inputs_that_do_not_fit(capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path) -> None:
    bare, empty, broken = tmp_path / "bare", tmp_path / "empty.csv", tmp_path / "broken.csv"
    bare.mkdir()
    empty.write_text("")
    broken.write_text("model,device\nm,d\n")
    text, errors = answer(capsys, table, bare, empty, broken)
    assert "new is 6.00 times" in text
    assert "bare: there is neither manifest.json nor index.parquet in it" in errors
    assert "empty.csv: the table is empty" in errors
    assert "broken.csv: the table has no column of the latency" in errors
    assert len(errors.splitlines()) == 3
    assert "the table is empty" in answer(capsys, empty, code=3)[1]
    assert "neither manifest.json" in answer(capsys, bare, code=3)[1]
    assert "no such file" in answer(capsys, tmp_path / "none.csv", code=3)[1]
    zero = tmp_path / "zero.csv"
    zero.write_text("model,device,latency_ms\nm,d,0\n")
    assert "nothing was measured" in answer(capsys, zero, code=4)[1]
    assert "write --columns ROLE=COLUMN" in answer(capsys, table, "--columns", "x", code=2)[1]
    assert "there is none" in answer(capsys, bare, "--ignore", "x", code=2)[1]
    alone = tmp_path / "alone.json.gz"
    shutil.copy(SAMPLES / "cnn_cpu" / "trace.json.gz", alone)
    assert "its settings are not known, since no manifest" in answer(capsys, alone, table)[1]


def test_equal_figures_are_no_range_and_no_rank(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`from 2.00 times for a to 2.00 times for a`; and of four known FLOPs, all equal, it said that no three are known."""
    rows = [f"{name},{device},{ms * factor},{flops}e9" for name, ms, flops in (("a", 1, 1), ("b", 2, 2), ("c", 3, 3)) for device, factor in (("X", 1), ("Y", 2))]  # fmt: skip
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["model,device,latency_ms,flops", *rows]))
    text, _ = answer(capsys, path)
    assert "X is 2.00 times as fast as Y in each of the 3 cases that both have." in text
    assert "Kendall's τ of FLOPs and latency is 1.00 in each of 2 groups of models" in text
    path.write_text(
        "\n".join(["model,device,latency_ms,flops", *(row.rpartition(",")[0] + ",1e9" for row in rows)])
    )
    text, _ = answer(capsys, path)
    assert "since all models of a device in one setting have the same FLOPs." in text
    assert "whose ranks by FLOPs" not in text, "equal FLOPs rank nothing"


def test_one_device_and_one_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("model,device,latency_ms,flops\nm,d,1,1e9\nm,d,3,1e9\nm,d,2,1e9\n")
    text, _ = answer(capsys, tmp_path / "t.csv")
    assert "1 case was measured on one device, d, so no devices are compared." in text
    assert "FLOPs are not compared with latency, since no device has three models" in text
    assert "medians of several 1" in text
    assert "2.00 ms" in text


def test_a_narrow_table_of_pareto_sets_says_who_is_in_them(
    capsys: pytest.CaptureFixture[str], table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 columns that column alone had no room, and the table told nothing."""
    monkeypatch.setenv("COLUMNS", "60")
    text = answer(capsys, table)[0].partition("Pareto sets of latency and parameters")[2]
    assert " model in the set latency" in text
