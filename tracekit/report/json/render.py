"""The report as JSON: a versioned envelope with stable keys, for scripts, gates and agents.

Times are integer ns, sizes bytes, ratios 0 to 1. What was not captured is null; NaN never appears. All rows of all
tables are there; each stands on a line of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import polars as pl

from tracekit.facts.terminal_text import escaped
from tracekit.findings import Finding
from tracekit.report.format import costliest
from tracekit.report.formats import Page
from tracekit.report.model import SCHEMA_VERSION, Report, Section, TraceInfo
from tracekit.trace import Trace

__all__ = [
    "finding_dict",
    "render",
    "render_alone",
    "render_data",
    "render_reports",
    "render_sections",
    "report_dict",
    "section_dict",
]


def render(report: Report, *, top: int | None = None) -> str:
    """The report as JSON text that ends with a newline; `top` limits the rows of every table (None: all).

    It follows `tracekit.report.json.schema.report_schema()`.
    """
    return render_data(report_dict(report, top=top))


def render_reports(
    reports: Sequence[tuple[Report, Trace]], page: Page, overview: Section | None = None
) -> str:
    """The one report, or an object whose `reports` are these, and whose `job` is the joint view of their ranks, if they are of a job."""
    if len(reports) == 1 and overview is None:
        return render(reports[0][0], top=page.top)
    joint = {} if overview is None else {"job": section_dict(overview, top=page.top)}
    whole = [report_dict(report, top=page.top) for report, _ in reports]
    return render_data({"schema_version": SCHEMA_VERSION, **joint, "reports": whole})


def render_alone(section: Section, page: Page) -> str:
    """A section that is of no single trace, under its name."""
    return render_data({"schema_version": SCHEMA_VERSION, **_alone(section, page)})


def render_sections(sections: Sequence[tuple[Section, TraceInfo]], page: Page) -> str:
    """An object whose `traces` hold a section each, as `render_alone` has it, with what is said of the trace."""
    each = [{"trace": dataclasses.asdict(trace), **_alone(section, page)} for section, trace in sections]
    return render_data({"schema_version": SCHEMA_VERSION, "traces": each})


def _alone(section: Section, page: Page) -> dict[str, Any]:
    verdict: dict[str, Any] = {}
    if section.tag:
        points = [{"label": label, "text": text} for label, text in section.points]
        verdict = {"verdict": section.tag, "points": points}
    return {section.name: {**verdict, **section_dict(section, top=page.top)}}


def render_data(value: Any) -> str:
    """Any value as JSON text that ends with a newline: lists and objects that hold others over several lines, so that
    each row of a table, a list or a frame, stands on one.

    >>> print(render_data({"rows": [{"a": 1}, {"a": None}]}), end="")
    {
      "rows": [
        {"a":1},
        {"a":null}
      ]
    }
    """
    lines: list[str] = []
    _write(value, "", lines, "", "")
    return "\n".join(map(escaped, lines)) + "\n"


def report_dict(report: Report, *, top: int | None = None) -> dict[str, Any]:
    """The report as plain dicts, lists, strings and numbers; `top` limits the rows of every table."""
    return {
        "schema_version": report.schema_version,
        "trace": dataclasses.asdict(report.trace),
        "window": dataclasses.asdict(report.window),
        "health": [dataclasses.asdict(item) for item in report.health],
        "verdict": _verdict(report),
        "analyses": {section.name: section_dict(section, top=top) for section in report.sections},
        **({} if report.digest is None else {"digest": report.digest.plain()}),
    }


def section_dict(section: Section, *, top: int | None = None) -> dict[str, Any]:
    """One analysis as plain data, and its tables as frames (of at most `top` rows), which `render_data` writes row by row."""
    return {
        "question": section.question,
        "answer": section.answer,
        "not_captured": section.not_captured,
        "error": section.error,
        "scalars": dict(section.scalars),
        "tables": {
            table.name: table.frame if top is None else costliest(table, top) for table in section.tables
        },
        "findings": [finding_dict(finding) for finding in section.findings],
    }


def finding_dict(finding: Finding) -> dict[str, Any]:
    """A finding with its time at stake in ns and in seconds."""
    return {**dataclasses.asdict(finding), "seconds_at_stake": finding.seconds_at_stake}


def _verdict(report: Report) -> dict[str, Any]:
    verdict = dataclasses.asdict(report.verdict)
    for advice in verdict["advice"]:
        stake = advice["ns_at_stake"]
        advice["seconds_at_stake"] = None if stake is None else stake / 1e9
    return verdict


def _write(value: Any, indent: str, lines: list[str], before: str, after: str) -> None:
    """Containers of containers over several lines, everything else on one: a table has one row a line."""
    inner = indent + "  "
    if isinstance(value, pl.DataFrame) and (
        not value.height or any(kind.is_nested() for kind in value.dtypes)
    ):
        value = value.to_dicts()
    if not _nested(value):
        lines.append(f"{indent}{before}{_encode(value)}{after}")
        return
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    lines.append(f"{indent}{before}{opening}")
    last = len(value) - 1
    if isinstance(value, pl.DataFrame):  # as objects its rows would take several times their room
        parts = (_lines(part.to_dicts(), inner) for part in value.iter_slices(_SLICE))
        lines.append(",\n".join(parts))
    elif isinstance(value, dict):
        for index, (key, item) in enumerate(value.items()):
            _write(item, inner, lines, f"{_encode(key)}: ", "" if index == last else ",")
    elif any(map(_nested, value)):
        for index, item in enumerate(value):
            _write(item, inner, lines, "", "" if index == last else ",")
    else:
        lines.append(_lines(value, inner))
    lines.append(f"{indent}{closing}{after}")


def _lines(rows: Sequence[Any], indent: str) -> str:
    """Values that hold no others, each on a line."""
    return indent + _ENCODER.encode_lines(rows).decode().rstrip("\n").replace("\n", f",\n{indent}")


def _nested(value: Any) -> bool:
    """Whether it is a container of containers."""
    if not isinstance(value, dict | list | tuple):
        return isinstance(value, pl.DataFrame)
    kinds = set(map(type, value.values() if isinstance(value, dict) else value))
    return any(issubclass(kind, dict | list | tuple | pl.DataFrame) for kind in kinds)


_SLICE: Final = 10_000
_ENCODER: Final = msgspec.json.Encoder()
"""It writes a float that is not finite as null."""


def _encode(value: Any) -> str:
    return _ENCODER.encode(value).decode()
