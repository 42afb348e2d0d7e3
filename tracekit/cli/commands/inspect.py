"""`tracekit info` and `tracekit doctor`: what is in a file, and how healthy it is."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.asked import Reading, with_flags
from tracekit.cli.options import Format
from tracekit.cli.sources import read_each
from tracekit.errors import UsageError
from tracekit.readers import flag_for

if TYPE_CHECKING:
    from tracekit.trace import Trace

__all__ = ["CAPTURED", "doctor", "info"]

CAPTURED: Final = (
    "device",
    "ops",
    "launches",
    "steps",
    "shapes",
    "memory",
    "stacks",
    "modules",
    "layers",
    "sync",
    "collectives",
    "counters",
    "occupancy",
)
"""What a trace may hold, in the order in which what it lacks is listed."""

_WIDTH: Final = 80
_LISTS: Final = ("unread_table", "table_without_row_ids")
"""Defects of which the example is a list of all."""


@with_flags
def info(
    trace: flags.TraceFile,
    process: flags.Process = None,
    format_: flags.FormatFlag = None,
    output: flags.Output = None,
    *,
    reading: Reading,
) -> None:
    """What is in this file: producer, devices, steps, rows by kind, and what was captured."""
    chosen = _table_or_json("info", format_, output)
    read = read_each(trace, process, reading)
    facts = [_facts(one) for one in read]
    if chosen is Format.json:
        import json

        out.emit(json.dumps(_data(read, facts), indent=2, ensure_ascii=False), output)
    else:
        out.emit(_text(read[0], facts[0]) if len(read) == 1 else _text_of_several(read, facts), output)


def _table_or_json(command: str, format_: Format | None, output: Path | None) -> Format:
    chosen = out.choose_format(format_, output)
    if chosen not in (Format.table, Format.json):
        raise UsageError(f"{command} writes a table or json, not {chosen.value}")
    return chosen


def _data(traces: Sequence[Trace], facts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The facts of the one trace; of several those of the file, and those of each process."""
    if len(traces) == 1:
        return facts[0]
    origin = min(trace.meta.origin_ns for trace in traces)
    return {
        **{name: facts[0][name] for name in ("file", "format", "size_bytes")},
        "traces": [
            {"process_id": trace.meta.process_ids[0], "start_ns": trace.meta.origin_ns - origin, **of_one}
            for trace, of_one in zip(traces, facts, strict=True)
        ],
    }


def _facts(trace: Trace) -> dict[str, Any]:
    import polars as pl

    from tracekit.analyses.attribution.layer_ranges import user_ranges
    from tracekit.analyses.scope import select
    from tracekit.report.text import clean

    meta = trace.meta
    scope = select(trace)
    steps = trace.host.filter(pl.col("kind") == "step").sort("start")
    host = trace.host["kind"].cast(pl.String).value_counts(sort=True)
    device = trace.device["kind"].cast(pl.String).value_counts(sort=True)
    ends = [
        frame.select((pl.col("start") + pl.col("duration")).max()).item()
        for frame in (trace.host, trace.device)
    ]
    return {
        "file": clean(Path(meta.path).name),
        "format": meta.format,
        "size_bytes": meta.size_bytes,
        "events": meta.event_count,
        "excerpt": None if meta.excerpt is None else dataclasses.asdict(meta.excerpt),
        "duration_ns": max((end for end in ends if end is not None), default=0),
        "rank": meta.rank,
        "world_size": meta.world_size,
        "producer": {clean(key): clean(value) for key, value in meta.producer.items()},
        "devices": [
            {"device_id": d.device_id, "name": clean(d.name), "sm_count": d.sm_count} for d in meta.devices
        ],
        "processes": list(meta.process_ids),
        "threads": trace.host.select("process_id", "thread_id").unique().height,
        "streams": trace.device.select("device_id", "stream_id").unique().height,
        "steps": [clean(name) for name in steps["name"].cast(pl.String).to_list()],
        "steps_inferred": scope.steps.height if scope.inferred else 0,
        "steps_inferred_from": clean(scope.inferred_from) if scope.inferred_from else None,
        "named_ranges": user_ranges(trace).height,
        "host_spans": dict(host.iter_rows()),
        "device_activities": dict(device.iter_rows()),
        "captured": sorted(meta.captured),
        "not_captured": {name: flag_for(name, meta.format) for name in CAPTURED if name not in meta.captured},
    }


