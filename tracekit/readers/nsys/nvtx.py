"""NVTX in an Nsight Systems export: ranges of threads and of processes, marks, and the names of domains and threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.health import HealthLog
from tracekit.readers.nsys import vocabulary as words
from tracekit.readers.nsys.collectives import collectives_in
from tracekit.readers.nsys.ids import UNNAMED, Texts, process_of, thread_of
from tracekit.readers.nsys.nvtx_texts import interpreted
from tracekit.readers.nsys.pages import ColumnKind
from tracekit.readers.nsys.payloads import Payloads
from tracekit.readers.nsys.tables import Tables

__all__ = ["NvtxNames", "nvtx_names", "ranges"]

_TABLE: Final = "NVTX_EVENTS"
_COLUMNS: Final[Mapping[str, ColumnKind]] = {
    "start": "int",
    "end": "int",
    "eventType": "int",
    "text": "text",
    "textId": "int",
    "globalTid": "int",
    "endGlobalTid": "int",
    "domainId": "int",
    "jsonText": "text",
    "jsonTextId": "int",
}
_NUMBERS: Final[Mapping[str, ColumnKind]] = {
    "uint64Value": "int",
    "int64Value": "int",
    "uint32Value": "int",
    "int32Value": "int",
    "doubleValue": "float",
    "floatValue": "float",
}
_USED: Final = (*words.NESTED_RANGES, *words.SPANNING_RANGES, *words.MARKS)


@dataclass(frozen=True, slots=True, eq=False)
class NvtxNames:
    """Names from rows of NVTX."""

    domains: pl.DataFrame  # `process_id`, `domainId`, `domain`
    threads: pl.DataFrame  # `process_id`, `thread_id`, `name`
    ranks: dict[int, int]  # from the name of a process's thread, by process


def nvtx_names(tables: Tables) -> NvtxNames:
    """Names from rows of NVTX; the default domain, 0, has no name."""
    wanted: dict[str, ColumnKind] = {
        name: _COLUMNS[name] for name in ("eventType", "globalTid", "domainId", "text", "textId")
    }
    only = ("eventType", (words.NAMED_THREAD, words.DOMAIN_CREATED))
    schema = {name: pl.String if kind == "text" else pl.Int64 for name, kind in wanted.items()}
    rows = pl.concat([*tables.pages(_TABLE, wanted, only=only), pl.DataFrame(schema=schema)])
    name = pl.coalesce("text", Texts(tables, _TABLE, "textId").strings(rows["textId"]))
    rows = rows.with_columns(name.alias("name"), process_of("globalTid"), thread_of("globalTid"))
    kind = pl.col("eventType")
    domains = rows.filter(kind == words.DOMAIN_CREATED).select(
        "process_id", "domainId", pl.col("name").cast(pl.Categorical()).alias("domain")
    )
    threads = rows.filter(kind == words.NAMED_THREAD).select("process_id", "thread_id", "name").drop_nulls()
    ranks = threads.select("process_id", pl.col("name").str.extract(words.RANK_NAME).cast(pl.Int64))
    return NvtxNames(
        domains=domains.unique(["process_id", "domainId"], keep="first", maintain_order=True),
        threads=threads,
        ranks=dict(ranks.drop_nulls().rows()),
    )


def ranges(tables: Tables, names: NvtxNames, health: HealthLog) -> Iterator[tuple[str, pl.DataFrame]]:
    """Push/pop ranges (`host`), start/end ranges and marks (`ranges`), communication (`collectives`)."""
    binary = Payloads(tables)
    for table in words.NVTX_TABLES:
        yield from _ranges_of(tables, table, names, binary)
    health.count("unread_payload", binary.unread, "of NVTX ranges")


def _ranges_of(
    tables: Tables, table: str, names: NvtxNames, binary: Payloads
) -> Iterator[tuple[str, pl.DataFrame]]:
    texts, payloads = Texts(tables, table, "textId"), Texts(tables, table, "jsonTextId")
    there = tables.columns(table)
    numbers = [name for name in _NUMBERS if name in there]
    kind = pl.col("eventType")
    # Old exports write 0 or an empty text instead of null.
    ended, written = pl.when(pl.col("end") != 0).then("end"), pl.when(pl.col("text") != "").then("text")
    wanted = {**_COLUMNS, **binary.columns, **{name: _NUMBERS[name] for name in numbers}}
    for page in tables.pages(table, wanted):
        rows = page.filter(kind.is_in(_USED))
        if not rows.height:
            continue
        rows = rows.select(
            "eventType",
            "endGlobalTid",
            "start",
            (ended - pl.col("start")).alias("duration"),
            process_of("globalTid"),
            thread_of("globalTid"),
            pl.coalesce(written, texts.strings(rows["textId"]), pl.lit(UNNAMED)).alias("text"),
            _domain(rows, names.domains).alias("domain"),
            _payload(rows, payloads, numbers, binary).alias("payload"),
        )
        nested = rows.filter(kind.is_in(words.NESTED_RANGES))
        if nested.height:
            place = ["process_id", "thread_id", "start", "duration", "domain", "payload"]
            meaning = interpreted(nested.select("text", "domain"))
            host = pl.concat([meaning, nested.select(place)], how="horizontal")
            yield "host", host
            talk = collectives_in(host)
            if talk.height:
                yield "collectives", talk
        others = rows.filter(~kind.is_in(words.NESTED_RANGES))
        if others.height:
            yield "ranges", _spanning(others)


def _domain(rows: pl.DataFrame, domains: pl.DataFrame) -> pl.Series:
    """The names of the rows' domains; a domain without a recorded name has its number as name."""
    if not domains.height and not (rows["domainId"] > 0).any():
        return pl.Series("domain", [None], dtype=pl.Categorical()).new_from_index(0, rows.height)
    key = ["process_id", "domainId"]
    used = rows.select(process_of("globalTid"), "domainId")
    names = used.unique().join(domains, on=key, how="left")
    number = pl.when(pl.col("domainId") > 0).then(pl.format("#{}", "domainId")).cast(pl.Categorical())
    names = names.with_columns(pl.coalesce("domain", number).alias("domain"))
    return used.join(names, on=key, how="left", maintain_order="left", nulls_equal=True)["domain"]


def _payload(rows: pl.DataFrame, texts: Texts, numbers: list[str], binary: Payloads) -> pl.Series:
    """The payload of a range: its JSON text, else the numbers in its bytes, else its number."""
    columns = [name for name in ("jsonText", *numbers) if rows[name].null_count() < rows.height]
    written = [pl.col(name).cast(pl.String).cast(pl.Categorical()) for name in columns]
    json = written.pop(0) if "jsonText" in columns else pl.lit(None, pl.Categorical())
    payload = pl.coalesce(texts.of(rows["jsonTextId"]), json, binary.of(rows), *written)
    return rows.select(payload.alias("payload")).to_series()


def _spanning(rows: pl.DataFrame) -> pl.DataFrame:
    mark = pl.col("eventType").is_in(words.MARKS)
    ended = pl.coalesce(thread_of("endGlobalTid"), "thread_id")
    return rows.select(
        pl.when(mark).then(pl.lit("mark")).otherwise(pl.lit("start_end")).alias("kind"),
        pl.col("text").cast(pl.Categorical()).alias("name"),
        "domain",
        "payload",
        "process_id",
        "thread_id",
        pl.when(~mark).then(ended).alias("end_thread_id"),
        "start",
        pl.when(~mark).then("duration").alias("duration"),
    )
