"""From event records to raw frames: each block of events becomes a few typed frames, and the records are freed."""

from __future__ import annotations

import io
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final

import msgspec
import polars as pl

from tracekit.classes import dataclass
from tracekit.facts.gpu_metrics import COUNTER_RANGE_CATEGORY
from tracekit.groups import any_known
from tracekit.readers.common.store import FrameStore
from tracekit.readers.kineto import columns
from tracekit.readers.kineto import vocabulary as words
from tracekit.readers.kineto.args import (
    ActivityArgs,
    MemoryArgs,
    NoArgs,
    PythonArgs,
    RuntimeArgs,
    SyncArgs,
    loose_args,
    record_of,
)
from tracekit.readers.kineto.groups import Arguments, Columns, Group, Key, Records, grouped, joined
from tracekit.readers.kineto.native import Block
from tracekit.readers.kineto.records import AnyEvent
from tracekit.readers.kineto.salvage import Defects
from tracekit.readers.kineto.strides import repeating
from tracekit.trace import DEVICE_SCHEMA, HOST_SCHEMA

__all__ = ["RawFrames"]

_ALWAYS: Final = frozenset(
    {"name", "start", "duration", "process_id", "thread_id", "device_id", "stream_id", "correlation"}
)
_MANY: Final = ("host", "device")
_LONGEST_LABEL: Final = 200
_KNOWN_PHASES: Final = frozenset({"X", "M", "C", "s", "t", "f", "i", "I", "R"})
_KNOWN_CATEGORIES: Final = frozenset(
    {
        *words.DEVICE_CATEGORIES,
        *words.HOST_CATEGORIES,
        *words.DEVICE_SYNC_CATEGORIES,
        *words.DROPPED_CATEGORIES,
        *words.FORWARD_BACKWARD_FLOW,
        COUNTER_RANGE_CATEGORY,
    }
)


class _Packed(msgspec.Struct):
    """A RawFrames on its way from one process to another."""

    parts: dict[str, bytes]
    processes: dict[int, str]
    threads: list[tuple[int, int, str]]
    event_count: int
    defect_counts: dict[str, int]
    defect_examples: dict[str, str]


