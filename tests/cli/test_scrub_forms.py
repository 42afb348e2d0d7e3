"""`tracekit scrub` of folders of Parquet files and of databases in UTF-16, and its dry run: as of a database in UTF-8."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from paths import PUBLIC_NSYS
from polars.testing import assert_frame_equal
from private_nsys import HOST, LEFT_OUT, LOOKED_FOR, USER, add_oddities, export
from same_frames import assert_same_frames
from synthetic.nsys_export import write_parquetdir
from synthetic.nsys_layered import Style, shape_of, training
from synthetic.nsys_schema import NEWEST, OLDEST

import tracekit
from tracekit.cli.main import main
from tracekit.errors import TracekitError, UnreadableTraceError, UsageError
from tracekit.scrub import copy as scrub_copy
from tracekit.scrub import rehearse, scrub

EVERYTHING = (*LOOKED_FOR, *LEFT_OUT)
IN_PARQUET = tuple(
    value
    for value in EVERYTHING
    if value
    not in ("a view of things", "a comment in the schema", "a default of the schema", "deleted long ago")
)
"""The rest is in parts of a database that a folder has none of."""


def as_folder(database: Path, folder: Path, *, binary: bool = False) -> Path:
    """The tables of a database as Parquet files, by SQLite's and Polars' own means."""
    folder.mkdir()
    with closing(sqlite3.connect(database)) as base:
        base.text_factory = lambda raw: raw.decode("utf-8", "replace")
        tables = [
            name for name, kind in base.execute("SELECT name, type FROM sqlite_master") if kind == "table"
        ]
        for table in tables:
            cursor = base.execute(f'SELECT * FROM "{table}"')
            names, rows = [column[0] for column in cursor.description], cursor.fetchall()
            columns = []
            for at, name in enumerate(names):
                values = [row[at] for row in rows]
                text = any(isinstance(value, str | bytes) for value in values)
                if text:
                    values = [
                        None if value is None else value.decode() if isinstance(value, bytes) else str(value)
                        for value in values
                    ]
                made = pl.Series(name, values, dtype=pl.String if text else None, strict=False)
                columns.append(made.cast(pl.Binary) if text and binary else made)
            pl.DataFrame(columns).write_parquet(folder / f"{table}.parquet")
    return folder


def told_by(folder: Path) -> bytes:
    """Bytes of all files, and all that a reader makes of them."""
    found = b""
    for file in sorted(folder.iterdir()):
        found += file.name.encode() + file.read_bytes()
        frame = pl.read_parquet(file)
        found += repr(frame.columns).encode()
        for name, dtype in frame.schema.items():
            if dtype in (pl.String, pl.Binary):
                found += b"\0".join(value for value in frame[name].cast(pl.Binary).drop_nulls())
    return found.lower()


def standing_in(data: bytes, values: tuple[str, ...]) -> list[str]:
    return [value for value in values if value.lower().encode() in data]


@pytest.mark.parametrize("binary", [False, True])
def test_nothing_private_is_left_in_a_folder(binary: bool, tmp_path: Path) -> None:
    made = export()
    add_oddities(made)
    source = as_folder(made.write(tmp_path / "in.sqlite"), tmp_path / "in", binary=binary)
    (source / "remark.txt").write_text(USER)
    assert standing_in(told_by_tables(source), IN_PARQUET) == list(IN_PARQUET)
    before = {file.name: file.read_bytes() for file in source.iterdir()}
    done = scrub(source, tmp_path / "out")
    assert standing_in(told_by(tmp_path / "out"), EVERYTHING) == []
    assert {file.name: file.read_bytes() for file in source.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"in", "in.sqlite", "out"}
    assert ("remark.txt", "file left out") in {(one.table, one.what) for one in done.removed}
    assert done.bytes_after == sum(file.stat().st_size for file in (tmp_path / "out").iterdir())


def told_by_tables(folder: Path) -> bytes:
    (remark := folder / "remark.txt").rename(folder.parent / "remark.txt")
    told = told_by(folder)
    (folder.parent / "remark.txt").rename(remark)
    return told


def test_a_folder_loses_what_a_database_loses(tmp_path: Path) -> None:
    database = export(names=[f"load for {USER}"]).write(tmp_path / "in.sqlite")
    folder = as_folder(database, tmp_path / "in")
    of_database, of_folder = (
        scrub(path, tmp_path / name) for path, name in ((database, "out.sqlite"), (folder, "out"))
    )
    assert set(of_database.removed) == set(of_folder.removed)
    assert (of_database.values, of_database.common) == (of_folder.values, of_folder.common)
    assert_same_frames(tmp_path / "out.sqlite", tmp_path / "out")
    with closing(sqlite3.connect(tmp_path / "out.sqlite")) as base:
        for (table,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            rows = base.execute(f'SELECT * FROM "{table}" ORDER BY rowid').fetchall()
            # A folder declares nothing NOT NULL, so that what is emptied there is null.
            rows = [tuple(None if value == "" else value for value in row) for row in rows]
            assert pl.read_parquet(tmp_path / "out" / f"{table}.parquet").rows() == rows, table


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_frames_of_folders_are_the_same(version: str, tmp_path: Path) -> None:
    program = training(1, shape_of("record"), Style(marks="record")).program
    source = write_parquetdir(program, tmp_path / "in", version)
    scrub(source, tmp_path / "out")
    assert_same_frames(source, tmp_path / "out")
    for file in source.iterdir():
        before, after = (pl.read_parquet_schema(one / file.name) for one in (source, tmp_path / "out"))
        assert before == after


@pytest.mark.parametrize("path", PUBLIC_NSYS, ids=lambda path: path.stem)
def test_frames_of_public_exports_are_the_same(path: Path, tmp_path: Path) -> None:
    source = as_folder(path, tmp_path / "in")
    scrub(source, tmp_path / "out")
    assert_same_frames(source, tmp_path / "out")


def test_types_that_a_database_has_not(tmp_path: Path) -> None:
    source = as_folder(export().write(tmp_path / "in.sqlite"), tmp_path / "in")
    file = source / "NVTX_EVENTS.parquet"
    rows = pl.read_parquet(file).with_columns(
        pl.lit(2**64 - 3, pl.UInt64).alias("uint64Value"),
        pl.lit(True).alias("flag"),
        pl.lit(1.5, pl.Float32).alias("floatValue"),
        pl.lit(7, pl.Int16).alias("category"),
        pl.lit([[HOST]]).alias("nested"),
    )
    rows.write_parquet(file)
    done = scrub(source, tmp_path / "out")
    after = pl.read_parquet(tmp_path / "out" / file.name)
    same = ["uint64Value", "flag", "floatValue", "category"]
    assert_frame_equal(after.select(same), rows.select(same))
    assert "nested" not in after.columns
    assert [one.what for one in done.removed if one.column == "nested"] == ["column left out"]


def test_texts_that_are_no_utf8_are_searched_and_kept(tmp_path: Path) -> None:
    source = as_folder(export(names=[f"cafQ of {USER}"]).write(tmp_path / "in.sqlite"), tmp_path / "in")
    changed = 0
    for file in source.iterdir():
        pl.read_parquet(file).write_parquet(file, compression="uncompressed")
        data = file.read_bytes()
        file.write_bytes(data.replace(b"cafQ", b"caf\xe9"))
        changed += b"cafQ" in data
    assert changed == 1
    scrub(source, tmp_path / "out")
    assert standing_in(told_by(tmp_path / "out"), EVERYTHING) == []
    names = set(tracekit.read(tmp_path / "out").host["name"].cast(pl.String))
    assert {name for name in names if "caf" in name} == {"caf\ufffd of [scrubbed]"}


def test_a_value_that_still_stands_in_the_folder_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search of the folder alone: that of the database before is told that all is well."""
    made = export(names=[f"by {USER} on {HOST}"]).write(tmp_path / "in.sqlite")
    source = as_folder(made, tmp_path / "in")
    monkeypatch.setattr(scrub_copy, "occurring", lambda _texts, _values: set())
    monkeypatch.setattr("tracekit.scrub.held_by", lambda _path, _values: [])
    with pytest.raises(TracekitError, match="still stand in the copy"):
        scrub(source, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"in.sqlite", "in"}


