"""From event records to raw frames: each block of events becomes a few typed frames, and the records are freed."""

from __future__ import annotations

import io
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

import msgspec
import polars as pl

from tracekit.facts.gpu_metrics import COUNTER_RANGE_CATEGORY
from tracekit.readers.common.store import FrameStore
from tracekit.readers.kineto import args as records
from tracekit.readers.kineto import columns
from tracekit.readers.kineto import vocabulary as words
from tracekit.readers.kineto.events import AnyEvent
from tracekit.readers.kineto.salvage import Defects

__all__ = ["RawFrames"]

_NAMELESS: Final = "(no name)"
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
_ANONYMOUS_BASE: Final = -1_000


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

    def add(self, events: Sequence[AnyEvent]) -> None:
        """Sort one block of events by category and turn each group into a frame."""
        self.event_count += len(events)
        groups: dict[tuple[str, str | None], list[AnyEvent]] = defaultdict(list)
        for event in events:
            groups[event.ph, event.cat].append(event)
        # Every frame costs as much as a thousand rows, and a file may hold any number of unknown categories.
        merged: dict[tuple[str, str | None], list[AnyEvent]] = defaultdict(list)
        for (phase, category), group in groups.items():
            if phase == "X" and category not in _KNOWN_CATEGORIES:
                self.defects.add("unknown_category", f"{category or ''!r} {group[0].name}", len(group))
            merged[phase, category if category in _KNOWN_CATEGORIES else None] += group
        for (phase, category), group in merged.items():
            self._add_group(phase, category, group)

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

    def _add_group(self, phase: str, category: str | None, group: list[AnyEvent]) -> None:
        if phase == "X":
            self._add_complete(category, group)
        elif phase in ("i", "I") and group:
            memory = [event for event in group if event.name == words.MEMORY_EVENT]
            if memory:
                self._add_memory(memory)
            others = len(group) - len(memory)
            self.defects.add(
                "unread_instant",
                next((str(e.name) for e in group if e.name != words.MEMORY_EVENT), ""),
                others,
            )
        elif phase == "M":
            if category not in words.DROPPED_CATEGORIES:
                self._add_metadata(group)
        elif phase == "C":
            self._add_counters(group)
        elif phase in ("s", "f") and category in words.FORWARD_BACKWARD_FLOW:
            self._add_flows(phase, group)
        elif phase in ("s", "t", "f"):
            self.defects.add(f"derived:{category} flows", str(group[0].name), len(group))
        elif phase not in _KNOWN_PHASES:
            self.defects.add("unread_phase", f"ph={phase!r} {group[0].name}", len(group))

    def _add_complete(self, category: str | None, group: list[AnyEvent]) -> None:
        name = category or ""
        if name in words.DEVICE_CATEGORIES:
            self._add_activities(words.DEVICE_CATEGORIES[name], group)
        elif name in words.HOST_CATEGORIES:
            self._add_host(words.HOST_CATEGORIES[name], group)
        elif name in words.DEVICE_SYNC_CATEGORIES:
            self._add_syncs(group)
        elif name == COUNTER_RANGE_CATEGORY:
            self._add_counter_ranges(group)
        elif name in words.DROPPED_CATEGORIES:
            self.defects.add(f"derived:{name}", str(group[0].name), len(group))
        else:
            self._add_host("annotation", group)

    # -- one method per kind of frame ------------------------------------------------------------------------

    def _common(self, group: list[AnyEvent]) -> dict[str, pl.Series]:
        durations = _get(group, "dur")
        names = _get(group, "name")
        if None in names:
            names = [_NAMELESS if name is None else name for name in names]
        return {
            "name": columns.categorical(names),
            "start": columns.times(_get(group, "ts")),
            "duration": columns.times(durations),
        }

    def _place(self, group: list[AnyEvent]) -> dict[str, pl.Series]:
        return {"process_id": self._ids(_get(group, "pid")), "thread_id": self._ids(_get(group, "tid"))}

    def _add_host(self, kind: str, group: list[AnyEvent]) -> None:
        base = {**self._common(group), **self._place(group)}
        base["kind"] = pl.Series([kind], dtype=pl.String).new_from_index(0, len(group))
        raws = _get(group, "args")
        if kind == "runtime":
            runtime = records.decode_args(raws, records.RuntimeArgs, self.defects)
            base["correlation"] = columns.integers(_get(runtime, "correlation"))
            base["external_id"] = _either(runtime, "external_id", "external_id_2021")
        elif kind == "python":
            python = records.decode_args(raws, records.PythonArgs, self.defects)
            for key in ("python_id", "python_parent_id", "module_id"):
                base[key] = columns.integers(_get(python, key))
        elif kind != "overhead":
            self._add_operator_columns(base, records.decode_args(raws, records.OpArgs, self.defects))
        self._keep("host", base)

    def _add_operator_columns(self, base: dict[str, pl.Series], ops: list[records.OpArgs]) -> None:
        for key in ("external_id", "sequence", "forward_thread"):
            base[key] = columns.integers(_get(ops, key))
        for key in ("shapes", "dtypes", "concrete_inputs"):
            base[key] = columns.raw_texts(_get(ops, key))
        base["layer"] = columns.categorical(_get(ops, "layer"))
        base["module_type"] = columns.categorical(_get(ops, "module"))
        stacks = _get(ops, "call_stack")
        # Files before 2022 give operators their stacks; later ones have spans of Python functions.
        if any(stacks):
            base["call_stack"] = columns.categorical([stack or None for stack in stacks])
        if any(op.collective is not None for op in ops):
            collective = columns.categorical(_get(ops, "collective"))
            self._keep(
                "collectives",
                {
                    "name": collective,
                    "process_id": base["process_id"],
                    "thread_id": base["thread_id"],
                    "start": base["start"],
                    "duration": base["duration"],
                    "group": columns.categorical(_get(ops, "group")).cast(pl.String),
                    "dtype": columns.categorical(_get(ops, "dtype")),
                    "group_size": columns.integers(_get(ops, "group_size")),
                    "elements_in": columns.integers(_get(ops, "elements_in")),
                    "elements_out": columns.integers(_get(ops, "elements_out")),
                    "sequence": columns.integers(_get(ops, "collective_sequence")),
                    "peer": _either(ops, "source", "destination"),
                    **{key: _list_text(_get(ops, key)) for key in ("group_ranks", "split_in", "split_out")},
                },
                only=collective.is_not_null(),
            )

    def _add_activities(self, kind: str, group: list[AnyEvent]) -> None:
        args = records.decode_args(_get(group, "args"), records.ActivityArgs, self.defects)
        device = columns.integers(_get(args, "device"))
        stream = columns.integers(_get(args, "stream"))
        # Writers that leave device and stream out of args place them in pid and tid.
        device = device if not device.null_count() else _coalesce(device, self._ids(_get(group, "pid")))
        stream = stream if not stream.null_count() else _coalesce(stream, self._ids(_get(group, "tid")))
        self._keep(
            "device",
            {
                **self._common(group),
                "kind": pl.Series([kind], dtype=pl.String).new_from_index(0, len(group)),
                "device_id": device,
                "stream_id": stream,
                "correlation": columns.integers(_get(args, "correlation")),
                "external_id": _either(args, "external_id", "external_id_2021"),
                "grid": columns.raw_texts(_get(args, "grid")),
                "block": columns.raw_texts(_get(args, "block")),
                "registers": columns.integers(_get(args, "registers")),
                "shared_memory": columns.integers(_get(args, "shared_memory")),
                "occupancy": columns.floats(_get(args, "occupancy")) / 100.0,
                "graph_node": columns.integers(_get(args, "graph_node")),
                "bytes": _either(args, "byte_count", "byte_count_2024"),
                "context_id": columns.integers(_get(args, "context")),
            },
        )

    def _add_syncs(self, group: list[AnyEvent]) -> None:
        args = records.decode_args(_get(group, "args"), records.SyncArgs, self.defects)
        base = self._common(group)
        for key, name in (("device_id", "device"), ("stream_id", "stream")):
            base[key] = columns.integers(_get(args, name))
        for key in ("correlation", "wait_on_stream", "wait_on_correlation"):
            base[key] = columns.integers(_get(args, key))
        self._keep("syncs", base)

    def _add_memory(self, group: list[AnyEvent]) -> None:
        args = records.decode_args(_get(group, "args"), records.MemoryArgs, self.defects)
        device = columns.integers(_get(args, "device_id"))
        kind = columns.integers(_get(args, "device_type"))
        on_host = kind.fill_null(0) == 0
        frame = pl.DataFrame({"device": device, "on_host": on_host})
        self._keep(
            "memory",
            {
                "start": columns.times(_get(group, "ts")),
                **self._place(group),
                "device_id": frame.select(
                    pl.when("on_host").then(-1).otherwise("device").cast(pl.Int64)
                ).to_series(),
                "address": columns.integers(_get(args, "address")),
                "bytes": columns.integers(_get(args, "byte_count")),
                "allocated": columns.integers(_get(args, "allocated")),
                "reserved": columns.integers(_get(args, "reserved")),
            },
        )

    def _add_counters(self, group: list[AnyEvent]) -> None:
        self._keep_series(group, columns.times(_get(group, "ts")), None)

    def _add_counter_ranges(self, group: list[AnyEvent]) -> None:
        common = self._common(group)
        self._keep_series(group, common["start"], common["duration"])

    def _keep_series(self, group: list[AnyEvent], starts: pl.Series, durations: pl.Series | None) -> None:
        rows, series, values = [], [], []
        for row, event in enumerate(group):
            for key, value in _numbers(records.loose_args(event.args, self.defects)).items():
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
                "name": columns.categorical(_get(group, "name"))[index],
                "series": pl.Series(series, dtype=pl.Categorical),
                "start": starts[index],
                "duration": duration if durations is None else durations[index],
                "value": pl.Series(values, dtype=pl.Float64),
            },
        )

    def _add_flows(self, phase: str, group: list[AnyEvent]) -> None:
        side = "flow_starts" if phase == "s" else "flow_ends"
        place = self._place(group)
        self._keep(
            side,
            {
                "flow_id": columns.integers(_get(group, "id")),
                "process": place["process_id"],
                "thread": place["thread_id"],
                "time": columns.times(_get(group, "ts")),
            },
        )

    def _add_metadata(self, group: list[AnyEvent]) -> None:
        for event in group:
            if event.name not in ("process_name", "process_labels", "thread_name"):
                continue
            args = records.loose_args(event.args, self.defects)
            process = self._id(event.pid)
            if event.name == "thread_name":
                self.threads[process, self._id(event.tid)] = _text(args.get("name", ""))
            else:
                label = _text(args.get("name", args.get("labels", "")))
                labels = self.processes.get(process, "")
                if not labels:
                    self.processes[process] = label
                elif label not in labels and len(labels) < _LONGEST_LABEL:
                    self.processes[process] = f"{labels} ({label})"

    # -- small helpers ---------------------------------------------------------------------------------------

    def _keep(self, name: str, series: dict[str, pl.Series], only: pl.Series | None = None) -> None:
        frame = pl.DataFrame(series)
        self.store.add(name, frame if only is None else frame.filter(only))

    def _ids(self, values: Sequence[Any]) -> pl.Series:
        if set(map(type, values)) == {int}:
            return columns.integers(values)
        of_text = {value: self._id(value) for value in {v for v in values if not isinstance(v, int)}}
        return pl.Series([self._id(v) if isinstance(v, int) else of_text[v] for v in values], dtype=pl.Int64)

    def _id(self, value: int | str | float | None) -> int:
        """A process or thread number; a text that is not a number ("Spans", "") gets a negative number of its own."""
        if isinstance(value, int) and abs(value) < 2**63:
            return value  # the most frequent kind; metadata events come one by one
        number = columns.integers([value])[0]
        # The same text gets the same number in every process that decodes a part of the file.
        return _ANONYMOUS_BASE - zlib.crc32(str(value).encode()) if number is None else int(number)


def _get(items: Iterable[Any], name: str) -> list[Any]:
    return list(map(attrgetter(name), items))


def _either(items: Sequence[Any], first: str, second: str) -> pl.Series:
    column = columns.integers(_get(items, first))
    return column if not column.null_count() else _coalesce(column, columns.integers(_get(items, second)))


def _coalesce(first: pl.Series, second: pl.Series) -> pl.Series:
    return pl.DataFrame({"a": first, "b": second}).select(pl.coalesce("a", "b")).to_series()


def _text(value: object) -> str:
    """A text or a number as text; empty for lists and objects, which may nest to any depth."""
    return str(value) if isinstance(value, str | int | float) else ""


def _numbers(args: dict[str, Any]) -> dict[str, float]:
    """The numeric entries of an args object."""
    numeric = {k: v for k, v in args.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return {k: float(v) for k, v in numeric.items() if abs(v) <= sys.float_info.max}


def _list_text(values: list[Any]) -> pl.Series:
    """The JSON text of lists, which some versions of PyTorch write as texts; null for an empty one."""
    text = columns.raw_texts(values).cast(pl.String).str.strip_chars('"')
    return text.set(text.is_in(["[]", "", "null"]), None).cast(pl.Categorical)
