"""The verdict: what bounds the run, its largest costs, and what to try first, decided from figures.

The device's time is cut into parts that sum to the basis exactly: the categories of computation, exposed
communication, exposed copies, and idle time by what ended it. The largest loss bounds the run when it takes three
tenths of the basis or more than the computation does; else the computation bounds it. What was not captured is never
blamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from tracekit.analyses.result import Result
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_ns, format_share
from tracekit.findings import Finding, rank
from tracekit.report._advice import general_advice
from tracekit.report._parts import DeviceParts, device_parts
from tracekit.report.model import Advice, Bound, Cost, Verdict

__all__ = ["VERDICT_NEEDS", "decide"]

VERDICT_NEEDS: Final = frozenset({"breakdown", "idle", "steps", "kernels", "launches"})
"""The analyses without which there is no verdict."""

LOSS_SHARE: Final = 0.3
"""A loss from this share on bounds the run, even if computation takes more."""

SHORT_SHARE: Final = 0.5
"""From this share of short kernels, or of kernels shorter than their launch, the launches are the trouble."""

COSTS: Final = 3
ADVICE: Final = 3

_CATEGORY_NAMES: Final = {
    "gemm": "matrix multiplication",
    "copy": "copy and cast kernels",
    "sort": "sorting",
    "optimizer": "optimizer",
    "fused": "fused kernels",
    "random": "random numbers",
    "rnn": "recurrent layers",
    "embedding": "embedding and gather",
    "other": "other kernels",
}

Tables = Mapping[str, Result]


def decide(scope: Scope, results: Tables) -> Verdict:
    """The verdict on a scope from the results of the analyses in `VERDICT_NEEDS`; times in ns."""
    findings = _findings(results)
    if not scope.overlapping.height or scope.duration <= 0:
        return Verdict(
            "nothing ran",
            "The trace holds no device activity and no operator.",
            advice=_advice(findings, "nothing ran", 0),
        )
    if scope.on_cpu:
        return _on_cpu(scope, results, findings)
    return _on_device(scope, results, findings)


# -- a device --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Loss:
    bound: Bound
    label: str
    ns: int


def _on_device(scope: Scope, results: Tables, findings: list[tuple[str, Finding]]) -> Verdict:
    parts = device_parts(scope, results)
    losses = sorted(_losses(parts, results), key=lambda loss: -loss.ns)
    worst = losses[0]
    bounding = worst.ns >= max(LOSS_SHARE * parts.basis, 1) or worst.ns > parts.compute
    bound: Bound = worst.bound if bounding else "compute-bound"
    computing = _compute_costs(parts, results)
    costs = sorted(
        [*computing, *(Cost(x.label, x.ns, x.ns / parts.basis) for x in losses)], key=lambda c: -c.ns
    )
    stake = worst.ns if bounding else 0  # nobody can say what part of a computation could be saved
    return Verdict(
        bound=bound,
        headline=_headline(bound, parts, worst, computing),
        costs=tuple(cost for cost in costs[:COSTS] if cost.ns > 0),
        advice=_advice(findings, bound, stake),
        notes=tuple(_notes(scope, parts, losses, bound)),
        basis_ns=parts.basis,
        basis=parts.basis_name,
    )


def _losses(parts: DeviceParts, results: Tables) -> Iterable[_Loss]:
    yield _Loss("communication-bound", "exposed communication", parts.communication)
    yield _Loss("memory-copy-bound", "exposed copies", parts.memory)
    yield _Loss("input-bound", "waiting for the data loader", parts.data_loading)
    # Where most kernels are shorter than the call that launches them, the host cannot but be late.
    launch_bound = _launch_bound(results)
    label = "waiting for the host between short kernels" if launch_bound else "waiting for the host"
    yield _Loss("launch/short-kernel-bound" if launch_bound else "host-bound", label, parts.host_wait)
    several = parts.streams > 1
    queued = "queued work waiting for another stream" if several else "gaps between queued kernels"
    short = not several and _short(results)
    yield _Loss("launch/short-kernel-bound" if short else "idle", queued, parts.queued_wait)
    yield _Loss("idle", "idle, cause not captured", parts.unknown_wait)


def _launch_bound(results: Tables) -> bool:
    figures = results["launches"].scalars()
    share, short = figures.get("launch_bound_share"), figures.get("short_share")
    return _at_least(share, SHORT_SHARE) and _at_least(short, SHORT_SHARE)


def _short(results: Tables) -> bool:
    return _at_least(results["launches"].scalars().get("short_share"), SHORT_SHARE)


def _at_least(value: float | str | None, limit: float) -> bool:
    return isinstance(value, int | float) and value >= limit


def _compute_costs(parts: DeviceParts, results: Tables) -> list[Cost]:
    """Computation by category. Where kernels overlap, each category gets its part of the union by its sum."""
    table = results["kernels"].tables()["by_category"]
    table = table.filter(~pl.col("category").is_in(["communication", "memcpy", "memset"]))
    total = int(table["total_ns"].sum())
    costs = []
    for category, ns in table.select("category", "total_ns").rows():
        own = round(parts.compute * ns / total)
        costs.append(Cost(_CATEGORY_NAMES.get(category, category), own, own / parts.basis))
    return costs


def _headline(bound: Bound, parts: DeviceParts, worst: _Loss, computing: list[Cost]) -> str:
    busy = format_share(parts.busy / parts.basis)
    start = f"{parts.who} worked {busy} of {format_ns(parts.basis)} ({parts.basis_name})"
    share = format_share(worst.ns / parts.basis)
    if bound == "compute-bound":
        text = start
        if computing:
            text += f"; {computing[0].label} takes {format_share(computing[0].share)}"
        return text + (f", {worst.label} {share}." if worst.ns >= 0.1 * parts.basis else ".")
    if bound in ("communication-bound", "memory-copy-bound"):
        return f"{start}; {worst.label} takes {share}."
    if bound == "idle" or not worst.label.startswith("waiting"):
        return f"{start}; {worst.label}: {share}."
    return f"{start} and spent {share} {worst.label}."


def _notes(scope: Scope, parts: DeviceParts, losses: list[_Loss], bound: Bound) -> Iterable[str]:
    if parts.lead_in:
        yield (
            f"{format_ns(parts.lead_in)} of it passed before the device's first activity; "
            f"the sections below are about the {format_ns(scope.duration)} from there on."
        )
    second = losses[1]
    if bound != "compute-bound" and second.ns >= 0.6 * losses[0].ns:
        yield f"It is close: {second.label} takes {format_share(second.ns / parts.basis)}."
    if parts.idle and not parts.causes_known:
        yield "No launch calls were captured, so the trace cannot tell what the device waited for."
    if bound == "compute-bound" and not parts.has_steps:
        yield "The trace marks no steps, so work of the host before the first activity is not counted."
    if parts.devices > 1:
        yield f"It is about the busiest of {parts.devices} devices."


# -- no device -------------------------------------------------------------------------------------


def _on_cpu(scope: Scope, results: Tables, findings: list[tuple[str, Finding]]) -> Verdict:
    row = results["breakdown"].tables()["devices"].row(0, named=True)
    table = results["kernels"].tables()["by_category"]
    total = int(table["total_ns"].sum())
    busy, idle, basis = int(row["busy_ns"]), int(row["idle_ns"]), scope.duration
    costs = []
    for category, ns in table.select("category", "total_ns").rows():
        own = round(busy * ns / total)
        costs.append(Cost(_cpu_name(category), own, own / basis))
    costs.append(Cost("outside any operator", idle, idle / basis))
    costs.sort(key=lambda cost: -cost.ns)
    top = table.row(0, named=True)
    headline = (
        f"No device was captured. On the processors, {_cpu_name(top['category'])} takes {format_share(top['share'])} "
        f"of the operators' {format_ns(total)}"
    )
    headline += f"; no operator ran in {format_share(idle / basis)} of {format_ns(basis)}." if idle else "."
    notes = []
    if total > busy:
        notes.append("Operators ran on several threads at once; the costs share the time in which any ran.")
    return Verdict(
        bound="cpu",
        headline=headline,
        costs=tuple(cost for cost in costs[:COSTS] if cost.ns > 0),
        advice=_advice(findings, "cpu", 0),
        notes=tuple(notes),
        basis_ns=basis,
    )


def _cpu_name(category: str) -> str:
    return _CATEGORY_NAMES.get(category, category).replace("kernels", "operators")


# -- what to try -----------------------------------------------------------------------------------


_ABOUT: Final[dict[Bound, tuple[str, ...]]] = {
    "input-bound": ("data_loading",),
    "communication-bound": ("exposed_communication",),
    "memory-copy-bound": ("pageable_copies", "small_copies"),
    "host-bound": ("host_bound_launches", "blocking_synchronisation", "cold_start", "allocation_calls"),
    "launch/short-kernel-bound": ("host_bound_launches", "short_kernels"),
}
"""The findings that speak about a bound; they come first."""

_GENERAL: Final = frozenset({"low_utilisation", "incomplete_capture"})
"""Findings that say that something is amiss, not what; they come last."""


def _findings(results: Tables) -> list[tuple[str, Finding]]:
    """Findings of all sections with their section, gravest first."""
    owner = {id(finding): name for name, result in results.items() for finding in result.findings}
    ranked = rank([finding for result in results.values() for finding in result.findings])
    return [(owner[id(finding)], finding) for finding in ranked]


def _advice(findings: list[tuple[str, Finding]], bound: Bound, stake: int) -> tuple[Advice, ...]:
    """What to change: the findings on the bound, or general advice when there is none, then the others by gravity."""
    about = _ABOUT.get(bound, ())
    useful = [(name, finding) for name, finding in findings if finding.advice]
    useful.sort(key=lambda item: (item[1].id in _GENERAL, item[1].id not in about))
    chosen = [
        Advice(finding.title, finding.advice, finding.ns_at_stake, finding.id, name, finding.severity)
        for name, finding in useful
    ]
    # A loss that no finding explains still needs an answer, and so does a report without any telling finding.
    answered = any(advice.finding in about if about else advice.finding not in _GENERAL for advice in chosen)
    return (*(() if answered else general_advice(bound, stake)), *chosen)[:ADVICE]
