"""The copying itself: table by table, by the plan of each, with the values that were found replaced in names."""

# ruff: noqa: S608 - names in SQL are those of the plan, quoted; values are bound

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import polars as pl

from tracekit.scrub import private_names as facts
from tracekit.scrub.find import find_strings, find_values
from tracekit.scrub.plan import Removed, TablePlan, check_end, kept_row, listed, plan_of, quoted
from tracekit.scrub.values import Values, occurring, replacer

__all__ = ["Copy", "Removed"]

_FETCHED: Final = 1 << 14


class Copy:
    """One run over the tables of an attached database `src`, into the main one."""

    def __init__(
        self,
        database: sqlite3.Connection,
        also: Iterable[str],
        keep: Iterable[str],
        progress: Callable[[str], None],
    ) -> None:
        self.database = database
        self.progress = progress
        self.removed: list[Removed] = []
        self.plans = self._planned()
        self.values = Values(exempt=frozenset(keep))
        for text in also:
            self.values.add(text, "asked for")
        self.replaced = 0

    def write(self) -> None:
        """Copy every table that is known."""
        find_strings(self.database, self.plans)
        find_values(self.database, self.plans, self.values)
        self.plans = [kept for plan in self.plans if (kept := self._without_telling_names(plan))]
        found = {(plan.name, name): self._found(plan, name) for plan in self.plans for name in plan.texts()}
        self._define(set().union(*found.values()))
        for plan in self.plans:
            self.progress(plan.name)
            self.database.execute(plan.declaration)
            self._copy(plan, {name for name in plan.texts() if found[plan.name, name]})

    def still_told(self, values: Sequence[str]) -> list[str]:
        """Those of the values that stand in a text of the copy."""
        if not values:
            return []
        told: set[str] = set()
        for plan in self.plans:
            for column in (
                plan.columns if plan.rows == "all" else ()
            ):  # other rows are chosen by what they hold
                if column.affinity == "TEXT":
                    told |= occurring(self._texts(f"main.{quoted(plan.name)}", column.name, "1"), values)
        return sorted(told & set(values))

    def _planned(self) -> list[TablePlan]:
        plans: list[TablePlan] = []
        for kind, name, real in listed(self.database):
            if real:
                check_end(self.database, name)
            plan = plan_of(self.database, name) if real else None
            if plan is not None:
                plans.append(plan)
            elif real:
                self._note(
                    name, None, self._one(f"SELECT count(*) FROM src.{quoted(name)}"), "table left out"
                )
            else:
                self._note(name, None, 0, f"{kind} left out")
        return plans

    def _without_telling_names(self, plan: TablePlan) -> TablePlan | None:
        """The plan without columns whose own name holds a value; None for a table of such a name."""
        values = [value.lower() for value in self.values.found if not self.values.is_asked_for(value)]

        def tells(name: str) -> bool:
            return any(value in name.lower() for value in values)

        if tells(plan.name):
            self._note(facts.MARKER, None, 0, "table left out")
            return None
        kept = tuple(column for column in plan.columns if not tells(column.name))
        for _ in range(len(plan.columns) - len(kept)):
            self._note(plan.name, facts.MARKER, 0, "column left out")
        return replace(plan, columns=kept) if kept else None

    def _found(self, plan: TablePlan, column: str) -> set[str]:
        """The values that stand in a column whose text is kept."""
        if plan.rows != "all":
            return set()  # its rows are let through by what they hold
        where = "1"
        if plan.name == facts.STRINGS_TABLE:
            where = "(id IN (SELECT id FROM temp.names) OR id IN (SELECT id FROM temp.paths))"
        return occurring(self._texts(f"src.{quoted(plan.name)}", column, where), self.values.found)

    def _texts(self, table: str, column: str, where: str) -> Iterator[pl.Series]:
        rows = self.database.execute(
            f"SELECT CAST({quoted(column)} AS BLOB) FROM {table} WHERE typeof({quoted(column)}) = 'text' AND {where}"
        )
        while page := rows.fetchmany(_FETCHED):
            raw = pl.DataFrame(page, schema={"text": pl.Binary}, orient="row").to_series()
            try:
                text = raw.cast(pl.String)
            except (
                pl.exceptions.ComputeError,
                pl.exceptions.InvalidOperationError,
            ):  # some of it is no UTF-8
                text = pl.Series([one.decode("utf-8", "replace") for one in raw])
            yield text

    def _define(self, values: set[str]) -> None:
        change = replacer(values)

        def replaced(text: bytes) -> bytes:
            changed = change(text)
            self.replaced += changed != text
            return changed

        def last_part(text: bytes, named: int) -> bytes:
            """The file's name of a path; a string that is a name as well is cut only if it is a whole path."""
            if named and not re.match(rb"/|[A-Za-z]:[/\\]", text):
                return text
            return re.split(rb"[/\\]", text)[-1]

        for name, count, function in (
            ("replaced", 1, replaced),
            ("last_part", 2, last_part),
            ("kept_row", 3, kept_row),
        ):
            self.database.create_function(name, count, function, deterministic=True)

    def _copy(self, plan: TablePlan, with_values: set[str]) -> None:
        table = f"src.{quoted(plan.name)}"
        before = self.replaced
        if plan.rows == "none":
            self._note(plan.name, None, self._one(f"SELECT count(*) FROM {table}"), "rows left out")
            return
        if plan.name == facts.STRINGS_TABLE:
            self._copy_strings(bool(with_values))
        elif plan.rows == "all":
            values = [c.replacing_sql if c.name in with_values else c.sql for c in plan.columns]
            self._insert(plan, f"SELECT {', '.join(values)} FROM {table}")
        else:
            self._copy_rows(plan)
        self._note_emptied(plan, table)
        self._note(plan.name, None, self.replaced - before, "values in names replaced")

    def _insert(self, plan: TablePlan, select: str) -> int:
        names = ", ".join(quoted(column.name) for column in plan.columns)
        return self.database.execute(f"INSERT INTO main.{quoted(plan.name)} ({names}) {select}").rowcount

    def _copy_rows(self, plan: TablePlan) -> None:
        """A table of names and values, of which few are kept."""
        names = [column.name for column in plan.columns]
        total = self._one(f"SELECT count(*) FROM src.{quoted(plan.name)}")
        written = 0
        if {"name", "value"} <= set(names):
            kept = f"kept_row('{plan.rows}', CAST(name AS BLOB), CAST(value AS BLOB))"
            values = [f"CAST({kept} AS TEXT)" if c.name == "value" else c.sql for c in plan.columns]
            written = self._insert(
                plan, f"SELECT {', '.join(values)} FROM src.{quoted(plan.name)} WHERE {kept} IS NOT NULL"
            )
        self._note(plan.name, None, total - written, "rows left out")
        if "value" in names:
            marked = f"SELECT count(*) FROM main.{quoted(plan.name)} WHERE value = ?"
            self._note(plan.name, "value", self._one(marked, facts.MARKER), f"replaced by {facts.MARKER}")

    def _copy_strings(self, with_values: bool) -> None:
        named, path = ("id IN (SELECT id FROM temp.names)", "id IN (SELECT id FROM temp.paths)")
        text = "CAST(value AS BLOB)"
        text = f"CASE WHEN {path} THEN last_part({text}, {named}) ELSE {text} END"
        if with_values:
            text = f"replaced({text})"
        written = self.database.execute(
            f"INSERT INTO main.{quoted(facts.STRINGS_TABLE)} (id, value) SELECT id, "
            f"CAST({text} AS TEXT) "
            f"FROM src.{quoted(facts.STRINGS_TABLE)} WHERE typeof(value) = 'text' AND ({named} OR {path})"
        ).rowcount
        total = self._one(f"SELECT count(*) FROM src.{quoted(facts.STRINGS_TABLE)}")
        self._note(facts.STRINGS_TABLE, None, total - written, "strings left out that no kept column names")
        cut = self._one(
            f"SELECT count(*) FROM src.{quoted(facts.STRINGS_TABLE)} AS old JOIN main.{quoted(facts.STRINGS_TABLE)} "
            f"AS new USING (id) WHERE {path} AND length(CAST(old.value AS BLOB)) > length(CAST(new.value AS BLOB))"
        )
        self._note(facts.STRINGS_TABLE, "value", cut, "paths cut to the name of the file")

    def _note_emptied(self, plan: TablePlan, table: str) -> None:
        names = plan.emptied()
        if not names:
            return
        counted = ", ".join(
            f"total({quoted(name)} IS NOT NULL AND {quoted(name)} NOT IN ('', 0))" for name in names
        )
        counts = self.database.execute(f"SELECT {counted} FROM {table}").fetchone()
        for name, count in zip(names, counts, strict=True):
            self._note(plan.name, name, int(count), "emptied")

    def _one(self, sql: str, *values: Any) -> int:
        return int(self.database.execute(sql, values).fetchone()[0])

    def _note(self, table: str, column: str | None, rows: int, what: str) -> None:
        if rows or (what.endswith("left out") and not what.startswith("rows")):
            self.removed.append(Removed(table, column, rows, what))
