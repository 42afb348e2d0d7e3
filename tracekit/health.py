"""The log of what a reader met: every kind of defect with its meaning, a count and one example."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.trace import HEALTH_SCHEMA

__all__ = ["MEANINGS", "HealthLog"]

MEANINGS: Final[dict[str, tuple[str, str]]] = {
    "truncated_file": ("error", "the file ends in the middle; everything up to there was read"),
    "malformed_event": ("error", "events that no repair could make readable were left out"),
    "oversized_event": (
        "error",
        "one event is longer than 64 MB, and no real event is; reading stopped there",
    ),
    "damaged_gzip": (
        "error",
        "the gzip data are damaged or their checksum is wrong; what could be unpacked was read",
    ),
    "unreadable_tail": ("warning", "keys after the events could not be read"),
    "repaired_header": ("info", "the file's header was repaired before reading"),
    "unescaped_quote": ("info", 'a name with an unescaped " made the JSON invalid; it was repaired'),
    "control_character": ("info", "raw control characters in text were escaped"),
    "invalid_utf8": ("info", "bytes that are not UTF-8 were replaced by �"),
    "bare_value": ("info", "NaN, Infinity or N/A stand where JSON allows none; they were read as missing"),
    "odd_arguments": ("info", "arguments of an unexpected type were read one by one"),
    "event_without_time": ("warning", "events without a readable start time were left out"),
    "missing_duration": ("warning", "complete events without a duration count as 0 ns"),
    "negative_duration": ("warning", "negative durations were set to 0 ns"),
    "absurd_duration": (
        "warning",
        "device activities are longer than 1 s, a known overflow of ROCm's profiler; they were kept as they are",
    ),
    "activity_without_stream": ("warning", "device activities without a device or stream were put on 0"),
    "overlap_on_stream": (
        "info",
        "activities overlap on one stream (programmatic launches); they were kept, and unions stay exact",
    ),
    "overlapping_spans": ("info", "host spans overlap partly on one thread; neither is the other's parent"),
    "unlinked_activity": (
        "info",
        "device activities have no recorded launch call; they count as device time",
    ),
    "ambiguous_correlation": (
        "warning",
        "several processes use one correlation id; operator and time decided",
    ),
    "activity_before_launch": (
        "warning",
        "the clocks of host and device disagree: activities start before their launch",
    ),
    "unknown_category": ("info", "events of a category that tracekit does not know were read as annotations"),
    "unread_phase": (
        "info",
        "events of a kind that tracekit does not read (asynchronous or begin/end pairs) were left out",
    ),
    "unread_instant": (
        "info",
        "instant events other than the allocator's have no duration; they were left out",
    ),
    "excerpt": (
        "warning",
        "rows outside the steps that were read were left out, because the trace is larger than --max-events",
    ),
    "ncu_other_lines": (
        "info",
        "lines around Nsight Compute's table (from ncu and from the program) were skipped",
    ),
    "ncu_damaged_row": ("warning", "rows of Nsight Compute's table that name no kernel were left out"),
    "ncu_unmatched": (
        "warning",
        "kernels that Nsight Compute measured have a name, grid and block that the trace does not have",
    ),
    "ncu_ambiguous": (
        "warning",
        "kernels ran another number of times in the trace than in Nsight Compute's table, and their metrics differ;"
        " they got no metrics",
    ),
    "ncu_mean": (
        "info",
        "kernels got the mean over the launches of their name, grid and block that Nsight Compute measured; these launches agree",
    ),
    "ncu_not_measured": ("info", "kernels of the trace were not measured by Nsight Compute"),
    "table_without_row_ids": (
        "warning",
        "tables were not read, because their rows have no ids (WITHOUT ROWID)",
    ),
    "unread_payload": (
        "info",
        "binary payloads were not read, because the file's schemas do not explain them",
    ),
    "unread_table": ("info", "rows are in tables that tracekit does not read"),
    "open_range": ("info", "ranges were still open when the recording ended; they end with it"),
    "other_process": ("info", "host spans of processes that put no work on a device were left out"),
    "thinned_metrics": (
        "info",
        "there are very many samples of metrics; an evenly spaced part of them was read",
    ),
    "unknown_rank": ("info", "neither the file nor its name says which rank this is"),
}
"""Defect → (severity, meaning)."""

_DERIVED: Final = "derived:"
_LONGEST_EXAMPLE: Final = 160


class HealthLog:
    """Collects counts; `frame()` gives the health frame of a Trace."""

    def __init__(self) -> None:
        self._rows: dict[str, list[object]] = {}

    def count(self, kind: str, count: int | None, example: str = "") -> None:
        """Add `count` defects of this kind (nothing when it is 0 or None)."""
        if not count:
            return
        if kind in self._rows:
            row = self._rows[kind]
            row[2] = int(str(row[2])) + count
            return
        if kind.startswith(_DERIVED):
            severity, meaning = (
                "info",
                f"{kind.removeprefix(_DERIVED)} events repeat what other events say; they were left out",
            )
        else:
            severity, meaning = MEANINGS[kind]
        # A file name that is no UTF-8 comes as lone surrogates, which no frame can hold.
        whole = example.encode("utf-8", "replace").decode("utf-8")
        shown = whole if len(whole) <= _LONGEST_EXAMPLE else f"{whole[: _LONGEST_EXAMPLE - 1]}…"
        self._rows[kind] = [kind, severity, count, meaning, shown]

    def copy(self) -> HealthLog:
        """A log that begins with what this one holds."""
        other = HealthLog()
        other._rows = {kind: list(row) for kind, row in self._rows.items()}
        return other

    def frame(self) -> pl.DataFrame:
        """One row per kind, the gravest first."""
        order = {"error": 0, "warning": 1, "info": 2}
        rows = sorted(self._rows.values(), key=lambda row: (order[str(row[1])], str(row[0])))
        return pl.DataFrame(rows, schema=HEALTH_SCHEMA, orient="row")