def test_folders_that_are_refused(tmp_path: Path) -> None:
    source = as_folder(export().write(tmp_path / "in.sqlite"), tmp_path / "in")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for target in (source, source / "out", tmp_path / "full", tmp_path / "in.sqlite"):
        with pytest.raises(UsageError):
            scrub(source, target)
    (tmp_path / "other").mkdir()
    pl.DataFrame({"a": [HOST]}).write_parquet(tmp_path / "other" / "notes.parquet")
    with pytest.raises(UnreadableTraceError, match="no export"):
        scrub(tmp_path / "other", tmp_path / "out")
    (tmp_path / "other" / "NVTX_EVENTS.parquet").write_bytes(b"PAR1")
    with pytest.raises(UnreadableTraceError, match="NVTX_EVENTS"):
        scrub(tmp_path / "other", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    scrub(source, tmp_path / "empty")
    assert tracekit.read(tmp_path / "empty").device.height == 6
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_a_database_in_utf16_becomes_one_in_utf8(encoding: str, tmp_path: Path) -> None:
    made = export(names=[f"загрузка by {USER}"])
    plain = made.write(tmp_path / "plain.sqlite")
    wide = tmp_path / "wide.sqlite"
    with closing(sqlite3.connect(plain)) as base, closing(sqlite3.connect(wide)) as other:
        other.execute(f"PRAGMA encoding = '{encoding}'")
        for line in base.iterdump():
            other.execute(line)
        other.execute("CREATE TABLE notes (a TEXT)")
        other.execute("INSERT INTO notes VALUES (?)", (HOST,))
        other.execute("CREATE VIEW v AS SELECT * FROM notes")
        other.commit()
    assert standing_in(wide.read_bytes(), LOOKED_FOR) == []
    of_plain, of_wide = scrub(plain, tmp_path / "p"), scrub(wide, tmp_path / "w")
    more = {("notes", 1, "table left out"), ("v", 0, "view left out")}
    told = [{(one.table, one.rows, one.what) for one in done.removed} for done in (of_plain, of_wide)]
    assert told[1] == told[0] | more
    dumps = []
    for path in (tmp_path / "p", tmp_path / "w"):
        with closing(sqlite3.connect(path)) as base:
            assert base.execute("PRAGMA encoding").fetchone() == ("UTF-8",)
            dumps.append(list(base.iterdump()))
    assert dumps[0] == dumps[1]
    assert_same_frames(tmp_path / "p", tmp_path / "w")
    assert standing_in((tmp_path / "w").read_bytes(), EVERYTHING) == []
    assert {path.name for path in tmp_path.iterdir()} == {"plain.sqlite", "wide.sqlite", "p", "w"}


@pytest.mark.parametrize("form", ["sqlite", "folder"])
def test_a_dry_run_tells_all_and_writes_nothing(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    made = export(names=[f"by {USER}"])
    add_oddities(made)
    source = made.write(tmp_path / "in.sqlite")
    if form == "folder":
        source = as_folder(source, tmp_path / "in")
    before = sorted(path for path in tmp_path.rglob("*"))
    words = ["scrub", str(source), "--replace", "forward"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--dry-run"])
    dry = capsys.readouterr()
    assert (int(left.value.code or 0), dry.err) == (0, "")
    assert sorted(path for path in tmp_path.rglob("*")) == before
    with pytest.raises(SystemExit):
        main([*words, str(tmp_path / "out")])
    wet = capsys.readouterr().out
    assert dry.out.splitlines()[:-1] == wet.splitlines()[:-1]
    assert dry.out.splitlines()[-1].startswith("dry run, nothing was written: ")
    assert standing_in(dry.out.encode().lower(), EVERYTHING) == []
    assert rehearse(source, replace=["forward"]).path is None


def test_without_a_place_to_write_to_nothing_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = export().write(tmp_path / "in.sqlite")
    with pytest.raises(SystemExit) as left:
        main(["scrub", str(source)])
    assert left.value.code == 2
    assert "--dry-run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]