@dataclass(slots=True)
class RawFrames:
    """Collects blocks as frames called `host`, `device`, … with unsorted rows and absolute times."""

    defects: Defects
    store: FrameStore = field(default_factory=FrameStore)
    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)
    event_count: int = 0

    def add(self, block: Block | Sequence[AnyEvent]) -> None:
        """Turn each group of events of one block into a frame."""
        self.event_count += len(block)
        groups: Sequence[tuple[Key, Columns | Records]]
        groups = block.groups if isinstance(block, Block) else grouped(block)
        # Every frame costs as much as a thousand rows, and a file may hold any number of unknown categories.
        merged: dict[Key, list[Columns | Records]] = defaultdict(list)
        for (phase, category), group in groups:
            if phase == "X" and category not in _KNOWN_CATEGORIES and isinstance(group, Records):
                self.defects.add("unknown_category", f"{category or ''!r} {group.first.name}", len(group))
            merged[phase, category if category in _KNOWN_CATEGORIES else None].append(group)
        for (phase, category), parts in merged.items():
            of_records = [part for part in parts if isinstance(part, Records)]
            for part in parts:
                if isinstance(part, Columns):
                    self._add_columns(phase, category, part)
            if of_records:
                self._add_records(phase, category, joined(of_records))

    def pack(self) -> bytes:
        """Everything collected, as bytes that `absorb` takes in another process."""
        parts = self.store.packed()
        threads = [(process, thread, name) for (process, thread), name in self.threads.items()]
        packed = _Packed(
            parts, self.processes, threads, self.event_count, self.defects.counts, self.defects.examples
        )
        return msgspec.msgpack.encode(packed)

    def absorb(self, packed: bytes) -> None:
        """Add what another process has packed."""
        other = msgspec.msgpack.decode(packed, type=_Packed)
        for name, part in other.parts.items():
            self.store.add(name, pl.read_ipc(io.BytesIO(part)))
        self.processes.update(other.processes)
        self.threads.update({(process, thread): name for process, thread, name in other.threads})
        self.event_count += other.event_count
        for kind, count in other.defect_counts.items():
            self.defects.add(kind, other.defect_examples[kind], count)

    def frame(self, name: str) -> pl.DataFrame | None:
        """All collected rows of this name, or None. This object does not keep them."""
        return self.store.take(name)

    def _add_columns(self, phase: str, category: str | None, group: Columns) -> None:
        """Of instants, only the allocator's become columns."""
        if phase == "X":
            self._add_complete(category, group)
        else:
            self._add_memory(group)

    def _add_records(self, phase: str, category: str | None, group: Records) -> None:
        if phase == "X":
            if category in words.DROPPED_CATEGORIES:
                self.defects.add(f"derived:{category}", str(group.first.name), len(group))
            elif category == COUNTER_RANGE_CATEGORY:
                self._add_counter_ranges(group)
            else:
                for part in group.parts():
                    self._add_complete(category, part)
        elif phase in ("i", "I"):
            self._add_instants(group)
        elif phase == "M":
            if category not in words.DROPPED_CATEGORIES:
                self._add_metadata(group)
        elif phase == "C":
            self._keep_series(group, group.times("ts"), None)
        elif phase in ("s", "f") and category in words.FORWARD_BACKWARD_FLOW:
            self._add_flows(phase, group)
        elif phase in ("s", "t", "f"):
            self.defects.add("derived:flow", str(group.first.name), len(group))
        elif phase not in _KNOWN_PHASES:
            self.defects.add("unread_phase", f"ph={phase!r} {group.first.name}", len(group))

    def _add_complete(self, category: str | None, group: Group) -> None:
        name = category or ""
        if name in words.DEVICE_CATEGORIES:
            self._add_activities(words.DEVICE_CATEGORIES[name], group)
        elif name in words.DEVICE_SYNC_CATEGORIES:
            self._add_syncs(group)
        else:
            self._add_host(words.HOST_CATEGORIES.get(name, "annotation"), record_of(category), group)

    # -- one method per kind of frame ------------------------------------------------------------------------

    @staticmethod
    def _common(group: Group) -> dict[str, pl.Series]:
        return {"name": group.names(), "start": group.times("ts"), "duration": group.times("dur")}

    @staticmethod
    def _place(group: Group) -> dict[str, pl.Series]:
        return {"process_id": group.identities("pid"), "thread_id": group.identities("tid")}

    def _add_host(self, kind: str, record: type[msgspec.Struct], group: Group) -> None:
        base = {**self._common(group), **self._place(group)}
        base["kind"] = columns.constant(kind, HOST_SCHEMA["kind"], len(group))
        if record is not NoArgs:
            args = group.args(record, self.defects)
            if record is RuntimeArgs:
                base["correlation"] = args.integers("correlation")
                base["external_id"] = _either(args, "external_id", "external_id_2021")
            elif record is PythonArgs:
                for key in ("python_id", "python_parent_id", "module_id"):
                    base[key] = args.integers(key)
            else:
                self._add_operator_columns(base, args)
        self._keep("host", base)

    def _add_operator_columns(self, base: dict[str, pl.Series], args: Arguments) -> None:
        for key in ("external_id", "sequence", "forward_thread"):
            base[key] = args.integers(key)
        for key in ("shapes", "dtypes", "concrete_inputs"):
            base[key] = args.raw_texts(key)
        base["strides"] = repeating(args.raw_texts("strides"), base["shapes"])
        base["layer"] = args.labels("layer")
        base["module_type"] = args.labels("module")
        # Files before 2022 give operators their stacks; later ones have spans of Python functions.
        stacks = args.filled_labels("call_stack")
        if stacks is not None:
            base["call_stack"] = stacks
        self._add_collectives("collectives", args, base, ("process_id", "thread_id"))

    def _add_activities(self, kind: str, group: Group) -> None:
        args = group.args(ActivityArgs, self.defects)
        device, stream = args.integers("device"), args.integers("stream")
        # Writers that leave device and stream out of args place them in pid and tid.
        device = device if not device.null_count() else _coalesce(device, group.identities("pid"))
        stream = stream if not stream.null_count() else _coalesce(stream, group.identities("tid"))
        base = {
            **self._common(group),
            "kind": columns.constant(kind, DEVICE_SCHEMA["kind"], len(group)),
            "device_id": device,
            "stream_id": stream,
            "correlation": args.integers("correlation"),
            "external_id": _either(args, "external_id", "external_id_2021"),
            "grid": args.raw_texts("grid"),
            "block": args.raw_texts("block"),
            "registers": args.integers("registers"),
            "shared_memory": args.integers("shared_memory"),
            "occupancy": args.floats("occupancy") / 100.0,
            "graph_node": args.integers("graph_node"),
            "bytes": _either(args, "byte_count", "byte_count_2024"),
            "context_id": args.integers("context"),
        }
        self._keep("device", base)
        self._add_collectives("kernel_collectives", args, base, ("device_id", "stream_id"))

    def _add_collectives(
        self, frame: str, args: Arguments, base: dict[str, pl.Series], place: tuple[str, str]
    ) -> None:
        """What operators, or kernels, say of the collectives that they are."""
        collective = args.labels("collective")
        if collective.null_count() == collective.len():
            return
        self._keep(
            frame,
            {
                "name": collective,
                **{key: base[key] for key in (*place, "start", "duration", "external_id")},
                "group": args.labels("group").cast(pl.String),
                "dtype": args.labels("dtype"),
                "group_size": args.integers("group_size"),
                "elements_in": args.integers("elements_in"),
                "elements_out": args.integers("elements_out"),
                "sequence": args.integers("collective_sequence"),
                "peer": _either(args, "source", "destination"),
                **{key: _list_text(args.raw_texts(key)) for key in ("group_ranks", "split_in", "split_out")},
            },
            only=collective.is_not_null(),
        )

    def _add_syncs(self, group: Group) -> None:
        args = group.args(SyncArgs, self.defects)
        base = self._common(group)
        for key, name in (("device_id", "device"), ("stream_id", "stream")):
            base[key] = args.integers(name)
        base["correlation"] = args.integers("correlation")
        for key in ("wait_on_stream", "wait_on_correlation"):
            told = args.integers(key)
            base[key] = told.set(told < 0, None)  # −1: the profiler does not know it
        self._keep("syncs", base)

    def _add_instants(self, group: Records) -> None:
        memory = [event for event in group.events if event.name == words.MEMORY_EVENT]
        if memory:
            self._add_memory(Records(memory))
        stops = [event for event in group.events if event.name == words.STOP_EVENT]
        if stops:
            self._keep("stops", {"time": Records(stops).times("ts")})
        others = [event for event in group.events if event.name not in (words.MEMORY_EVENT, words.STOP_EVENT)]
        if others:
            self.defects.add("unread_instant", str(others[0].name), len(others))

    def _add_memory(self, group: Group) -> None:
        args = group.args(MemoryArgs, self.defects)
        device = args.integers("device_id")
        on_host = args.integers("device_type").fill_null(0) == 0
        frame = pl.DataFrame({"device": device, "on_host": on_host})
        self._keep(
            "memory",
            {
                "start": group.times("ts"),
                **self._place(group),
                "device_id": frame.select(
                    pl.when("on_host").then(-1).otherwise("device").cast(pl.Int64)
                ).to_series(),
                "address": args.integers("address"),
                "bytes": args.integers("byte_count"),
                "allocated": args.integers("allocated"),
                "reserved": args.integers("reserved"),
            },
        )

    def _add_counter_ranges(self, group: Records) -> None:
        common = self._common(group)
        self._keep_series(group, common["start"], common["duration"])

    def _keep_series(self, group: Records, starts: pl.Series, durations: pl.Series | None) -> None:
        rows, series, values = [], [], []
        for row, event in enumerate(group.events):
            for key, value in _numbers(loose_args(event.args, self.defects)).items():
                rows.append(row)
                series.append(key)
                values.append(value)
        if not rows:
            return
        index = pl.Series(rows, dtype=pl.UInt32)
        duration = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(rows))
        self._keep(
            "counters",
            {
                "name": columns.categorical([event.name for event in group.events])[index],
                "series": pl.Series(series, dtype=pl.Categorical),
                "start": starts[index],
                "duration": duration if durations is None else durations[index],
                "value": pl.Series(values, dtype=pl.Float64),
            },
        )

    def _add_flows(self, phase: str, group: Records) -> None:
        side = "flow_starts" if phase == "s" else "flow_ends"
        place = self._place(group)
        self._keep(
            side,
            {
                "flow_id": columns.integers([event.id for event in group.events]),
                "process": place["process_id"],
                "thread": place["thread_id"],
                "time": group.times("ts"),
            },
        )

    def _add_metadata(self, group: Records) -> None:
        for event in group.events:
            if event.name not in ("process_name", "process_labels", "thread_name"):
                continue
            args = loose_args(event.args, self.defects)
            process = columns.identity(event.pid)
            if event.name == "thread_name":
                self.threads[process, columns.identity(event.tid)] = _text(args.get("name", ""))
            else:
                label = _text(args.get("name", args.get("labels", "")))
                labels = self.processes.get(process, "")
                if not labels:
                    self.processes[process] = label
                elif label not in labels and len(labels) < _LONGEST_LABEL:
                    self.processes[process] = f"{labels} ({label})"

    # -- small helpers ---------------------------------------------------------------------------------------

    def _keep(self, name: str, series: dict[str, pl.Series], only: pl.Series | None = None) -> None:
        # What a block does not tell of its many rows needs no memory, nor time to be put in order.
        told = {
            key: column
            for key, column in series.items()
            if name not in _MANY or key in _ALWAYS or any_known(column)
        }
        frame = pl.DataFrame([column.alias(key) for key, column in told.items()])
        self.store.add(name, frame if only is None else frame.filter(only))


def _either(args: Arguments, first: str, second: str) -> pl.Series:
    column = args.integers(first)
    return column if not column.null_count() else _coalesce(column, args.integers(second))


def _coalesce(first: pl.Series, second: pl.Series) -> pl.Series:
    return first.zip_with(first.is_not_null(), second)


def _text(value: object) -> str:
    """A text or a number as text; empty for lists and objects, which may nest to any depth."""
    return str(value) if isinstance(value, str | int | float) else ""


def _numbers(args: dict[str, Any]) -> dict[str, float]:
    """The numeric entries of an args object."""
    numeric = {k: v for k, v in args.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return {k: float(v) for k, v in numeric.items() if abs(v) <= sys.float_info.max}


def _list_text(lists: pl.Series) -> pl.Series:
    """The JSON text of lists, which some versions of PyTorch write as texts; null for an empty one."""
    text = lists.cast(pl.String).str.strip_chars('"')
    return text.set(text.is_in(["[]", "", "null"]), None).cast(pl.Categorical)
