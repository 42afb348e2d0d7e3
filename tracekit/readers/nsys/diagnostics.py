"""What nsys itself says of a recording: how many events it collected, and that it may not have collected all.

Its messages may name folders and programs, so none of them is shown.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.facts.units import format_count
from tracekit.health import HealthLog
from tracekit.readers.nsys import vocabulary as words
from tracekit.readers.nsys.tables import Tables, whole

__all__ = ["count_diagnostics"]

_TABLE: Final = "DIAGNOSTIC_EVENT"
_MOST_MESSAGES: Final = 100_000
_COLLECTED: Final = r"^Number of (CUDA|NVTX) events collected:\s*(\d{1,15})\b"
_MAYBE: Final = r"^Not all (CUDA|NVTX) events might have been collected"
_TABLES: Final = {
    "CUDA": (
        *(words.KERNEL_TABLE, words.MEMCPY_TABLE, words.MEMSET_TABLE, words.GRAPH_TABLE, words.RUNTIME_TABLE),
        *(words.SYNC_TABLE, "CUPTI_ACTIVITY_KIND_CUDA_EVENT"),
    ),
    "NVTX": ("NVTX_EVENTS",),
}
"""The tables that hold the events of a message, and more of them than the message may count."""

_PART: Final = 0.9
"""An export with less than this part of the collected events lacks some."""


def count_diagnostics(tables: Tables, health: HealthLog) -> None:
    """Count the events that nsys collected and the export lacks, and its warnings that events may be missing."""
    messages = whole(tables, _TABLE, {"text": "text"}, _MOST_MESSAGES).drop_nulls()["text"]
    found = messages.str.extract_groups(_COLLECTED).struct.rename_fields(["kind", "count"]).struct.unnest()
    collected = found.drop_nulls().group_by("kind").agg(pl.col("count").cast(pl.Int64).sum()).sort("kind")
    for kind, count in collected.rows():
        held = sum(tables.count(table) for table in _TABLES[kind])
        if held < _PART * count:
            example = f"{format_count(held)} of {format_count(count)} {kind} events are in the file"
            health.count("fewer_events", count - held, example)
    maybe = messages.str.extract(_MAYBE).drop_nulls().unique().sort()
    health.count("maybe_incomplete", maybe.len(), f"{' and '.join(maybe)} events")
