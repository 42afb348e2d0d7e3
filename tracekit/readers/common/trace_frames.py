"""The steps that all readers take with the raw frames of a file: one origin for all times, the schemas, a few checks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.groups import any_known, are_known, distinct, kept, with_series
from tracekit.health import HealthLog
from tracekit.readers.assemble import assemble, conform
from tracekit.readers.common.gate import leave_out_absurd
from tracekit.readers.common.missing import count_missing
from tracekit.spans import kept_nesting
from tracekit.trace import COLLECTIVE_SCHEMA, FRAMES, MEMORY_SCHEMA, Schema, empty

__all__ = [
    "TraceFrames",
    "captured_kinds",
    "place_in_name",
    "rank_in_name",
    "rank_of",
    "side_frame",
    "trace_frames",
    "utc_of",
]

_RANK_IN_NAME: Final = (
    # Not the rank on a machine or in one kind of group: `local_rank0`, `tp_rank1`.
    re.compile(r"(?<![a-z])(?<!local[-_])(?<![tdpec]p[-_])(?:global[-_]?|world[-_]?|mpi[-_]?)?rank[-_]?(\d{1,9})", re.IGNORECASE),
    # Not the name of a machine: TensorBoard's files are called HOST_PID.TIME.pt.trace.json.
    re.compile(r"worker[-_]?(\d{1,9})(?![0-9]|_\d+\.\d+\.pt\.trace\.)", re.IGNORECASE),
)  # fmt: skip
_PLACES_IN_NAME: Final = (
    # vLLM: its `rank` counts within one of its engines, of which there is one for each value of `dp`.
    re.compile(r"dp(?P<dp>\d{1,6})_pp(?P<pp>\d{1,6})_tp(?P<tp>\d{1,6})(?:_dcp(?P<dcp>\d{1,6}))?(?:_ep(?P<ep>\d{1,6}))?(?:_rank(?P<rank>\d{1,6}))?(?![0-9a-z])"),
    # SGLang: with attention in parallel over the data, `TP` counts all ranks, else those of one replica.
    re.compile(r"-TP-(?P<tp>\d{1,6})(?:-DP-(?P<dp>\d{1,6}))?(?:-PP-(?P<pp>\d{1,6}))?(?:-(?:MOE-)?EP-(?P<ep>\d{1,6}))?(?![0-9])"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class TraceFrames:
    """The frames of a trace."""

    host: pl.DataFrame
    device: pl.DataFrame
    others: dict[str, pl.DataFrame | None]  # by the names of `trace.FRAMES`
    origin: int  # subtracted from their times, in ns


def trace_frames(raw: dict[str, pl.DataFrame | None], health: HealthLog) -> TraceFrames:
    """The frames of a trace from raw ones (by the names of `trace.FRAMES`), which are unsorted and have absolute times.

    The origin is the earliest start of an event of the process itself. `raw` is emptied. The caller should hold no reference
    to a frame, so that each is freed when the next one is made.
    """
    held = {name for name, frame in raw.items() if frame is not None and frame.height}
    leave_out_absurd(raw, health)
    timed = ("host", "device", "syncs", "memory", "counters", "collectives", "ranges")
    starts = [frame["start"].min() for name in timed if (frame := raw.get(name)) is not None]
    origin = min((start for start in starts if isinstance(start, int)), default=0)
    both = [_whole(raw, name, origin) for name in ("host", "device")]
    assembled = assemble(both, health)
    _count_partial_overlaps(assembled.host, health)
    of_kernels = _of_kernels(
        raw.pop("kernel_collectives", None), raw.get("collectives"), assembled.device, origin
    )
    others = {"collectives": _collectives(raw.pop("collectives", None), of_kernels, assembled.host, origin)}
    for name in list(raw):
        frame = side_frame(raw.pop(name), FRAMES[name], origin, health, f"{name} row")
        # A kind of which no row can be used was not captured.
        others[name] = None if frame is None or (name in held and not frame.height) else frame
    health.count("no_event", int(not assembled.host.height and not assembled.device.height))
    count_missing(assembled.host, assembled.device, others.get("counters"), health)
    return TraceFrames(assembled.host, assembled.device, others, origin)


def _whole(raw: dict[str, pl.DataFrame | None], name: str, origin: int) -> pl.DataFrame:
    frame = raw.pop(name, None)
    return empty(FRAMES[name]) if frame is None else _shifted(conform(frame, FRAMES[name]), origin)


def side_frame(
    frame: pl.DataFrame | None, schema: Schema, origin: int, health: HealthLog, what: str
) -> pl.DataFrame | None:
    """A frame other than host and device, with its schema and sorted by time; None if there is none. `what` is one of its rows."""
    if frame is None:
        return None
    health.count("record_without_time", frame["start"].null_count(), what)
    if schema is MEMORY_SCHEMA:
        health.count("no_allocator", frame["device_id"].null_count(), what)
        frame = kept(frame, are_known(frame["device_id"]))
    rows = conform(_shifted(kept(frame, are_known(frame["start"])), origin), schema)
    return rows.sort("start", maintain_order=True)


def _shifted(frame: pl.DataFrame, origin: int) -> pl.DataFrame:
    return with_series(frame, frame["start"] - origin)


def _collectives(
    frame: pl.DataFrame | None, of_kernels: pl.DataFrame | None, host: pl.DataFrame, origin: int
) -> pl.DataFrame | None:
    """The collectives, each with the span of the operator that recorded it, or with the kernel that did."""
    if frame is None:
        return of_kernels
    key = ["process_id", "thread_id", "start", "duration"]
    spans = host.filter(pl.col("kind") == "op").select(*key, "span_id").unique(key, keep="last")
    joined = _shifted(frame, origin).join(spans, on=key, how="left", maintain_order="left")
    parts = [conform(joined, COLLECTIVE_SCHEMA), *([] if of_kernels is None else [of_kernels])]
    return pl.concat(parts).sort("start", maintain_order=True)


def _of_kernels(
    frame: pl.DataFrame | None, recorded: pl.DataFrame | None, device: pl.DataFrame, origin: int
) -> pl.DataFrame | None:
    """The collectives that only their kernels tell of: the file lacks the operator whose record they repeat."""
    if frame is None:
        return None
    there = (
        recorded["external_id"].drop_nulls().unique()
        if recorded is not None
        else frame["external_id"].clear()
    )
    key = ["device_id", "stream_id", "start", "duration"]
    kernels = device.select(*key, "activity_id").unique(key, keep="last")
    rows = frame.filter(~pl.col("external_id").is_in(there.implode()).fill_null(value=False))
    joined = _shifted(rows, origin).join(kernels, on=key, how="inner", maintain_order="left")
    return conform(joined, COLLECTIVE_SCHEMA).sort("start", maintain_order=True) if joined.height else None


def _count_partial_overlaps(host: pl.DataFrame, health: HealthLog) -> None:
    """Count spans that are open when another begins and that end before the other ends."""
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


def captured_kinds(parts: TraceFrames) -> dict[str, bool]:
    """The kinds of data that the profile recorded, by the names of `Meta.captured`."""
    host, device, frames = parts.host, parts.device, parts.others
    kinds = set(distinct(host["kind"]).to_list())
    return {
        "steps": "step" in kinds,
        "device": device.height > 0,
        "launches": any_known(device["launch_id"]),
        "ops": "op" in kinds,
        "shapes": bool((distinct(host["shapes"]).cast(pl.String) != "").any()),
        "stacks": "python" in kinds or any_known(host["call_stack"]),
        "modules": "module" in kinds,
        "layers": any_known(host["layer"]),
        "memory": frames.get("memory") is not None,
        "sync": frames.get("syncs") is not None,
        "counters": frames.get("counters") is not None,
        "collectives": frames.get("collectives") is not None,
        "occupancy": any_known(device["occupancy"]),
    }


def rank_in_name(path: str | os.PathLike[str]) -> int | None:
    """The rank that the name of a file gives; None if it gives none, or only a place in groups that does not tell the rank.

    >>> rank_in_name("rank3_trace.json"), rank_in_name("1700000000.1-TP-3.trace.json.gz"), rank_in_name("gpu7_4211.1700000000.pt.trace.json")
    (3, 3, None)
    """
    place = place_in_name(path)
    if place:
        known = not place.get("dp") and ("rank" in place or not place.get("pp"))
        return place.get("rank", place["tp"]) if known else None
    matches = (pattern.search(Path(path).name) for pattern in _RANK_IN_NAME)
    return next((int(match.group(1)) for match in matches if match), None)


def place_in_name(path: str | os.PathLike[str]) -> dict[str, int]:
    """The place of a rank in its groups that the name of a file of vLLM or SGLang gives; empty if it gives none.

    >>> place_in_name("1700000000.1-TP-3-DP-1.trace.json.gz")
    {'tp': 3, 'dp': 1}
    """
    matches = (pattern.search(Path(path).name) for pattern in _PLACES_IN_NAME)
    found = next((match.groupdict() for match in matches if match), {})
    return {name: int(value) for name, value in found.items() if value is not None}


def rank_of(path: Path, recorded: int | None, health: HealthLog, *, alone: bool = True) -> int | None:
    """The rank in the file, else the rank in its name if the file has one process. An unknown rank is counted as a defect;
    it is not 0.
    """
    named = rank_in_name(path) if alone else None
    rank = named if recorded is None else recorded
    health.count("unknown_rank", int(rank is None), path.name)
    return rank


_LAST_NS: Final = (1 << 63) - 1


def utc_of(began_ns: int | None, origin_ns: int) -> int | None:
    """When a trace's origin was, in ns since 1970, if the file's clock began then; None if that is not known, or no time at all.

    >>> utc_of(1_700_000_000_000_000_000, 5), utc_of(-1, 0), utc_of(None, 5)
    (1700000000000000005, None, None)
    """
    at = -1 if began_ns is None else began_ns + origin_ns
    return at if 0 <= at <= _LAST_NS else None
