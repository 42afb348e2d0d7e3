"""The reader of Nsight Systems exports: SQLite files and folders of Parquet files, of every version of the schema.

If a table or a column is missing, its data were not captured. One file may hold several processes; each process that
put work on a device becomes a Trace. Work is linked to its launch by correlation id within the process, because two
processes use the same ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.errors import UnreadableTraceError, reason_of
from tracekit.facts.units import count_of
from tracekit.health import HealthLog
from tracekit.limits import Limits
from tracekit.range_filter import DEFAULT_DOMAIN
from tracekit.readers.common.excerpt import take_excerpt
from tracekit.readers.common.store import FrameStore
from tracekit.readers.common.trace_frames import (
    TraceFrames,
    captured_kinds,
    rank_of,
    side_frame,
    trace_frames,
    utc_of,
)
from tracekit.readers.format import Progress
from tracekit.readers.nsys import device as device_side
from tracekit.readers.nsys import host as host_side
from tracekit.readers.nsys import vocabulary as words
from tracekit.readers.nsys.collectives import with_group_sizes
from tracekit.readers.nsys.diagnostics import count_diagnostics
from tracekit.readers.nsys.graph_nodes import graph_nodes
from tracekit.readers.nsys.ids import UNNAMED
from tracekit.readers.nsys.machine import Machine, machine_of
from tracekit.readers.nsys.nvtx import NvtxNames, nvtx_names, ranges
from tracekit.readers.nsys.processes import OF_MACHINE, ProcessStores
from tracekit.readers.nsys.tables import Tables, open_tables
from tracekit.trace import COUNTER_SCHEMA, FRAMES, DeviceInfo, Meta, Trace

__all__ = ["read_nsys"]

_MOST_DEVICES: Final = 128
"""The most devices of one process; each is compared with all host activity in its time."""
_MOST_LISTED: Final = 8
"""The most processes that a line of `tracekit doctor` names."""
_PROCESS_FRAMES: Final = tuple(
    name for name in FRAMES if name not in ("threads", "health", "flows", *OF_MACHINE)
)


def read_nsys(path: Path, limits: Limits, progress: Progress | None = None) -> list[Trace]:
    """Read an export: one Trace per process that put work on a device, in order of the process id.

    Without any device work it is one Trace of all processes. With `limits.all_processes`, a last Trace holds the processes
    that put no work on a device. `progress` is called with (bytes read, bytes of the file), as
    estimates. Raises UnreadableTraceError if the file is damaged, is not an export or has no event.

    Times of each returned trace are ns from its own earliest event.
    """
    size = _size(path)
    health = HealthLog()
    with ExitStack() as stack:
        tables = stack.enter_context(closing(open_tables(path)))
        _refuse_foreign(tables)
        stores = ProcessStores(path, limits.max_events, stack, others=limits.all_processes)
        names = nvtx_names(tables)
        total = sum(tables.count(table) for table in words.EVENT_TABLES)
        domains = {DEFAULT_DOMAIN, *names.domains["domain"].cast(pl.String).drop_nulls().to_list()}
        for name, frame in _pages(tables, names, health):
            stores.add(name, frame)
            if "domain" in frame.columns:
                domains.update(frame["domain"].unique().drop_nulls().cast(pl.String).to_list())
            if progress is not None and total:
                progress(min(size, size * stores.rows // total), size)
        _count_unread(tables, health)
        count_diagnostics(tables, health)
        _refuse_empty(stores, tables)
        if stores.left_out:
            health.count("other_process", stores.left_out, _listed(stores.others))
        machine = machine_of(tables, names.ranks)
        threads = host_side.named_threads(tables, names.threads)
        health.count("invalid_utf8", tables.replaced_texts)
        parts, shared = stores.parts(), stores.machine.take("counters")
        return [
            _build(
                _Part(path, size, part, len(parts), process, tuple(sorted(domains))),
                store,
                shared,
                machine,
                threads,
                health.copy(),
            )
            for part, (process, store) in enumerate(parts)
        ]


def _pages(tables: Tables, names: NvtxNames, health: HealthLog) -> Iterator[tuple[str, pl.DataFrame]]:
    """All rows by frame; device activities come first, because they determine the processes."""
    yield from device_side.activities(tables)
    yield from device_side.waits(tables)
    yield from device_side.allocations(tables)
    yield from host_side.api_calls(tables, health)
    yield from ranges(tables, names, health)
    yield from host_side.library_calls(tables)
    yield from host_side.overheads(tables)
    yield from host_side.os_calls(tables)
    yield from host_side.samples(tables, health)
    yield from graph_nodes(tables, health)
    yield from device_side.metrics(tables, health)


@dataclass(frozen=True, slots=True)
class _Part:
    """The trace of a file that is being built."""

    path: Path
    size: int  # of the file, in bytes
    number: int
    of: int  # the number of traces in the file
    process: int | None  # None: all processes, or all others, because none of them works on a device
    domains: tuple[str, ...]  # of NVTX, in the file


def _build(
    part: _Part,
    store: FrameStore,
    machine_rows: pl.DataFrame | None,
    machine: Machine,
    threads: pl.DataFrame,
    health: HealthLog,
) -> Trace:
    total = store.rows
    excerpt = take_excerpt(store, part.path, health)
    rows = _process_rows(store, machine, part, health)
    frames = trace_frames(rows, health)
    _count_unnamed(frames, health)
    frames.others["counters"] = side_frame(
        machine_rows, COUNTER_SCHEMA, frames.origin, health, "counters row"
    )
    of_mpi = None if part.process is None else machine.ranks.get(part.process)
    rank = rank_of(part.path, of_mpi, health, alone=part.of == 1)
    since = None if excerpt is None else excerpt.since(frames.origin)
    meta = replace(_meta(part, machine, frames), rank=rank, event_count=total, excerpt=since)
    return Trace(
        meta=meta,
        host=frames.host,
        device=frames.device,
        threads=threads.filter(pl.col("process_id").is_in(list(meta.process_ids))),
        health=health.frame(),
        **frames.others,  # type: ignore[arg-type]  # one of the fields is no frame
    )


def _process_rows(
    store: FrameStore, machine: Machine, part: _Part, health: HealthLog
) -> dict[str, pl.DataFrame | None]:
    """The raw frames of a process, completed: ranges have ends, and devices have the numbers of the machine's GPUs."""
    last = max((_last(store, name) for name in ("host", "device")), default=0)
    rows = {name: store.take(name) for name in _PROCESS_FRAMES}
    rows["collectives"] = with_group_sizes(rows["collectives"], rows["host"])
    rows["ranges"] = _ended(rows["ranges"], last, health)
    rows["host"] = _ended(rows["host"], last, health)
    rows["memory"] = _summed(rows["memory"])
    if rows["device"] is not None:
        rows["device"] = _on_gpus(rows["device"], machine)
        if (count := rows["device"]["device_id"].n_unique()) > _MOST_DEVICES:
            raise UnreadableTraceError(f"one of its processes works on {count:,} devices", path=part.path)
        rows["syncs"] = _on_devices(rows["syncs"], rows["device"])
    return rows


