"""What becomes of each table and column of an Nsight Systems export when it is scrubbed."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from typing import Final, Literal

from tracekit.limits import LONGEST_DEFAULT, SMALLEST_ROW
from tracekit.scrub import private_names as facts

__all__ = ["ColumnPlan", "Removed", "TablePlan", "check_end", "kept_row", "listed", "plan_of", "quoted"]

Treatment = Literal["number", "text", "date", "empty", "zero"]
Rows = Literal["all", "none", "export", "capture", "environment"]

_DATE: Final = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9][ T][0-9][0-9]:[0-9][0-9]:[0-9][0-9]"
_NAME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9_]{0,63}$")
_ROWS: Final[dict[str, Rows]] = {
    "META_DATA_EXPORT": "export",
    "EXPORT_META_DATA": "export",
    "META_DATA_CAPTURE": "capture",
    "TARGET_INFO_SYSTEM_ENV": "environment",
    **dict.fromkeys(facts.EMPTIED_TABLES, "none"),
}


@dataclass(frozen=True)
class Removed:
    """What was done to one table or column: `what` in words, and in how many rows."""

    table: str
    column: str | None
    rows: int
    what: str


@dataclass(frozen=True)
class ColumnPlan:
    """One column of the copy. `sql` is the value that it gets, when no text in it is to be replaced."""

    name: str
    treatment: Treatment
    affinity: str
    required: bool
    """Whether the input declares it NOT NULL."""

    key: int
    """Its place in the primary key, from 1; 0 is none."""

    @property
    def declaration(self) -> str:
        """Its part of CREATE TABLE, written anew: what the input says there might be anything."""
        return f"{quoted(self.name)} {self.affinity}"

    @property
    def sql(self) -> str:
        """The value in terms of the input's column."""
        column = quoted(self.name)
        if self.treatment == "number":
            return f"CASE WHEN typeof({column}) IN ('integer', 'real') THEN {column} END"
        if self.treatment == "text":
            return f"CASE typeof({column}) WHEN 'text' THEN {column} END"
        if self.treatment == "date":
            return f"CASE WHEN {column} GLOB '{_DATE}' THEN {column} END"
        if not self.required:
            return "NULL"
        return "''" if self.affinity == "TEXT" else "0"

    @property
    def replacing_sql(self) -> str:
        """The same, with the values that were found in it replaced; as bytes, since not all text is UTF-8."""
        replaced = f"CAST(replaced(CAST({quoted(self.name)} AS BLOB)) AS TEXT)"
        return f"CASE typeof({quoted(self.name)}) WHEN 'text' THEN {replaced} END"


@dataclass(frozen=True)
class TablePlan:
    """One table of the copy. With `rows` other than "all", only rows that `kept_row` lets through."""

    name: str
    columns: tuple[ColumnPlan, ...]
    rows: Rows

    @property
    def declaration(self) -> str:
        """The statement that makes it."""
        keys = [column.name for column in sorted(self.columns, key=lambda column: column.key) if column.key]
        parts = [column.declaration for column in self.columns]
        if keys:
            parts.append(f"PRIMARY KEY ({', '.join(map(quoted, keys))})")
        return f"CREATE TABLE main.{quoted(self.name)} ({', '.join(parts)})"

    def texts(self) -> list[str]:
        """The columns whose text is kept."""
        return [column.name for column in self.columns if column.treatment == "text"]

    def emptied(self) -> list[str]:
        """The columns of which nothing is kept."""
        return [column.name for column in self.columns if column.treatment in ("empty", "zero")]

    def string_ids(self, names: frozenset[str]) -> list[str]:
        """The columns that name strings and are among `names`; none of a table whose rows are all left out."""
        numbers = [column.name for column in self.columns if column.treatment == "number"]
        return [] if self.rows == "none" else [name for name in numbers if name in names]


