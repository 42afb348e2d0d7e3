"""`tracekit doctor`: how healthy a file is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.options import Reading, with_flags
from tracekit.cli.sources import read_each
from tracekit.report.formats import Can, choose_format, render_data

if TYPE_CHECKING:
    from tracekit.trace import Trace

__all__ = ["doctor"]

_MOST_SUMMED: Final = 8

_WHOLE: Final = {
    "unread_table": "tables:",
    "table_without_row_ids": "tables:",
    "other_process": "",
    "launch_without_activity": "",
    "lost_activity": "",
    "missing_operators": "",
    "fewer_events": "",
    "dropped_records": "",
    "stopped_early": "",
    "maybe_incomplete": "",
    "unnamed": "",
    "no_kernel": "",
}
"""Defects of which the example says all, with the word before it."""


@with_flags
def doctor(
    traces: flags.TraceFiles,
    process: flags.Process = None,
    format_: flags.FactsFormat = None,
    output: flags.Output = None,
    *,
    reading: Reading,
) -> None:
    """Show the defects of a file.

    What was damaged, repaired or left out, and whether the figures add up. The exit code is 1 if an error is among the
    defects (data are lost, or there are none), or if figures do not add up.
    """
    chosen = choose_format(Can.FACTS, format_, output, command="doctor")
    checked = [(name, own, _checked(own)) for name, own in read_each(traces, process, reading)]
    several = len(checked) > 1
    if Can.DATA in chosen.can:
        each = [({"file": name} if several else {}) | _data(own, health) for name, own, health in checked]
        text = render_data(chosen, {"files": each} if several else each[0])
    else:
        blocks = [([name] if several else []) + _lines(own, health) for name, own, health in checked]
        text = "\n\n".join(map("\n".join, blocks))
    out.emit(text, output)
    if any(_is_broken(one) for _, _, health in checked for one in health):
        raise typer.Exit(1)


def _checked(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """The health of each process of a file."""
    summed = _busiest(traces)
    return [_health_of(one, summed=number in summed) for number, one in enumerate(traces)]


def _data(traces: Sequence[Trace], health: list[dict[str, Any]]) -> dict[str, Any]:
    if len(traces) == 1:
        return health[0]
    each = [{"process_id": one.meta.process_id, **own} for one, own in zip(traces, health, strict=True)]
    return {"traces": each}


def _lines(traces: Sequence[Trace], health: list[dict[str, Any]]) -> list[str]:
    if len(traces) == 1:
        return [*_health_lines(health[0]["health"]), *_law_lines({"": health[0]["conservation"]})]
    processes = _told_apart([one.meta.process_id for one in traces])
    lines = [*_lines_of_several(dict(zip(processes, health, strict=True)))]
    if (summed := len(_busiest(traces))) < len(traces):
        lines.append(f"The figures of the {summed} processes with the most events were added up;")
        lines.append("--process PID adds up those of another.")
    return lines


def _told_apart(processes: Sequence[int | None]) -> list[str]:
    """The processes as text; one that the file does not name by its place."""
    return [f"no. {at}" if one is None else str(one) for at, one in enumerate(processes, 1)]


def _is_broken(health: dict[str, Any]) -> bool:
    """Whether something is lost, or does not add up."""
    lost = any(row["severity"] == "error" for row in health["health"])
    return lost or not all(law["holds"] for law in health["conservation"])


def _busiest(traces: Sequence[Trace]) -> set[int]:
    """The traces, by number, whose figures are added up: those with the most events, since each takes a tenth of a second."""
    sizes = [trace.device.height + trace.host.height for trace in traces]
    return set(sorted(range(len(traces)), key=lambda number: -sizes[number])[:_MOST_SUMMED])


def _health_of(trace: Trace, *, summed: bool) -> dict[str, Any]:
    """The defects, and if it is to be `summed` whether the figures add up; else an empty list of laws."""
    from msgspec.structs import asdict

    from tracekit.analyses.parts import conservation
    from tracekit.names import clean_frame

    laws = [asdict(law) for law in conservation(trace)] if summed else []
    return {"health": clean_frame(trace.health).to_dicts(), "conservation": laws}


def _lines_of_several(by_process: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """The defects that all processes share, then those of each process."""
    first, *others = [one["health"] for one in by_process.values()]
    shared = [row for row in first if all(row in rows for rows in others)]
    yield f"all {len(by_process)} processes" + ("" if shared else ": no defect in common")
    yield from _health_lines(shared)
    alike: dict[str, tuple[list[str], list[dict[str, Any]]]] = {}
    for process, one in by_process.items():
        own = [row for row in one["health"] if row not in shared]
        alike.setdefault(repr(own), ([], own))[0].append(process)
    for processes, own in alike.values():
        who = f"process{'es' if len(processes) > 1 else ''} {', '.join(processes)}"
        yield from out.labelled({"": who + ("" if own else ": no other defect")}, width=0)
        yield from _health_lines(own)
    laws = {process: one["conservation"] for process, one in by_process.items()}
    yield from _law_lines({process: own for process, own in laws.items() if own})


def _health_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        head = f"{row['severity']:<8} {row['count']:>9,}"
        yield from out.labelled({head: f"{row['kind']}: {row['meaning']}"}, width=20)
        if row["example"] and (row["severity"] != "info" or row["kind"] in _WHOLE):
            example = f"{_WHOLE.get(row['kind'], 'e.g.')} {row['example']}".strip()
            yield from out.labelled({"": example}, width=20)


def _law_lines(laws: Mapping[str, Sequence[dict[str, Any]]]) -> Iterator[str]:
    """One line for each law, with the processes in which it does not hold."""
    for each in zip(*laws.values(), strict=True):
        broken = [process for process, law in zip(laws, each, strict=True) if not law["holds"]]
        where = f" (process {', '.join(broken)})" if any(broken) else ""
        yield from out.labelled({"BROKEN" if broken else "ok": each[0]["law"] + where}, width=9)
