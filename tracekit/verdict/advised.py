"""The changes that findings advise, tried one by one: ranked by what they would gain, and what each of a verdict's would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from tracekit.analyses.graph.joint import Joint, joint_graph
from tracekit.analyses.registry import BUILT_IN
from tracekit.analyses.result import Result, TableView
from tracekit.analyses.rules import rule_of, run
from tracekit.analyses.scope import Scope
from tracekit.analyses.what_if import Change, predicted
from tracekit.analyses.what_if.written import changes_of
from tracekit.analyses.whole import whole_steps
from tracekit.classes import dataclass
from tracekit.errors import UsageError
from tracekit.facts.units import count_of, format_ns, format_share, listed
from tracekit.verdict.advice import LEAST_SHARE
from tracekit.verdict.changes import CHANGES
from tracekit.verdict.model import Advice

__all__ = ["TABLES", "Advised", "advised", "with_gains"]

TABLES: Final = {
    "ranked": TableView(
        "Changes that findings advise, by what each would gain alone",
        "change gain_ns gain_share least_gain_ns most_gain_ns finding",
        titles={
            "gain_ns": "gain",
            "gain_share": "of the window",
            "least_gain_ns": "worst case",
            "most_gain_ns": "best case",
            "finding": "advised by",
        },
        main=True,
    )
}
"""How each table is presented."""


_ASSUMED: Final = frozenset({"scale", "overlap-comm"})
"""Changes that take a part for granted (half of the code, all of the communication hidden), which no recording tells."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Advised(Result):
    """What the changes that findings advise would gain, each alone."""

    ranked: pl.DataFrame
    """`change`, `gain_ns` of the window and its share, `least_gain_ns` and `most_gain_ns` in the worst and the best case, and the
    `finding` that advises it; the largest gain first."""
    before_ns: int
    """The window, as `what_if` has it."""


def advised(scopes: Sequence[Scope]) -> Advised:
    """The catalogue of single changes that the findings of a scope advise, ranked by predicted gain; of several scopes, which are the
    ranks of a job, those that the findings of any rank advise, by what the job would gain.

    >>> import tracekit
    >>> from tracekit.analyses.scope import select
    >>> result = advised([select(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))])
    >>> result.ranked["change"].to_list()[0]
    '--fuse optimizer'
    """
    scopes, told = whole_steps(scopes)
    joint = joint_graph(scopes)
    found = dict.fromkeys(
        finding.id for analysis in BUILT_IN for scope in scopes for finding in run(analysis, scope).findings
    )
    by_change: dict[tuple[str, str | bool], list[str]] = {}
    for name in found:
        if name in CHANGES:
            by_change.setdefault(CHANGES[name], []).append(name)
    before, rows = predicted(scopes, []), []
    for (flag, value), names in by_change.items():
        (change,) = changes_of({flag: value})
        if gains := _gains(scopes, change, (-1, 0, 1)):
            best, gain, worst = gains
            share = gain / max(before, 1)
            rows.append((change.label, gain, share, min(worst, gain), max(best, gain), ", ".join(names)))
    numbers = {
        "gain_ns": pl.Int64,
        "gain_share": pl.Float64,
        "least_gain_ns": pl.Int64,
        "most_gain_ns": pl.Int64,
    }
    schema = {"change": pl.String, **numbers, "finding": pl.String}
    ranked = pl.DataFrame(rows, schema=schema, orient="row").sort(
        "gain_ns", "change", descending=[True, False]
    )
    unknown = [
        name
        for name in found
        if name not in CHANGES
        and (rule := rule_of(name)) is not None
        and rule.about_run
        and not rule.restates
    ]
    return Advised(
        answer=" ".join(filter(None, (told, _answer(ranked, joint, unknown)))),
        not_captured=joint.missing,
        ranked=ranked,
        before_ns=before,
    )


def with_gains(advice: Sequence[Advice], scope: Scope) -> tuple[Advice, ...]:
    """The advice with the gain by a replay, where its finding advises a change that a replay can tell and the gain is below what is at
    stake: a replay of the change as a whole may also save what other advice is about. Of a change that only assumes how much goes
    away, a replay says no more than that it gains nothing. What gains next to nothing is left out, unless nothing else is advised,
    and what gains far less than is at stake elsewhere stands behind that.
    """
    made = []
    for one in advice:
        changes = changes_of(dict([CHANGES[one.finding]])) if one.finding in CHANGES else []
        gains = [gain for change in changes for gain in _gains([scope], change, (0,))]
        less = bool(gains) and one.ns_at_stake is not None and gains[0] < one.ns_at_stake
        told = less and (gains[0] <= 0 or CHANGES[one.finding][0] not in _ASSUMED)
        made.append(replace(one, gain_ns=max(gains[0], 0)) if told else one)
    least = LEAST_SHARE * scope.duration
    return _by_worth([one for one in made if one.gain_ns is None or one.gain_ns >= least] or made)


def _by_worth(advice: list[Advice]) -> tuple[Advice, ...]:
    """The advice with what a replay says to gain little behind findings with far more at stake."""
    ordered = list(advice)
    for one in advice:
        at = ordered.index(one)
        more = _FAR_MORE * (one.gain_ns or 0)
        behind = [
            place
            for place, other in enumerate(ordered)
            if place > at and one.gain_ns is not None and other.finding and other.worth > more
        ]
        ordered.insert(behind[-1] if behind else at, ordered.pop(at))
    return tuple(ordered)


_FAR_MORE: Final = 2
"""What a replay gains is likely, and what is at stake is a bound."""


def _gains(scopes: Sequence[Scope], change: Change, spreads: Sequence[int]) -> list[int]:
    """What a change gains of the window in these cases, in ns; empty if it fits nothing in the graph."""
    try:
        return [predicted(scopes, [], spread) - predicted(scopes, [change], spread) for spread in spreads]
    except UsageError:  # a finding may tell of work outside the threads and streams of the graph
        return []


def _answer(ranked: pl.DataFrame, joint: Joint, unknown: list[str]) -> str:
    what = "a step" if joint.steps else "the window"
    if len(joint.members) > 1:
        what += f" of the job of {len(joint.members)} ranks"
    if ranked.height:
        first = ranked.row(0, named=True)
        if first["gain_ns"] <= 0:
            gains = "would save nothing"
        else:
            gain = format_ns(first["gain_ns"] / max(joint.steps, 1))
            gains = f"would save {gain} of {what} ({format_share(first['gain_share'])})"
        if ranked.height == 1:
            text = f"Findings advise one change, {first['change']}. It {gains}."
        elif first["gain_ns"] <= 0:
            text = (
                f"None of the {count_of(ranked.height, 'change')} that findings advise would save anything."
            )
        else:
            text = f"Of {count_of(ranked.height, 'change')} that findings advise, {first['change']} is best: it {gains}."
    else:
        text = "No finding advises a change that a replay can try."
    if unknown:
        text += f" A replay cannot tell what the advice of these findings would save: {listed(unknown)}."
    return text