def _meta(part: _Part, machine: Machine, frames: TraceFrames) -> Meta:
    processes = frames.host["process_id"].unique().sort().to_list()
    present = captured_kinds(frames)
    return Meta(
        path=str(part.path),
        format=words.FORMAT_NAME,
        format_version=machine.version,
        size_bytes=part.size,
        domains=part.domains,
        producer=machine.producer,
        process_ids=tuple(processes) if part.process is None else (part.process,),
        devices=_devices(machine, frames.device),
        origin_ns=frames.origin,
        origin_utc_ns=utc_of(machine.began_utc_ns, frames.origin),
        captured=frozenset(name for name, is_there in present.items() if is_there),
        part=part.number,
        parts=part.of,
    )


def _last(store: FrameStore, name: str) -> int:
    """The latest end in the rows of this name."""
    latest = 0
    for rows in store.parts(name, ["start", "duration"]):
        end = rows.select((pl.col("start") + pl.col("duration").fill_null(0)).max()).item()
        latest = max(latest, end if isinstance(end, int) else 0)
    return latest


def _ended(frame: pl.DataFrame | None, last: int, health: HealthLog) -> pl.DataFrame | None:
    """Ranges that were open when the recording ended get its end as theirs."""
    if frame is None:
        return None
    still_open = pl.col("duration").is_null() & pl.col("start").is_not_null()
    if "kind" in frame.columns:
        still_open &= pl.col("kind") != "mark"
    count = frame.select(still_open.sum()).item()
    if not count:
        return frame
    health.count("open_range", count, str(frame.filter(still_open)["name"][0]))
    return frame.with_columns(
        pl.when(still_open)
        .then(pl.max_horizontal(last - pl.col("start"), 0))
        .otherwise("duration")
        .alias("duration")
    )


