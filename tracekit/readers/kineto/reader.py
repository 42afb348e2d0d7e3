"""The reader of PyTorch-profiler (Kineto) traces and of any other Chrome-format JSON."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from tracekit.errors import UnreadableTraceError
from tracekit.facts.capture_names import LAYER_METADATA_KEY, MERGED_KEY
from tracekit.facts.stack_names import MODULE_PREFIX
from tracekit.facts.step_names import STEP_PREFIX
from tracekit.groups import are_known, distinct, kept
from tracekit.health import MEANINGS, HealthLog
from tracekit.limits import LONGEST_NAME, Limits
from tracekit.name_table import NameTable
from tracekit.readers.assemble import at_work, conform
from tracekit.readers.common.excerpt import take_excerpt
from tracekit.readers.common.store import FrameStore
from tracekit.readers.common.trace_frames import TraceFrames, captured_kinds, rank_of, trace_frames, utc_of
from tracekit.readers.format import Progress
from tracekit.readers.kineto import vocabulary as words
from tracekit.readers.kineto.events import EventStream
from tracekit.readers.kineto.frames import RawFrames
from tracekit.readers.kineto.pool import decoder_pool
from tracekit.readers.kineto.source import Source
from tracekit.readers.kineto.vocabulary import ANNOTATION_PREFIXES
from tracekit.trace import FLOW_SCHEMA, HOST_KINDS, THREAD_SCHEMA, DeviceInfo, Excerpt, Meta, Trace, one_of

__all__ = ["read_kineto"]

_KINDS: Final = {kind: pl.lit(kind, dtype=pl.Enum(HOST_KINDS)) for kind in HOST_KINDS}
_USUAL_RATIO: Final = 12
"""The usual ratio of a trace's size to the size of its gzip."""

_PRODUCER_KEYS: Final = re.compile(r"(version|^schemaVersion$|^trace_id$)", re.IGNORECASE)
_DROPPED: Final = re.compile(r"\bDropped ([1-9]\d{0,14}) activity records\b")
_STOPPED: Final = "CUPTI stopped early? = 1"
_MOST_MEMBERS: Final = 100_000
_LEAST_ABSURD: Final = 4 * 10**18
_UTC_FROM_US: Final = 10**15
"""Times of old files count from 1970 in µs, which has been more than this since 2001; boot clocks are far smaller."""


def read_kineto(path: Path, limits: Limits, progress: Progress | None = None) -> Trace:
    """Read one trace file, plain or gzip.

    Raises UnreadableTraceError if the file is missing, is not a trace, or has no event. Times of the returned frames are ns
    from the earliest event of the file.
    """
    health = HealthLog()
    with closing(Source(path, limits)) as source, closing(FrameStore(limits.max_events)) as store:
        stream = EventStream(source, as_columns=True)
        raw = RawFrames(stream.defects, store)
        with decoder_pool(_plain_size(source)) as pool:
            for batch in stream.batches(pool):
                raw.absorb(batch) if isinstance(batch, bytes) else raw.add(batch)
                if progress is not None:
                    progress(source.plain_bytes, source.size)
        excerpt = take_excerpt(store, path, health)
    broken = [kind for kind in ("oversized_event", "malformed_event") if kind in stream.defects.counts]
    if broken and not raw.event_count:
        fault = f"no event can be read ({MEANINGS[broken[0]][1]})"
        raise UnreadableTraceError(
            fault, path=path, remedy="give a PyTorch-profiler trace, or record it again"
        )
    return _build(source, stream, raw, excerpt, health)


def _plain_size(source: Source) -> int:
    """The size of the JSON in bytes; an estimate for a compressed file."""
    return source.size * _USUAL_RATIO if source.compressed else source.size


def _build(
    source: Source, stream: EventStream, raw: RawFrames, excerpt: Excerpt | None, health: HealthLog
) -> Trace:
    for kind, count in stream.defects.counts.items():
        health.count(kind, count, stream.defects.examples.get(kind, ""))
    _count_messages(stream.header, health)
    health.count("merged_ranks", int((_int(stream.header.get(MERGED_KEY)) or 0) > 1))
    names = ("device", "syncs", "memory", "counters", "collectives", "kernel_collectives")
    rows = {name: raw.frame(name) for name in names}
    rows["host"] = _host_kinds(raw.frame("host"))
    _end_open_spans(rows, raw.frame("stops"), health)
    frames = trace_frames(rows, health)
    flows = _flows(raw.frame("flow_starts"), raw.frame("flow_ends"), frames.origin, health)
    rank = rank_of(source.path, _rank(stream.header), health)
    meta = _meta(source, stream.header, raw.event_count, frames)
    since = None if excerpt is None else excerpt.since(frames.origin)
    return Trace(
        meta=replace(meta, rank=rank, excerpt=since),
        host=frames.host,
        device=frames.device,
        threads=_threads(raw),
        health=health.frame(),
        flows=flows,
        **frames.others,  # type: ignore[arg-type]  # one of the fields is not a frame
    )


