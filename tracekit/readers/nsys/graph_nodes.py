"""The times at which the nodes of CUDA graphs were made: they link a replayed activity to its capture.

A replayed node is a copy of a captured node, often a copy of a copy. Each row names the node of which it is a copy, if
any. Source: `CUDA_GRAPH_NODE_EVENTS` in NVIDIA's reference of the schema, and its example that finds the call that made
an original node.
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
"""The longest chain of copies that is followed, so that a cycle in a damaged file ends."""


def graph_nodes(tables: Tables, health: HealthLog) -> Pages:
    """Every node, with the thread and the time of its original node's creation."""
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
    """`process_id`, `graph_node`, `first`: the original of each node, or the node itself."""
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
