"""`tracekit info` and `tracekit doctor`: what is in a file, and how healthy it is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.asked import Reading, with_flags
from tracekit.cli.options import Format
from tracekit.cli.sources import read_one
from tracekit.errors import UsageError
from tracekit.facts.capture_flags import flag_for

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
    read = read_one(trace, process, reading)
    facts = _facts(read)
    chosen = out.choose_format(format_, output)
    if chosen is Format.json:
        import json

        out.emit(json.dumps(facts, indent=2, ensure_ascii=False), output)
    elif chosen is Format.table:
        out.emit(_text(read, facts), output)
    else:
        raise UsageError(f"info writes a table or json, not {chosen.value}")


def _facts(trace: Trace) -> dict[str, Any]:
    import polars as pl

    from tracekit.report.text import clean

    meta = trace.meta
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
    steps = facts["steps"]
    shown = (
        "none" if not steps else steps[0] if len(steps) == 1 else f"{len(steps)}, {steps[0]} to {steps[-1]}"
    )
    rank = "unknown" if facts["rank"] is None else str(facts["rank"])
    if facts["world_size"]:
        rank += f" of {facts['world_size']}"
    rows = {
        "file": f"{facts['file']} ({format_bytes(facts['size_bytes'])}, {format_count(facts['events'])} events)",
        **({"read": format_excerpt(trace.meta.excerpt)} if trace.meta.excerpt else {}),
        "length": format_ns(facts["duration_ns"]),
        "rank": rank,
        "devices": devices,
        "steps": shown,
        "host spans": f"{listed(facts['host_spans'])}, on {_several(facts['threads'], 'thread')}",
        "device": f"{listed(facts['device_activities'])}, on {_several(facts['streams'], 'stream')}",
        "captured": ", ".join(facts["captured"]) or "nothing",
    }
    lines = [f"{key:<13}{value}" for key, value in rows.items()]
    lines.append("not captured" + ("" if facts["not_captured"] else " nothing is missing"))
    lines.extend(f"  {name:<12}{flag}" for name, flag in facts["not_captured"].items())
    problems = trace.health.filter(trace.health["severity"] != "info").height
    lines.append(
        f"{'health':<13}" + (f"{problems} problems, see `tracekit doctor`" if problems else "no problems")
    )
    return "\n".join(lines)


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
    from tracekit.report.text import clean_frame

    read = read_one(trace, process, reading)
    rows = clean_frame(read.health).to_dicts()
    laws = _conservation(read)
    chosen = out.choose_format(format_, output)
    if chosen is Format.json:
        import json

        out.emit(json.dumps({"health": rows, "conservation": laws}, indent=2, ensure_ascii=False), output)
        return
    if chosen is not Format.table:
        raise UsageError(f"doctor writes a table or json, not {chosen.value}")
    lines = [f"{row['severity']:<8} {row['count']:>9,}  {row['kind']}: {row['meaning']}" for row in rows]
    lines += [
        f"{'':<20} e.g. {row['example']}" for row in rows if row["example"] and row["severity"] != "info"
    ]
    lines += [f"{'ok' if law['holds'] else 'BROKEN':<8} {law['law']}" for law in laws]
    out.emit("\n".join(lines), output)


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
