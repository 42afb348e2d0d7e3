"""Two sides compared, as a section: the verdict and the largest changes in words, then tables by dimension, and figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tracekit.diff.model import Diff
from tracekit.diff.noise import Change
from tracekit.facts.units import count_of, format_change, format_ns, format_share
from tracekit.names import clean
from tracekit.report.diff_figures import diff_figures
from tracekit.report.diff_tables import diff_tables
from tracekit.report.format import format_number
from tracekit.report.model import Section

__all__ = ["diff_section"]

MOST_TOLD: Final = 6
"""Changes that have a sentence; the table has all."""
_TWICE: Final = 2
_LEAST_P: Final = 0.001


def diff_section(found: Diff, times: Change) -> Section:
    """The section of a comparison and of that of its step times: tables `steps`, `ratios`, one for each dimension, `calls`,
    `changes`, `matched` and the `tree` of layers.
    """
    return Section(
        "diff",
        "What changed from base to new, and is it more than noise?",
        " ".join(_answer(found, times)),
        tag=times.verdict,
        points=tuple((label, clean(text)) for label, text in _points(found, times)),
        tables=tuple(diff_tables(found, times, nothing=_nothing(found))),
        figures=tuple(diff_figures(found)),
    )


# -- words -----------------------------------------------------------------------------------------


def _answer(found: Diff, times: Change) -> Iterator[str]:
    what = "A step" if found.per == "step" else "The window"
    base, new, ratio = format_ns(times.base.median), format_ns(times.new.median), times.median.ratio
    against = f"{new} instead of {base} at the median"
    if _nothing(found):
        yield f"Nothing changed: {what.lower()} takes {new} at the median on both sides, and all parts of it take as long."
    elif times.verdict == "same":
        yield f"{what} takes as long as before: {new} against {base} at the median."
    elif times.verdict == "inconclusive" or ratio is None:
        yield f"It is not clear whether {what.lower()} takes longer or shorter: {new} against {base} at the median."
    elif ratio >= _TWICE:
        yield f"{what} takes {ratio:.2f} times as long: {against}."
    elif ratio > 1 / _TWICE:
        amount = f"{format_share(ratio - 1)} longer" if ratio > 1 else f"{format_share(1 - ratio)} less time"
        yield f"{what} takes {amount}: {against}."
    else:
        yield f"{what} takes {format_share(ratio)} of the time: {against}."


def _nothing(found: Diff) -> bool:
    """Whether no figure differs."""
    sums = (frame["base_ns"].equals(frame["new_ns"]) for frame in found.by.values())
    return not found.change and not found.changes and all(sums)


def _points(found: Diff, times: Change) -> Iterator[tuple[str, str]]:
    if not _nothing(found):
        yield "test", _test(times)
    if found.change:
        yield (
            "mean",
            f"The mean {found.per} went from {format_ns(found.base.mean_ns)} to {format_ns(found.new.mean_ns)} "
            f"({format_change(found.change_ns)}); what follows sums to this.",
        )
    for change in found.changes[:MOST_TOLD]:
        yield "change", change.title
    others = found.changes[MOST_TOLD:]
    rest = float(found.rest + sum(change.delta for change in others))
    if rest:
        more = (
            f"{count_of(len(others), 'more change')}, and what no change explains"
            if others
            else "What no change explains"
        )
        yield "rest", f"{more}: {format_change(rest)}."
    for note in dict.fromkeys((*found.notes, *times.notes)):
        yield "note", note


def _test(times: Change) -> str:
    """The ratio of the medians and how sure it is."""
    middle, base, new = times.median, times.base, times.new
    steps = f"{_steps(new)} of the new side against {_steps(base)} of the base"
    if middle.ratio is None:
        return f"The median of the base is 0, so there is no ratio; {steps}."
    ratio = f"Ratio of the medians {format_number(middle.ratio)}"
    if middle.low is None or middle.high is None:
        return f"{ratio}, without an interval; {steps}."
    way, chance = ("slower", middle.p) if middle.ratio >= 1 else ("faster", 1 - middle.p)
    p = f"p < {_LEAST_P}" if chance < _LEAST_P else f"p = {chance:.3f}"
    interval = f"95 % interval {format_number(middle.low)} to {format_number(middle.high)} ({times.method})"
    return f"{ratio}, {interval}; {p} for {way} ({middle.test}); {steps}."


def _steps(side: Any) -> str:
    runs = f" in {side.runs} runs" if side.runs > 1 else ""
    return f"{count_of(side.steps, 'step')}{runs}"
