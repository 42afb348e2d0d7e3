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
from tracekit.analyses.scope import Scope
from tracekit.facts.units import count_of, format_ns, format_share
from tracekit.names import category_name
from tracekit.verdict.advice import Owned, choose, few_advice, general, python_advice
from tracekit.verdict.evidence import lacks, lost_device, no_device, record_again, standing
from tracekit.verdict.idle_words import MOSTLY, where
from tracekit.verdict.model import Cost, Verdict

__all__ = ["on_processors"]

COSTS: Final = 3
OUTSIDE: Final = "outside any operator"
LOADING: Final = "loading data, outside any operator"
OTHERS: Final = "operators of other steps"
FELT: Final = 1.2
"""A note says so if recording makes a step longer by a fifth."""

LEAST_OPERATORS: Final = 10
"""Fewer operators say little about a program."""

PATTERN_SHARE: Final = 0.3
"""From this share of the window on, a finding can be the headline,"""

PATTERN_PART: Final = 0.9
"""if it is also about as large as the largest cost, since it then gives the reason for that cost."""

_CODE: Final = {"python": "Python", "host_code": "host code"}
"""The code that ran outside operators, by the cause of that time in `idle`."""


def on_processors(
    parts: ProcessorParts,
    scope: Scope,
    results: Mapping[str, Result],
    findings: Sequence[Owned],
    complete: Completeness,
) -> Verdict:
    """The verdict; all shares are of the window. It names no code outside operators if operators may be missing."""
    basis = parts.basis
    table = results["kernels"].tables()["by_category"]
    total = int(table["total_ns"].sum())
    costs = [
        Cost(_name(category), own := round(parts.operators * ns / total), own / basis)
        for category, ns in table.select("category", "total_ns").rows()
    ]
    ran = "" if complete.lost_host else _ran_outside(results, parts.outside)
    label = f"{ran} {OUTSIDE}" if ran else OUTSIDE
    rest = {label: parts.outside, LOADING: parts.loading, OTHERS: parts.other_operators}
    costs += [Cost(name, ns, ns / basis) for name, ns in rest.items()]
    costs.sort(key=lambda cost: -cost.ns)
    python = ran == _CODE["python"] and costs[0].label == label
    few = parts.calls < LEAST_OPERATORS
    words = _pattern(findings, results, costs[0].ns, basis) or _headline(costs, label, basis)
    first = [] if complete.sure else [record_again(complete)]
    return Verdict(
        bound="incomplete" if lost_device(complete) else "cpu",
        headline=f"{no_device(complete)} {words}",
        costs=tuple(cost for cost in costs[:COSTS] if cost.ns > 0),
        advice=choose(
            standing(findings, complete, device=False),
            "cpu",
            basis,
            loss=None if few else general("cpu", 0, scope),
            last=few_advice() if few and complete.sure else None,
            first=[*first, *([python_advice(parts.outside, scope)] if python else [])],
        ),
        notes=(*lacks(complete, device=False), *_notes(total, parts)),
        basis_ns=basis,
    )


def _ran_outside(results: Mapping[str, Result], outside: int) -> str:
    """The code that ran in most of the time outside operators; empty if the trace does not show it."""
    causes = results["idle"].tables()["by_cause"]
    main = causes.filter(pl.col("cause").is_in(list(_CODE)) & (pl.col("total_ns") >= MOSTLY * outside))
    return _CODE[main["cause"][0]] if main.height else ""


def _pattern(
    findings: Sequence[Owned], results: Mapping[str, Result], largest: int, basis: int
) -> str | None:
    """The headline if one finding explains the time better than the categories of operators; else None."""
    patterns = {rule.id: rule.pattern for rule in RULES.values() if rule.pattern}
    explaining = [owned.finding for owned in findings if owned.finding.id in patterns]
    worst = max(explaining, key=lambda finding: finding.ns_at_stake or 0, default=None)
    if worst is None or (worst.ns_at_stake or 0) < max(PATTERN_SHARE * basis, PATTERN_PART * largest):
        return None
    place = where(results, "data_loading", CPU_DEVICE) if worst.id == "data_loading" else ""
    return (
        f"In the window of {format_ns(basis)}, the processors spent "
        f"{format_share((worst.ns_at_stake or 0) / basis)} of the time on {patterns[worst.id]}{place}."
    )


def _name(category: str) -> str:
    return category_name(category).replace("kernels", "operators")


def _headline(costs: list[Cost], label: str, basis: int) -> str:
    """`label` is the cost of the time outside operators."""
    outside = next(cost for cost in costs if cost.label == label)
    largest = next((cost for cost in costs if cost.label not in (label, LOADING, OTHERS)), None)
    start = f"In the window of {format_ns(basis)}, the processors spent"
    place = f"{format_share(outside.share)} of the time {'' if label == OUTSIDE else 'in '}{label}"
    if costs[0] is outside:
        text = f"{start} {place}."
        if largest:
            text += (
                f" The largest category of operators is {largest.label}, with {format_share(largest.share)}."
            )
        return text
    text = f"{start} the most time on {costs[0].label} ({format_share(costs[0].share)})"
    return f"{text}, and {place}." if outside.ns else f"{text}."


def _notes(total: int, parts: ProcessorParts) -> Iterator[str]:
    if parts.calls < LEAST_OPERATORS:
        yield f"The window holds only {count_of(parts.calls, 'operator')}, too few to say what bounds the program."
    if parts.overhead is not None and parts.overhead >= FELT and parts.idle:
        yield f"Recording makes a step {parts.overhead:.2f} times as long, mostly outside operators."
    if total > parts.operators:
        yield "Operators ran on several threads at once, so the costs are shares of the time in which any operator ran."
    if parts.other_operators:
        yield f"Operators outside the selected steps took {format_ns(parts.other_operators)} of the window."