def _several(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _text(trace: Trace, facts: dict[str, Any]) -> str:
    from tracekit.facts.units import format_bytes, format_count, format_ns
    from tracekit.report.format import format_excerpt

    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{format_count(n)} {kind}" for kind, n in counts.items()) or "none"

    devices = ", ".join(f"{d['device_id']}: {d['name'] or 'unnamed'}" for d in facts["devices"]) or "none"
    rank = "unknown" if facts["rank"] is None else str(facts["rank"])
    if facts["world_size"]:
        rank += f" of {facts['world_size']}"
    rows = {
        "file": f"{facts['file']} ({format_bytes(facts['size_bytes'])}, {format_count(facts['events'])} events)",
        **({"read": format_excerpt(trace.meta.excerpt)} if trace.meta.excerpt else {}),
        "length": format_ns(facts["duration_ns"]),
        "rank": rank,
        "devices": devices,
        "steps": _steps(facts),
        "host spans": f"{listed(facts['host_spans'])}, on {_several(facts['threads'], 'thread')}",
        "device": f"{listed(facts['device_activities'])}, on {_several(facts['streams'], 'stream')}",
        "captured": ", ".join(facts["captured"]) or "nothing",
    }
    lines = _labelled(rows)
    lines += _lacking(_not_captured(facts))
    problems = trace.health.filter(trace.health["severity"] != "info").height
    lines += _labelled({"health": _problems(problems)})
    return "\n".join(lines)


def _steps(facts: dict[str, Any]) -> str:
    """The steps that are marked, else those that the report infers."""
    steps: list[str] = facts["steps"]
    if steps:
        return steps[0] if len(steps) == 1 else f"{len(steps)}, {steps[0]} to {steps[-1]}"
    if facts["steps_inferred"]:
        return f"none is marked; {facts['steps_inferred']} inferred from: {facts['steps_inferred_from']}"
    return "none"


def _not_captured(facts: dict[str, Any]) -> dict[str, str]:
    """What the trace lacks, but for what something else takes the place of."""
    lacking: dict[str, str] = dict(facts["not_captured"])
    if facts["steps_inferred"]:
        lacking.pop("steps", None)
    if facts["named_ranges"] and "layers" in lacking:
        count = _several(facts["named_ranges"], "named range")
        lacking["layers"] = f"no layer is marked; {count} may count as layers (tracekit layers)"
    return lacking


def _text_of_several(traces: Sequence[Trace], facts: Sequence[dict[str, Any]]) -> str:
    """What all processes of a file have in common, and a line for each."""
    from tracekit.facts.units import format_bytes, format_count, format_ns
    from tracekit.report.format import shown_columns
    from tracekit.report.several import processes_table
    from tracekit.report.terminal.grid import grid

    table = processes_table(traces)
    names: dict[int, str] = {d["device_id"]: d["name"] for one in facts for d in one["devices"]}
    captured = sorted({name for one in facts for name in one["captured"]})
    some = "" if all(one["captured"] == captured for one in facts) else " (by some of the processes)"
    common = [_not_captured(one) for one in facts]
    lacking = {name: flag for name, flag in common[0].items() if all(name in one for one in common)}
    problems = sum(trace.health.filter(trace.health["severity"] != "info").height for trace in traces)
    events = sum(one["events"] for one in facts)
    excerpts = sum(one["excerpt"] is not None for one in facts)
    rows = {
        "file": f"{facts[0]['file']} ({format_bytes(facts[0]['size_bytes'])}, {format_count(events)} events)",
        **({"read": f"of {excerpts} processes a part: --max-events 0 reads all"} if excerpts else {}),
        "length": format_ns(table.frame["last"].max()),  # type: ignore[arg-type]
        "devices": ", ".join(f"{number}: {name or 'unnamed'}" for number, name in sorted(names.items())),
        "captured": ", ".join(captured) + some or "nothing",
    }
    lines = [*_labelled(rows), *_lacking(lacking), *_labelled({"health": _problems(problems)})]
    lines += ["", f"{len(traces)} processes with work on a device; `--process PID` tells more of one"]
    lines += grid(table, shown_columns(table, table.short), width=_WIDTH, rows=table.total_rows)
    return "\n".join(lines)


def _labelled(rows: Mapping[str, str], indent: str = "", width: int = 13) -> list[str]:
    """A name and what there is to say of it, in lines of at most 80 characters."""
    room = max(0, width - len(indent))
    lines = []
    for name, text in rows.items():
        folded = textwrap.wrap(text, _WIDTH - width, break_on_hyphens=False) or [""]
        lines += [f"{indent}{name if not n else '':<{room}}{line}" for n, line in enumerate(folded)]
    return lines


def _lacking(flags_of: Mapping[str, str]) -> list[str]:
    head = "not captured" + ("" if flags_of else " nothing is missing")
    return [head, *_labelled(flags_of, indent="  ", width=14)]


def _problems(count: int) -> str:
    if not count:
        return "no problems"
    return f"{_several(count, 'problem')}, see `tracekit doctor`"


@with_flags
def doctor(
    trace: flags.TraceFile,
    process: flags.Process = None,
    format_: flags.FormatFlag = None,
    output: flags.Output = None,
    *,
    reading: Reading,
) -> None:
    """How healthy this file is: what was damaged, repaired or left out, and whether the figures add up."""
    chosen = _table_or_json("doctor", format_, output)
    read = read_each(trace, process, reading)
    found = [_findings(one) for one in read]
    if chosen is Format.json:
        import json

        each = (
            [{"process_id": t.meta.process_ids[0], **one} for t, one in zip(read, found, strict=True)]
            if len(read) > 1
            else []
        )
        out.emit(json.dumps({"traces": each} if each else found[0], indent=2, ensure_ascii=False), output)
    elif len(read) == 1:
        lines = [*_health_lines(found[0]["health"]), *_law_lines({"": found[0]["conservation"]})]
        out.emit("\n".join(lines), output)
    else:
        by_process = {str(t.meta.process_ids[0]): one for t, one in zip(read, found, strict=True)}
        out.emit("\n".join(_doctor_of_several(by_process)), output)


def _findings(trace: Trace) -> dict[str, Any]:
    from tracekit.report.text import clean_frame

    return {"health": clean_frame(trace.health).to_dicts(), "conservation": _conservation(trace)}


def _doctor_of_several(by_process: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """What all processes share is said once, then what each has of its own."""
    first, *others = [one["health"] for one in by_process.values()]
    shared = [row for row in first if all(row in rows for rows in others)]
    yield f"all {len(by_process)} processes" + ("" if shared else ": nothing that they share")
    yield from _health_lines(shared)
    alike: dict[str, tuple[list[str], list[dict[str, Any]]]] = {}
    for process, one in by_process.items():
        own = [row for row in one["health"] if row not in shared]
        alike.setdefault(repr(own), ([], own))[0].append(process)
    for processes, own in alike.values():
        who = f"process{'es' if len(processes) > 1 else ''} {', '.join(processes)}"
        yield from _labelled({"": who + ("" if own else ": nothing else")}, width=0)
        yield from _health_lines(own)
    yield from _law_lines({process: one["conservation"] for process, one in by_process.items()})


def _health_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        head = f"{row['severity']:<8} {row['count']:>9,}"
        yield from _labelled({head: f"{row['kind']}: {row['meaning']}"}, width=20)
        if row["example"] and (row["severity"] != "info" or row["kind"] in _LISTS):
            yield from _labelled(
                {"": f"{'tables:' if row['kind'] in _LISTS else 'e.g.'} {row['example']}"}, width=20
            )


def _law_lines(laws: Mapping[str, Sequence[dict[str, Any]]]) -> Iterator[str]:
    """Every law once, with the processes in which it does not hold."""
    for each in zip(*laws.values(), strict=True):
        broken = [process for process, law in zip(laws, each, strict=True) if not law["holds"]]
        where = f" (process {', '.join(broken)})" if any(broken) else ""
        yield from _labelled({"BROKEN" if broken else "ok": each[0]["law"] + where}, width=9)


def _conservation(trace: Trace) -> list[dict[str, Any]]:
    """Whether the parts of every window sum to it, exactly, in ns."""
    from tracekit.analyses.breakdown import breakdown
    from tracekit.analyses.idle import idle
    from tracekit.analyses.kernels import kernels
    from tracekit.analyses.scope import select

    scope = select(trace)
    devices = breakdown(trace, scope=scope).devices
    parts = ["compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns"]
    streams = idle(trace, scope=scope).streams
    waits = ["host_wait_ns", "kernel_wait_ns", "other_ns", "unknown_ns"]
    table = kernels(trace, scope=scope)
    total = int(scope.activities["duration"].sum())
    return [
        {
            "law": "compute + exposed communication + exposed memory + idle = window, on every device",
            "holds": bool((devices.select(parts).sum_horizontal() == devices["window_ns"]).all()),
        },
        {
            "law": "idle by category = idle, on every stream",
            "holds": bool((streams.select(waits).sum_horizontal() == streams["idle_ns"]).all()),
        },
        {
            "law": "kernels by name = kernels by category = device time",
            "holds": int(table.by_name["total_ns"].sum())
            == int(table.by_category["total_ns"].sum())
            == total,
        },
    ]
