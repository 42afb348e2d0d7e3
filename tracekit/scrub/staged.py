"""Exports that SQLite cannot attach to a copy -- folders of Parquet files, databases in UTF-16 -- as a database that it can.

The database holds all that the export does, so it is for a temporary file that only its owner may read.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.errors import UnreadableTraceError
from tracekit.readers.nsys.parquet import ParquetTables
from tracekit.scrub import private_names as facts
from tracekit.scrub.plan import Removed, TablePlan, check_end, listed, plan_of, quoted
from tracekit.scrub.values import occurring

__all__ = ["database_of_folder", "database_of_utf16", "texts_still_told", "write_folder"]

_PAGE_ROWS: Final = 1 << 16
_MOST_BYTES: Final = 1 << 30
"""Of the texts in a page: a file holds a text once, for however many rows."""

Forms = dict[str, dict[str, pl.DataType]]
"""The columns of each table of a folder, with their types, as far as they are kept."""


def database_of_utf16(
    source: Path, target: sqlite3.Connection, encoding: str, progress: Callable[[str], None]
) -> list[Removed]:
    """Copy a database in UTF-16 into one in UTF-8; returns what of it is in no plan and was left out already."""
    removed: list[Removed] = []
    with closing(sqlite3.connect(":memory:", uri=True, isolation_level=None)) as base:
        base.text_factory = bytes
        for pragma in (f"encoding='{encoding}'", "trusted_schema=off", "cell_size_check=on"):
            base.execute(f"PRAGMA {pragma}").fetchall()
        base.execute("ATTACH ? AS src", (f"{source.absolute().as_uri()}?mode=ro&immutable=1",))
        for kind, name, real in listed(base):
            plan = None
            if real:
                check_end(base, name)
                plan = plan_of(base, name)
            if plan is None:
                count = base.execute(f"SELECT count(*) FROM src.{quoted(name)}").fetchone()[0] if real else 0  # noqa: S608 - quoted
                removed.append(Removed(name, None, count, f"{kind} left out"))
                continue
            progress(name)
            base.text_factory = str
            _copied(base, target, plan)
            base.text_factory = bytes
    return removed


def _copied(base: sqlite3.Connection, target: sqlite3.Connection, plan: TablePlan) -> None:
    keys = [column.name for column in sorted(plan.columns, key=lambda column: column.key) if column.key]
    parts = [f"{column.declaration}{' NOT NULL' if column.required else ''}" for column in plan.columns]
    if keys:
        parts.append(f"PRIMARY KEY ({', '.join(map(quoted, keys))})")
    target.execute(f"CREATE TABLE {quoted(plan.name)} ({', '.join(parts)})")
    names = ", ".join(quoted(column.name) for column in plan.columns)
    rows = base.execute(f"SELECT {names} FROM src.{quoted(plan.name)}")  # noqa: S608 - names are quoted
    marks = ", ".join("?" * len(plan.columns))
    target.executemany(f"INSERT INTO {quoted(plan.name)} ({names}) VALUES ({marks})", rows)  # noqa: S608 - as above


def database_of_folder(
    source: Path, target: sqlite3.Connection, progress: Callable[[str], None]
) -> tuple[Forms, list[Removed]]:
    """Copy the tables of a folder of Parquet files into a database; returns their types, and what was left out already."""
    forms: Forms = {}
    with closing(ParquetTables(source)) as tables:
        others = [file.name for file in sorted(source.iterdir()) if file.stem not in tables.names()]
        removed = [Removed(name, None, 0, "file left out") for name in others]
        for table in tables.names():
            if not re.match(facts.KNOWN_TABLES, table):
                removed.append(Removed(table, None, tables.count(table), "table left out"))
                continue
            progress(table)
            form: dict[str, pl.DataType] = {}
            for name, dtype in tables.schema(table).items():
                if _declared(dtype) and name.lower() not in map(str.lower, form):
                    form[name] = dtype
                else:
                    removed.append(Removed(table, name, 0, "column left out"))
            if form:
                forms[table] = _inserted(tables, target, table, form)
    return forms, removed


def _declared(dtype: pl.DataType) -> str:
    """The type of a column in SQL; empty for one that no export has."""
    if dtype.is_integer() or dtype == pl.Boolean:
        return "INTEGER"
    if dtype.is_float():
        return "REAL"
    return "TEXT" if dtype in (pl.String, pl.Binary, pl.Categorical, pl.Enum, pl.Null) else ""


def _inserted(
    tables: ParquetTables, target: sqlite3.Connection, table: str, form: dict[str, pl.DataType]
) -> dict[str, pl.DataType]:
    """Copy a table; returns the types of its columns, of texts that are not all UTF-8 bytes."""
    parts = ", ".join(f"{quoted(name)} {_declared(dtype)}" for name, dtype in form.items())
    target.execute(f"CREATE TABLE {quoted(table)} ({parts})")
    # What a file calls binary is text that need not be UTF-8.
    marks = ", ".join("CAST(? AS TEXT)" if _declared(dtype) == "TEXT" else "?" for dtype in form.values())
    into = f"INSERT INTO {quoted(table)} VALUES ({marks})"  # noqa: S608 - the name is quoted
    found = dict(form)
    for page in tables.raw_pages(table, list(form), _PAGE_ROWS):
        found |= {name: dtype for name, dtype in page.schema.items() if dtype == pl.Binary}
        columns = [_plain(page[name]) for name in form]
        sizes = [one.bin.size().sum() for one in columns if one.dtype == pl.Binary]
        if sum(size or 0 for size in sizes) > _MOST_BYTES:
            fault = f"the texts of its table {table} are longer than those of any recording"
            raise UnreadableTraceError(fault, path=tables.path, remedy="export it again")
        target.executemany(into, pl.DataFrame(columns).iter_rows())
    return found


def _plain(values: pl.Series) -> pl.Series:
    """The values as SQLite knows them: integers of 64 bits with a sign, reals, bytes."""
    if values.dtype == pl.UInt64:
        return values.reinterpret(signed=True)
    if values.dtype.is_integer() or values.dtype == pl.Boolean:
        return values.cast(pl.Int64)
    if values.dtype.is_float():
        return values.cast(pl.Float64)
    return values.cast(pl.String).cast(pl.Binary) if values.dtype != pl.Binary else values


def write_folder(
    database: sqlite3.Connection, forms: Forms, folder: Path, progress: Callable[[str], None]
) -> None:
    """Write every table of a database as a Parquet file with the types of `forms`, some ten thousands of rows at a time."""
    for (raw,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        name = raw.decode()
        if name not in forms:
            continue
        progress(name)
        told = [row[1].decode() for row in database.execute(f"PRAGMA table_info({quoted(name)})")]
        form = {column: dtype for column, dtype in forms[name].items() if column in told}
        parts = []
        for number, page in enumerate(_pages(database, name, form)):
            parts.append(folder / f"{number}.part")
            page.write_ipc(parts[-1], compression="lz4")
        pl.scan_ipc(parts).sink_parquet(folder / f"{name}.parquet")
        for part in parts:
            part.unlink()


def _pages(database: sqlite3.Connection, table: str, form: dict[str, pl.DataType]) -> Iterator[pl.DataFrame]:
    """The rows as frames; one without rows where there are none."""
    names = ", ".join(
        f"CAST({quoted(name)} AS BLOB)" if _declared(dtype) == "TEXT" else quoted(name)
        for name, dtype in form.items()
    )
    schema = {
        name: {"INTEGER": pl.Int64(), "REAL": pl.Float64(), "TEXT": pl.Binary()}[_declared(dtype)]
        for name, dtype in form.items()
    }
    rows = database.execute(f"SELECT {names} FROM {quoted(table)} ORDER BY rowid")  # noqa: S608 - names are quoted
    first = True
    while (page := rows.fetchmany(_PAGE_ROWS)) or first:
        first = False
        frame = pl.DataFrame(page, schema=schema, orient="row")
        yield pl.DataFrame([_typed(frame[name], dtype) for name, dtype in form.items()])


def _typed(values: pl.Series, dtype: pl.DataType) -> pl.Series:
    if dtype == pl.UInt64:
        return values.reinterpret(signed=False)
    if values.dtype == pl.Binary:
        return values if dtype == pl.Binary else values.cast(pl.String)
    return values.cast(dtype)


def texts_still_told(folder: Path, values_of: Callable[[str], Sequence[str]]) -> set[str]:
    """The values that stand in a text of a folder of Parquet files, as a reader decodes it, of those to look for in each table."""
    told: set[str] = set()
    for file in sorted(folder.glob("*.parquet")):
        values = values_of(file.stem)
        for name, dtype in pl.read_parquet_schema(file).items():
            if dtype in (pl.String, pl.Binary):
                told |= occurring(_decoded(file, name), values) & set(values)
    return told


def _decoded(file: Path, column: str) -> Iterator[pl.Series]:
    scan = pl.scan_parquet(file).select(column)
    for at in range(0, scan.select(pl.len()).collect().item(), _PAGE_ROWS):
        values = scan.slice(at, _PAGE_ROWS).collect().to_series()
        if values.dtype == pl.Binary:
            values = pl.Series(
                [None if one is None else one.decode("utf-8", "replace") for one in values], dtype=pl.String
            )
        yield values.drop_nulls()
