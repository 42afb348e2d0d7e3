"""What holds of every answer, whatever the input."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from mutators import MARKER

__all__ = ["Answer", "broken_laws", "disagreements"]

LONGEST_LINE: Final = 1_000
EXIT_CODES: Final = (0, 1, 2, 3, 4)
UNREADABLE: Final = 3
NOTE: Final = "tracekit: left out: "
"""Begins a line on one of several inputs, without which the command goes on."""
RAW: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2060\u2066-\u2069\u200b\u200e\u200f\ud800-\udfff]"
)
"""Control, bidirectional and half characters, of which a terminal must see none."""
NOT_NEGATIVE: Final = re.compile(
    r"(_ns|_s|bytes|count|calls|gaps|activities|share|utilisation|occupancy|tflops|gbps|length|allocations|frees|launched)$"
)
SHARES: Final = re.compile(r"((^|_)share|utilisation|occupancy|overlap)$")
TIMES: Final = frozenset({"start_ns", "end_ns", "origin_utc_ns", "offset_ns"})
OF_A_STEP: Final = frozenset({"workload.phases"})
"""Tables whose means are those of a step, however often the row's thing happens in one."""
OF_CHANGES: Final = (("diff",), ("what-if",))
CHANGES: Final = frozenset(
    {"delta_ns", "tree_delta_ns", "share", "gain_ns", "least_gain_ns", "most_gain_ns", "gain_share"}
)
"""Of two runs: each may be less than nothing, and more than the whole."""
LARGEST: Final = 2**63


@dataclass
class Answer:
    """What a command printed and wrote."""

    words: tuple[str, ...]
    code: int
    out: bytes = b""
    err: bytes = b""
    pages: list[Path] = field(default_factory=list)

    @property
    def command(self) -> str:
        return self.words[0]


def broken_laws(answer: Answer) -> Iterator[str]:
    """Each law that the answer breaks, as one line."""
    err = answer.err.decode("utf-8", "replace")
    out = answer.out.decode("utf-8", "replace")
    if answer.code not in EXIT_CODES:
        yield f"exit {answer.code}: {err.strip()[-300:]}"
        return
    if "Traceback (most recent call last)" in err or "Warning:" in err:
        yield f"stderr: {err.strip()[-300:]}"
    if answer.code and not err.strip() and not out.strip():
        yield "a failure without a word"
    if "--help'" in err:
        yield f"the campaign asks what no command understands: {err.strip()[-300:]}"
    said = "".join(line for line in err.splitlines(keepends=True) if not line.startswith(NOTE))
    if answer.code in (2, 3) and (said.count("\n") != 1 or len(err) > LONGEST_LINE + 1):
        yield f"an error of {said.count(chr(10))} lines and {len(err)} characters: {err[:200]!r}"
    for name, text in (("stderr", err), ("stdout", out)):
        raw = RAW.search(text.replace("\n", " ").replace("\t", " "))
        if raw:
            yield f"{name} holds {raw[0]!r}: {text[max(0, raw.start() - 60) : raw.end() + 20]!r}"
    for page in answer.pages:
        if MARKER in page.read_text(errors="replace") or "<script>marker" in page.read_text(errors="replace"):
            yield f"a name is an element in {page.name}"
    if "json" in answer.words and (answer.out or answer.code in (0, 1)):
        yield from _of_json(out)


def _of_json(text: str) -> Iterator[str]:
    try:
        tree = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        yield f"no JSON: {error}: {text[:200]!r}"
        return
    yield from _of_figures(tree, ())
    analyses = {}
    if isinstance(tree, dict):
        analyses = tree.get("analyses") or {name: tree[name] for name in tree.keys() & {"diff"}}
    yield from _of_sums(
        {
            f"{analysis}.{table}": rows
            for analysis, result in analyses.items()
            for table, rows in (result or {}).get("tables", {}).items()
        }
    )


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _of_figures(tree: Any, path: tuple[str, ...]) -> Iterator[str]:
    """What no figure may be; a report has some 10,000 of them, so the innermost loop calls as little as it can."""
    for key, value in tree.items() if isinstance(tree, dict) else zip(repeat(""), tree, strict=False):
        kind = type(value)
        if key == "settings":  # as the user gave them: a seed may be any number
            continue
        if kind is dict or kind is list:
            yield from _of_figures(value, (*path, key) if key else path)
        elif kind is int or kind is float:
            name = key or path[-1]
            if path[:1] in OF_CHANGES and name in CHANGES:
                continue
            low, high = _limits(name, "counters" in path)
            if not low <= value <= high:
                yield f"{'.'.join((*path, name)[-4:])} = {value}: not from {low} to {high}"


