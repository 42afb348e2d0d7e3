"""The log of what a reader met: every kind of defect with its meaning, a count and one example."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from tracekit.trace import HEALTH_SCHEMA

__all__ = ["MEANINGS", "HealthLog", "with_defect"]

_TEXTS: Final = """
error truncated_file: the file is truncated; everything before its end was read
error malformed_event: events that could not be repaired were left out
error no_event: the file holds no span of a host and no activity of a device
error oversized_event: an event is longer than 64 MB, which no real event is; reading stopped there
error damaged_gzip: the compressed data are damaged or their checksum is wrong; what could be unpacked was read
warning dropped_records: the profiler says that it dropped records of device activities and calls
warning stopped_early: the profiler says that it stopped early, because its buffers were full
warning fewer_events: the export holds fewer events than nsys says that it collected
warning no_kernel: the host launched kernels, but the file holds none, so nothing shows what a device did
warning lost_activity: launch calls have no activity in the file; a device may have worked while it seems idle
warning missing_operators: operators are missing, as the profiler's numbers show; time without a record may be theirs
warning endless_call: calls last longer than all the rest of the trace; they were kept
warning unnamed: rows have no name, because the file lacks their text
warning unreadable_tail: keys after the events could not be read
warning unused_manifest: the manifest beside the trace cannot be used, so what it says of the run is missing
info repaired_header: the file's header was repaired before reading
info unescaped_quote: a name with an unescaped " made the JSON invalid; it was repaired
info control_character: raw control characters in text were escaped
info invalid_utf8: bytes that are not UTF-8 were replaced by �
info bare_value: there are NaN, Infinity or N/A, which JSON does not allow; they were read as missing values
info odd_arguments: arguments of an unexpected type were read one by one
error event_without_time: events without a readable start time were left out
warning record_without_time: records beside the spans and activities (of an allocator, a counter, a wait) without a readable start time were left out
error absurd_time: events are 19.5 hours or more away from the others, or longer; they were left out
error too_many_devices: the file names more devices than a process has; activities of all but 64 were left out
warning absurd_amount: numbers of bytes or elements are larger than any machine has; they were left out
warning no_allocator: events of an allocator name no device; they were left out
warning missing_duration: complete events without a duration, or with one that no clock can show, count as 0 ns
warning negative_duration: negative durations were set to 0 ns
warning absurd_duration: device activities are longer than 1 s, as after a known overflow in ROCm's profiler; they were kept
warning activity_without_stream: device activities without a device or stream were assigned to 0
info overlap_on_stream: activities on one stream overlap, as programmatic launches can; they were kept, and unions are still exact
info overlapping_spans: host spans on one thread overlap partly; neither is the parent of the other
info unmatched_flow: arrows between events lack one end, or have several; they were left out
info unlinked_activity: device activities have no recorded launch call; they count as device time
warning ambiguous_correlation: several processes use the same correlation id; operator and time decided which launch belongs to an activity
warning activity_before_launch: the clocks of host and device disagree: activities start before their launch
info launch_without_activity: launch calls have no activity in the file, as the last ones before a recording ends
info maybe_incomplete: nsys says that it may not have collected all events
info unknown_category: events of a category that tracekit does not know were read as annotations
info unread_phase: events of a kind that tracekit does not read (asynchronous or begin/end pairs) were left out
info unread_instant: instant events other than the allocator's have no duration; they were left out
warning merged_ranks: the file holds the traces of several ranks (tracekit merge), which count as one program here
warning excerpt: the trace is larger than --max-events, so rows outside the steps that were read were left out
info ncu_other_lines: lines around Nsight Compute's table (from ncu and from the program) were skipped
warning ncu_damaged_row: rows of Nsight Compute's table that name no kernel were left out
warning ncu_unmatched: Nsight Compute measured kernels with a name, grid and block that the trace does not have
warning ncu_ambiguous: the trace and Nsight Compute's table have different numbers of launches of some kernels, and the metrics of these launches differ; the kernels got no metrics
info ncu_mean: kernels got the mean of the measured launches with their name, grid and block; the metrics of these launches agree
info ncu_not_measured: kernels of the trace were not measured by Nsight Compute
warning table_without_row_ids: tables were not read, because their rows have no ids (WITHOUT ROWID)
info unread_payload: binary payloads were not read, because the file's schemas do not explain them
info unread_table: the export has rows in tables that tracekit does not read
info open_range: ranges were still open when the recording ended; they end at that time
info unended_span: spans were still open when the profiler stopped, which counts as their end; they end with the last other span
info other_process: host spans of processes that put no work on a device were left out
info thinned_metrics: the export has very many samples of GPU metrics; an evenly spaced part of them was read
info unknown_rank: neither the file nor its name says which rank this is
"""

MEANINGS: Final[dict[str, tuple[str, str]]] = {
    kind: (severity, meaning)
    for severity, kind, meaning in re.findall(r"^(\w+) (\S+): (.*)$", _TEXTS, re.MULTILINE)
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
                f"{kind.removeprefix(_DERIVED)} events repeat the data of other events; they were left out",
            )
        else:
            severity, meaning = MEANINGS[kind]
        # A file name that is not UTF-8 has lone surrogates, which a frame cannot hold.
        whole = example.encode("utf-8", "replace").decode("utf-8")
        shown = whole if len(whole) <= _LONGEST_EXAMPLE else f"{whole[: _LONGEST_EXAMPLE - 1]}…"
        self._rows[kind] = [kind, severity, count, meaning, shown]

    def __contains__(self, kind: str) -> bool:
        """Whether a defect of this kind was counted."""
        return kind in self._rows

    def copy(self) -> HealthLog:
        """A new log with the rows of this one."""
        other = HealthLog()
        other._rows = {kind: list(row) for kind, row in self._rows.items()}
        return other

    def frame(self) -> pl.DataFrame:
        """One row per kind, with the most severe first."""
        order = {"error": 0, "warning": 1, "info": 2}
        rows = sorted(self._rows.values(), key=lambda row: (order[str(row[1])], str(row[0])))
        return pl.DataFrame(rows, schema=HEALTH_SCHEMA, orient="row")


def with_defect(health: pl.DataFrame, kind: str, example: str) -> pl.DataFrame:
    """The health frame of a trace with one more defect, which its reader could not know of."""
    log = HealthLog()
    log.count(kind, 1, example)
    return pl.concat([log.frame(), health])
