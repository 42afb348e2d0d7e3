"""`tracekit nsys-stats` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import commands
import polars as pl
import pytest
from paths import PUBLIC_NSYS, ROOT
from synthetic.nsys_export import write_sqlite
from synthetic.nsys_layered import Style, shape_of, training

import tracekit
from tracekit.analyses.nsys_stats.catalogue import CATALOGUE, DEFAULT_REPORTS, RULES
from tracekit.analyses.nsys_stats.tables import report

SAMPLE = ROOT / "sample_traces" / "bert_cpu" / "trace.json.gz"
DDP = [ROOT / "sample_traces" / "bert_cpu_ddp" / f"trace-rank{rank}.json.gz" for rank in (0, 1)]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return commands.run(capsys, "nsys-stats", *arguments)


def ok(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    return commands.ok(capsys, "nsys-stats", *arguments)


def test_the_default_reports(capsys: pytest.CaptureFixture[str]) -> None:
    text = ok(capsys, SAMPLE)
    heads = [line.split()[1] for line in text.splitlines() if line.startswith("── ")]
    assert heads == list(DEFAULT_REPORTS)
    assert ":ProfilerStep#" in text
    assert "calls of the operating system: Nsight Systems" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100


def test_names_in_lists_and_groups(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ok(capsys, SAMPLE, "-r", "nvtx_sum,cuda_api_sum", "--report", "nvtx_sum", "-r", "cuda_api_sync")
    heads = [line.split()[1] for line in wanted.splitlines() if line.startswith("── ")]
    assert heads == ["nvtx_sum", "cuda_api_sum", "cuda_api_sync"]
    found = json.loads(ok(capsys, SAMPLE, "-r", "rules", "-f", "json"))["nsys_stats"]
    assert tuple(found) == RULES
    assert tuple(json.loads(ok(capsys, SAMPLE, "-r", "all", "-f", "json"))["nsys_stats"]) == tuple(CATALOGUE)
    code, _, err = run(capsys, SAMPLE, "-r", "gpukernsum")
    assert code == 2
    assert err.count("\n") == 1
    assert "there is no report 'gpukernsum'" in err
    code, _, err = run(capsys, SAMPLE, "-r", "gpu_gaps")
    assert code == 2
    assert "tracekit idle" in err


def test_one_table_as_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    expected = report(tracekit.read(SAMPLE), "nvtx_pushpop_trace")
    assert ok(capsys, SAMPLE, "-r", "nvtx_pushpop_trace", "-o", tmp_path / "a.csv") == ""
    # A spreadsheet would take `--name`, a range inside others, for a formula.
    tree = pl.col("NameTree").str.replace(r"^-", "'-")
    assert pl.read_csv(tmp_path / "a.csv").rows() == expected.with_columns(tree).rows()
    ok(capsys, SAMPLE, "-r", "nvtx_pushpop_trace", "-o", tmp_path / "a.parquet")
    assert pl.read_parquet(tmp_path / "a.parquet").equals(expected)
    assert ok(capsys, SAMPLE, "-r", "nvtx_sum", "-f", "csv").startswith("Time (%),Total Time (ns),Instances")
    in_ms = ok(capsys, SAMPLE, "-r", "nvtx_sum", "-f", "csv", "--timeunit", "ms")
    assert in_ms.startswith("Time (%),Total Time (ms),Instances")


def test_what_is_not_captured_makes_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, SAMPLE, "-r", "osrt_sum", "-o", tmp_path / "a.csv")
    assert (code, out) == (4, "")
    assert err.count("\n") == 1
    assert "calls of the operating system: Nsight Systems" in err
    assert not (tmp_path / "a.csv").exists()
    code, _, err = run(capsys, SAMPLE, "-f", "csv", "-o", tmp_path / "tables")
    assert code == 0
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"nvtx_sum.csv"}
    assert err.count("is not captured:") == len(DEFAULT_REPORTS) - 1
    code, _, err = run(capsys, SAMPLE, "-f", "csv")
    assert (code, err.count("\n")) == (2, 1)


def test_json_and_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(ok(capsys, SAMPLE, "-r", "nvtx_sum,osrt_sum", "-f", "json", "--top", "2"))
    assert found["schema_version"] == "1.0"
    assert [len(table["rows"]) for table in found["nsys_stats"].values()] == [2, 0]
    assert found["nsys_stats"]["osrt_sum"]["not_captured"]
    assert "| Time (%) |" in ok(capsys, SAMPLE, "-r", "nvtx_sum", "-f", "md").replace("  ", " ")
    code, _, err = run(capsys, SAMPLE, "-f", "html")
    assert (code, err.count("\n")) == (2, 1)


def test_ranks_are_reported_together(capsys: pytest.CaptureFixture[str]) -> None:
    def instances(*arguments: object) -> int:
        rows = json.loads(ok(capsys, *arguments, "-r", "nvtx_sum", "-f", "json"))["nsys_stats"]["nvtx_sum"][
            "rows"
        ]
        return sum(row["Instances"] for row in rows)

    each = [instances(path) for path in DDP]
    assert instances(*DDP) == instances(DDP[0].parent) == sum(each)
    assert instances(*DDP, "--rank", 1) == each[1]


@pytest.mark.skipif(not PUBLIC_NSYS, reason="no public exports beside the checkout")
def test_processes_of_an_export(capsys: pytest.CaptureFixture[str]) -> None:
    path = next(path for path in PUBLIC_NSYS if path.name.startswith("fsdp"))
    whole = json.loads(ok(capsys, path, "-r", "cuda_kern_exec_sum", "-f", "json"))["nsys_stats"]
    pids = {row["PID"] for row in whole["cuda_kern_exec_sum"]["rows"]}
    assert len(pids) == 2
    one = json.loads(ok(capsys, path, "-r", "cuda_kern_exec_sum", "-f", "json", "--process", min(pids)))[
        "nsys_stats"
    ]
    assert {row["PID"] for row in one["cuda_kern_exec_sum"]["rows"]} == {min(pids)}


def test_hostile_names_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    event = {
        "ph": "X",
        "cat": "user_annotation",
        "name": "\x1b[31mred\nline",
        "pid": 1,
        "tid": 1,
        "ts": 0,
        "dur": 5,
    }
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [event]}), "utf-8")
    text = ok(capsys, path, "-r", "nvtx_sum")
    assert "\x1b" not in text
    assert "red line" in text


NAMED = {
    "cuda_gpu_kern_gb_sum": ["Name"],
    "cuda_gpu_sum": ["Operation"],
    "cuda_kern_exec_sum": ["Kernel Name"],
    "cuda_kern_exec_trace": ["Kernel Name"],
    "nvtx_kern_sum": ["NVTX Range", "Kernel Name"],
    "nvtx_gpu_proj_sum": ["Range"],
    "cuda_api_sum": ["Name"],
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_narrow_page_keeps_the_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Figures without the kernel, call or range that they are of say nothing, so figures give way first."""
    monkeypatch.setenv("COLUMNS", str(width))
    path = write_sqlite(training(1, shape_of("record"), Style(marks="record")).program, tmp_path / "t.sqlite")
    for name, columns in NAMED.items():
        lines = ok(capsys, path, "-r", name).splitlines()
        header = lines[[line.startswith(f"  {CATALOGUE[name].title}") for line in lines].index(True) + 1]
        assert all(column in header for column in columns), header
        assert max(map(len, lines)) <= width
