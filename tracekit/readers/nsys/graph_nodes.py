"""When the nodes of CUDA graphs were made, in an Nsight Systems export: a replayed activity's link to its capture.

A node that is replayed is a copy of one that was captured, often a copy of a copy: each row tells of which node its own
is a copy, if of any. Source: `CUDA_GRAPH_NODE_EVENTS` in NVIDIA's reference of the schema, and its example that finds the
call which made an original node.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.health import HealthLog
from tracekit.readers.nsys import vocabulary as words
from tracekit.readers.nsys.host import Pages
from tracekit.readers.nsys.ids import process_of, thread_of
from tracekit.readers.nsys.pages import ColumnKind
from tracekit.readers.nsys.tables import Tables, whole

__all__ = ["graph_nodes"]

_MOST_NODES: Final = 4_000_000
_MOST_COPIES: Final = 32
"""Of a copy of a copy of … more is not asked, so that a circle in a damaged file ends."""


def graph_nodes(tables: Tables, health: HealthLog) -> Pages:
    """Every node with the thread and the time at which the node was made of which it is a copy."""
    there = [table for table in words.GRAPH_NODE_TABLES if "graphNodeId" in tables.columns(table)]
    if not there:
        return
    count = tables.count(there[0])
    if count > _MOST_NODES:
        health.count("unread_table", count, there[0])
        return
    wanted: dict[str, ColumnKind] = dict.fromkeys(
        ("start", "globalTid", "graphNodeId", "originalGraphNodeId"), "int"
    )
    rows = whole(tables, there[0], wanted, _MOST_NODES).select(
        process_of("globalTid"),
        thread_of("globalTid"),
        "start",
        pl.col("graphNodeId").alias("graph_node"),
        pl.when(pl.col("originalGraphNodeId") != 0).then("originalGraphNodeId").alias("original"),
    )
    rows = rows.filter(pl.col("process_id").is_not_null() & (pl.col("graph_node") != 0))
    originals = rows.filter(pl.col("original").is_null()).sort("start", maintain_order=True)
    originals = originals.unique(["process_id", "graph_node"], keep="first", maintain_order=True)
    first = _first_of_copies(rows)
    yield (
        "graph_nodes",
        first.join(
            originals.rename({"graph_node": "first"}).drop("original"),
            on=["process_id", "first"],
            maintain_order="left",
        ).drop("first"),
    )


def _first_of_copies(rows: pl.DataFrame) -> pl.DataFrame:
    """`process_id`, `graph_node`, `first`: the node of which each is a copy, or itself."""
    key = ["process_id", "graph_node"]
    copies = (
        rows.drop_nulls("original").select(*key, "original").unique(key, keep="first", maintain_order=True)
    )
    copies = copies.rename({"graph_node": "first"})
    firsts = rows.select(key).unique(maintain_order=True).with_columns(pl.col("graph_node").alias("first"))
    for _ in range(_MOST_COPIES):
        further = firsts.join(copies, on=["process_id", "first"], how="left", maintain_order="left")
        if further["original"].null_count() == further.height:
            break
        firsts = further.select(*key, pl.coalesce("original", "first").alias("first"))
    return firsts
