"""The verdict on a run without a captured device: the time of operators by category, and the time outside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from tracekit.analyses.completeness import Completeness
from tracekit.analyses.parts import ProcessorParts
from tracekit.analyses.processors import CPU_DEVICE
from tracekit.analyses.result import Result
from tracekit.analyses.rules import RULES
from tracekit.analyses.rules.rule import WARNING_SHARE
from tracekit.analyses.scope import Scope
from tracekit.facts.units import count_of, format_ns, format_share
from tracekit.names import category_name
from tracekit.verdict.advice import (
    Owned,
    category_advice,
    choose,
    few_advice,
    general,
    operator_advice,
    outside_advice,
    python_advice,
)
from tracekit.verdict.evidence import lacks, lost_device, no_device, record_again, standing
from tracekit.verdict.idle_words import MOSTLY, where
from tracekit.verdict.model import Advice, Cost, Verdict

__all__ = ["on_processors"]

COSTS: Final = 3
MAIN_CATEGORY: Final = 0.3
"""A category with so much of the operators' time has advice of its own."""
LARGEST_OPERATOR: Final = 0.2
"""An operator with so much of the time is worth a look, whatever it is."""
COMMUNICATION: Final = "exposed communication"
OUTSIDE: Final = "outside any operator"
LOADING: Final = "loading data, outside any operator"
STALLED: Final = "stalls between operators"
OTHERS: Final = "operators of other steps"
RECORDING: Final = "recording overhead outside operators"
BESIDE: Final = 0.05
"""From this share on, the headline names data loading beside the largest cost."""

LEAST_OPERATORS: Final = 10
"""Fewer operators say little about a program."""

PATTERN_SHARE: Final = 0.3
"""From this share of the window on, a finding can be the headline,"""

PATTERN_PART: Final = 0.9
"""if it is also about as large as the largest cost, since it then gives the reason for that cost."""

_CODE: Final = {"python": "Python", "host_code": "host code"}
"""The code that ran outside operators, by the cause of that time in `idle`."""
_CAUSES: Final = {"data_loading": "data_loading", "compilation_in_steps": "compilation"}
"""Findings about one cause, which has a place."""


def on_processors(
    parts: ProcessorParts,
    scope: Scope,
    results: Mapping[str, Result],
    findings: Sequence[Owned],
    complete: Completeness,
) -> Verdict:
    """The verdict; all shares are of the window. It names no code outside operators if operators may be missing."""
    basis = parts.basis
    costs = _of_operators(results, parts)
    main = costs[0] if costs else None
    ran = "" if complete.lost_host else _ran_outside(results, parts.outside + parts.recording + parts.stalled)
    label = f"{ran} {OUTSIDE}" if ran else OUTSIDE
    rest = {
        label: parts.outside,
        LOADING: parts.loading,
        OTHERS: parts.other_operators,
        RECORDING: parts.recording,
        STALLED: parts.stalled,
    }
    costs += [Cost(name, ns, ns / basis) for name, ns in rest.items()]
    costs.sort(key=lambda cost: -cost.ns)
    outside = (python_advice if ran == _CODE["python"] else outside_advice)(parts.outside, scope)
    largest = next(cost for cost in costs if cost.label not in (RECORDING, STALLED))
    words = _pattern(findings, results, largest.ns, basis) or _headline(costs, label, results, parts)
    few = parts.calls < LEAST_OPERATORS
    of_operators = largest.label != label and not parts.stalled
    cheaper = _cheaper(results, main, parts, scope) if main and of_operators else None
    loss = outside if largest.label == label else general("cpu", 0, scope)
    last = cheaper or (_largest_operator(results, parts, findings, scope) if of_operators else None)
    if few:
        last = few_advice() if complete.sure else None
    # On processors, a finding without a time costs nothing that the trace shows.
    timed = [owned for owned in findings if owned.finding.ns_at_stake is not None]
    return Verdict(
        bound="incomplete" if lost_device(complete) else "cpu",
        headline=f"{no_device(complete)} {words}",
        costs=tuple(cost for cost in costs[:COSTS] if cost.ns > 0),
        advice=choose(
            standing(timed, complete, device=False),
            "cpu",
            basis,
            loss=None if few or last else loss,
            last=last,
            first=[] if complete.sure else [record_again(complete)],
        ),
        notes=(*lacks(complete, device=False), *_notes(results, parts)),
        basis_ns=basis,
    )


def _working(results: Mapping[str, Result], table: str) -> pl.DataFrame:
    """The rows of this table of `kernels` that do not communicate."""
    rows = results["kernels"].tables()[table]
    return rows.filter(pl.col("category").cast(pl.String) != "communication")


def _of_operators(results: Mapping[str, Result], parts: ProcessorParts) -> list[Cost]:
    """The costs that operators are, the largest first: communication while nothing computes, and the categories of the rest.

    Calls of communication on several threads take time together, so their cost is the union, as `breakdown` has it.
    """
    table, basis = _working(results, "by_category")[["category", "total_ns"]], parts.basis
    working, total = parts.operators - parts.communication, int(table["total_ns"].sum())
    costs = [
        Cost(_name(category), own := round(working * ns / total), own / basis)
        for category, ns in table.rows()
    ]
    if parts.communication:
        costs.append(Cost(COMMUNICATION, parts.communication, parts.communication / basis))
    return sorted(costs, key=lambda cost: -cost.ns)


