"""Two sides compared, as a section: the verdict and the largest changes in words, then tables by dimension, and figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tracekit.diff.compared import Compared
from tracekit.diff.model import Side
from tracekit.diff.noise import FEWEST_STEPS, TOLERANCE, Estimate, StepComparison, StepFigures
from tracekit.facts.units import count_of, format_change, format_ns, format_share
from tracekit.names import clean, shorten_name
from tracekit.report.diff_figures import diff_figures
from tracekit.report.diff_tables import diff_tables
from tracekit.report.format import format_number
from tracekit.report.model import Section

__all__ = ["diff_section"]

_MOST_TOLD: Final = 6
"""So many of the largest changes have a sentence; the table has all."""
_TRIFLE: Final = 0.01
"""A change that is less than this part of the largest one has no sentence beside it: many such stood above what mattered."""
_LONGEST_NAME: Final = 48
_TWICE: Final = 2
_SHOWN: Final = 0.0005
"""A smaller share of the step would read as 0.0 %."""
_ALIKE: Final = 0.75
"""If fewer of the steps are independent, a reader who counts steps would wonder at the test."""
_LEAST_P: Final = 0.001
_CONVINCING_P: Final = 0.025
"""What lies beyond one end of the interval. Of few independent steps the rank test cannot give less, however far apart they lie."""


def diff_section(found: Compared) -> Section:
    """The section: the verdict in words, and the tables of `tracekit.report.diff_tables.SCHEMAS`."""
    return Section(
        "diff",
        "What changed from base to new, and is it more than noise?",
        _answer(found),
        title=clean(" → ".join(map(_called, (found.diff.base, found.diff.new)))),
        tag=found.times.verdict,
        points=tuple((label, clean(text)) for label, text in _points(found)),
        tables=tuple(diff_tables(found)),
        figures=tuple(diff_figures(found)),
    )


def _called(side: Side) -> str:
    """The name of the first run of a side, and how many more it has."""
    names = list(dict.fromkeys(one.name for one in side.facts))
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{shorten_name(names[0], _LONGEST_NAME)}{more}"


def _answer(found: Compared) -> str:
    told = found.unchanged or found.stalled or found.times.verdict in ("slower", "faster")
    mean = None if told else _mean(found.times.mean, found.times.median)
    return " ".join(filter(None, [_headline(found), mean]))


def _mean(one: Estimate, median: Estimate) -> str | None:
    """How the mean differs where the median may not, or lies elsewhere since some of the steps changed; None if neither is so."""
    if one.ratio is None or one.low is None or one.high is None or one.low <= 1 <= one.high:
        return None
    within = median.low is not None and median.high is not None and median.low <= one.ratio <= median.high
    if within and _differs(median):
        return None
    by = f"{format_share(abs(one.ratio - 1))} {'longer' if one.ratio > 1 else 'shorter'}"
    interval = f"95 % interval {format_number(one.low)} to {format_number(one.high)}"
    return f"The mean{'' if within else ', though,'} is {by} (ratio {format_number(one.ratio)}, {interval})."


def _differs(one: Estimate) -> bool:
    return one.low is not None and one.high is not None and not one.low <= 1 <= one.high


def _headline(found: Compared) -> str:
    what = "A step" if found.diff.per == "step" else "The window"
    times, ratio = found.times, found.times.median.ratio
    base, new = format_ns(times.base.median), format_ns(times.new.median)
    several = max(times.base.steps, times.new.steps) > 1
    against = f"{new} instead of {base}{' at the median' if several else ''}"
    if times.base.mean == times.new.mean == 0:
        return "No time was recorded on either side, so nothing is compared."
    if found.unchanged:
        return f"Nothing changed: {what.lower()} takes {new} on both sides at the median, and each part of it takes the same time."
    if times.verdict == "same":
        return f"{what} takes {_alike(times.median)}: {new} against {base} at the median."
    if times.median.low is None:
        return f"{what} takes {against}, but fewer than {FEWEST_STEPS} {found.diff.per}s on a side prove nothing: record more."
    if times.verdict == "inconclusive" or ratio is None:
        stood = f", but {found.stalled}" if found.stalled else ""
        return f"It is not clear whether {what.lower()} takes more or less time: {new} against {base} at the median{stood}."
    return f"{what} takes {_longer(ratio)}: {against}."


def _alike(median: Estimate) -> str:
    if median.ratio is None or not _differs(median) or abs(median.ratio - 1) < _SHOWN:
        return "as long as before"
    return f"{_longer(median.ratio)}, within the {100 * TOLERANCE:g} % that counts as the same"


def _longer(ratio: float) -> str:
    if ratio >= _TWICE:
        return f"{ratio:.2f} times as long"
    if ratio <= 1 / _TWICE:
        return f"{format_share(ratio)} of the time"
    return f"{format_share(ratio - 1)} longer" if ratio > 1 else f"{format_share(1 - ratio)} less time"


def _points(found: Compared) -> Iterator[tuple[str, str]]:
    diff = found.diff
    if not found.unchanged:
        yield "test", _test(found.times, diff.per)
    if diff.change:
        yield (
            "mean",
            f"The mean {diff.per} went from {format_ns(diff.base.mean_ns)} to {format_ns(diff.new.mean_ns)} "
            f"({format_change(diff.change_ns)}); what follows adds up to this.",
        )
    largest = sorted(diff.changes, key=lambda change: -abs(change.delta))[:_MOST_TOLD]
    largest = [change for change in largest if abs(change.delta) >= _TRIFLE * abs(largest[0].delta)]
    for change in diff.changes:
        # What the spread of the steps explains too comes after what it does not.
        if change in largest:
            yield ("change" if change.sure else "maybe"), change.title
    others = [change for change in diff.changes if change not in largest]
    if rest := float(diff.rest + sum(change.delta for change in others)):
        more = (
            f"{count_of(len(others), 'more change')}, and what no change explains"
            if others
            else "What no change explains"
        )
        yield "rest", f"{more}: {format_change(rest)}."
    for note in dict.fromkeys((*diff.notes, *found.times.notes)):
        yield "note", note
    for one in found.judgements:
        yield "gate", f"{one.gate} {one.outcome}. {one.reason}"


def _test(times: StepComparison, per: str) -> str:
    """The ratio of the medians and how sure it is."""
    middle, base, new = times.median, times.base, times.new
    steps = f"{_steps(new, per)} of the new side against {_steps(base, per)} of the base"
    if middle.ratio is None:
        return f"The median of the base is 0, so there is no ratio; {steps}."
    figures = "medians" if max(base.steps, new.steps) > 1 else "times"
    ratio = f"Ratio of the {figures} {format_number(middle.ratio)}"
    if middle.low is None or middle.high is None:
        return f"{ratio}, without an interval; {steps}."
    if not middle.test:
        return f"Each {per} takes as long on both sides; {steps}."
    way, chance = ("slower", middle.p) if middle.ratio >= 1 else ("faster", middle.p_faster)
    p = f"p < {_LEAST_P}" if chance < _LEAST_P else f"p = {chance:.3f}"
    few = (
        ", which means little with so few steps"
        if chance > _CONVINCING_P and times.verdict in ("slower", "faster")
        else ""
    )
    ends = f"{format_number(middle.low)} to {format_number(middle.high)}"
    ends = "of more than a thousand times either way" if middle.unbounded else ends
    interval = f"95 % interval {ends} ({times.method})"
    return f"{ratio}, {interval}; {p} for {way} ({middle.test}{few}); {steps}."


def _steps(side: StepFigures, per: str) -> str:
    runs = f" in {side.runs} runs" if side.runs > 1 else ""
    worth = f"{side.independent:.{1 if side.independent < 10 else 0}f}"
    alike = f" (worth {worth} independent ones)" if side.independent < _ALIKE * side.steps else ""
    return f"{count_of(side.steps, per)}{runs}{alike}"
