"""The verdict on a run for which no device was captured: operators, by category, and what passed outside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from tracekit.analyses.parts import ProcessorParts
from tracekit.analyses.result import Result
from tracekit.analyses.rules import RULES
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_ns, format_share
from tracekit.names import category_name
from tracekit.verdict.advice import Owned, choose, general, python_advice
from tracekit.verdict.idle_words import MOSTLY, where
from tracekit.verdict.model import Cost, Verdict

__all__ = ["on_processors"]

COSTS: Final = 3
OUTSIDE: Final = "outside any operator"
LOADING: Final = "loading data, outside any operator"
OTHERS: Final = "operators of other steps"
FELT: Final = 1.2
"""Recording that makes a step longer by a fifth is told."""

PATTERN_SHARE: Final = 0.3
"""A finding from this share of the window on is what the run is about."""

PATTERN_PART: Final = 0.9
"""And when it is about as large as the largest cost, of which it tells the reason."""

_CODE: Final = {"python": "Python", "host_code": "host code"}
"""What ran outside the operators, by the cause that `idle` gives to that time."""


def on_processors(
    parts: ProcessorParts, scope: Scope, results: Mapping[str, Result], findings: Sequence[Owned]
) -> Verdict:
    """The verdict; all shares are of the window."""
    basis = parts.basis
    table = results["kernels"].tables()["by_category"]
    total = int(table["total_ns"].sum())
    costs = [
        Cost(_name(category), own := round(parts.operators * ns / total), own / basis)
        for category, ns in table.select("category", "total_ns").rows()
    ]
    ran = _ran_outside(results, parts.outside)
    label = f"{ran} {OUTSIDE}" if ran else OUTSIDE
    rest = {label: parts.outside, LOADING: parts.loading, OTHERS: parts.other_operators}
    costs += [Cost(name, ns, ns / basis) for name, ns in rest.items()]
    costs.sort(key=lambda cost: -cost.ns)
    python = ran == _CODE["python"] and costs[0].label == label
    return Verdict(
        bound="cpu",
        headline=_pattern(findings, results, costs[0].ns, basis) or _headline(costs, label, basis),
        costs=tuple(cost for cost in costs[:COSTS] if cost.ns > 0),
        advice=choose(
            findings,
            "cpu",
            basis,
            fallback=general("cpu", 0, scope),
            first=[python_advice(parts.outside, scope)] if python else [],
        ),
        notes=(*_recording(parts), *_notes(total, parts)),
        basis_ns=basis,
    )


def _ran_outside(results: Mapping[str, Result], outside: int) -> str:
    """What ran in most of the time outside operators, so far as the trace tells; else nothing."""
    causes = results["idle"].tables()["by_cause"]
    found = causes.filter(pl.col("cause").is_in(list(_CODE)) & (pl.col("total_ns") >= MOSTLY * outside))
    return _CODE[found["cause"][0]] if found.height else ""


def _pattern(
    findings: Sequence[Owned], results: Mapping[str, Result], largest: int, basis: int
) -> str | None:
    """The headline when one finding explains much of the time better than the operators' categories do."""
    patterns = {rule.id: rule.pattern for rule in RULES.values() if rule.pattern}
    explaining = [owned.finding for owned in findings if owned.finding.id in patterns]
    worst = max(explaining, key=lambda finding: finding.ns_at_stake or 0, default=None)
    if worst is None or (worst.ns_at_stake or 0) < max(PATTERN_SHARE * basis, PATTERN_PART * largest):
        return None
    place = where(results, "data_loading") if worst.id == "data_loading" else ""
    return (
        f"No device was captured. Of {format_ns(basis)} (the window) on the processors, "
        f"{format_share((worst.ns_at_stake or 0) / basis)} went to {patterns[worst.id]}{place}."
    )


def _name(category: str) -> str:
    return category_name(category).replace("kernels", "operators")


def _headline(costs: list[Cost], label: str, basis: int) -> str:
    """`label` is the cost of the time outside operators."""
    outside = next(cost for cost in costs if cost.label == label)
    largest = next((cost for cost in costs if cost.label not in (label, LOADING, OTHERS)), None)
    start = f"No device was captured. Of {format_ns(basis)} (the window) on the processors"
    own = f"{largest.label} {format_share(largest.share)}" if largest else ""
    passed = f"{format_share(outside.share)} passed {'' if label == OUTSIDE else 'in '}{label}"
    if costs[0] is outside:
        text = f"{start}, {passed}"
        return f"{text}; the largest part of the operators: {own}." if own else f"{text}."
    text = f"{start}, the largest part went to: {own}"
    return f"{text}; {passed}." if outside.ns else f"{text}."


def _recording(parts: ProcessorParts) -> Iterator[str]:
    """What the profiler itself costs is between the operators, and no operator's."""
    if parts.overhead is not None and parts.overhead >= FELT and parts.idle:
        yield f"Recording makes a step {parts.overhead:.2f} times as long, mostly outside operators."


def _notes(total: int, parts: ProcessorParts) -> Iterator[str]:
    if total > parts.operators:
        yield "Operators ran on several threads at once; the costs share the time in which any ran."
    if parts.other_operators:
        yield f"Of the window, {format_ns(parts.other_operators)} went to operators outside the selected steps."