def listed(database: sqlite3.Connection) -> list[tuple[str, str, bool]]:
    """Kind and name of all but the indexes in the attached database `src`, and whether it is a table with row ids."""
    found = []
    rows = database.execute("SELECT type, name, rootpage, sql FROM src.sqlite_master ORDER BY rowid")
    for kind, raw, root, sql in rows.fetchall():
        name = raw.decode("utf-8", "replace")
        if kind != b"index" and not name.startswith("sqlite_"):
            real = kind == b"table" and root and not re.search(rb"(?i)WITHOUT\s+ROWID[\s,\w]*$", sql)
            found.append((kind.decode("utf-8", "replace"), name, bool(real)))
    return found


def check_end(database: sqlite3.Connection, table: str) -> None:
    """Raises sqlite3.DatabaseError for a table with more rows than fit into the file: its pages refer to each other in a circle."""
    (pages,), (size,) = (
        database.execute(f"PRAGMA src.{what}").fetchone() for what in ("page_count", "page_size")
    )
    most = pages * size // SMALLEST_ROW
    beyond = f"SELECT 1 FROM src.{quoted(table)} LIMIT 1 OFFSET {most}"  # noqa: S608 - it is quoted
    if database.execute(beyond).fetchone():
        raise sqlite3.DatabaseError("pages of the database form a circle")


def plan_of(database: sqlite3.Connection, table: str) -> TablePlan | None:
    """The plan for a table of the attached database `src`; None for one that is left out."""
    if not re.match(facts.KNOWN_TABLES, table):
        return None
    told = database.execute(f"PRAGMA src.table_xinfo({quoted(table)})").fetchall()
    columns = tuple(
        _column(
            table, name.decode("utf-8", "replace"), declared.decode("utf-8", "replace"), bool(required), key
        )
        for _, name, declared, required, default, key, hidden in told
        if not hidden
        and len(default or b"") <= LONGEST_DEFAULT
        and _NAME.match(name.decode("utf-8", "replace"))
    )
    if table == facts.STRINGS_TABLE and not {"id", "value"} <= {column.name for column in columns}:
        return None
    return TablePlan(table, columns, _ROWS.get(table, "all")) if columns else None


def _column(table: str, name: str, declared: str, required: bool, key: int) -> ColumnPlan:
    affinity = _affinity(declared)
    treatment: Treatment = "empty"
    if affinity != "TEXT":
        treatment = "zero" if name in facts.PRIVATE_NUMBERS else "number"
    elif name == "utcTime":
        treatment = "date"
    elif re.match(facts.KEPT_TEXTS, f"{table}.{name}") or (table in _ROWS and name in ("name", "value")):
        treatment = "text"
    return ColumnPlan(name, treatment, affinity, required, key)


def _affinity(declared: str) -> str:
    """INTEGER, INT, REAL or TEXT, after SQLite's rules; whatever else was declared is taken for text.

    INT is no INTEGER in a primary key: rows of the latter are ordered by it, and the copy keeps the order of rows.
    """
    upper = declared.upper()
    if "INT" in upper:
        return "INTEGER" if upper == "INTEGER" else "INT"
    return "REAL" if any(word in upper for word in ("REAL", "FLOA", "DOUB")) else "TEXT"


def kept_row(rows: str, name: bytes | None, value: bytes | None) -> bytes | None:
    """The value that a row of a name and a value keeps; None for a row that is left out.

    >>> kept_row("export", b"EXPORT_SCHEMA_VERSION", b"3.25.0"), kept_row("export", b"EXPORT_HOST", b"box7")
    (b'3.25.0', b'[scrubbed]')
    >>> kept_row("environment", b"Hostname", b"box7")
    """
    named = (name or b"").decode("utf-8", "replace")
    text = (value or b"").decode("utf-8", "replace")
    if rows == "capture":
        known = re.fullmatch(facts.CAPTURE_NAMES, named) and re.fullmatch(facts.CAPTURE_VALUES, text)
        return text.encode() if known else None
    allowed = facts.EXPORT_ROWS if rows == "export" else facts.ENVIRONMENT_ROWS
    pattern = allowed.get(named)
    if pattern is None:
        return None
    if re.fullmatch(pattern, text):
        return text.encode()
    return facts.MARKER.encode() if rows == "export" else None


def quoted(name: str) -> str:
    """A name in SQL.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'
