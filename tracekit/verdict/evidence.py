"""How sure the verdict is: the sentences that say which records a file lacks, and what that means for the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tracekit.analyses.completeness import Completeness
from tracekit.facts.units import count_of, format_count, format_share
from tracekit.verdict.advice import Owned
from tracekit.verdict.model import Advice

__all__ = ["idle_headline", "lacks", "lost_device", "no_device", "record_again", "standing"]

_CLOCKS: Final = 0.01
"""If more activities than this part start before their launch, it is no matter of rounding."""

_WORTH: Final = 0.001
"""A smaller part of the events is not worth a note."""

_STANDS: Final = frozenset({"kernels", "memory", "counters"})
"""Sections whose findings rest on records that are there, whatever is missing, …"""

_STANDS_IF_THIN: Final = _STANDS | {"breakdown"}
"""… and those that rest on records of a device, if only operators are missing."""

_RESTS_ON_IDLE: Final = frozenset({"low_utilisation", "damaged_capture"})
"""Findings of the breakdown that call missing work idle time, or repeat the advice about the damage."""

_RESTS_ON_NAMES: Final = frozenset({"other_too_large"})
"""Findings that ask to look at names."""

_ENDS: Final = {
    "truncated_file": "The file is truncated",
    "damaged_gzip": "The compressed data of the file are damaged",
    "oversized_event": "Reading stopped at an event of more than 64 MB",
}


def lacks(complete: Completeness, *, device: bool) -> Iterator[str]:
    """A note on the records that are missing, and notes on times that are wrong; `device`: the verdict is about a device."""
    if complete.empty_steps:
        steps = count_of(complete.empty_steps, "step")
        yield f"The {steps} launched nothing that the file holds, so the figures are those of the whole trace."
    if complete.merged:
        yield "The file holds the traces of several ranks, which count as one program here. To compare the ranks, give their own traces together."
    missing = [*_missing(complete)]
    if missing:
        yield " ".join([*missing, _meaning(complete, device=device)])
    if complete.unnamed >= max(_WORTH * complete.events, 1):
        count = count_of(complete.unnamed, "row has", "rows have")
        yield f"{count} no name, because the file lacks their texts. Kernels, calls and ranges without a name cannot be told apart."
    if complete.endless:
        count = count_of(complete.endless, "call lasts", "calls last")
        yield f"{count} longer than all the rest of the trace. Times of the host may be wrong."
    if complete.mended >= max(_WORTH * complete.events, 1):
        count = count_of(complete.mended, "event has", "events have")
        work = f" ({count_of(complete.mended_work, 'activity', 'activities')} of a device)"
        yield (
            f"{count} no readable duration or a negative one{work if complete.mended_work else ''}. These count as 0 ns, so sums are too "
            "low."
        )
    if complete.absurd:
        count = count_of(complete.absurd, "activity lasts", "activities last")
        yield (
            f"{count} longer than 1 s ({format_share(complete.absurd_share)} of the device time). Some profilers write such "
            "times after an overflow; then busy times are too long."
        )
    if complete.activities and complete.early >= _CLOCKS * complete.activities:
        yield (
            f"{format_count(complete.early)} of {format_count(complete.activities)} activities start before their launch. "
            "The clocks of host and device disagree, so causes of idle time are uncertain."
        )


def _missing(complete: Completeness) -> Iterator[str]:
    if complete.breaks:
        read = count_of(complete.events, "event was", "events were")
        text = f"{_ENDS[complete.breaks]}: {read} read, and the rest is missing."
        names = ", ".join(complete.device_names)
        lost = f" It describes {names}, but holds no device activity." if names else ""
        yield text + ("" if complete.activities else lost)
    if complete.dropped:
        yield f"The profiler dropped {count_of(complete.dropped, 'record')}."
    if complete.stopped:
        yield "The profiler stopped early, because its buffers were full."
    if complete.collected:
        yield f"Nsight Systems collected {count_of(complete.collected, 'event')} that the export lacks."
    if complete.lost_work:
        share = format_share(complete.unanswered / complete.launches)
        calls = count_of(complete.launches, "launch call")
        if complete.unanswered < complete.launches:
            yield f"{format_count(complete.unanswered)} of {calls} in the window ({share}) have no activity in the file."
        elif complete.activities:
            yield f"The file holds no kernel of the {calls} in the window."
    operators = complete.operators
    if operators.thin:
        share = format_share(operators.held / operators.numbered)
        yield (
            f"The file holds only {format_count(operators.held)} of at least {format_count(operators.numbered)} operators and "
            f"ranges ({share}), as the profiler's numbering shows."
        )
    if complete.unread >= max(_WORTH * complete.events, 1):
        yield f"{count_of(complete.unread, 'event')} could not be read."


def _meaning(complete: Completeness, *, device: bool) -> str:
    if complete.sure:
        return "Sums are slightly too low."
    if device:
        return "So busy times are lower bounds, and idle time may be work whose record is missing."
    if complete.lost_host:
        return "So shares are of the recorded operators only, and the rest of the time may be operators that are missing."
    return "So the figures are about the host only."


def idle_headline(complete: Completeness, busy: str, idle: str) -> str:
    """The headline about a device if the cause of idle time is unknown for lack of records.

    `busy` is the part after `The device was busy`, `idle` the share of the rest, or empty.
    """
    if not complete.broken and not complete.operators.thin:
        return (
            f"was busy {busy}; it was idle {idle} of the time, and the names that would say why are missing."
        )
    if complete.lost_work and complete.unanswered == complete.launches:
        count = count_of(complete.launches, "kernel")
        return f"was busy {busy}, not counting {count} that the host launched: the file holds none of them."
    rest = f"; the other {idle} may be idle time, or work whose record is missing" if idle else ""
    return f"was busy at least {busy}{rest}."


def no_device(complete: Completeness) -> str:
    """The first sentence of a verdict without an activity of a device."""
    if complete.breaks:
        return "What is left of the file holds no device activity."
    if complete.lost_work:
        count = count_of(complete.unanswered, "kernel")
        unread = complete.unread >= complete.unanswered
        none = "no device activity could be read" if unread else "the file holds no device activity"
        return f"The host launched {count}, but {none}."
    return "No device was captured."


def lost_device(complete: Completeness) -> bool:
    """Whether a device may have worked of which nothing is left. Kineto writes its activities last."""
    return not complete.activities and (complete.lost_work or bool(complete.breaks))


def standing(findings: Sequence[Owned], complete: Completeness, *, device: bool) -> list[Owned]:
    """The findings that missing records cannot explain; without a device, operators stand for themselves."""
    if complete.sure:
        return list(findings)
    if not device:
        return [owned for owned in findings if owned.finding.id not in _RESTS_ON_IDLE]
    sections = _STANDS if complete.broken else _STANDS_IF_THIN
    silent = _RESTS_ON_IDLE | (_RESTS_ON_NAMES if complete.nameless else frozenset())
    return [owned for owned in findings if owned.section in sections and owned.finding.id not in silent]


def record_again(complete: Completeness) -> Advice:
    """What to do about missing records."""
    if complete.nameless and not complete.broken:
        title = "Names are missing from the file"
        text = "Export it again with all its tables: nsys export --type sqlite."
    elif complete.breaks:
        title = "The end of the file is missing"
        text = (
            "Copy the file again. If it is damaged at its source, record again with fewer steps, and let the profiler finish "
            "writing before the program ends."
        )
    elif complete.lost_work and complete.unread >= complete.unanswered:
        title = "Events of the file cannot be read"
        text = "tracekit doctor says what is wrong with them. Record again, or make the file again without changing its events."
    elif complete.lost_work and complete.unanswered == complete.launches:
        title = "The profiler recorded no kernel"
        text = (
            "Record again, and read the profiler's messages: missing permissions, or a driver newer than the profiler, can keep it "
            "from recording kernels."
        )
    elif complete.broken:
        title = "Records of the run are missing"
        text = "Record again with fewer steps, so that the profiler's buffers hold all of them."
    else:
        title = "Most operators are missing from the file"
        text = "Record again, and keep all events: time without a record cannot be explained."
    return Advice(title, text)
