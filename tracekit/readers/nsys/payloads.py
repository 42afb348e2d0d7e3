"""Binary payloads of an Nsight Systems export, decoded by the schemas in the export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.readers.nsys import vocabulary as words
from tracekit.readers.nsys.pages import ColumnKind
from tracekit.readers.nsys.tables import Tables, whole

__all__ = ["Payloads"]

_MOST_ENTRIES: Final = 1 << 14
_MOST_LAYOUTS: Final = 1 << 10
_MOST_FIELDS: Final = 16
_LONGEST_TITLE: Final = 64
_MOST_ROWS: Final = 1 << 22
"""The most payloads from separate tables that are held until their events are read."""

_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Field:
    """A number of a payload."""

    title: str
    dtype: pl.DataType
    offset: int  # of its first byte
    width: int  # in bytes


@dataclass(frozen=True, slots=True)
class _Layout:
    """The numbers of payloads of one schema."""

    size: int  # of a payload, in bytes
    fields: tuple[_Field, ...]


class Payloads:
    """The data of payloads as JSON text; `unread` counts payloads that their schema does not explain."""

    def __init__(self, tables: Tables) -> None:
        self._layouts = _layouts(tables)
        keys = dict.fromkeys(("domain", "schema"), pl.UInt64)
        positive = [key for key in self._layouts if min(key) >= 0]
        self._keys = pl.DataFrame(positive, schema=keys, orient="row")
        self._of_tables = _of_tables(tables, self._layouts)
        self.unread = 0
        self.columns: Mapping[str, ColumnKind] = {
            **({"binaryData": "bytes"} if tables.columns(words.PAYLOAD_SCHEMAS) else {}),
            **({"eventId": "int"} if self._of_tables.height else {}),
        }
        """The columns of the events that it needs."""

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """The payload of each row as a categorical column, null without a payload."""
        payload = pl.Series([None], dtype=pl.Categorical()).new_from_index(0, rows.height)
        if "eventId" in self.columns and rows["eventId"].null_count() < rows.height:
            payload = rows.select("eventId").join(
                self._of_tables, on="eventId", how="left", maintain_order="left"
            )["json"]
        if "binaryData" in self.columns and rows["binaryData"].null_count() < rows.height:
            payload = pl.select(pl.coalesce(payload, self._decoded(rows))).to_series()
        return payload

    def _decoded(self, rows: pl.DataFrame) -> pl.Series:
        key = ["domainId", "binaryData"]
        payloads = rows.select(key).drop_nulls("binaryData").unique()

        def head(place: int) -> pl.Expr:
            return (
                pl.col("binaryData")
                .bin.slice(8 * place, 8)
                .bin.reinterpret(dtype=pl.UInt64, endianness="little")
            )

        longer = pl.col("binaryData").bin.size() > words.PAYLOAD_HEAD_BYTES
        parts = payloads.filter(longer).with_columns(
            head(0).alias("domain"), head(1).alias("schema"), head(2).alias("size")
        )
        empty = pl.DataFrame(schema={**payloads.schema, "json": pl.Categorical()})
        readable = parts.join(self._keys, on=["domain", "schema"], how="semi")
        explained = (
            _explained(part, self._layouts[part.select("domain", "schema").row(0)])
            for part in readable.partition_by("domain", "schema")
        )
        joined = rows.select(key).join(
            pl.concat([empty, *explained]), on=key, how="left", maintain_order="left", nulls_equal=True
        )
        self.unread += joined["json"].null_count() - rows["binaryData"].null_count()
        return joined["json"]


def _explained(part: pl.DataFrame, layout: _Layout) -> pl.DataFrame:
    """The payloads whose head agrees with their row and their schema, with their data."""
    size = pl.col("binaryData").bin.size().cast(pl.Int64)
    agrees = (pl.col("size") == layout.size) & (size == words.PAYLOAD_HEAD_BYTES + layout.size)
    agrees &= (pl.col("domainId") == pl.col("domain").cast(pl.Int64, strict=False)).fill_null(value=True)
    fields = [
        pl.col("binaryData")
        .bin.slice(words.PAYLOAD_HEAD_BYTES + field.offset, field.width)
        .bin.reinterpret(dtype=field.dtype, endianness="little")
        .alias(field.title)
        for field in layout.fields
    ]
    payload = pl.struct(fields).struct.json_encode().cast(pl.Categorical()).alias("json")
    return part.filter(agrees).select("domainId", "binaryData", payload)


def _layouts(tables: Tables) -> dict[_Key, _Layout]:
    """The layouts of payloads by domain and schema; if two with the same number differ, neither is used."""
    key: dict[str, ColumnKind] = {"domainId": "int", "schemaId": "int"}
    of_schema: dict[str, ColumnKind] = {**key, "type": "int", "payloadSize": "int"}
    of_entry: dict[str, ColumnKind] = {
        "idx": "int",
        "flags": "int",
        "type": "int",
        "name": "text",
        "offset": "int",
    }
    schemas = whole(tables, words.PAYLOAD_SCHEMAS, of_schema, _MOST_ENTRIES).unique()
    entries = (
        whole(tables, words.PAYLOAD_ENTRIES, {**key, **of_entry}, _MOST_ENTRIES).unique().sort("idx", "name")
    )
    # Each process has its own numbers of schemas.
    plain = pl.struct(*key).is_unique() & (pl.col("type") == words.FIXED_LAYOUT) & (pl.col("payloadSize") > 0)
    layouts: dict[_Key, _Layout] = {}
    for domain, schema, _, size in schemas.drop_nulls(list(key)).filter(plain).sort(*key).rows():
        own = entries.filter((pl.col("domainId") == domain) & (pl.col("schemaId") == schema))
        fields = _fields(own, size) if own["idx"].is_unique().all() else ()
        if fields and len(layouts) < _MOST_LAYOUTS:
            layouts[domain, schema] = _Layout(size, fields)
    return layouts


def _fields(entries: pl.DataFrame, size: int) -> tuple[_Field, ...]:
    fields: dict[str, _Field] = {}
    for row in entries.iter_rows(named=True):
        title = (row["name"] or "")[:_LONGEST_TITLE]
        number = words.PAYLOAD_TYPES.get(row["type"])
        # The first entry has the offset 0, which is written as null.
        offset = row["offset"] if row["offset"] is not None or row["idx"] else 0
        if (
            not title
            or title in fields
            or number is None
            or offset is None
            or (row["flags"] or 0) & words.NOT_IN_PLACE
        ):
            continue
        dtype, width = getattr(pl, number[0])(), number[1]
        if 0 <= offset <= size - width and len(fields) < _MOST_FIELDS:
            fields[title] = _Field(title, dtype, offset, width)
    return tuple(fields.values())


def _of_tables(tables: Tables, layouts: Mapping[_Key, _Layout]) -> pl.DataFrame:
    """`eventId` and `json` of payloads in separate tables."""
    names: dict[str, ColumnKind] = {"originalName": "text", "sanitizedName": "text"}
    shown = whole(tables, words.PAYLOAD_COLUMNS, names, _MOST_ENTRIES).drop_nulls()
    sanitised = dict(shown.rows())
    parts = [pl.DataFrame(schema={"eventId": pl.Int64, "json": pl.Categorical()})]
    room = _MOST_ROWS
    all_names = pl.Series("table", tables.names(), dtype=pl.String)
    matched = all_names.to_frame().with_columns(
        *(
            pl.col("table").str.extract(words.PAYLOAD_TABLE, place).cast(pl.Int64, strict=False).alias(name)
            for place, name in ((1, "domain"), (2, "schema"))
        )
    )
    for table, domain, schema in matched.drop_nulls().rows():
        there = tables.columns(table)
        layout = layouts.get((domain, schema))
        fields = {sanitised.get(field.title, field.title): field for field in layout.fields} if layout else {}
        fields = {column: field for column, field in fields.items() if column in there}
        if not fields or "eventId" not in there or room <= 0:
            continue
        wanted: dict[str, ColumnKind] = {"eventId": "int"}
        wanted |= {name: "float" if field.dtype.is_float() else "int" for name, field in fields.items()}
        rows = whole(tables, table, wanted, room)
        room -= rows.height
        payload = pl.struct(_widened(name, field) for name, field in fields.items()).struct.json_encode()
        parts.append(rows.select("eventId", payload.cast(pl.Categorical()).alias("json")))
    return pl.concat(parts).drop_nulls("eventId").unique("eventId", keep="first", maintain_order=True)


def _widened(column: str, field: _Field) -> pl.Expr:
    """A number of a table, with its title. SQLite stores unsigned 64-bit numbers as signed."""
    value = pl.col(column)
    return (value.reinterpret(signed=False) if field.dtype == pl.UInt64 else value).alias(field.title)
