"""Tables as people write them: other separators and blanks, missing cells, numbers with a point, and files that are none."""

from __future__ import annotations

import gzip
import random
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import polars as pl
import pytest
from planted_tables import described, planted

from tracekit.compare import read_table
from tracekit.errors import InconclusiveError, TracekitError, UnreadableTraceError
from tracekit.facts.capture_names import INDEX_FILE
from tracekit.predict import table
from tracekit.predict.table import Runs, read_runs
from tracekit.sweep_index import read_index

NAMED = replace(
    described(), columns={**described().columns, "machine": "host"}, id="name", group=("gpus", "batch")
)


@pytest.fixture
def asked() -> pl.DataFrame:
    """Questions with text as ids and machines that are numbers."""
    frame = planted(repetitions=1)[:4].drop("time_s")
    return frame.with_columns(name=pl.Series(["a, 1", "b", 'c "x"', "d"]), host=pl.Series([7, 7, 12, 12]))


def told(path: Path) -> Runs:
    return read_runs(path, NAMED, measured=False)


@pytest.mark.parametrize("sign", [";", "\t", ", "])
def test_blanks_and_other_separators_are_read(sign: str, asked: pl.DataFrame, tmp_path: Path) -> None:
    asked.write_csv(tmp_path / "right.csv")
    rows = [asked.columns, *asked.rows()]
    text = "\r\n".join(
        sign.join(
            '"c ""x"""' if each == 'c "x"' else f'"{each}"' if "," in str(each) else str(each) for each in row
        )
        for row in rows
    )
    wrong = tmp_path / "wrong.csv.gz"
    wrong.write_bytes(gzip.compress(b"\xef\xbb\xbf" * (sign == ";") + text.encode()))
    if sign == ", ":  # a quote after a blank opens nothing
        text = text.replace('"a, 1"', "a; 1").replace('"c ""x"""', "c")
        wrong.write_bytes(gzip.compress(text.encode()))
        assert told(wrong).frame.drop("id").equals(told(tmp_path / "right.csv").frame.drop("id"))
        return
    assert told(wrong).frame.equals(told(tmp_path / "right.csv").frame)


def test_a_name_that_is_a_number_is_the_same_with_a_point(asked: pl.DataFrame, tmp_path: Path) -> None:
    """As pandas writes a column of numbers with gaps."""
    asked.with_columns(pl.col("host").cast(pl.Float64), spare=pl.Series([[1]] * 4)).write_parquet(
        tmp_path / "asked.parquet"
    )
    assert told(tmp_path / "asked.parquet").names("machine") == ["7", "7", "12", "12"]


def test_a_table_of_questions_needs_no_groups_and_one_of_runs_no_ids(
    asked: pl.DataFrame, tmp_path: Path
) -> None:
    described_so = replace(NAMED, group=("fold",))
    asked.write_csv(tmp_path / "asked.csv")
    assert read_runs(tmp_path / "asked.csv", described_so, measured=False).height == 4
    runs = asked.drop("name").with_columns(time_s=pl.Series([1.0, 2.0, 3.0, 4.0]), fold=pl.lit(1))
    runs.write_csv(tmp_path / "runs.csv")
    assert read_runs(tmp_path / "runs.csv", described_so).frame["id"].to_list() == ["0", "1", "2", "3"]


def test_a_column_without_a_name_is_no_id(asked: pl.DataFrame, tmp_path: Path) -> None:
    """As pandas writes its index: rows without an id are numbered from 0, also if the index is shuffled."""
    nameless = pl.Series("", [3, 1, 2, 0]).to_frame().hstack(asked)
    nameless.write_csv(tmp_path / "asked.csv")
    runs = read_runs(tmp_path / "asked.csv", replace(NAMED, id=""), measured=False)
    assert runs.frame["id"].to_list() == ["0", "1", "2", "3"]


def test_a_blank_cell_costs_its_row_and_a_blank_column_itself(tmp_path: Path) -> None:
    """Not the column for one cell, without which nothing could be fitted."""
    frame = planted(repetitions=1)
    at = pl.int_range(pl.len())
    frame = frame.with_columns(
        pl.when(at != 3).then("batch").alias("batch"), pl.when(at % 3 == 0).then("threads").alias("threads")
    )
    frame.write_csv(tmp_path / "runs.csv")
    runs = read_runs(tmp_path / "runs.csv", described())
    assert runs.height == frame.height - 1
    assert "batch" in runs.roles
    assert "loader_threads" not in runs.description.columns
    assert runs.left_out == (
        "runs.csv: column threads, as 48 of 72 rows lack it",
        "runs.csv: 1 row without a positive batch",
    )


def test_kernels_of_one_table_lack_what_they_do_not_have(tmp_path: Path) -> None:
    said = replace(described(), target="ms", columns={"op": "op", "batch": "b", "hidden": "h"}, devices={})
    (tmp_path / "kernels.csv").write_text("op,b,h,ms\nadd,1,,2\nadd,2,,3\nlinear,,4,5\n")
    runs = read_runs(tmp_path / "kernels.csv", said)
    assert (runs.height, runs.left_out) == (3, ())


def test_a_file_that_is_no_table_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.csv"
    with pytest.raises(UnreadableTraceError, match=r"it cannot be read .Is a directory"):
        told(tmp_path)
    for data in (b"x\x9c123", b"a" * (1 << 20) + b"\n", gzip.compress(gzip.compress(b"a,b\n1,2\n"))):
        path.write_bytes(data)
        with pytest.raises(UnreadableTraceError, match="it is not a table; give a CSV"):
            told(path)
    path.write_bytes(gzip.compress(b"a,b\n1,2\n")[:-9])
    with pytest.raises(UnreadableTraceError, match="it cannot be read"):
        told(path)
    monkeypatch.setattr(table, "_MOST_BYTES", 1000)
    path.write_bytes(gzip.compress(b"a,b\n" * 1000))  # small, until it is unpacked
    with pytest.raises(UnreadableTraceError, match="larger than"):
        told(path)


def test_rows_beyond_the_most_are_not_dropped_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_MOST_ROWS", 3)
    planted(repetitions=1)[:4].write_csv(tmp_path / "runs.csv")
    with pytest.raises(UnreadableTraceError, match="more than 3 rows"):
        read_runs(tmp_path / "runs.csv", described())


def test_a_missing_column_and_times_below_zero_are_one_line(tmp_path: Path) -> None:
    frame = planted(repetitions=1)
    frame.drop("batch").write_csv(tmp_path / "runs.csv")
    with pytest.raises(TracekitError, match="there is no column 'batch'; its columns are gpus, "):
        read_runs(tmp_path / "runs.csv", described())
    frame.with_columns(-pl.col("time_s")).write_csv(tmp_path / "runs.csv")
    with pytest.raises(InconclusiveError, match="no row can be used"):
        read_runs(tmp_path / "runs.csv", described())


def test_damaged_parquet_made_polars_panic_in_every_reader_of_tables(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = range(500)
    pl.DataFrame(
        {"a": [str(i) for i in rows], "b": [i / 3 for i in rows], "c": [None, 1] * 250}
    ).write_parquet(whole := BytesIO())
    path = tmp_path / INDEX_FILE
    for seed in (422, 693, 1225):
        rng, data = random.Random(seed), bytearray(whole.getvalue())
        for _ in range(4):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        for read in (table.columns_of, read_table, lambda file: read_index(file.parent)):
            with pytest.raises(TracekitError):
                read(path)
        assert capfd.readouterr().err == ""
