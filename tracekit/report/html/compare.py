"""Several reports in one page: what tells them apart, and the table that compares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tracekit.facts.units import format_ns, format_share
from tracekit.report.format import NOT_CAPTURED
from tracekit.report.model import Report

__all__ = ["compared_row", "names_of"]

_COMPARED: Final = ("busy", "exposed_communication", "exposed_memory", "idle")


def names_of(reports: Sequence[Report]) -> list[str]:
    """What tells the reports apart: the rank, the process, or the name of the file."""
    traces = [report.trace for report in reports]
    for word, numbers in (
        ("rank", [trace.rank for trace in traces]),
        ("process", [trace.process_id for trace in traces]),
    ):
        if None not in numbers and len(set(numbers)) == len(numbers):
            return [f"{word} {number}" for number in numbers]
    paths = [trace.path for trace in traces]
    return [path if paths.count(path) == 1 else f"{path} ({at + 1})" for at, path in enumerate(paths)]


def compared_row(report: Report, name: str) -> dict[str, Any]:
    """A row of the table that compares several reports: the verdict, and how the busiest device passed the window."""
    section = report.section("breakdown")
    table = section.table("devices") if section else None
    row = {} if table is None or not table.frame.height else table.frame.sort("busy_ns").row(-1, named=True)
    whole = row.get("window_ns") or 0
    shares = [row[f"{key}_ns"] / whole if whole else None for key in _COMPARED if row or whole]
    return {
        "name": name,
        "window": format_ns(report.window.duration_ns),
        "shares": [NOT_CAPTURED if share is None else format_share(share) for share in shares]
        or [NOT_CAPTURED] * len(_COMPARED),
        "bound": report.verdict.bound,
        "headline": report.verdict.headline,
    }
