"""Names of an export with very many strings: only those of a page are looked up."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import PUBLIC_NSYS
from polars.testing import assert_frame_equal
from synthetic.nsys_export import Program, write_parquetdir, write_sqlite
from synthetic.nsys_odd import small

import tracekit
from tracekit.limits import LONGEST_NAME
from tracekit.readers.nsys import ids as _nsys_ids
from tracekit.readers.nsys.pages import conditions_on
from tracekit.readers.nsys.sqlite import SqliteTables


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[tracekit.Trace], list[tracekit.Trace]]:
    """The traces as they are read with few strings and with very many."""
    few = tracekit.read_all(path)
    monkeypatch.setattr(_nsys_ids, "_MANY_STRINGS", 0)
    return few, tracekit.read_all(path)


def same(few: list[tracekit.Trace], many: list[tracekit.Trace]) -> None:
    for one, other in zip(few, many, strict=True):
        for name in ("host", "device", "threads", "health", "ranges", "os_calls", "samples", "collectives"):
            first, second = getattr(one, name), getattr(other, name)
            assert (first is None) == (second is None)
            if first is not None:
                assert_frame_equal(first, second, categorical_as_str=True)


def program() -> Program:
    made = small()
    for at in range(50):
        made.push_pop(f"aten::mm, seq = {at}, op_id = {at * 7}", 1_000 + at, 1_500 - at, tid=4242)
    made.thread("worker", tid=4243)
    made.os_call("poll", 100, 200, tid=4243)
    return made


@pytest.mark.quick(1)
@pytest.mark.parametrize("write", [write_sqlite, write_parquetdir])
def test_names_are_the_same(tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(program(), tmp_path / "t.sqlite")
    monkeypatch.setattr("tracekit.readers.nsys.sqlite.SqliteTables.texts", _not_asked)
    monkeypatch.setattr("tracekit.readers.nsys.parquet.ParquetTables.texts", _not_asked)
    with pytest.raises(AssertionError, match="all strings"):
        tracekit.read_all(path)
    monkeypatch.setattr(_nsys_ids, "_MANY_STRINGS", 0)
    many = tracekit.read_all(path)
    monkeypatch.undo()
    same(tracekit.read_all(path), many)


def _not_asked(*_arguments: object) -> pl.DataFrame:
    raise AssertionError("all strings were asked for")


@pytest.mark.slow
@pytest.mark.parametrize("path", PUBLIC_NSYS, ids=lambda path: path.stem)
def test_names_of_public_exports_are_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = both(path, monkeypatch)
    same(
        [replace(trace, device=_cut(trace.device)) for trace in few],
        [replace(trace, device=_cut(trace.device)) for trace in many],
    )


def _cut(frame: pl.DataFrame) -> pl.DataFrame:
    """Of very many strings the long ones are cut."""
    short = pl.col("name").cast(pl.String).str.slice(0, LONGEST_NAME // 2).cast(pl.Categorical())
    return frame.with_columns(short)


@pytest.mark.quick(1)
@pytest.mark.parametrize("key", ["INTEGER", "INT PRIMARY KEY", "INTEGER, PRIMARY KEY (id, value)"])
def test_strings_whose_ids_are_not_those_of_rows_are_read_at_once(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look for each would be to search the whole table each time."""
    path = write_sqlite(program(), tmp_path / "t.sqlite")
    expected = tracekit.read_all(path)
    with closing(sqlite3.connect(path)) as base, base:
        column, _, more = key.partition(",")
        base.execute("alter table StringIds rename to Old")
        base.execute(f"create table StringIds (id {column}, value TEXT{', ' * bool(more)}{more})")
        base.execute("insert into StringIds select id, value from Old")
        base.execute("drop table Old")
    tables = SqliteTables(path)
    assert tables.texts_by_id(pl.Series([1])) is None
    tables.close()
    monkeypatch.setattr(_nsys_ids, "_MANY_STRINGS", 0)
    same(expected, tracekit.read_all(path))


def test_a_long_name_is_cut_alike_in_each_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = program()
    name = "k" * (LONGEST_NAME + 1)
    for at in range(3):
        made.push_pop(name, 2_000 + 10 * at, 2_005 + 10 * at, tid=4242)
    path = write_sqlite(made, tmp_path / "t.sqlite")
    monkeypatch.setattr(_nsys_ids, "_MANY_STRINGS", 0)
    (trace,) = tracekit.read_all(path)
    found = trace.host["name"].cast(str).filter(trace.host["name"].cast(str).str.starts_with("kkk"))
    assert found.n_unique() == 1
    assert found.len() == 3
    assert found[0].startswith("k" * (LONGEST_NAME // 2) + "… #")


IDS = st.one_of(st.integers(-50, 50), st.integers(0, 100_000), st.integers(-(2**63), 2**63 - 1))


@given(st.lists(IDS, max_size=200), st.integers(1, 50))
def test_the_conditions_together_ask_for_each_id(ids: list[int], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch, closing(sqlite3.connect(":memory:")) as base:
        patch.setattr("tracekit.readers.nsys.pages._MOST_IDS", most)
        base.execute("create table t (id integer primary key)")
        base.executemany("insert into t values (?)", [(one,) for one in set(ids)])
        found: list[int] = []
        for condition in conditions_on("id", pl.Series(ids, dtype=pl.Int64)):
            found += [row[0] for row in base.execute(f"select id from t where {condition}")]
    assert sorted(found) == sorted(set(ids))
