"""`tracekit scrub` of folders of Parquet files and of databases in UTF-16, and its dry run: as of a database in UTF-8."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from private_nsys import PLANTED, SHOWN, USER, WORDS, private_export
from same_frames import assert_same_frames
from synthetic.nsys_export import write_parquetdir, write_sqlite
from synthetic.nsys_layered import Style, shape_of, training
from synthetic.nsys_odd import MAIN, small
from synthetic.nsys_schema import NEWEST, OLDEST

import tracekit
from tracekit.cli.main import main
from tracekit.errors import UnreadableTraceError, UsageError
from tracekit.scrub import rehearse, scrub
from tracekit.scrub.words import MARKER


def as_folder(database: Path, folder: Path, *, binary: bool = False) -> Path:
    """The tables of a database as Parquet files, by SQLite's and Polars' own means."""
    folder.mkdir()
    with closing(sqlite3.connect(database)) as base:
        base.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for (table,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = base.execute(f'SELECT * FROM "{table}"')
            names, rows = [column[0] for column in cursor.description], cursor.fetchall()
            columns = []
            for name, values in zip(
                names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True
            ):
                text = any(isinstance(value, str | bytes) for value in values)
                made = pl.Series(
                    name, [str(one) if text and one is not None else one for one in values], strict=False
                )
                columns.append(made.cast(pl.Binary) if text and binary else made)
            pl.DataFrame(columns).write_parquet(folder / f"{table}.parquet")
    return folder


def told_by(folder: Path) -> bytes:
    """Bytes of all files, and all that a reader makes of them."""
    found = b""
    for file in sorted(folder.iterdir()):
        found += file.name.encode() + file.read_bytes()
        if file.suffix == ".parquet":
            frame = pl.read_parquet(file)
            found += repr(frame.columns).encode()
            for column in frame.select(pl.col(pl.String, pl.Binary)):
                found += b"\0".join(column.cast(pl.Binary).drop_nulls())
    return found.lower()


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("binary", [False, True])
def test_nothing_private_is_left_in_a_folder(binary: bool, tmp_path: Path) -> None:
    planted = private_export(tmp_path / "in.sqlite", [f"load for {USER}", f"by {USER}"])
    source = as_folder(tmp_path / "in.sqlite", tmp_path / "in", binary=binary)
    (source / "remark.txt").write_text(USER)
    before = {file.name: file.read_bytes() for file in source.iterdir()}
    told = told_by(source)
    assert all(word.encode() in told for word in (*WORDS, *planted.values()))
    done = scrub(source, tmp_path / "out")
    told = told_by(tmp_path / "out")
    assert not [word for word in WORDS if word.encode() in told]
    assert all(re.match(SHOWN, place) for place, word in planted.items() if word.encode() in told)
    assert {file.name: file.read_bytes() for file in source.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"in", "in.sqlite", "out"}
    assert {file.suffix for file in (tmp_path / "out").iterdir()} == {".parquet"}
    assert done.bytes_after == sum(file.stat().st_size for file in (tmp_path / "out").iterdir())


@pytest.mark.slow
def test_a_folder_keeps_what_a_database_keeps(tmp_path: Path) -> None:
    database = tmp_path / "in.sqlite"
    private_export(database, [f"load for {USER}"])
    folder = as_folder(database, tmp_path / "in")
    of_database, of_folder = scrub(database, tmp_path / "out.sqlite"), scrub(folder, tmp_path / "out")
    assert of_database.kept == of_folder.kept
    assert of_database.words == of_folder.words
    assert_same_frames(tmp_path / "out.sqlite", tmp_path / "out")
    with closing(sqlite3.connect(tmp_path / "out.sqlite")) as base:
        for one in of_folder.kept:
            rows = base.execute(f"SELECT * FROM {one.table} ORDER BY rowid").fetchall()
            assert sorted(
                pl.read_parquet(tmp_path / "out" / f"{one.table}.parquet").rows(), key=repr
            ) == sorted(rows, key=repr)


@pytest.mark.quick(1)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_frames_of_folders_are_the_same(version: str, tmp_path: Path) -> None:
    program = training(1, shape_of("record"), Style(marks="record")).program
    source = write_parquetdir(program, tmp_path / "in", version)
    scrub(source, tmp_path / "out")
    assert_same_frames(source, tmp_path / "out")


def test_types_that_a_database_has_not(tmp_path: Path) -> None:
    source = write_parquetdir(small(), tmp_path / "in")
    file = source / "NVTX_EVENTS.parquet"
    pl.read_parquet(file).with_columns(
        pl.lit(2**64 - 3, pl.UInt64).alias("uint64Value"),
        pl.lit(1.5, pl.Float32).alias("floatValue"),
        pl.lit([["somebody"]]).alias("nested"),
        pl.lit(["somebody"]).alias("doubleValue"),
    ).write_parquet(file)
    scrub(source, tmp_path / "out")
    assert_same_frames(source, tmp_path / "out")
    assert b"somebody" not in told_by(tmp_path / "out")


@pytest.mark.slow
def test_texts_that_are_no_utf8(tmp_path: Path) -> None:
    program = small()
    program.push_pop("cafQ in /home/somebody", 5, 9, tid=MAIN)
    program.push_pop("cafQ at /home/somebody", 6, 8, tid=MAIN, registered=False)
    source, database = (
        write_parquetdir(program, tmp_path / "in"),
        write_sqlite(program, tmp_path / "in.sqlite"),
    )
    for file in source.iterdir():
        pl.read_parquet(file).write_parquet(file, compression="uncompressed")
    for file in (*source.iterdir(), database):
        file.write_bytes(file.read_bytes().replace(b"cafQ", b"caf\xe9"))
    for path, after in ((source, tmp_path / "out"), (database, tmp_path / "out.sqlite")):
        scrub(path, after)
        names = set(tracekit.read(after).host["name"].cast(pl.String))
        assert {name for name in names if "caf" in name} == {"caf\ufffd in ~", "caf\ufffd at ~"}


def test_folders_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in.sqlite").write_bytes(b"")
    source = write_parquetdir(small(), tmp_path / "in")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for target in (source, source / "out", tmp_path / "full", tmp_path / "in.sqlite"):
        with pytest.raises(UsageError):
            scrub(source, target)
    (tmp_path / "other").mkdir()
    pl.DataFrame({"a": [USER]}).write_parquet(tmp_path / "other" / "notes.parquet")
    with pytest.raises(UnreadableTraceError, match="not an Nsight Systems export"):
        scrub(tmp_path / "other", tmp_path / "out")
    (tmp_path / "other" / "NVTX_EVENTS.parquet").write_bytes(b"PAR1")
    with pytest.raises(UnreadableTraceError, match="NVTX_EVENTS"):
        scrub(tmp_path / "other", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    scrub(source, tmp_path / "empty")
    assert tracekit.read(tmp_path / "empty").device.height == 5
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.quick(1)
@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_a_database_in_utf16_becomes_one_in_utf8(encoding: str, tmp_path: Path) -> None:
    plain, wide = tmp_path / "plain.sqlite", tmp_path / "wide.sqlite"
    private_export(plain, [f"загрузка by {USER}"], script="DROP VIEW lookalike; DROP TRIGGER spoil")
    with closing(sqlite3.connect(plain)) as base, closing(sqlite3.connect(wide)) as other:
        other.execute(f"PRAGMA encoding = '{encoding}'")
        for line in base.iterdump():
            if "sqlite_" not in line:
                other.execute(line)
        other.execute("CREATE VIEW v AS SELECT * FROM notes")
        other.commit()
    assert USER.encode() not in wide.read_bytes()
    of_plain, of_wide = scrub(plain, tmp_path / "p"), scrub(wide, tmp_path / "w")
    assert of_plain.kept == of_wide.kept
    dumps = []
    for path in (tmp_path / "p", tmp_path / "w"):
        with closing(sqlite3.connect(path)) as base:
            assert base.execute("PRAGMA encoding").fetchone() == ("UTF-8",)
            dumps.append(list(base.iterdump()))
    assert dumps[0] == dumps[1]
    assert any(f"загрузка by {MARKER}" in line for line in dumps[0])


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("form", ["sqlite", "folder"])
def test_a_dry_run_tells_all_and_writes_nothing(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    source = tmp_path / "in.sqlite"
    private_export(source, [f"by {USER}"])
    if form == "folder":
        source = as_folder(source, tmp_path / "in")
    before = sorted(tmp_path.rglob("*"))
    words = ["scrub", str(source), "--replace", "forward"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--dry-run"])
    dry = capsys.readouterr()
    assert (int(left.value.code or 0), dry.err) == (0, "")
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(SystemExit):
        main([*words, str(tmp_path / "out")])
    wet = capsys.readouterr().out
    assert dry.out.splitlines()[:-1] == wet.splitlines()[:-1]
    assert dry.out.splitlines()[-1].startswith("dry run, no file was written: ")
    assert not [word for word in (*WORDS, PLANTED) if word in dry.out]
    assert rehearse(source, replace=["forward"]).path is None
