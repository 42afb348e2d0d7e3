"""Reports of the ranks of one capture say which rank each is of, and what all of them do together."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from paths import SAMPLES

from tracekit.cli.main import main

FOLDER = next(path.parent for path in SAMPLES if path.parent.name == "bert_cpu_ddp")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main([*words, "--no-cache"])
    assert not left.value.code
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "steps"])
def test_each_report_begins_with_its_rank(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ["--all"] if command == "report" else []
    lines = shown(capsys, command, str(FOLDER), *words).splitlines()
    heads = [line for line in lines if line.startswith("══")]
    assert lines[0] == heads[0]
    assert [head[:37] for head in heads] == [f"══ trace-rank{n}.json.gz · rank {n} of 2 " for n in (0, 1)]
    assert {len(head) for head in heads} == {80}
    one = shown(capsys, command, str(FOLDER), "--rank", "1")
    assert "══" not in one
    assert one.rstrip() in "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "steps"])
def test_in_markdown_too(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--all"] if command == "report" else []
    text = shown(capsys, command, str(FOLDER), "-f", "md", *words)
    assert text.startswith("*trace-rank0.json.gz · rank 0 of 2")
    assert "\n*trace-rank1.json.gz · rank 1 of 2" in text


@pytest.mark.slow
def test_a_report_begins_with_the_joint_view(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(shown(capsys, "report", str(FOLDER)).split())
    assert "Rank 1 keeps the other waiting for 18.3 ms (15.7 % of the window)." in text
    assert "The report below is for rank 1; --rank N shows another, and --all shows all." in text
    assert text.count("Where did the processors' time go?") == 1
    data = json.loads(shown(capsys, "report", str(FOLDER), "-f", "json"))
    assert [one["trace"]["rank"] for one in data["reports"]] == [0, 1]
    late = data["job"]["tables"]["ranks"]
    assert [row["rank"] for row in late] == [0, 1]
    assert late[1]["caused_ns"] > late[0]["caused_ns"]


@pytest.mark.slow
def test_throughput_is_said_to_be_that_of_all_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(shown(capsys, "report", str(FOLDER), "--rank", "1").split())
    assert "142 samples a second over all 2 ranks (4 samples in each step of the slowest rank)" in text


@pytest.mark.slow
def test_tables_hold_the_joint_view_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-f csv` had a folder for each rank and nothing of the job, which no output had call by call."""
    shown(capsys, "report", str(FOLDER), "-f", "csv", "-o", str(tmp_path))
    ranks, calls = (pl.read_csv(tmp_path / "job" / f"job.{name}.csv") for name in ("ranks", "calls"))
    waited = calls.group_by("rank").agg(pl.col("wait_ns").sum()).sort("rank")
    assert waited.equals(ranks.select("rank", "wait_ns"))
    assert (calls.height, calls["collective"].n_unique(), calls["came_last"].sum()) == (12, 6, 6)
    assert (ranks["overlap_share"].is_between(0, 1)).all()
