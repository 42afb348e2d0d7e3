"""`tracekit dataset` as a user runs it: a file of runs, and what has no row."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from commands import run
from paths import SAMPLES

CNN = next(path.parent for path in SAMPLES if path.parent.name == "cnn_cpu")


def test_captures_become_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, read in (("runs.parquet", pl.read_parquet), ("runs.csv", pl.read_csv)):
        code, _, said = run(capsys, "dataset", CNN, "-o", tmp_path / name)
        assert code == 0
        assert said.endswith(f"{name}: 1 run\n")
        assert read(tmp_path / name)["batch"].to_list() == [4]


def test_what_cannot_be_a_table_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for words in ([tmp_path / "empty", "-o", tmp_path / "a.csv"], [CNN, "-o", tmp_path / "a.html"]):
        code, _, error = run(capsys, "dataset", *words)
        assert code in (2, 3)
        assert error.count("\n") == 1
    assert not (tmp_path / "a.csv").exists()
