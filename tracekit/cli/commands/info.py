"""`tracekit info`: what is in a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.options import Reading, with_flags
from tracekit.cli.sources import read_each
from tracekit.facts.units import count_of, format_bytes, format_count, format_flop, format_ns
from tracekit.readers import flag_for
from tracekit.report.formats import Can, choose_format, render_data

if TYPE_CHECKING:
    from tracekit.analyses.scope import Scope
    from tracekit.trace import Trace

__all__ = ["CAPTURED", "facts_of", "info"]

CAPTURED: Final = (
    *("device", "ops", "launches", "steps", "shapes", "memory", "stacks", "modules", "layers", "sync"),
    *("collectives", "counters", "occupancy"),
)
"""What a trace may hold, in the order in which what it lacks is listed."""


@with_flags
def info(
    traces: flags.TraceFiles,
    process: flags.Process = None,
    format_: flags.FactsFormat = None,
    output: flags.Output = None,
    *,
    reading: Reading,
) -> None:
    """Show what a file holds.

    The producer, the devices, the steps, the number of rows by kind, and what was captured.
    """
    chosen = choose_format(Can.FACTS, format_, output, command="info")
    files = read_each(traces, process, reading)
    found = [(own, [facts_of(one) for one in own]) for _, own in files]
    if len(files) > 1:
        for (name, _), (_, facts) in zip(files, found, strict=True):
            facts[0]["file"] = name
    if Can.DATA in chosen.can:
        each = [_data(own, facts) for own, facts in found]
        text = render_data(chosen, each[0] if len(each) == 1 else {"files": each})
    else:
        text = "\n\n".join(
            _text(own[0], facts[0]) if len(own) == 1 else _text_of_several(own, facts) for own, facts in found
        )
    out.emit(text, output)


def _data(traces: Sequence[Trace], facts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The facts of one trace; for several traces, the facts of the file and of each process."""
    if len(traces) == 1:
        return facts[0]
    origin = min(trace.meta.origin_ns for trace in traces)
    return {
        **{name: facts[0][name] for name in ("file", "format", "size_bytes")},
        "traces": [
            {"process_id": trace.meta.process_id, "start_ns": trace.meta.origin_ns - origin, **of_one}
            for trace, of_one in zip(traces, facts, strict=True)
        ],
    }


def facts_of(trace: Trace) -> dict[str, Any]:
    """The facts of a trace as plain data; times are ns, sizes bytes."""
    from tracekit.analyses.arithmetic import arithmetic
    from tracekit.analyses.attribution.layer_ranges import user_ranges
    from tracekit.analyses.scope import select
    from tracekit.analyses.traits import traits
    from tracekit.groups import groups, kept, or_none
    from tracekit.names import clean

    meta = trace.meta
    scope = select(trace)
    amd = "amd" in traits(scope)
    work, captured = arithmetic(scope), _captured(scope)
    steps = kept(trace.host[["kind", "name", "start"]], trace.host["kind"] == "step").sort("start")
    host = trace.host["kind"].value_counts(sort=True)
    device = trace.device["kind"].value_counts(sort=True)
    ends = [(frame["start"] + frame["duration"]).max() for frame in (trace.host, trace.device)]
    threads, streams = (
        groups(*(or_none(frame[name]) for name in names)).size
        for frame, names in (
            (trace.host, ("process_id", "thread_id")),
            (trace.device, ("device_id", "stream_id")),
        )
    )
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
        "threads": threads,
        "streams": streams,
        "steps": [clean(name) for name in steps["name"].to_list()],
        "steps_inferred": scope.steps.height if scope.inferred else 0,
        "steps_inferred_from": clean(scope.inferred_from) if scope.inferred_from else None,
        "named_ranges": user_ranges(trace).height,
        "host_spans": dict(host.iter_rows()),
        "device_activities": dict(device.iter_rows()),
        "flops": {
            "source": work.source,
            "per_step": work.flops_per_step,
            "in_window": work.flops,
            "share_of_device_time": work.covered,
            "tflops": work.tflops,
            "precision": work.precision,
            "utilisation": work.utilisation,
        },
        "captured": sorted(captured),
        "not_captured": {
            name: flag_for(name, meta.format, amd=amd) for name in CAPTURED if name not in captured
        },
    }


def _captured(scope: Scope) -> frozenset[str]:
    """The kinds of data in the trace; where no call says what it moves, as with gloo, the shapes of operators may tell it."""
    from tracekit.analyses.collectives import collectives
    from tracekit.groups import any_known

    captured = scope.trace.meta.captured
    sized = "collectives" not in captured and any_known(collectives(scope).by_size["bytes"])
    return captured | {"collectives"} if sized else captured


