"""What an Nsight Systems export tells of its machine and user: read from the parts that a scrubbed copy leaves out."""

# ruff: noqa: S608 - names in SQL are those of the plan, quoted; values are bound

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final

from tracekit.scrub import private_names as facts
from tracekit.scrub.plan import TablePlan, quoted
from tracekit.scrub.values import Values

__all__ = ["find_strings", "find_values"]

_GIVES_AWAY: Final = "instr({0}, x'3d') OR instr({0}, CAST('/home/' AS BLOB)) OR instr(lower({0}), 'users')"
_LONGEST_TEXT: Final = 4 << 20
"""Bytes of a text that is left out which are read: an environment is never as long, what a program printed may be."""

_READ_WHOLE: Final = ("uuid", "devStateName", "stateName")
_LAST_PART: Final = r"[/\\][^/\\]*$"


def find_strings(database: sqlite3.Connection, plans: Sequence[TablePlan]) -> None:
    """Fill the tables `temp.names` and `temp.paths`: the strings that columns of names, and columns of paths, name."""
    for kind, columns in (("names", facts.NAME_IDS), ("paths", facts.PATH_IDS)):
        database.execute(f"CREATE TEMP TABLE {kind} (id INTEGER PRIMARY KEY)")
        for plan in plans:
            for name in plan.string_ids(columns):
                database.execute(
                    f"INSERT OR IGNORE INTO temp.{kind} SELECT {quoted(name)} FROM src.{quoted(plan.name)} "
                    f"WHERE typeof({quoted(name)}) = 'integer'"
                )


def find_values(database: sqlite3.Connection, plans: Sequence[TablePlan], values: Values) -> None:
    """Add to `values` what the rows, columns and strings hold that are left out; `find_strings` comes first."""
    _Finder(database, values).find(plans)


class _Finder:
    def __init__(self, database: sqlite3.Connection, values: Values) -> None:
        self.database = database
        self.values = values

    def find(self, plans: Sequence[TablePlan]) -> None:
        for plan in plans:
            if plan.rows == "capture":
                self._capture(plan)
            elif plan.rows in ("environment", "export"):
                told = self._environment if plan.rows == "environment" else self._export
                for name, value in self._pairs(plan):
                    told(name, value)
            for name in plan.emptied():
                for text in self._telling(plan.name, name, "1"):
                    self._emptied(plan.name, name, text)
        if any(plan.name == facts.STRINGS_TABLE for plan in plans):
            for text in self._telling(facts.STRINGS_TABLE, "value", "id NOT IN (SELECT id FROM temp.names)"):
                self.values.add_text(text)

    def _pairs(self, plan: TablePlan) -> Iterator[tuple[str, str]]:
        if not {"name", "value"} <= {column.name for column in plan.columns}:
            return
        rows = self.database.execute(
            f"SELECT CAST(name AS BLOB), CAST(value AS BLOB) FROM src.{quoted(plan.name)} "
            "WHERE name IS NOT NULL AND value IS NOT NULL"
        )
        for name, value in rows:
            yield name.decode("utf-8", "replace"), value.decode("utf-8", "replace")

    def _environment(self, name: str, value: str) -> None:
        if name == "Hostname":
            self.values.add_host(value)
        elif name == "DeviceEnvironment":
            self.values.add_text(value)
        elif re.search(r"(?i)uuid|SystemUID", name):
            self.values.add(value, "identifier")

    def _export(self, name: str, value: str) -> None:
        if name == "EXPORT_HOST":
            self.values.add_host(value)
        elif name == "EXPORT_USER":
            self.values.add(value, "user")
        elif "PATH" in name:
            self.values.add_path(re.sub(_LAST_PART, "", value))

    def _capture(self, plan: TablePlan) -> None:
        commands: dict[str, list[str]] = {}
        for name, value in self._pairs(plan):
            process, _, key = name.rpartition(":")
            if key == "WORKING_DIR":
                self.values.add_path(value)
            elif key == "USER_NAME":
                self.values.add(value, "user")
            elif key == "DEVICE_DISPLAY_NAME":
                self.values.add_host(value)
            elif key.endswith("UUID"):
                self.values.add(value, "identifier")
            elif re.match(r"COMMAND|ARGUMENT", key):
                commands.setdefault(process, []).append(value)
            else:
                self.values.add_text(value)
        for words in commands.values():
            self.values.add_command(words)

    def _emptied(self, table: str, column: str, text: str) -> None:
        if column == "uuid":
            self.values.add(text, "identifier")
        elif column in _READ_WHOLE and "(" not in text:
            self.values.add_host(text)
        else:
            self.values.add_text(text)
            if table == "PROCESSES" and re.search(_LAST_PART, text):
                self.values.add_path(re.sub(_LAST_PART, "", text))

    def _telling(self, table: str, column: str, where: str) -> Iterator[str]:
        """The distinct texts of a column that is left out, of those that may hold an assignment or a folder."""
        cast = f"CAST({quoted(column)} AS BLOB)"
        whole = column in _READ_WHOLE or table == "PROCESSES"
        wanted = "1" if whole else _GIVES_AWAY.format(cast)
        rows = self.database.execute(
            f"SELECT DISTINCT substr({cast}, 1, {_LONGEST_TEXT}) FROM src.{quoted(table)} "
            f"WHERE typeof({quoted(column)}) IN ('text', 'blob') AND {where} AND ({wanted})"
        )
        for (text,) in rows:
            yield (text or b"").decode("utf-8", "replace")  # a part of no bytes is null
