"""The device side of an Nsight Systems export, page by page: kernels, copies, graphs, waits, metrics, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from tracekit.health import HealthLog
from tracekit.readers.nsys import vocabulary as words
from tracekit.readers.nsys.host import Pages
from tracekit.readers.nsys.ids import UNNAMED, Texts, labels_of, process_of
from tracekit.readers.nsys.pages import ColumnKind
from tracekit.readers.nsys.tables import Tables, whole

__all__ = ["activities", "allocations", "metrics", "waits"]

_ACTIVITY: Final[Mapping[str, ColumnKind]] = {
    "start": "int",
    "end": "int",
    "deviceId": "int",
    "contextId": "int",
    "streamId": "int",
    "correlationId": "int",
    "globalPid": "int",
    "graphNodeId": "int",
}
_KERNEL: Final[Mapping[str, ColumnKind]] = {
    **{f"grid{axis}": "int" for axis in "XYZ"},
    **{f"block{axis}": "int" for axis in "XYZ"},
    "registersPerThread": "int",
    "staticSharedMemory": "int",
    "dynamicSharedMemory": "int",
}
_NAME_COLUMNS: Final = ("demangledName", "mangledName", "shortName")
_MOST_SAMPLES: Final = 4_000_000
_LONGEST_METRIC: Final = 256
_NO_STREAM: Final = 0xFFFFFFFF
"""The value that CUPTI writes for a wait without a stream."""


def activities(tables: Tables) -> Pages:
    """Device activities of all kinds."""
    yield from _kernels(tables)
    memory_kinds = {**words.MEMORY_KINDS, **labels_of(tables, words.MEMORY_KIND_LABELS)}
    copy_kinds = _copy_kinds(tables)
    for table, kind in ((words.MEMCPY_TABLE, "memcpy"), (words.MEMSET_TABLE, "memset")):
        extra: dict[str, ColumnKind] = {"bytes": "int", "copyKind": "int", "srcKind": "int", "dstKind": "int"}
        if kind == "memset":
            extra = {"bytes": "int", "memKind": "int"}
        for page in tables.pages(table, {**_ACTIVITY, **extra}):
            name = _copy_name(copy_kinds, memory_kinds) if kind == "memcpy" else _memset_name(memory_kinds)
            yield "device", _common(page, kind, name, pl.col("bytes"))
    graph: dict[str, ColumnKind] = {**_ACTIVITY, "graphId": "int"}
    for page in tables.pages(words.GRAPH_TABLE, graph):
        name = pl.format("CUDA graph {}", pl.col("graphId").cast(pl.String).fill_null("?"))
        yield "device", _common(page, "graph", name)


def _kernels(tables: Tables) -> Pages:
    there = tables.columns(words.KERNEL_TABLE)
    name_columns = [column for column in _NAME_COLUMNS if column in there]
    texts: dict[str, Texts] = {column: Texts(tables, words.KERNEL_TABLE, column) for column in name_columns}
    wanted: dict[str, ColumnKind] = {**_ACTIVITY, **_KERNEL, **dict.fromkeys(name_columns, "int")}
    unnamed = pl.lit(UNNAMED).cast(pl.Categorical())
    for rows in tables.pages(words.KERNEL_TABLE, wanted):
        names = _names(rows, texts)
        page = rows.with_columns(pl.coalesce(*names, unnamed).alias("name"))
        shared = pl.col("staticSharedMemory") + pl.col("dynamicSharedMemory")
        frame = _common(page, "kernel", pl.col("name"))
        yield (
            "device",
            pl.concat(
                [
                    frame,
                    page.select(
                        _extent(page, "grid"),
                        _extent(page, "block"),
                        (pl.col("gridX") * pl.col("gridY") * pl.col("gridZ")).alias("blocks"),
                        pl.col("registersPerThread").alias("registers"),
                        shared.alias("shared_memory"),
                        pl.col("dynamicSharedMemory").alias("dynamic_shared_memory"),
                    ),
                ],
                how="horizontal",
            ),
        )


def _names(rows: pl.DataFrame, texts: dict[str, Texts]) -> list[pl.Series]:
    """The names from the best column that has all of them, else from all columns together."""
    names: list[pl.Series] = []
    for column, strings in texts.items():
        names.append(strings.of(rows[column]))
        if not names[-1].null_count():
            break
    return names


def _extent(page: pl.DataFrame, what: str) -> pl.Series:
    """`[x, y, z]`; the text is made once per distinct extent."""
    axes = [f"{what}{axis}" for axis in "XYZ"]
    text = pl.format("[{}, {}, {}]", *axes).cast(pl.Categorical())
    extents = page.select(axes).unique().with_columns(text.alias(what))
    return page.select(axes).join(extents, on=axes, how="left", maintain_order="left", nulls_equal=True)[what]


def _common(page: pl.DataFrame, kind: str, name: pl.Expr, size: pl.Expr | None = None) -> pl.DataFrame:
    return page.select(
        process_of("globalPid"),
        pl.lit(kind).alias("kind"),
        name.cast(pl.Categorical()).alias("name"),
        pl.col("deviceId").alias("device_id"),
        pl.col("contextId").alias("context_id"),
        pl.col("streamId").alias("stream_id"),
        "start",
        (pl.col("end") - pl.col("start")).alias("duration"),
        pl.when(pl.col("correlationId") != 0).then("correlationId").alias("correlation"),
        pl.when(pl.col("graphNodeId") != 0).then("graphNodeId").alias("graph_node"),
        (pl.lit(None, pl.Int64) if size is None else size).alias("bytes"),
    )


def _copy_kinds(tables: Tables) -> dict[int, str]:
    table, long, short = words.COPY_KIND_LABELS
    labels = labels_of(tables, table)
    kinds = pl.Series(list(labels.values()), dtype=pl.String).str.replace(long, short)
    return {**words.COPY_KINDS, **dict(zip(labels, kinds, strict=True))}


def _named(column: str, kinds: dict[int, str]) -> pl.Expr:
    return pl.col(column).replace_strict(kinds, default="Unknown", return_dtype=pl.String)


def _copy_name(copies: dict[int, str], memories: dict[int, str]) -> pl.Expr:
    """The name as PyTorch's profiler writes it: `Memcpy HtoD (Pinned -> Device)`."""
    kinds = [_named("copyKind", copies), _named("srcKind", memories), _named("dstKind", memories)]
    return pl.format("Memcpy {} ({} -> {})", *kinds)


