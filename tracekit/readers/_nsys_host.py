"""The host side of an Nsight Systems export, page by page: NVTX ranges, API calls, calls of libraries and of the OS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import polars as pl

from tracekit.facts import nsys as facts
from tracekit.health import HealthLog
from tracekit.readers._nsys_names import interpreted
from tracekit.readers._nsys_tables import ColumnKind, Tables, whole

__all__ = ["api_calls", "library_calls", "named_threads", "os_calls", "overheads", "ranges", "samples"]

Pages = Iterator[tuple[str, pl.DataFrame]]
"""Frames by the name under which they are collected."""

_UNNAMED: Final = "<unnamed>"
_MOST_STACK_ROWS: Final = 4_000_000
_LONGEST_SYMBOL: Final = 200
_PID_BITS, _TID_BITS = 24, 24

_RANGE_COLUMNS: Final[Mapping[str, ColumnKind]] = {
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


def process_of(column: str) -> pl.Expr:
    """The process that a serialised id names: 8 bits of hardware, 8 of a VM, 24 of a process, 24 of a thread."""
    return ((pl.col(column) // (1 << _TID_BITS)) % (1 << _PID_BITS)).alias("process_id")


def thread_of(column: str) -> pl.Expr:
    """The thread that a serialised id names."""
    return (pl.col(column) % (1 << _TID_BITS)).alias("thread_id")


def texts_of(ids: pl.Series, known: pl.DataFrame) -> pl.Series:
    """The strings with these ids, null where there is none."""
    joined = ids.alias("id").to_frame().join(known, on="id", how="left", maintain_order="left")
    return joined["text"]


def ranges(tables: Tables) -> Pages:
    """Push/pop ranges (`host`), start/end ranges and marks (`ranges`), communication (`collectives`)."""
    texts = tables.texts("NVTX_EVENTS", "textId")
    payloads = tables.texts("NVTX_EVENTS", "jsonTextId")
    domains = _domains(tables)
    there = tables.columns("NVTX_EVENTS")
    kind = pl.col("eventType")
    wanted = {**_RANGE_COLUMNS, **{name: kind for name, kind in _NUMBERS.items() if name in there}}
    for page in tables.pages("NVTX_EVENTS", wanted):
        used = (*facts.NESTED_RANGES, *facts.SPANNING_RANGES, *facts.MARKS)
        rows = page.filter(kind.is_in(used) & pl.col("start").is_not_null())
        if not rows.height:
            continue
        rows = rows.with_columns(
            pl.coalesce("text", texts_of(rows["textId"], texts), pl.lit(_UNNAMED)).alias("text"),
            pl.coalesce("jsonText", texts_of(rows["jsonTextId"], payloads)).alias("json"),
            process_of("globalTid"),
            thread_of("globalTid"),
            (pl.col("end") - pl.col("start")).alias("duration"),
        )
        rows = rows.join(domains, on=["process_id", "domainId"], how="left", maintain_order="left")
        rows = rows.with_columns(
            pl.coalesce("domain", pl.when(pl.col("domainId") > 0).then(pl.format("#{}", "domainId")))
            .cast(pl.Categorical())
            .alias("domain"),
            _payload(there),
        )
        nested = rows.filter(kind.is_in(facts.NESTED_RANGES))
        if nested.height:
            place = ["process_id", "thread_id", "start", "duration", "domain", "payload"]
            host = pl.concat(
                [interpreted(nested.select("text", "domain")), nested.select(place)], how="horizontal"
            )
            yield "host", host
            talk = _collectives(host)
            if talk.height:
                yield "collectives", talk
        others = rows.filter(~kind.is_in(facts.NESTED_RANGES))
        if others.height:
            yield "ranges", _spanning(others)


def _payload(there: frozenset[str]) -> pl.Expr:
    """What a range carries: text of JSON, else its number."""
    numbers = [pl.col(name).cast(pl.String) for name in _NUMBERS if name in there]
    return pl.coalesce("json", *numbers).cast(pl.Categorical()).alias("payload")


def _spanning(rows: pl.DataFrame) -> pl.DataFrame:
    mark = pl.col("eventType").is_in(facts.MARKS)
    return rows.select(
        pl.when(mark).then(pl.lit("mark")).otherwise(pl.lit("start_end")).alias("kind"),
        pl.col("text").cast(pl.Categorical()).alias("name"),
        "domain",
        "payload",
        "process_id",
        "thread_id",
        pl.when(~mark)
        .then(pl.coalesce("endGlobalTid", "globalTid") % (1 << _TID_BITS))
        .alias("end_thread_id"),
        "start",
        pl.when(~mark).then("duration").alias("duration"),
    )


def _collectives(host: pl.DataFrame) -> pl.DataFrame:
    name, payload = pl.col("name").cast(pl.String), pl.col("payload").cast(pl.String)
    chosen = host.select("name").unique().filter(name.str.contains(facts.NCCL_COLLECTIVE))
    rows = host.join(chosen, on="name", how="semi", maintain_order="left")
    field = payload.str.extract
    return rows.select(
        name.str.strip_prefix("nccl").str.to_lowercase().cast(pl.Categorical()).alias("name"),
        field(r'"NCCL communicator ID"\s*:\s*"?(\w+)', 1).alias("group"),
        field(r'"No\. of ranks"\s*:\s*"?(\d{1,9})', 1).cast(pl.Int64).alias("group_size"),
        field(r'"Message size \[bytes\]"\s*:\s*"?(\d{1,18})', 1).cast(pl.Int64).alias("elements_in"),
        pl.lit("byte").cast(pl.Categorical()).alias("dtype"),
        *("process_id", "thread_id", "start", "duration"),
    )


def _domains(tables: Tables) -> pl.DataFrame:
    """`process_id`, `domainId`, `domain`: the names of the domains; the default one, 0, has none."""
    wanted: dict[str, ColumnKind] = {"globalTid": "int", "domainId": "int", "text": "text", "textId": "int"}
    rows = _special(tables, wanted, facts.DOMAIN_CREATED)
    return rows.select(process_of("globalTid"), "domainId", pl.col("name").alias("domain")).unique(
        ["process_id", "domainId"], keep="first", maintain_order=True
    )


def _special(tables: Tables, wanted: Mapping[str, ColumnKind], kind: int) -> pl.DataFrame:
    """The few rows of NVTX_EVENTS of a kind that names something; `name` is the name."""
    schema = {name: pl.String if each == "text" else pl.Int64 for name, each in wanted.items()}
    found = [*tables.pages("NVTX_EVENTS", wanted, only=("eventType", (kind,))), pl.DataFrame(schema=schema)]
    rows = pl.concat(found)
    if not rows.height:
        return rows.with_columns(pl.lit(None, pl.String).alias("name"))
    texts = tables.texts("NVTX_EVENTS", "textId")
    return rows.with_columns(pl.coalesce("text", texts_of(rows["textId"], texts)).alias("name"))


def named_threads(tables: Tables) -> pl.DataFrame:
    """`process_id`, `thread_id`, `name`: what programs and the system call their threads."""
    listed = whole(tables, "ThreadNames", {"globalTid": "int", "nameId": "int"}, 1 << 20)
    listed = listed.with_columns(
        texts_of(listed["nameId"], tables.texts("ThreadNames", "nameId")).alias("name")
    )
    wanted: dict[str, ColumnKind] = {"globalTid": "int", "text": "text", "textId": "int"}
    own = _special(tables, wanted, facts.NAMED_THREAD)
    rows = pl.concat([own.select("globalTid", "name"), listed.select("globalTid", "name")])
    return (
        rows.drop_nulls()
        .select(process_of("globalTid"), thread_of("globalTid"), "name")
        .unique(["process_id", "thread_id"], keep="first", maintain_order=True)
    )


def api_calls(tables: Tables, health: HealthLog) -> Pages:
    """Runtime and driver calls; rows that repeat them are counted."""
    wanted: dict[str, ColumnKind] = {
        "start": "int",
        "end": "int",
        "eventClass": "int",
        "globalTid": "int",
        "correlationId": "int",
        "nameId": "int",
    }
    texts = tables.texts(facts.RUNTIME_TABLE, "nameId").with_columns(
        pl.col("text").str.replace(facts.API_VERSION, "")
    )
    for page in tables.pages(facts.RUNTIME_TABLE, wanted):
        calls = pl.col("eventClass").is_null() | pl.col("eventClass").is_in(facts.API_CLASSES)
        again = page.filter(~calls)
        if again.height:
            health.count("derived:CUDA backtrace", again.height, f"eventClass {again['eventClass'][0]}")
        yield (
            "host",
            _spans(page.filter(calls), "runtime", texts, "nameId").with_columns(
                pl.when(pl.col("correlation") != 0).then("correlation").alias("correlation")
            ),
        )


def library_calls(tables: Tables) -> Pages:
    """Calls of libraries that nsys traces itself, as operators."""
    for table in facts.LIBRARY_TABLES:
        for column in ("nameId", "textId"):
            if column in tables.columns(table):
                yield from _named(tables, table, column, "op")
                break


def overheads(tables: Tables) -> Pages:
    """What the profiler itself cost."""
    for table in facts.OVERHEAD_TABLES:
        yield from _named(tables, table, "nameId", "overhead")


def os_calls(tables: Tables) -> Pages:
    """Calls of the operating system's runtime."""
    for _, frame in _named(tables, "OSRT_API", "nameId", "runtime"):
        yield "os_calls", frame.drop("kind", "correlation")


