"""The steps of which a file that ends too early holds all records (DEFINITIONS §1).

A graph of dependencies that lacks the end of a step does not know what waited for the device there: it calls the host all that
bounds the step. So what rests on a graph leaves out the steps that the end of the file cuts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from tracekit.analyses.completeness import completeness
from tracekit.analyses.scope import Scope, launch_times, window_label
from tracekit.errors import InconclusiveError
from tracekit.facts.stack_names import ENGINE_PREFIX
from tracekit.groups import are_known, groups, or_none
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray
from tracekit.trace import one_of

__all__ = ["whole_steps"]


def whole_steps(scopes: Sequence[Scope]) -> tuple[list[Scope], str]:
    """The scopes of the ranks of a job, or of one trace, without the steps that the file of any of them cuts; and which these are, as a sentence.

    Files that were read to their end, and those without steps, lose nothing.
    Raises InconclusiveError where no whole step is left, and where ranks have other numbers of steps, so that nobody knows which are meant.

    >>> import tracekit
    >>> from tracekit.analyses.scope import select
    >>> scope = select(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> whole_steps([scope]) == ([scope], "")
    True
    """
    cut = [scope for scope in scopes if completeness(scope).breaks]
    if not cut:
        return list(scopes), ""
    if len({scope.steps.height for scope in scopes}) > 1:
        raise _cut(cut[0], "the file ends too early")
    count = min(map(_whole, scopes))
    whole = [scope.once((whole_steps, count), partial(_first, scope, count)) for scope in scopes]
    return whole, _words(cut[0], whole[0])


def _words(scope: Scope, whole: Scope) -> str:
    """Which steps of a cut file are not among the whole ones."""
    if scope.window != "steps":
        return "The file ends too early: what the missing records would change is not known."
    out = scope.steps.height - whole.steps.height
    if out > 1:
        return f"The file ends too early: the last {out} of its {scope.steps.height} steps are not whole and do not count."
    return (
        f"The file ends too early: {scope.steps['name'][-1]} is not whole and does not count." if out else ""
    )


FEW: Final = 10
"""So few operators of a thread in a step may well stand behind its last call."""
MOST_BEHIND: Final = 0.1


def _whole(scope: Scope) -> int:
    """How many of the first steps end before the last record of any kind, since where files are cut, one kind ends before others, and hold the
    calls of all threads.
    """
    if not completeness(scope).breaks:
        return scope.steps.height
    last = min(_last_records(scope), default=0)
    lacking = np.flatnonzero((scope.steps["end"].to_numpy() > last) | _lack_calls(scope))
    return int(lacking[0]) if lacking.size else scope.steps.height


def _lack_calls(scope: Scope) -> BoolArray:
    """Of each step whether a thread that launches has many operators in it behind its last call: a profiler writes the calls of one thread in
    order, but those of the backward pass behind all of the others.
    """
    host, steps = scope.trace.host, scope.steps["start"].to_numpy()
    kind, start = host["kind"], host["start"].to_numpy()
    thread = groups(or_none(host["process_id"]), or_none(host["thread_id"]))
    call, last = np.flatnonzero(kind == "runtime"), np.full(thread.size, np.iinfo(np.int64).min)
    np.maximum.at(last, thread.of[call], start[call])
    launches = np.bincount(thread.of[call], minlength=thread.size) > 0
    launches[thread.of[NameTable(host["name"]).matching(f"^{ENGINE_PREFIX}")]] |= call.size > 0
    rows = np.flatnonzero((kind == "op").to_numpy() & launches[thread.of])
    step = np.searchsorted(steps, start[rows], side="right")
    behind = start[rows] > last[thread.of[rows]]
    places = groups(step, thread.of[rows])
    few = places.counts < FEW
    lacks = ~few & (places.sums(behind.astype(np.int64)) > MOST_BEHIND * places.counts)
    found: BoolArray = np.isin(np.arange(1, steps.size + 1), places.keys[0][lacks])
    return found


def _last_records(scope: Scope) -> Iterator[int]:
    """When the last operator and the last call were recorded, and the last call with work of a device, in ns."""
    host = scope.trace.host
    for kinds in (["op"], ["runtime", "sync"]):
        start = host.filter(one_of("kind", *kinds))["start"]
        if start.len():
            yield int(start.to_numpy().max())
    rows = scope.trace.device
    known = are_known(rows["launch_id"])
    if known.any():
        yield int(launch_times(scope.trace, rows)[known].max())


def _first(scope: Scope, count: int) -> Scope:
    """The scope of its first steps."""
    if completeness(scope).breaks and scope.on_cpu and scope.trace.meta.devices:
        raise _cut(scope, "the file ends before any record of its device")
    if scope.window != "steps" or count == scope.steps.height:
        return scope
    steps = scope.steps.head(count)
    chosen = scope.activities.filter(scope.activities["step"].is_in(steps["step"].to_list()))
    if not chosen.height:
        raise _cut(scope, "the file ends too early, and no step of it is whole")
    end = int(max(part["end"].to_numpy().max() for part in (steps, chosen)))
    touching = scope.overlapping.filter(scope.overlapping["start"] < end)
    label = window_label(scope.trace, steps, scope.inferred, by_step=True, has_activities=True)
    return replace(
        scope, label=label, end=end, steps=steps, activities=chosen, overlapping=touching, _made={}
    )


def _cut(scope: Scope, fault: str) -> InconclusiveError:
    return InconclusiveError(
        fault,
        path=scope.trace.meta.path,
        remedy="record it again, until the profiler has written the whole file",
    )