def _summed(memory: pl.DataFrame | None) -> pl.DataFrame | None:
    """Allocator events with the total after each, per device."""
    if memory is None:
        return None
    return memory.sort("start", maintain_order=True).with_columns(
        pl.col("bytes").cum_sum().over("device_id").alias("allocated")
    )


def _on_gpus(device: pl.DataFrame, machine: Machine) -> pl.DataFrame:
    """Activities with the machine's number of the GPU instead of the process's number."""
    if all(cuda == gpu for (_, cuda), gpu in machine.ordinals.items()):
        return device
    rows = [(process, cuda, gpu) for (process, cuda), gpu in machine.ordinals.items()]
    key = ["process_id", "device_id"]
    gpus = pl.DataFrame(rows, schema=dict.fromkeys((*key, "gpu"), pl.Int64), orient="row")
    joined = device.join(gpus, on=key, how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("gpu", "device_id").alias("device_id")).drop("gpu")


def _on_devices(syncs: pl.DataFrame | None, device: pl.DataFrame) -> pl.DataFrame | None:
    """Waits on the device of their context: the number in their own rows is not always that of the device."""
    if syncs is None or "context_id" not in device.columns:
        return syncs
    of_context = device.select("context_id", pl.col("device_id").alias("of_context")).drop_nulls()
    contexts = of_context.unique("context_id", keep="first", maintain_order=True)
    joined = syncs.join(contexts, on="context_id", how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce("of_context", "device_id").alias("device_id")).drop("of_context")


def _devices(machine: Machine, device: pl.DataFrame) -> tuple[DeviceInfo, ...]:
    """The devices that worked; if none did, all devices of the machine."""
    used = device["device_id"].unique().sort().to_list()
    if not used:
        return tuple(machine.gpus.values())
    return tuple(replace(machine.gpus.get(number, DeviceInfo(number)), device_id=number) for number in used)


def _refuse_foreign(tables: Tables) -> None:
    names = set(tables.names())
    if names & {*words.EVENT_TABLES, *words.METADATA_TABLES, "StringIds"}:
        return
    shown = ", ".join(sorted(names)[:3]) or "no table"
    raise UnreadableTraceError(
        f"it is not an Nsight Systems export (it holds {shown[:100]})",
        path=tables.path,
        remedy="export one: nsys export --type sqlite FILE.nsys-rep",
    )


def _refuse_empty(stores: ProcessStores, tables: Tables) -> None:
    if stores.rows:
        return
    if unread := tables.without_row_ids():
        fault = f"none of its events can be read, because tables have no row ids ({', '.join(unread)[:200]})"
        remedy = "export it again: nsys export --type sqlite"
        raise UnreadableTraceError(fault, path=tables.path, remedy=remedy)
    raise UnreadableTraceError(
        "it is an Nsight Systems export without events",
        path=tables.path,
        remedy="profile with nsys profile --trace=cuda,nvtx",
    )


def _count_unread(tables: Tables, health: HealthLog) -> None:
    """Tables with events that tracekit does not read, and all tables that cannot be read."""
    others = pl.Series([name for name in tables.names() if name not in words.EVENT_TABLES], dtype=pl.String)
    rows = {name: tables.count(name) for name in others.filter(~others.str.contains(words.DESCRIBING_TABLES))}
    example = ", ".join(f"{name} ({count:,})" for name, count in rows.items() if count)
    health.count("unread_table", sum(rows.values()), example)
    unread = tables.without_row_ids()
    health.count("table_without_row_ids", len(unread), ", ".join(unread))


def _count_unnamed(frames: TraceFrames, health: HealthLog) -> None:
    """Rows whose name is not in the file; a whole table of names may be missing."""
    names = {"host": frames.host["name"], "device": frames.device["name"]}
    counts = {what: int((name.cast(pl.String) == UNNAMED).sum()) for what, name in names.items()}
    example = ", ".join(f"{what}: {count:,} of {names[what].len():,} rows" for what, count in counts.items())
    health.count("unnamed", sum(counts.values()), example)


def _listed(processes: Collection[int]) -> str:
    shown = ", ".join(map(str, sorted(processes)[:_MOST_LISTED]))
    more = len(processes) - _MOST_LISTED
    return f"{count_of(len(processes), 'process', 'processes')}: {shown}{f' and {more} more' if more > 0 else ''}"


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.glob("*.parquet"))
        return path.stat().st_size
    except OSError as error:
        raise UnreadableTraceError(f"it cannot be opened ({reason_of(error)})", path=path) from error