def _named(tables: Tables, table: str, column: str, kind: str) -> Pages:
    wanted: dict[str, ColumnKind] = {"start": "int", "end": "int", "globalTid": "int", column: "int"}
    texts = tables.texts(table, column)
    for page in tables.pages(table, wanted):
        yield "host", _spans(page, kind, texts, column)


def _spans(rows: pl.DataFrame, kind: str, texts: pl.DataFrame, column: str) -> pl.DataFrame:
    names = texts.with_columns(pl.col("text").cast(pl.Categorical()))
    known = texts_of(rows[column], names)
    unnamed = pl.lit(_UNNAMED).cast(pl.Categorical())
    return rows.filter(pl.col("start").is_not_null()).select(
        pl.lit(kind).alias("kind"),
        pl.coalesce(known.filter(rows["start"].is_not_null()), unnamed).alias("name"),
        process_of("globalTid"),
        thread_of("globalTid"),
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        (pl.col("correlationId") if "correlationId" in rows.columns else pl.lit(None, pl.Int64)).alias(
            "correlation"
        ),
    )


def samples(tables: Tables, health: HealthLog) -> Pages:
    """What the processor did when it was sampled, the outermost function first."""
    rows = tables.count("SAMPLING_CALLCHAINS")
    if not rows:
        return
    if rows > _MOST_STACK_ROWS:
        health.count("unread_table", rows, "SAMPLING_CALLCHAINS")
        return
    chains = whole(tables, "SAMPLING_CALLCHAINS", {"id": "int", "symbol": "int", "stackDepth": "int"}, rows)
    symbols = tables.texts("SAMPLING_CALLCHAINS", "symbol").with_columns(
        pl.col("text").str.slice(0, _LONGEST_SYMBOL).str.replace_all(";", ",", literal=True)
    )
    names = texts_of(chains["symbol"], symbols).fill_null("?")
    stacks = (
        chains.with_columns(names.alias("function"))
        .sort("id", "stackDepth", descending=[False, True])
        .group_by("id", maintain_order=True)
        .agg(pl.col("function").str.join(";").alias("stack"))
    )
    wanted: dict[str, ColumnKind] = {"id": "int", "start": "int", "globalTid": "int"}
    for page in tables.pages("COMPOSITE_EVENTS", wanted):
        yield (
            "samples",
            page.join(stacks, on="id", how="inner", maintain_order="left").select(
                process_of("globalTid"),
                thread_of("globalTid"),
                "start",
                pl.col("stack").cast(pl.Categorical()),
            ),
        )
