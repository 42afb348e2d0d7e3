"""What all readers do with the raw frames of a file: one origin for all times, the schemas, a few checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.health import HealthLog
from tracekit.readers.assemble import Assembled, assemble, conform
from tracekit.spans import kept_nesting
from tracekit.trace import COLLECTIVE_SCHEMA, DEVICE_SCHEMA, HOST_SCHEMA, Schema, empty

__all__ = [
    "assembled",
    "captured_kinds",
    "collectives_of",
    "count_partial_overlaps",
    "or_empty",
    "rank_in_name",
    "shifted",
    "side_frame",
]

_RANK_IN_NAME: Final = (
    re.compile(r"rank[-_]?(\d{1,9})", re.IGNORECASE),
    re.compile(r"worker[-_]?(\d{1,9})", re.IGNORECASE),
    re.compile(r"-TP-(\d{1,9})(?:-|\.|_|$)"),
)


def assembled(
    host: pl.DataFrame, device: pl.DataFrame, others: Sequence[pl.DataFrame | None], health: HealthLog
) -> tuple[Assembled, int]:
    """The sorted and linked frames, and the origin that was subtracted from their times: the earliest start of all.

    The frames are handed on without keeping a name for them, so that each is freed when the next one is made; a caller
    should keep none either.
    """
    frames = [conform(host, HOST_SCHEMA), conform(device, DEVICE_SCHEMA)]
    del host, device
    origin = _origin([*frames, *others])
    frames = [shifted(frame, origin) for frame in frames]
    return assemble(frames, health), origin


def or_empty(frame: pl.DataFrame | None, schema: Schema) -> pl.DataFrame:
    """The frame, or one without rows."""
    return empty(schema) if frame is None else frame


def _origin(frames: Sequence[pl.DataFrame | None]) -> int:
    starts = [frame["start"].min() for frame in frames if frame is not None and frame.height]
    return min((int(start) for start in starts if isinstance(start, int)), default=0)


def shifted(frame: pl.DataFrame, origin: int) -> pl.DataFrame:
    """The frame with its starts counted from the origin."""
    return frame.with_columns(pl.col("start") - origin)


def side_frame(frame: pl.DataFrame | None, schema: Schema, origin: int) -> pl.DataFrame | None:
    """A frame beside host and device, by its schema and in order of time; None where there is none."""
    if frame is None:
        return None
    rows = conform(shifted(frame, origin).filter(pl.col("start").is_not_null()), schema)
    return rows.sort("start", maintain_order=True)


def collectives_of(frame: pl.DataFrame | None, host: pl.DataFrame, origin: int) -> pl.DataFrame | None:
    """The collectives, each with the operator's span that recorded it."""
    if frame is None:
        return None
    key = ["process_id", "thread_id", "start", "duration"]
    spans = host.filter(pl.col("kind") == "op").select(*key, "span_id").unique(key, keep="last")
    joined = shifted(frame, origin).join(spans, on=key, how="left", maintain_order="left")
    return conform(joined, COLLECTIVE_SCHEMA).sort("start", maintain_order=True)


def count_partial_overlaps(host: pl.DataFrame, health: HealthLog) -> None:
    """Count spans that are open when another begins and end before it does."""
    nesting = kept_nesting(host)
    if not nesting.may_overlap():
        return
    open_before = nesting.innermost_at(nesting.thread, nesting.start - 1)
    crossing = (
        (open_before >= 0)
        & (nesting.end[open_before] > nesting.start)
        & (nesting.end[open_before] < nesting.end)
    )
    if crossing.any():
        first = host.row(int(crossing.argmax()), named=True)
        health.count("overlapping_spans", int(crossing.sum()), f"{first['name']} at {first['start']} ns")


def captured_kinds(
    host: pl.DataFrame, device: pl.DataFrame, frames: Mapping[str, pl.DataFrame | None]
) -> dict[str, bool]:
    """What the profile recorded, by the names of `Meta.captured`."""
    kinds = set(host["kind"].cast(pl.String).unique().to_list())
    return {
        "steps": "step" in kinds,
        "device": device.height > 0,
        "launches": bool(device["launch_id"].is_not_null().any()),
        "ops": "op" in kinds,
        "shapes": bool((host["shapes"].cast(pl.String) != "").any()),
        "stacks": "python" in kinds,
        "modules": "module" in kinds,
        "layers": bool(host["layer"].is_not_null().any()),
        "memory": frames.get("memory") is not None,
        "sync": frames.get("syncs") is not None,
        "counters": frames.get("counters") is not None,
        "collectives": frames.get("collectives") is not None,
        "occupancy": bool(device["occupancy"].is_not_null().any()),
    }


def rank_in_name(path: Path) -> int | None:
    """The rank that a file's name tells; unknown is not 0."""
    for pattern in _RANK_IN_NAME:
        if match := pattern.search(path.name):
            return int(match.group(1))
    return None
