"""`tracekit scaling` as a user runs it: its words and formats, and runs that do not compare."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import polars as pl
import pytest
from synthetic.job import simulate, write_job

from tracekit.cli.main import main
from tracekit.report.scaling import scaling_section
from tracekit.scaling import Run, scaling_of

ROOT = Path(__file__).resolve().parent.parent.parent
ONE, TWO, CNN = (ROOT / "sample_traces" / name for name in ("bert_cpu", "bert_cpu_ddp", "cnn_cpu"))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as leave:
        main(["scaling", *map(str, arguments)])
    assert (leave.value.code or 0) == code
    text = capsys.readouterr()
    return text.out, text.err


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
def test_the_answer_and_every_format(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, errors = answer(capsys, TWO, ONE, CNN)
    assert "On 2 ranks the program processes 0.83 times as many samples a second as on 1 (41.6 % efficiency" in words(text)  # fmt: skip
    assert "Each rank has the same batch in every run, 2: weak scaling." in words(text)
    assert errors.startswith("tracekit: left out: cnn_cpu: it is a run of cnn (fp32")
    whole = json.loads(answer(capsys, ONE, TWO, "-f", "json")[0])["scaling"]
    runs, losses = whole["tables"]["runs"], whole["tables"]["losses"]
    # By hand from the manifests: 2 samples of a rank in 11.7 ms alone, in 28.1 ms beside another.
    assert [row["throughput_per_s"] for row in runs] == [pytest.approx(1e9 * row["samples"] / row["step_ns"]) for row in runs]  # fmt: skip
    assert sum(value for key, value in losses[0].items() if key.endswith("_loss_share")) == pytest.approx(losses[0]["lost_share"])  # fmt: skip
    page = tmp_path / "page.html"
    answer(capsys, ONE, TWO, "-o", page, "--figures", tmp_path / "figures")
    assert '<svg class="curve"' in page.read_text()
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["scaling.cost.svg", "scaling.speedup.svg"]  # fmt: skip
    answer(capsys, ONE, TWO, "-f", "csv", "-o", tmp_path / "tables")
    assert pl.read_csv(tmp_path / "tables" / "scaling.runs.csv")["ranks"].to_list() == [1, 2]
    assert "**Efficiency lost to**" in answer(capsys, ONE, TWO, "-f", "md")[0]
    assert "give -o FOLDER" in answer(capsys, ONE, TWO, "-f", "csv", code=2)[1]


@pytest.mark.slow
def test_what_does_not_compare_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (odd := tmp_path / "odd.json").write_text("no trace")
    text, errors = answer(capsys, ONE, odd)
    assert "There is one run, on 1 rank, so there is nothing to compare" in words(text)
    assert errors.startswith(f"tracekit: left out: {odd}: ")
    assert "no such file" in answer(capsys, tmp_path / "none", code=3)[1]
    again = tmp_path / "again"
    shutil.copytree(ONE, again)
    assert "Both runs are on 1 rank, so they do not show how the program scales." in words(answer(capsys, ONE, again)[0])  # fmt: skip
    half = tmp_path / "half"
    shutil.copytree(TWO, half)
    (half / "trace-rank0.json.gz").unlink()
    text, errors = answer(capsys, ONE, half)
    assert "Not all ranks have a trace: half has 1 of 2 (not 0)." in words(text)
    assert "41.6 % efficiency" in words(text)
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}]}))  # fmt: skip
    assert "plain.json: no steps; --step REGEX names" in answer(capsys, ONE, TWO, plain)[1]
    assert "no run has steps" in answer(capsys, plain, code=4)[1]


@pytest.mark.slow
def test_without_batches_only_step_times_compare(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for ranks in (2, 4):
        (tmp_path / f"r{ranks}").mkdir()
        write_job(simulate(seed=ranks, ranks=ranks, columns=ranks, steps=3), tmp_path / f"r{ranks}")
    pattern = str(tmp_path / "r*" / "*.json")  # as a shell leaves it in quotes
    text = words(answer(capsys, pattern, "--jobs", "1")[0])
    assert (
        "Without the batches of the runs, only their step times can be compared: give --scaling strong"
        in text
    )
    assert "efficiency lost to" not in text.split("only their step times")[1]
    text = words(answer(capsys, pattern, "--scaling", "weak", "--jobs", "1")[0])
    assert "Each rank has the same batch in every run: weak scaling." in text
    assert "Collectives fit" not in text  # of the simulation they take as long for any size


def test_laws_in_words() -> None:
    def run(ranks: int, ms: float) -> Run:
        times = (round(1e6 * ms),) * 3
        return Run(
            name=str(ranks), ranks=ranks, step_times=times, samples=64, shares={("compute", ""): Fraction(1)}
        )

    counts = (1, 2, 4, 8, 16, 32)
    section = scaling_section(scaling_of([run(n, 900 / n + 100) for n in counts]))
    assert "By Amdahl's law, 10.0 %" in section.answer
    assert "so more ranks make it at most 10" in section.answer
    ring = scaling_section(scaling_of([run(n, 1024 / n + 100 + 20 * (n - 1)) for n in counts]))
    assert "Step times fit messages around a ring best." in ring.answer


@pytest.mark.slow
def test_dask_workers_answer_as_this_process_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.chdir(ROOT)
    given = [str(path.relative_to(ROOT)) for path in (ONE, TWO)]
    command = [sys.executable, "-m", "tracekit", "scaling", *given, "-f", "json", "--engine", "dask"]
    made = subprocess.run(
        command, capture_output=True, check=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert json.loads(made.stdout) == json.loads(answer(capsys, *given, "-f", "json")[0])


def test_flags_of_workers_that_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    _, errors = answer(capsys, ONE, "--engine", "processes", "--scheduler", "x.json", code=2)
    assert "--scheduler is for --engine dask" in errors
    assert "x.json is not a file" in answer(capsys, ONE, TWO, "--scheduler", "x.json", code=2)[1]
