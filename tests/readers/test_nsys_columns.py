"""The list of tables and columns that the reader reads is what it asks of a file: no less, and no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl
import pytest

from tracekit.limits import Limits
from tracekit.readers.nsys import reader
from tracekit.readers.nsys import vocabulary as facts
from tracekit.readers.nsys.columns import COLUMNS, STRING_COLUMNS
from tracekit.readers.nsys.pages import DTYPES, ColumnKind, Only

PAYLOADS = (facts.PAYLOAD_SCHEMAS, facts.PAYLOAD_ENTRIES, facts.PAYLOAD_COLUMNS)


class Asked:
    """Tables with one row each, of every column but some, that note what they are asked for."""

    path = Path("asked.sqlite")
    replaced_texts = 0

    def __init__(self, lacking: list[str]) -> None:
        self.lacking = lacking
        self.read: dict[str, dict[str, ColumnKind]] = defaultdict(dict)
        self.strings: set[str] = set()

    def names(self) -> list[str]:
        return [*COLUMNS, *PAYLOADS]

    def without_row_ids(self) -> list[str]:
        return []

    def columns(self, table: str) -> frozenset[str]:
        there = [*COLUMNS.get(table, ()), "binaryData"]
        return frozenset(name for name in there if f"{table}.{name}" not in self.lacking)

    def count(self, table: str) -> int:
        return int(table in COLUMNS)

    def pages(
        self, table: str, wanted: Mapping[str, ColumnKind], only: Only | None = None
    ) -> Iterator[pl.DataFrame]:
        self.read[table] |= wanted
        assert only is None or only[0] in wanted
        row = {name: "1" if kind == "text" else 1 for name, kind in wanted.items()} | {
            "eventType": 59,
            "eventClass": 0,
        }
        columns = [
            pl.Series(name, [row[name]]).cast(DTYPES[kind])
            for name, kind in wanted.items()
            if kind != "bytes"
        ]
        yield pl.DataFrame(
            [*columns, *(pl.Series(n, [None], pl.Binary) for n, k in wanted.items() if k == "bytes")]
        )

    def texts(self, table: str, column: str) -> pl.DataFrame:
        self.strings.add(column)
        return pl.DataFrame({"id": [7], "text": [table]})

    def texts_by_id(self, ids: pl.Series) -> pl.DataFrame | None:
        return None

    def close(self) -> None:
        pass


def test_the_list_is_what_the_reader_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_size", lambda _path: 1)
    found: dict[str, dict[str, ColumnKind]] = defaultdict(dict)
    strings: set[str] = set()
    no_names = [f"{table}.nameId" for table in facts.LIBRARY_TABLES]
    for lacking in ([], [*no_names, f"{facts.GRAPH_NODE_TABLES[0]}.graphNodeId"]):
        tables = Asked(lacking)
        monkeypatch.setattr(reader, "open_tables", lambda _path, tables=tables: tables)
        reader.read_nsys(tables.path, Limits())
        strings |= tables.strings
        for table, columns in tables.read.items():
            found[table] |= columns
    del found["DIAGNOSTIC_EVENT"]  # a copy leaves the messages of nsys out: they name folders
    for table in PAYLOADS:
        del found[table]
    for table in facts.NVTX_TABLES:
        assert found[table].pop("binaryData") == "bytes"
    assert strings == STRING_COLUMNS
    assert found == {table: columns for table, columns in COLUMNS.items() if table != "StringIds"}