def _memset_name(memories: dict[int, str]) -> pl.Expr:
    return pl.format("Memset ({})", _named("memKind", memories))


def waits(tables: Tables) -> Pages:
    """Waits for events, streams and contexts."""
    wanted: dict[str, ColumnKind] = {
        **{name: kind for name, kind in _ACTIVITY.items() if name != "graphNodeId"},
        "syncType": "int",
        "deprecatedSyncType": "int",
        "eventId": "int",
        "eventSyncId": "int",
    }
    key = ["globalPid", "eventId", "eventSyncId"]
    recorded = _recorded_events(tables).unique(key, keep="last", maintain_order=True)
    for page in tables.pages(words.SYNC_TABLE, wanted):
        rows = page.join(recorded, on=key, how="left", maintain_order="left")
        stream = pl.col("streamId")
        yield (
            "syncs",
            rows.select(
                process_of("globalPid"),
                _sync_type()
                .replace_strict(words.SYNC_NAMES, default="Unknown Sync", return_dtype=pl.String)
                .cast(pl.Categorical())
                .alias("name"),
                pl.col("deviceId").alias("device_id"),
                pl.col("contextId").alias("context_id"),
                pl.when(stream < _NO_STREAM).then(stream).alias("stream_id"),
                "start",
                (pl.col("end") - pl.col("start")).alias("duration"),
                pl.col("correlationId").alias("correlation"),
                pl.col("recorded_stream").alias("wait_on_stream"),
                pl.col("recorded_by").alias("wait_on_correlation"),
            ),
        )


def _sync_type() -> pl.Expr:
    """The kind of a wait; if a new version exported an old report, the older column has it."""
    return pl.when(pl.col("syncType") != 0).then("syncType").otherwise("deprecatedSyncType")


def _recorded_events(tables: Tables) -> pl.DataFrame:
    wanted: dict[str, ColumnKind] = dict.fromkeys(
        ("globalPid", "eventId", "eventSyncId", "streamId", "correlationId"), "int"
    )
    rows = whole(tables, "CUPTI_ACTIVITY_KIND_CUDA_EVENT", wanted, _MOST_SAMPLES)
    return rows.rename({"streamId": "recorded_stream", "correlationId": "recorded_by"})


def metrics(tables: Tables, health: HealthLog) -> Pages:
    """Samples of the hardware's metrics, of every GPU; an evenly spaced part of them if a file holds very many."""
    rows = tables.count("GPU_METRICS")
    every = -(-rows // _MOST_SAMPLES)
    if every > 1:
        health.count("thinned_metrics", rows, f"one moment in {every} was kept")
    names = whole(
        tables,
        "TARGET_INFO_GPU_METRICS",
        {"typeId": "int", "sourceId": "int", "metricId": "int", "metricName": "text"},
        1 << 16,
    ).unique(["typeId", "metricId"], keep="first")
    short = pl.col("metricName").str.slice(0, _LONGEST_METRIC).cast(pl.Categorical())
    names = names.with_columns(short)
    wanted: dict[str, ColumnKind] = {"timestamp": "int", "typeId": "int", "metricId": "int", "value": "float"}
    seen, last = 0, None
    for page in tables.pages("GPU_METRICS", wanted):
        moment = page["timestamp"].rle_id().cast(pl.Int64) + seen
        if last is not None and page["timestamp"][0] != last:
            moment += 1
        seen, last = int(moment[-1]), page["timestamp"][-1]
        kept = page.filter(moment % every == 0) if every > 1 else page
        joined = kept.join(names, on=["typeId", "metricId"], how="left", maintain_order="left")
        yield (
            "counters",
            joined.select(
                pl.format("GPU {}", pl.col("typeId") % 256).cast(pl.Categorical()).alias("name"),
                pl.coalesce("metricName", pl.format("metric {}", "metricId").cast(pl.Categorical())).alias(
                    "series"
                ),
                pl.col("timestamp").alias("start"),
                "value",
            ),
        )


def allocations(tables: Tables) -> Pages:
    """Device memory that the driver allocates and frees."""
    wanted: dict[str, ColumnKind] = dict.fromkeys(
        ("start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType"), "int"
    )
    for page in tables.pages("CUDA_GPU_MEMORY_USAGE_EVENTS", wanted):
        sign = pl.when(pl.col("memoryOperationType") == 1).then(-1).otherwise(1)
        on_host = pl.col("memKind").is_in([0, 1])
        yield (
            "memory",
            page.select(
                "start",
                process_of("globalPid"),
                pl.when(on_host).then(-1).otherwise("deviceId").alias("device_id"),
                "address",
                (pl.col("bytes") * sign).alias("bytes"),
            ),
        )
