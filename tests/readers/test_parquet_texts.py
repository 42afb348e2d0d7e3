"""Parquet files that call texts what is no UTF-8."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from synthetic.nsys_export import Program, write_parquetdir
from synthetic.nsys_odd import small

import tracekit
from tracekit.errors import UnreadableTraceError
from tracekit.panics import panics_as_errors
from tracekit.readers.nsys.parquet_texts import with_texts_as_bytes

FRAME = pl.DataFrame(
    {
        "id": [1, 2, 3],
        "text": ["cafQ", "plain", None],
        "when": pl.Series([1, None, 3], dtype=pl.Datetime("ns")),
        "small": pl.Series([1, 2, 255], dtype=pl.UInt8),
        "kind": pl.Series(["a", "b", "a"], dtype=pl.Categorical()),
        "flag": [True, None, False],
        "share": [0.5, 1.5, None],
        "raw": [b"\xff", b"", None],
        "list": [["x"], [], None],
    }
)


def spoiled(file: Path) -> None:
    """Put a byte that is no UTF-8 for each Q behind `caf`."""
    file.write_bytes(file.read_bytes().replace(b"cafQ", b"caf\xe9"))


@pytest.mark.parametrize("columns", [FRAME.columns, ["text"], ["id", "small"]])
def test_the_copy_differs_in_its_texts_only(tmp_path: Path, columns: list[str]) -> None:
    source, target = tmp_path / "a.parquet", tmp_path / "b.parquet"
    FRAME.select(columns).write_parquet(source)
    with_texts_as_bytes(source, target)
    expected = FRAME.select(columns).with_columns(
        pl.col(pl.String, pl.Categorical).cast(pl.String).cast(pl.Binary),
        *([pl.col("list").cast(pl.List(pl.Binary))] if "list" in columns else []),
    )
    assert_frame_equal(pl.read_parquet(target), expected)


def test_a_copy_of_many_columns_in_several_groups_of_rows(tmp_path: Path) -> None:
    source, target = tmp_path / "a.parquet", tmp_path / "b.parquet"
    frame = pl.DataFrame({f"column {i}": [f"{i} {row}" for row in range(100)] for i in range(40)})
    frame.write_parquet(source, row_group_size=7)
    with_texts_as_bytes(source, target)
    assert_frame_equal(pl.read_parquet(target).cast(pl.String), frame)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_damaged_footer_is_a_value_error_if_any(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    source = folder / "a.parquet"
    FRAME.write_parquet(source)
    raw = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(len(raw) // 2, len(raw) - 1))] = data.draw(st.integers(0, 255))
    source.write_bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) - 3, 9, 3]))])
    with suppress(ValueError):
        with_texts_as_bytes(source, folder / "b.parquet")


def program() -> Program:
    """A kernel, a range and a registered range with a name that is no UTF-8, once it is spoiled."""
    made = small()
    made.push_pop("cafQ registered", 100, 900, tid=4242)
    made.push_pop("cafQ in its row", 200, 800, tid=4242, registered=False)
    made.push_pop("plain", 300, 700, tid=4242, registered=False)
    return made


def test_texts_in_other_encodings_do_not_stop_an_export_in_parquet(tmp_path: Path) -> None:
    (whole,) = tracekit.read_all(write_parquetdir(program(), tmp_path / "good"))
    folder = write_parquetdir(program(), tmp_path / "spoiled")
    for table in ("StringIds", "NVTX_EVENTS"):
        pl.read_parquet(folder / f"{table}.parquet").write_parquet(
            folder / f"{table}.parquet", compression="uncompressed"
        )
        spoiled(folder / f"{table}.parquet")
    with pytest.raises(pl.exceptions.ComputeError, match="UTF-8"):
        pl.read_parquet(folder / "StringIds.parquet")
    (trace,) = tracekit.read_all(folder)
    names = trace.host["name"].cast(str)
    expected = whole.host["name"].cast(str).str.replace("cafQ", "caf\ufffd")
    assert names.to_list() == expected.to_list()
    assert trace.host.drop("name", "span_id").equals(whole.host.drop("name", "span_id"))
    assert trace.device.height == whole.device.height > 0
    (count,) = trace.health.filter(pl.col("kind") == "invalid_utf8")["count"]
    assert count >= 2


def test_no_copy_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    folder = write_parquetdir(program(), tmp_path / "spoiled")
    file = folder / "StringIds.parquet"
    pl.read_parquet(file).write_parquet(file, compression="uncompressed")
    spoiled(file)
    tracekit.read_all(folder)
    assert list(scratch.iterdir()) == []


def test_a_file_that_cannot_be_mended_is_one_line(tmp_path: Path) -> None:
    folder = write_parquetdir(program(), tmp_path / "spoiled")
    file = folder / "StringIds.parquet"
    pl.read_parquet(file).write_parquet(file, compression="zstd")
    raw = bytearray(file.read_bytes())
    raw[40:60] = b"\xff" * 20
    file.write_bytes(raw)
    with pytest.raises(UnreadableTraceError, match="its table StringIds is damaged"):
        tracekit.read_all(folder)


def test_a_panic_of_the_parquet_reader_was_a_traceback_of_rust(capfd: pytest.CaptureFixture[str]) -> None:
    def damaged() -> None:
        os.write(2, b"thread panicked at metadata.rs\n")
        raise pl.exceptions.PanicException("called `Option::unwrap()`\nmore")

    with (
        pytest.raises(pl.exceptions.ComputeError, match=r"^called `Option::unwrap\(\)`$"),
        panics_as_errors(),
    ):
        damaged()
    assert capfd.readouterr().err == ""
    with panics_as_errors():
        os.write(2, b"a note\n")
    assert capfd.readouterr().err == "a note\n"
