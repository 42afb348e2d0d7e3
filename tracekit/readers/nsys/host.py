"""The host side of an Nsight Systems export, page by page: API calls, calls of libraries and of the OS, samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from tracekit.health import HealthLog
from tracekit.readers.nsys import vocabulary as words
from tracekit.readers.nsys.collectives import OF_MPI, mpi_calls
from tracekit.readers.nsys.ids import UNNAMED, Texts, labels_of, process_of, thread_of
from tracekit.readers.nsys.pages import ColumnKind
from tracekit.readers.nsys.tables import Tables, whole

__all__ = ["api_calls", "library_calls", "named_threads", "os_calls", "overheads", "samples"]

Pages = Iterator[tuple[str, pl.DataFrame]]
"""Pairs of the name of a frame and rows for it."""

_MOST_STACK_ROWS: Final = 4_000_000
_STACK_ROWS: Final = 1 << 17
_DEEPEST_STACK: Final = 1024
_LONGEST_SYMBOL: Final = 200


def named_threads(tables: Tables, own: pl.DataFrame) -> pl.DataFrame:
    """`process_id`, `thread_id`, `name`: the threads' names, from programs (`own`), else from the system."""
    listed = whole(tables, "ThreadNames", {"globalTid": "int", "nameId": "int"}, 1 << 20)
    named = Texts(tables, "ThreadNames", "nameId").of(listed["nameId"]).cast(pl.String).alias("name")
    rows = listed.select(process_of("globalTid"), thread_of("globalTid"), named).drop_nulls()
    names = pl.concat([own, rows])
    return names.unique(["process_id", "thread_id"], keep="first", maintain_order=True)


def api_calls(tables: Tables, health: HealthLog) -> Pages:
    """Runtime and driver calls; rows that repeat calls are counted."""
    wanted: dict[str, ColumnKind] = {
        "start": "int",
        "end": "int",
        "eventClass": "int",
        "globalTid": "int",
        "correlationId": "int",
        "nameId": "int",
    }
    texts = Texts(tables, words.RUNTIME_TABLE, "nameId", without=words.API_VERSION)
    for page in tables.pages(words.RUNTIME_TABLE, wanted):
        calls = pl.col("eventClass").is_null() | pl.col("eventClass").is_in(words.API_CLASSES)
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
    """Calls of libraries that nsys traces itself, as operators, and what those of MPI move (`collectives`)."""
    for table in words.LIBRARY_TABLES:
        for column in ("nameId", "textId"):
            if column in tables.columns(table):
                yield from (_traffic if table in words.MPI_TRAFFIC else _named)(tables, table, column, "op")
                break


def _traffic(tables: Tables, table: str, column: str, kind: str) -> Pages:
    texts = Texts(tables, table, column)
    wanted = (
        "start",
        "end",
        "globalTid",
        column,
        *(name for name in OF_MPI if name in tables.columns(table)),
    )
    for page in tables.pages(table, dict.fromkeys(wanted, "int")):
        calls = _spans(page, kind, texts, column)
        yield "host", calls
        yield "collectives", mpi_calls(calls, page)


def overheads(tables: Tables) -> Pages:
    """The overhead of the profiler itself."""
    labels = labels_of(tables, words.OVERHEAD_LABELS)
    for table in words.OVERHEAD_TABLES:
        yield from _named(tables, table, "nameId", "overhead", ("overheadType", labels))


def os_calls(tables: Tables) -> Pages:
    """Calls of the operating system's runtime."""
    for _, frame in _named(tables, "OSRT_API", "nameId", "runtime"):
        yield "os_calls", frame.drop("kind", "correlation")


def _named(
    tables: Tables, table: str, column: str, kind: str, codes: tuple[str, dict[int, str]] | None = None
) -> Pages:
    """Spans with names from a column, or else from `codes` (another column, with the labels of its codes)."""
    wanted: dict[str, ColumnKind] = {"start": "int", "end": "int", "globalTid": "int", column: "int"}
    if codes is not None:
        wanted[codes[0]] = "int"
    texts = Texts(tables, table, column)
    for page in tables.pages(table, wanted):
        yield "host", _spans(page, kind, texts, column, codes)


def _spans(
    rows: pl.DataFrame, kind: str, texts: Texts, column: str, codes: tuple[str, dict[int, str]] | None = None
) -> pl.DataFrame:
    names: list[pl.Series | pl.Expr] = [texts.of(rows[column])]
    if codes is not None:
        label = pl.col(codes[0]).replace_strict(codes[1], default=None, return_dtype=pl.String)
        names.append(label.cast(pl.Categorical()))
    return rows.select(
        pl.lit(kind).alias("kind"),
        pl.coalesce(*names, pl.lit(UNNAMED).cast(pl.Categorical())).alias("name"),
        process_of("globalTid"),
        thread_of("globalTid"),
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        (pl.col("correlationId") if "correlationId" in rows.columns else pl.lit(None, pl.Int64)).alias(
            "correlation"
        ),
    )


def samples(tables: Tables, health: HealthLog) -> Pages:
    """Samples of the processor's call stack, the outermost function first."""
    rows = tables.count("SAMPLING_CALLCHAINS")
    if not rows:
        return
    if rows > _MOST_STACK_ROWS:
        health.count("unread_table", rows, "SAMPLING_CALLCHAINS")
        return
    chains = whole(tables, "SAMPLING_CALLCHAINS", {"id": "int", "symbol": "int", "stackDepth": "int"}, rows)
    stacks = _stacks(chains, Texts(tables, "SAMPLING_CALLCHAINS", "symbol"))
    wanted: dict[str, ColumnKind] = {"id": "int", "start": "int", "globalTid": "int"}
    for page in tables.pages("COMPOSITE_EVENTS", wanted):
        yield (
            "samples",
            page.join(stacks, on="id", how="inner", maintain_order="left").select(
                process_of("globalTid"), thread_of("globalTid"), "start", "stack"
            ),
        )


def _stacks(chains: pl.DataFrame, symbols: Texts) -> pl.DataFrame:
    """`id` and `stack` (categorical) of call chains; a very deep chain has only its innermost functions.

    The chains are made in batches, to limit how many names are held as text at once.
    """
    inward = chains.sort("id", "stackDepth", maintain_order=True)
    depth = pl.int_range(pl.len()).over("id")
    inward = inward.filter(depth < _DEEPEST_STACK).select("id", "symbol")
    parts = [pl.DataFrame(schema={"id": pl.Int64, "stack": pl.Categorical()})]
    portion = inward["id"].rle_id().to_numpy()
    begins = np.flatnonzero(np.diff(portion, prepend=-1))
    cuts = begins[np.flatnonzero(np.diff(begins // _STACK_ROWS, prepend=-1))].tolist()
    for begin, end in zip(cuts, [*cuts[1:], inward.height], strict=True):
        rows = inward.slice(begin, end - begin)
        names = symbols.of(rows["symbol"]).cast(pl.String).str.slice(0, _LONGEST_SYMBOL)
        function = names.str.replace_all(";", ",", literal=True).fill_null("?").alias("function")
        parts.append(
            rows.with_columns(function)
            .reverse()
            .group_by("id", maintain_order=True)
            .agg(pl.col("function").str.join(";").cast(pl.Categorical()).alias("stack"))
        )
    return pl.concat(parts)