def _text(trace: Trace, facts: dict[str, Any]) -> str:
    from tracekit.report.format import format_excerpt

    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{format_count(n)} {kind}" for kind, n in counts.items()) or "none"

    devices = (
        ", ".join(f"{d['device_id']}: {d['name'] or 'name not in the file'}" for d in facts["devices"])
        or "none"
    )
    rank = "unknown" if facts["rank"] is None else str(facts["rank"])
    if facts["world_size"]:
        rank += f" of {facts['world_size']}"
    size = f"{format_bytes(facts['size_bytes'])}, " if facts["size_bytes"] else ""  # a pipe has none
    rows = {
        "file": f"{facts['file']} ({size}{format_count(facts['events'])} events)",
        **({"read": format_excerpt(trace.meta.excerpt)} if trace.meta.excerpt else {}),
        "length": format_ns(facts["duration_ns"]),
        "rank": rank,
        "devices": devices,
        "steps": _steps(facts),
        "host spans": f"{listed(facts['host_spans'])}, on {count_of(facts['threads'], 'thread')}",
        "device": listed(facts["device_activities"])
        + (f", on {count_of(facts['streams'], 'stream')}" if facts["streams"] else ""),
        "FLOPs": _flops(trace),
        "captured": ", ".join(facts["captured"]) or "nothing",
    }
    lines = out.labelled(rows)
    lines += _lacking(_not_captured(facts))
    problems = trace.health.filter(trace.health["severity"] != "info").height
    lines += out.labelled({"health": _problems(problems)})
    return "\n".join(lines)


def _flops(trace: Trace) -> str:
    from tracekit.analyses.arithmetic import arithmetic

    work = arithmetic(trace)
    return "not captured" if work.source is None else work.figures


def _amount(flops: dict[str, Any]) -> str | None:
    """The FLOPs of one of several processes; None where they were not captured."""
    if flops["per_step"] is not None:
        return f"{format_flop(flops['per_step'])} a step"
    return None if flops["in_window"] is None else f"{format_flop(flops['in_window'])} in the window"


def _steps(facts: dict[str, Any]) -> str:
    """The marked steps, else the steps that the report infers."""
    steps: list[str] = facts["steps"]
    if steps:
        return steps[0] if len(steps) == 1 else f"{len(steps)}, {steps[0]} to {steps[-1]}"
    if facts["steps_inferred"]:
        return f"none marked; {facts['steps_inferred']} inferred from {facts['steps_inferred_from']}"
    return "none"


def _not_captured(facts: dict[str, Any]) -> dict[str, str]:
    """What the trace lacks, without data for which there is a substitute."""
    lacking: dict[str, str] = dict(facts["not_captured"])
    if facts["steps_inferred"]:
        lacking.pop("steps", None)
    if "modules" in facts["captured"]:
        lacking.pop("layers", None)
    if facts["named_ranges"] and "layers" in lacking:
        count = count_of(facts["named_ranges"], "user range")
        lacking["layers"] = f"not marked, but {count} may count as layers (tracekit layers)"
    return lacking


def _text_of_several(traces: Sequence[Trace], facts: Sequence[dict[str, Any]]) -> str:
    """The data that all processes of a file share, and a line for each process."""
    from tracekit.report.format import shown_columns
    from tracekit.report.several import processes_table
    from tracekit.report.terminal.grid import grid

    flops = [_amount(one["flops"]) for one in facts]
    table = processes_table(traces, [one["duration_ns"] for one in facts], flops)
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
        **(
            {"read": f"only parts of {excerpts} processes; --max-events 0 reads all of them"}
            if excerpts
            else {}
        ),
        "length": format_ns(table.frame["last"].max()),  # type: ignore[arg-type]
        "devices": ", ".join(
            f"{number}: {name or 'name not in the file'}" for number, name in sorted(names.items())
        ),
        **({} if any(flops) else {"FLOPs": "not captured"}),
        "captured": ", ".join(captured) + some or "nothing",
    }
    lines = [*out.labelled(rows), *_lacking(lacking), *out.labelled({"health": _problems(problems)})]
    lines += ["", f"{len(traces)} processes with work on a device; `--process PID` shows the details of one"]
    lines += grid(table, shown_columns(table, table.short), width=out.PAGE_WIDTH, rows=table.total_rows)[0]
    return "\n".join(lines)


def _lacking(flags_of: dict[str, str]) -> list[str]:
    head = "not captured" + ("" if flags_of else " nothing")
    return [head, *out.labelled(flags_of, indent="  ", width=14)]


def _problems(count: int) -> str:
    if not count:
        return "no problems"
    return f"{count_of(count, 'problem')}, which `tracekit doctor` lists"