def _count_messages(header: dict[str, Any], health: HealthLog) -> None:
    """Messages of the profiler that it dropped records, or stopped early for lack of memory."""
    for level in ("INFO", "WARNING", "ERROR"):
        messages = header.get(level)
        for message in messages if isinstance(messages, list) else []:
            text = message if isinstance(message, str) else ""
            if match := _DROPPED.search(text):
                health.count("dropped_records", int(match.group(1)), match.group())
            health.count("stopped_early", int(_STOPPED in text), _STOPPED)


def _host_kinds(host: pl.DataFrame | None) -> pl.DataFrame | None:
    """Refine the kind by name: steps, module calls, and annotations that 2021 files list as operators."""
    if host is None:
        return None
    names = NameTable(host["name"])  # distinct names are few
    step, annotation, module = (
        pl.Series(names.matching(f"^(?:{'|'.join(map(re.escape, prefixes))})"))
        for prefixes in ((STEP_PREFIX,), ANNOTATION_PREFIXES, (MODULE_PREFIX,))
    )
    has_layer = pl.col("layer").is_not_null() if "layer" in host.columns else pl.lit(value=False)
    refined = (
        pl.when(one_of("kind", "op", "annotation") & step)
        .then(_KINDS["step"])
        .when(one_of("kind", "op") & annotation)
        .then(_KINDS["annotation"])
        .when(one_of("kind", "python") & module)
        .then(_KINDS["module"])
        .when(one_of("kind", "annotation") & has_layer)
        .then(_KINDS["module"])
        .otherwise("kind")
    )
    return host.with_columns(refined.alias("kind"))


def _end_open_spans(
    rows: dict[str, pl.DataFrame | None], stops: pl.DataFrame | None, health: HealthLog
) -> None:
    """End what was still open when the profiler stopped with the last other span of its process.

    Nobody knows when it ended; the profiler stops as much as seconds after the last step.
    """
    host = rows["host"]
    if host is None or stops is None:
        return
    end = pl.col("start") + pl.col("duration")
    near = pl.concat([stops["time"] + apart for apart in (-1, 0, 1)])  # the file's times are rounded
    still_open = end.is_in(near.implode()).fill_null(value=False)
    ranges = one_of("kind", "op", "annotation", "step")  # calls to a driver end by themselves
    last = host.filter(~still_open).group_by("process_id").agg(end.max().alias("last"))
    known = pl.max_horizontal(pl.col("last") - pl.col("start"), 0)
    for name, wanted in (("host", still_open & ranges), ("collectives", still_open)):
        frame = rows[name]
        found = frame.filter(wanted) if frame is not None else host.clear()
        if frame is None or not found.height:
            continue
        if name == "host":
            health.count("unended_span", found.height, str(found["name"][0]))
        joined = frame.join(last, on="process_id", how="left", nulls_equal=True, maintain_order="left")
        cut = pl.when(wanted & pl.col("last").is_not_null()).then(known).otherwise("duration")
        rows[name] = joined.with_columns(cut.alias("duration")).drop("last")


def _flows(
    starts: pl.DataFrame | None, ends: pl.DataFrame | None, origin: int, health: HealthLog
) -> pl.DataFrame | None:
    if starts is None or ends is None:
        health.count("unmatched_flow", sum(side.height for side in (starts, ends) if side is not None))
        return None
    timed = (kept(side, are_known(side["time"])).unique("flow_id", keep="first") for side in (starts, ends))
    joined = next(timed).join(next(timed), on="flow_id", how="inner", suffix="_end")
    health.count("unmatched_flow", starts.height + ends.height - 2 * joined.height)
    return conform(
        joined.select(
            "flow_id",
            # Where a span has no process or thread, it has −1 as well.
            pl.col("process").fill_null(-1).alias("source_process"),
            pl.col("thread").fill_null(-1).alias("source_thread"),
            (pl.col("time") - origin).alias("source_time"),
            pl.col("process_end").fill_null(-1).alias("target_process"),
            pl.col("thread_end").fill_null(-1).alias("target_thread"),
            (pl.col("time_end") - origin).alias("target_time"),
        ),
        FLOW_SCHEMA,
    ).sort("source_time", "flow_id")


def _threads(raw: RawFrames) -> pl.DataFrame:
    rows = [(process, thread, name) for (process, thread), name in sorted(raw.threads.items())]
    return pl.DataFrame(rows, schema=THREAD_SCHEMA, orient="row")