@cache
def _limits(key: str, counter: bool) -> tuple[float, float]:
    """The least and the greatest figure of this name; a counter may be as large as it likes."""
    if SHARES.search(key) and key not in TIMES:
        return -1e-9, 1 + 1e-9
    most = math.inf if counter else LARGEST
    return (0 if NOT_NEGATIVE.search(key) and key not in TIMES else -most), most


Tables = dict[str, list[dict[str, Any]]]


def _of_sums(tables: Tables) -> Iterator[str]:
    """What is one time in two tables, and what the parts of a time make together."""
    devices = tables.get("breakdown.devices", [])
    for row in devices:
        if row["busy_ns"] + row["idle_ns"] != row["window_ns"]:
            yield f"device {row['device_id']}: busy and idle time are not the window"
        if not row["busy_ns"] <= row["compute_ns"] + row["communication_ns"] + row["memory_ns"]:
            yield f"device {row['device_id']}: the parts are less than the busy time"
        if row["exposed_communication_ns"] + row["overlap_ns"] > row["communication_ns"]:
            yield f"device {row['device_id']}: more is exposed than communicated"
    causes = tables.get("idle.by_cause", [])
    if causes and devices and _sum(causes, "total_ns") != _sum(devices, "idle_ns"):
        yield "the causes of idle time are not the idle time"
    for row in tables.get("idle.streams", []):
        if row["idle_ns"] != sum(
            row[f"{part}_ns"] for part in ("host_wait", "kernel_wait", "other", "unknown")
        ):
            yield f"stream {row['stream_id']}: the parts are not the idle time"
    for what, columns in SAME_SUMS.items():
        times = {name: _sum(tables[name], column) for name, column in columns.items() if tables.get(name)}
        # What rounding may lose goes by the parts: changes may cancel each other.
        parts = [abs(row[column]) for name, column in columns.items() for row in tables.get(name, [])]
        if times and max(times.values()) - min(times.values()) > 1e-9 * max(parts, default=0):
            yield f"{what} is not one: {times}"
    for name, rows in tables.items():
        yield from _of_statistics(name, rows)


SAME_SUMS: Final = {
    "the time of all activities": {
        "kernels.by_category": "total_ns",
        "kernels.by_name": "total_ns",
        "layers.by_phase": "device_ns",
        "layers.coverage": "duration_ns",
        "layers.tree": "device_own_ns",
    },
    "the critical path": {f"critical-path.by_{part}": "total_ns" for part in ("cause", "layer", "operator")},
    "the change of a step": {
        f"diff.{table}": "delta_ns" for table in ("phase", "layer", "type", "operator", "category", "name")
    },
}


def _sum(rows: list[dict[str, Any]], column: str) -> float:
    return sum(row[column] for row in rows)


def _of_statistics(table: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        ends = [row.get(f"{name}_ns") for name in ("min", "median", "p95", "max")]
        if None not in ends and ends != sorted(ends):
            yield f"{table}: least, median, 95th percentile and most are {ends}"
        means = {"count", "mean_ns", "total_ns"} <= row.keys() and table not in OF_A_STEP
        if means and row["mean_ns"] is not None:
            product = row["count"] * row["mean_ns"]
            if not math.isclose(product, row["total_ns"], rel_tol=1e-9):
                yield f"{table}: {row['count']} times the mean is {product}, the total {row['total_ns']}"


def disagreements(answers: list[Answer]) -> Iterator[str]:
    """Commands that call the same file readable and unreadable."""
    readable = {answer.command: answer.code != UNREADABLE for answer in answers}
    if len(set(readable.values())) > 1:
        yield f"readable or not: {readable}"
