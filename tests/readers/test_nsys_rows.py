"""Pages of an SQLite table against a plain read of it: what is left out of the pages is put back, wherever it ends."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import polars as pl
import pytest

from tracekit.readers.nsys import sqlite as _nsys_tables
from tracekit.readers.nsys import sqlite_rows as _nsys_rows
from tracekit.readers.nsys.pages import ColumnKind
from tracekit.readers.nsys.sqlite import SqliteTables

PAGE = 16
ROWS = 9 * PAGE + 5
WANTED: dict[str, ColumnKind] = {
    "same": "int",
    "empty": "int",
    "late": "int",
    "once": "int",
    "ends": "int",
    "gaps": "int",
    "free": "int",
    "share": "float",
    "text": "text",
    "silent": "text",
    "lacking": "int",
}
OTHERS: tuple[object, ...] = (7, None, -1, 1.5, "7", "word", b"7")
Values = dict[str, list[object]]


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_nsys_rows, _nsys_tables):
        monkeypatch.setattr(module, "PAGE_ROWS", PAGE)


def values(seed: int) -> Values:
    """Columns that hold one value for a while: each but the first two has another kind of end to it."""
    rng = random.Random(seed)
    end, strange = rng.randrange(PAGE, ROWS), rng.choice(OTHERS)
    return {
        "same": [7] * ROWS,
        "empty": [None] * ROWS,
        "late": [None if row < end else strange for row in range(ROWS)],
        "once": [strange if row == end else 7 for row in range(ROWS)],
        "ends": [7 if row < end else rng.choice(OTHERS) for row in range(ROWS)],
        "gaps": [None if row % 5 else 7 for row in range(ROWS)],
        "free": [rng.choice(OTHERS) for _ in range(ROWS)],
        "share": [None if row < end else rng.choice((0.5, 2, "2")) for row in range(ROWS)],
        "text": [None if row < end else rng.choice(("a", "", 3)) for row in range(ROWS)],
        "silent": [None] * ROWS,
    }


def written(path: Path, columns: Values) -> SqliteTables:
    """Columns without a declared type, so that SQLite turns no value into another."""
    names = ", ".join(columns)
    with sqlite3.connect(path) as base:
        base.execute(f"create table T ({names})")
        ids = random.Random(0).sample(range(-500, 5000), ROWS)
        rows = zip(sorted(ids), *columns.values(), strict=True)
        base.executemany(f"insert into T (rowid, {names}) values (?{', ?' * len(columns)})", rows)
    base.close()
    return SqliteTables(path)


def expected(columns: Values) -> dict[str, list[object]]:
    """Values of another type are null, and an empty text is none: the driver hands it over like that."""
    kinds = {"int": (int,), "float": (int, float), "text": (str,)}
    told: dict[str, list[object]] = {}
    for name, kind in WANTED.items():
        held = columns.get(name, [None] * ROWS)
        told[name] = [value if isinstance(value, kinds[kind]) and value != "" else None for value in held]
    return told


@pytest.mark.parametrize("seed", range(40))
def test_pages_hold_what_the_table_holds(seed: int, tmp_path: Path) -> None:
    columns = values(seed)
    tables = written(tmp_path / "t.sqlite", columns)
    pages = list(tables.pages("T", WANTED))
    assert [page.height for page in pages] == [PAGE] * 9 + [5]
    assert pl.concat(pages).to_dict(as_series=False) == expected(columns)


@pytest.mark.parametrize("seed", range(10))
def test_chosen_rows_are_those_of_the_table(seed: int, tmp_path: Path) -> None:
    columns = values(seed)
    tables = written(tmp_path / "t.sqlite", columns)
    chosen = [row for row in range(ROWS) if columns["gaps"][row] == 7 or columns["free"][row] == 7]
    columns["gaps"] = [7 if row in chosen else 1 for row in range(ROWS)]
    tables.close()
    (tmp_path / "t.sqlite").unlink()
    tables = written(tmp_path / "t.sqlite", columns)
    got = pl.concat(tables.pages("T", WANTED, only=("gaps", (7, 8))))
    assert got.to_dict(as_series=False) == {
        name: [held[row] for row in chosen] for name, held in expected(columns).items()
    }


def test_what_stays_the_same_is_read_from_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = written(tmp_path / "t.sqlite", values(1))
    asked: list[str] = []
    query = tables._query

    def noted(sql: str) -> pl.DataFrame:
        asked.append(sql)
        return query(sql)

    monkeypatch.setattr(tables, "_query", noted)
    list(tables.pages("T", WANTED))
    pages = [sql for sql in asked if sql.startswith("select") and f"limit {PAGE}" in sql]
    assert len(pages) == 10
    for name in ("same", "empty", "silent"):
        assert [f'"{name}"' in sql for sql in pages] == [True] + [False] * 9
    for name in ("ends", "free", "gaps"):
        assert all(f'"{name}"' in sql for sql in pages)
