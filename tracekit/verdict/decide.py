"""The verdict: what bounds the run, its largest costs, and what to try first, decided from figures.

The device's time is split into parts that sum to the basis exactly: the categories of computation, exposed
communication, exposed copies, and idle time by its cause. The largest loss bounds the run if it takes three tenths of
the basis, or more than computation; otherwise computation bounds the run. A verdict never blames a cause that the
profile did not capture.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, assert_never

import polars as pl

from tracekit.analyses.completeness import Completeness, completeness
from tracekit.analyses.layers import has_layers, most_own_time
from tracekit.analyses.parts import CounterRun, DeviceParts, NothingRan, ProcessorParts, run_parts
from tracekit.analyses.result import Result, has_host_work
from tracekit.analyses.rules.idle_compilation import COMPILING, compiled_at_first
from tracekit.analyses.rules.idle_time import blocked, caused_idle, waits_before_graphs
from tracekit.analyses.rules.rule import REPLAYED
from tracekit.analyses.scope import Scope
from tracekit.analyses.start import split_start
from tracekit.facts.stack_names import COMMUNICATION_LAYER, GRADIENT_REDUCTION_LAYER, NO_LAYERS
from tracekit.facts.units import count_of, format_ns, format_share
from tracekit.findings import SHOWN_SHARE, Bound
from tracekit.names import category_name
from tracekit.verdict.advice import (
    ADVICE,
    LEAST_CODE_SHARE,
    LITTLE,
    Owned,
    choose,
    few_advice,
    general,
    host_code_advice,
    mpi_advice,
    of_finding,
    owned,
    restates,
    told_by,
    unseen_advice,
)
from tracekit.verdict.changes import CHANGES
from tracekit.verdict.cpu import on_processors
from tracekit.verdict.evidence import (
    idle_headline,
    lacks,
    lost_device,
    no_device,
    record_again,
    standing,
)
from tracekit.verdict.idle_words import host_code, in_long_gaps
from tracekit.verdict.kernels import fusible_advice, top_kernels_advice
from tracekit.verdict.losses import BESIDE_SHARE, Loss, beside, bounds, frames, losses_of, losses_of_work
from tracekit.verdict.model import Advice, Cost, Verdict
from tracekit.verdict.notes import LEAST_ACTIVITIES, notes_on, shared
from tracekit.verdict.path import path_of

__all__ = ["VERDICT_NEEDS", "decide"]

VERDICT_NEEDS: Final = frozenset(
    {"breakdown", "idle", "steps", "layers", "kernels", "ops", "launches", "memory", "counters"}
)
"""The analyses that a verdict needs for its figures or its advice."""


WARM_UP_SHARE: Final = 0.3
"""From this share of the basis on, first-time work makes the figures those of a warm-up."""


SURE_SHARE: Final = 0.5
"""If computation takes this share of the basis, it bounds the run, whatever records are missing."""

SPLIT_SHARE: Final = 0.05
"""From this share on, the headline names communication and copies beside computation."""

TOO_LITTLE: Final = 3
"""Between fewer activities there is hardly any time that could show what bounds the run."""

COSTS: Final = 3

Tables = Mapping[str, Result]


def decide(scope: Scope, results: Tables) -> Verdict:
    """The verdict on a scope from the results of the analyses in `VERDICT_NEEDS`; times in ns."""
    parts, findings, complete = run_parts(scope), owned(results), completeness(scope)
    match parts:
        case CounterRun():
            return _of_counters(parts, findings, scope)
        case NothingRan():
            return _of_nothing(parts, scope, complete)
        case ProcessorParts():
            verdict = on_processors(parts, scope, results, findings, complete)
        case DeviceParts():
            verdict = _on_device(parts, scope, results, findings, complete)
        case _:
            assert_never(parts)
    devices = parts.devices if isinstance(parts, DeviceParts) else 1
    layers = _layer_costs(results, devices * verdict.basis_ns, on_cpu=scope.on_cpu)
    advice = _with_gains(verdict.advice, scope) if complete.sure else verdict.advice
    advice = _said_once(advice, scope)
    notes = (*shared(advice, parts), *verdict.notes)
    return dataclasses.replace(
        verdict, advice=advice, notes=notes, layers=layers, layers_ns=devices * verdict.basis_ns
    )


def _with_gains(advice: tuple[Advice, ...], scope: Scope) -> tuple[Advice, ...]:
    """The advice with the gain by a replay where that costs little, without what gains nothing."""
    if scope.trace.meta.event_count > REPLAYED or not any(one.finding in CHANGES for one in advice):
        return advice
    from tracekit.verdict.advised import with_gains  # noqa: PLC0415 - loading it takes as long as the replay

    return with_gains(advice, scope)


def _said_once(advice: tuple[Advice, ...], scope: Scope) -> tuple[Advice, ...]:
    """The advice, in which the waits before graphs stand only where graphs are advised first."""
    of_graphs = [one for one in advice if "graph" in one.advice]
    before = waits_before_graphs(scope) if len(of_graphs) > 1 else ""
    first = next((one for one in of_graphs if before and before in one.advice), None)
    return tuple(
        one
        if first is None or one is first
        else dataclasses.replace(one, advice=one.advice.replace(f" {before}", ""))
        for one in advice
    )


def _layer_costs(results: Tables, whole: int, *, on_cpu: bool) -> tuple[Cost, ...]:
    """The layers with the most own time, as shares of the `whole`, in ns; empty if no layer is known."""
    tables = results["layers"].tables()
    tree = tables["tree"]
    if not has_layers(tree):
        return ()
    # A backend for processors runs several calls at once, and the program waits for all of them together.
    talks = tree.filter(on_cpu & pl.col("path").is_in([COMMUNICATION_LAYER, GRADIENT_REDUCTION_LAYER]))
    unions = {NO_LAYERS[path]: ns for path, ns in talks[["path", "union_ns"]].rows()}
    largest = [
        (label, min(ns, unions.get(label, ns)))
        for label, ns, _ in most_own_time(tables["by_pattern"], count=COSTS)
    ]
    largest.sort(key=lambda cost: -cost[1])
    # Activities that overlap may have more time than the window, of which they are no share then.
    return tuple(Cost(label, ns, ns / whole) for label, ns in largest if SHOWN_SHARE * whole <= ns <= whole)


def _of_nothing(parts: NothingRan, scope: Scope, complete: Completeness) -> Verdict:
    if lost_device(complete):
        notes = tuple(lacks(complete, device=True))
        return Verdict("incomplete", no_device(complete), advice=(record_again(complete),), notes=notes)
    if not parts.ranges or parts.elsewhere:
        text = "The trace holds no device activity and no operator."
        if parts.elsewhere:
            count = count_of(parts.elsewhere, "activity", "activities")
            text = f"No device activity and no operator takes any time in the window. The trace holds {count} of them."
        again = () if complete.sure else (record_again(complete),)
        notes = tuple(lacks(complete, device=False))
        return Verdict("nothing ran", text, advice=(*again, general("nothing ran", 0, scope)), notes=notes)
    what = "ranges of steps, phases and layers" if parts.modules else "user ranges"
    level = f" (level {parts.level})" if parts.level else ""
    text = f"The trace holds only {what}{level}. These are host times, without operators or device activity."
    return Verdict("ranges only", text, advice=(general("ranges only", 0, scope),))


def _of_counters(parts: CounterRun, findings: list[Owned], scope: Scope) -> Verdict:
    replay = tuple(of_finding(each) for each in findings if each.finding.id == "counter_replay")
    what = count_of(parts.kernels, "kernel was", "kernels were")
    return Verdict(
        bound="counters",
        headline=(
            f"In this counter run, {what} measured one at a time. Times include kernel replay, so they say nothing "
            "about the program's speed."
        ),
        advice=replay or (general("counters", 0, scope),),
        basis_ns=parts.basis,
    )


# -- a device --------------------------------------------------------------------------------------


def _on_device(
    parts: DeviceParts, scope: Scope, results: Tables, findings: list[Owned], complete: Completeness
) -> Verdict:
    if not complete.sure:
        return _on_device_in_part(parts, scope, results, findings, complete)
    losses = sorted(losses_of(parts, scope, results), key=lambda loss: -loss.ns)
    worst = losses[0]
    bound: Bound = worst.bound if bounds(worst, parts) else "compute-bound"
    if parts.activities < TOO_LITTLE and bound == "compute-bound":
        bound = "too little"
    path = path_of(scope)
    late = path.corrected(bound, losses) if path else None
    if late is not None:
        bound, worst = late.bound, late
    computing = _compute_costs(parts, results)
    others = (
        _set_up(parts),
        Cost("recording overhead while the device waits", parts.recording, parts.recording / parts.basis),
    )
    costs = sorted([*computing, *(x.cost(parts.basis) for x in losses), *others], key=lambda c: -c.ns)
    warm_up = _warm_up(findings, scope, parts.basis)
    advice = _advice(scope, parts, results, findings, bound, worst, warm_up, late=late is not None)
    unlike = path.sentence(bound) if path else ()
    notes = (*unlike, *lacks(complete, device=True))
    verdict = Verdict(
        bound=bound,
        headline=_headline(bound, parts, worst, computing),
        costs=_worth(costs, parts.basis),
        advice=advice,
        notes=(*notes, *notes_on(parts, scope, losses, bound, warm_up)),
        basis_ns=parts.basis,
        basis=parts.basis_name,
    )
    return verdict if path is None else path.told(verdict, corrected=late is not None)


def _on_device_in_part(
    parts: DeviceParts, scope: Scope, results: Tables, findings: list[Owned], complete: Completeness
) -> Verdict:
    """The verdict if records are missing: nothing is said of the causes of idle time, since they could be the cause."""
    losses = sorted(losses_of_work(parts), key=lambda loss: -loss.ns)
    worst = losses[0]
    bound: Bound = "incomplete"
    if not complete.broken and bounds(worst, parts):
        bound = worst.bound
    elif parts.compute >= SURE_SHARE * parts.basis:
        bound = "compute-bound"
    computing = _compute_costs(parts, results)
    records = complete.broken or complete.operators.thin
    idle = Loss("idle", "idle, or work that the file lacks" if records else "idle", parts.idle)
    costs = sorted(
        [*computing, *(x.cost(parts.basis) for x in (*losses, idle)), _set_up(parts)], key=lambda c: -c.ns
    )
    busy = f"{format_share(parts.busy / parts.basis)} of {format_ns(parts.basis)} ({parts.basis_name}){_split(parts)}"
    rest = format_share(parts.idle / parts.basis) if parts.idle else ""
    warm_up = _warm_up(findings, scope, parts.basis)
    first = [of_finding(warm_up)] if warm_up else []
    again = record_again(complete)
    return Verdict(
        bound=bound,
        headline=f"{parts.who} {idle_headline(complete, busy, rest)}",
        costs=_worth(costs, parts.basis),
        advice=choose(
            standing(findings, complete, device=True),
            bound,
            parts.basis,
            loss=None,
            first=[again, *first] if bound == "incomplete" else first,
            last=None if bound == "incomplete" else again,
        ),
        notes=(*lacks(complete, device=True), *notes_on(parts, scope, [], bound, warm_up)),
        basis_ns=parts.basis,
        basis=parts.basis_name,
    )


def _set_up(parts: DeviceParts) -> Cost:
    return Cost("set-up copies", parts.set_up, parts.set_up / parts.basis)


def _worth(costs: list[Cost], basis: int) -> tuple[Cost, ...]:
    """The first costs that are worth a line."""
    return tuple(cost for cost in costs[:COSTS] if cost.ns >= SHOWN_SHARE * basis and cost.ns)


def _computing(results: Tables, table: str) -> pl.DataFrame:
    return (
        results["kernels"]
        .tables()[table]
        .filter(~pl.col("category").is_in(["communication", "memcpy", "memset"]))
    )


def _compute_costs(parts: DeviceParts, results: Tables) -> list[Cost]:
    """The computation by category. If kernels overlap, the categories share the union in proportion to their sums."""
    # Kernels without an end have no duration and cost nothing.
    table = _computing(results, "by_category").filter(pl.col("total_ns") > 0)
    total = int(table["total_ns"].sum())
    costs = []
    for category, ns in table[["category", "total_ns"]].rows():
        own = round((parts.compute - parts.other_compute) * ns / total)
        costs.append(Cost(category_name(category), own, own / parts.basis))
    if parts.other_compute:
        costs.append(Cost("work of other steps", parts.other_compute, parts.other_compute / parts.basis))
    return costs


# -- in words --------------------------------------------------------------------------------------


def _headline(bound: Bound, parts: DeviceParts, worst: Loss, computing: list[Cost]) -> str:
    """One sentence; every share in it is of the basis."""
    busy = format_share(parts.busy / parts.basis)
    start = f"{parts.who} was busy {busy} of {format_ns(parts.basis)} ({parts.basis_name}){_split(parts)}"
    if parts.recording:
        start += f", and about {format_share(parts.busy / parts.plain)} of the time without recording"
    share = format_share(worst.ns / parts.basis)
    clause = None if worst.clause is None else worst.clause.replace("{share}", share)
    if bound == "too little":
        start = f"The window holds only {count_of(parts.activities, 'device activity', 'device activities')}. {start}"
    if bound in ("compute-bound", "too little"):
        text = start
        if computing:
            text += f"; the largest part is {computing[0].label} ({format_share(computing[0].share)})"
        if beside(parts, worst):
            text += f"; {clause or f'{worst.label} took {share}'}"
        return f"{text}."
    return f"{start}; {clause}." if clause else f"{start}."


def _split(parts: DeviceParts) -> str:
    """The parts of the busy time; empty if almost all of it is computation."""
    other = ((parts.communication, "communicating"), (parts.memory, "copying"))
    named = [
        f"{format_share(ns / parts.basis)} only {what}"
        for ns, what in other
        if ns >= SPLIT_SHARE * parts.basis
    ]
    computing = f"{format_share(parts.compute / parts.basis)} computing"
    return f": {', '.join([computing, *named])}" if named else ""


# -- what to try -----------------------------------------------------------------------------------


def _warm_up(findings: list[Owned], scope: Scope, basis: int) -> Owned | None:
    """The finding about first-time work, if it is large or larger than all others; else None.

    Where nothing repeats, compilation is first-time work, too.
    """
    once = scope.window != "steps"
    first = next(
        (
            each
            for each in findings
            if each.finding.id == "cold_start" or (once and each.finding.title.startswith(COMPILING))
        ),
        None,
    )
    if first is None:
        return None
    stake = first.finding.ns_at_stake or 0
    others = (x.finding.ns_at_stake or 0 for x in findings if x is not first and not restates(x.finding.id))
    return first if stake >= WARM_UP_SHARE * basis or stake > max(others, default=0) else None


def _advice(
    scope: Scope,
    parts: DeviceParts,
    results: Tables,
    findings: list[Owned],
    bound: Bound,
    worst: Loss,
    warm_up: Owned | None,
    *,
    late: bool,
) -> tuple[Advice, ...]:
    """What to try. `late`: the host bounds the run, although the device seldom waits for it."""
    first = [of_finding(warm_up)] if warm_up else []
    code = host_code(results, parts, blocked(scope, parts.device_id))
    answers = [mpi] if (mpi := mpi_advice(results, parts.basis, scope)) else []
    fired = {each.finding.id for each in findings}
    # Code between short gaps is what launches the kernels: it is the matter of that rule, and cannot be done less often.
    launching = "host_bound_launches" in fired and not in_long_gaps(scope, results, parts.device_id)
    at_start = False  # whether the device mostly waits for code that only the start of the recording shows
    known = code is not None and (code.place or code.blocked)
    if code is not None and known and not launching and code.ns >= LEAST_CODE_SHARE * parts.basis:
        about_code = host_code_advice(code, parts.basis, scope)
        at_start = about_code.ns_at_stake is None and bound == "host-bound" and 2 * code.ns >= worst.ns
        if at_start:
            first.append(about_code)
        elif about_code.ns_at_stake is not None:
            answers.append(about_code)
        if code.blocked:  # what a wait in some steps has at stake, and what to do about it, is said once
            findings = [each for each in findings if not told_by(about_code, each.finding)]
    unseen = code is not None and not late and not (known or frames(scope)) and 2 * code.ns >= worst.ns
    about = worst.bound if bound == "compute-bound" else bound
    # Where the work of several streams overlaps, a host that is never late saves more than the time in which none of them works.
    stake = 0 if late and parts.streams > 1 else worst.ns
    if worst.bound == "input-bound":  # the wait for the first batch is no cost of the steps
        loading = caused_idle(scope, "data_loading").columns("start", "duration_ns")
        stake -= split_start(scope, loading)[1]
    elif worst.bound == "host-bound":  # nor is what the first steps compile
        stake -= compiled_at_first(scope)
    no_host = about == "idle" and not has_host_work(scope.trace)
    dark = worst.ns if no_host else code.ns if code and unseen else 0
    loss = unseen_advice(dark, scope) if dark else general(about, stake, scope)
    if parts.activities < LEAST_ACTIVITIES:
        few = few_advice()
        advice = choose(findings, bound, parts.basis, answers=answers, loss=None, last=few, first=first)
        saves = (advice[0].ns_at_stake or 0) >= LITTLE * parts.basis
        return advice if saves else (few, *advice[:-1])
    kernels = _computing(results, "by_name")
    # The part of a computation that could be saved is unknown.
    computing = top_kernels_advice(kernels, parts.compute, parts.basis, scope, fired)
    fusible = fusible_advice(kernels, parts.compute, scope, fired) if bound == "compute-bound" else None
    if fusible is not None:
        answers.append(fusible)
    where = loss if bound != "compute-bound" or worst.ns >= BESIDE_SHARE * parts.basis else None
    where = None if at_start else where
    last = computing if bound == "compute-bound" and fusible is None else None
    advice = choose(findings, about, parts.basis, answers=answers, loss=where, last=last, first=first)
    if unseen or about == "idle":  # to look, or to record more, saves nothing by itself
        advice = tuple(
            dataclasses.replace(each, ns_at_stake=None) if each is loss else each for each in advice
        )
    wanted = bound != "compute-bound" and not late and parts.compute > worst.ns and len(advice) < ADVICE
    return (*advice, computing) if computing and wanted else advice