def _meta(source: Source, header: dict[str, Any], events: int, frames: TraceFrames) -> Meta:
    info, origin = _distributed(header), frames.origin
    base_ns = _int(header.get("baseTimeNanoseconds"))
    if base_ns is None and origin >= _UTC_FROM_US * 1000:
        base_ns = 0
    producer = {key: _name(value) for key, value in header.items() if _PRODUCER_KEYS.search(key)}
    layers = header.get(LAYER_METADATA_KEY)
    processes = distinct(frames.host["process_id"].filter(at_work(frames.host["kind"])))
    return Meta(
        path=str(source.path),
        format=words.FORMAT_NAME,
        format_version=_name(header.get("schemaVersion", "")),
        size_bytes=source.size,
        event_count=events,
        producer=producer,
        world_size=_int(info.get("world_size")),
        one_group=_one_group(info),
        groups=_groups(info),
        backend=_name(info["backend"]) if "backend" in info else None,
        process_ids=tuple(processes.sort().to_list()),
        devices=_devices(header.get("deviceProperties"), frames.device),
        origin_ns=origin,
        origin_utc_ns=utc_of(base_ns, origin),
        captured=_captured(header, frames),
        layers=None if layers is None else _text(layers),
    )


def _captured(header: dict[str, Any], frames: TraceFrames) -> frozenset[str]:
    present = captured_kinds(frames)
    present["shapes"] |= bool(header.get("record_shapes"))
    present["memory"] |= bool(header.get("profile_memory"))
    present["layers"] |= header.get(LAYER_METADATA_KEY) is not None
    return frozenset(name for name, is_there in present.items() if is_there)


def _devices(properties: Any, device: pl.DataFrame) -> tuple[DeviceInfo, ...]:
    """The devices of the header; if any device worked, only the devices that worked, so that idle neighbours do not count."""
    infos: dict[int, DeviceInfo] = {}
    for entry in properties if isinstance(properties, list) else []:
        if not isinstance(entry, dict) or (number := _int(entry.get("id"))) is None:
            continue
        major, minor = _int(entry.get("computeMajor")), _int(entry.get("computeMinor"))
        infos[number] = DeviceInfo(
            device_id=number,
            name=_name(entry.get("name") or ""),
            compute_capability=None if major is None or minor is None else (major, minor),
            sm_count=_size(entry.get("numSms")),
            memory_bytes=_size(entry.get("totalGlobalMem")),
            max_threads_per_sm=_size(entry.get("maxThreadsPerMultiprocessor")),
            warp_size=_size(entry.get("warpSize")),
        )
    used = distinct(device["device_id"]).sort().to_list()
    if not used:
        return tuple(infos.values())
    # ROCm numbers devices differently in activities and in properties; if all devices are alike, it does not matter.
    kinds = {replace(info, device_id=0) for info in infos.values()}
    common = kinds.pop() if len(kinds) == 1 else DeviceInfo(0)
    return tuple(infos.get(number, replace(common, device_id=number)) for number in used)


def _rank(header: dict[str, Any]) -> int | None:
    return _int(_distributed(header).get("rank"))


def _distributed(header: dict[str, Any]) -> dict[str, Any]:
    info = header.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def _one_group(info: dict[str, Any]) -> bool:
    """Whether the only process group that the file lists is that of all ranks."""
    match info.get("pg_config"):
        case [{"pg_size": int(size)}]:
            return size == _int(info.get("world_size"))
    return False


def _groups(info: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each process group that the file lists, if it lists them all."""
    listed = info.get("pg_config")
    found = (
        [one.get("ranks") if isinstance(one, dict) else None for one in listed]
        if isinstance(listed, list)
        else []
    )
    groups = [tuple(map(_int, ranks)) for ranks in found if isinstance(ranks, list)]
    if len(groups) < len(found) or sum(map(len, groups)) > _MOST_MEMBERS:
        return ()
    known = [tuple(rank for rank in group if rank is not None) for group in groups]
    return tuple(known) if [*map(len, known)] == [*map(len, groups)] else ()


def _name(value: Any) -> str:
    """The first `LONGEST_NAME` characters of a text that is printed as it stands."""
    return _text(value)[:LONGEST_NAME]


def _text(value: Any) -> str:
    """A text as it is, anything else as JSON; empty if it is nested too deeply to be written."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except RecursionError:
        return ""


def _size(value: Any) -> int | None:
    """A number by which one can divide; None for 0, which a profiler writes if it could not ask the device."""
    size = _int(value)
    return size if size is not None and size > 0 else None


def _int(value: Any) -> int | None:
    """A whole number that leaves room for sums."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < _LEAST_ABSURD else None
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value) else None