def _cheaper(results: Mapping[str, Result], main: Cost, parts: ProcessorParts, scope: Scope) -> Advice | None:
    """The advice about the largest cost of operators, if that is a category with much of their time and advice of its own."""
    share = main.share or 0.0
    if main.label == COMMUNICATION or main.ns < MAIN_CATEGORY * parts.operators or share < WARNING_SHARE:
        return None
    return category_advice(str(_working(results, "by_category")["category"][0]), share, scope)


def _ran_outside(results: Mapping[str, Result], outside: int) -> str:
    """The code that ran in most of the time outside operators; empty if the trace does not show it."""
    causes = results["idle"].tables()["by_cause"]
    main = causes.filter(pl.col("cause").is_in(list(_CODE)) & (pl.col("total_ns") >= MOSTLY * outside))
    return _CODE[main["cause"][0]] if main.height else ""


def _largest_operator(
    results: Mapping[str, Result], parts: ProcessorParts, findings: Sequence[Owned], scope: Scope
) -> Advice | None:
    """Advice about the operator that takes the most time; None if that is little, or a finding is about as much."""
    rows = _working(results, "by_name").sort("total_ns", "name", descending=[True, False])[
        ["name", "total_ns"]
    ]
    if not rows.height:
        return None
    name, ns = rows.row(0)
    own = (parts.operators - parts.communication) * ns / max(int(rows["total_ns"].sum()), 1)
    told = max((one.finding.ns_at_stake or 0 for one in findings), default=0)
    if own < LARGEST_OPERATOR * parts.basis or told >= MOSTLY * own:
        return None
    return operator_advice(str(name), own / parts.basis, scope)


def _pattern(
    findings: Sequence[Owned], results: Mapping[str, Result], largest: int, basis: int
) -> str | None:
    """The headline if one finding explains the time better than the categories of operators; else None."""
    patterns = {rule.id: rule.pattern for rule in RULES.values() if rule.pattern}
    explaining = [owned.finding for owned in findings if owned.finding.id in patterns]
    worst = max(explaining, key=lambda finding: finding.ns_at_stake or 0, default=None)
    if worst is None or (worst.ns_at_stake or 0) < max(PATTERN_SHARE * basis, PATTERN_PART * largest):
        return None
    cause = _CAUSES.get(worst.id)
    place = where(results, cause, CPU_DEVICE) if cause else ""
    pattern, share = patterns[worst.id], format_share((worst.ns_at_stake or 0) / basis)
    spent = f"the processors spent {share} of the time on {pattern}{place}"
    said = pattern.format(share=share) if "{share}" in pattern else spent
    return f"In the window of {format_ns(basis)}, {said}."


def _name(category: str) -> str:
    # On processors, views and the making of tensors are operators of this category as well.
    if category == "copy":
        return "copies, views and allocation"
    return category_name(category).replace("kernels", "operators")


def _headline(costs: list[Cost], label: str, results: Mapping[str, Result], parts: ProcessorParts) -> str:
    """The largest cost and the next that is no category; `label` is the cost of the time outside operators."""
    by_label = {cost.label: cost for cost in costs}
    basis = parts.basis
    rest = (label, LOADING, OTHERS, RECORDING, STALLED)
    largest = next((cost for cost in costs if cost.label not in rest), None)
    # As a part of the time, loading has the operators of the loader, as its finding has.
    outside, loading = by_label[label], Cost(LOADING, parts.loader, parts.loader / basis)
    start = f"In the window of {format_ns(basis)},"
    # A part of the time outside operators is the recording's.
    most = "at most " if by_label[RECORDING].ns else ""
    what = f"the time {label}" if label == OUTSIDE else label
    beside = [f"{what} takes {most}{format_share(outside.share)}"] if outside.ns else []
    if loading.ns >= BESIDE * basis:
        place = where(results, "data_loading", CPU_DEVICE)
        text = f"loading data takes {format_share(loading.share)}{place}"
        beside.insert(0 if loading.ns > outside.ns else 1, text)
    others = " and ".join(beside)
    if largest is None:
        return f"{start} {others}."
    share = format_share(largest.share)
    if max(outside.ns, loading.ns) >= largest.ns:
        return f"{start} {others}. The largest category of operators is {largest.label} ({share})."
    return f"{start} the largest part is {largest.label} ({share}){'; ' if others else ''}{others}."


def _notes(results: Mapping[str, Result], parts: ProcessorParts) -> Iterator[str]:
    if parts.calls < LEAST_OPERATORS:
        yield f"The window holds only {count_of(parts.calls, 'operator')}, too few to judge the program by."
    if parts.recording:
        unsure = ", as far as the stalls show it" if parts.stalled else ""
        yield (
            f"Recording makes a step {parts.slowed:.2f} times as long{unsure}. The time outside operators is corrected for this; "
            "the time in operators is as recorded."
        )
    if int(_working(results, "by_category")["total_ns"].sum()) > parts.operators - parts.communication:
        yield "Operators ran on several threads at once. The costs split the time in which at least one of them ran."
    if parts.other_operators:
        yield f"Operators outside the selected steps took {format_ns(parts.other_operators)} of the window."
