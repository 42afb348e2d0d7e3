"""How long a step would take after a change, before anyone makes it.

The dependency graph is replayed with the lengths that the changes give its edges. What was recorded stays the measure: a change
that touches nothing changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.graph.joint import Joint, joint_graph
from tracekit.analyses.graph.parts import Stretches, part_name, stretches
from tracekit.analyses.idle.span_causes import CAUSE_NUMBER
from tracekit.analyses.result import Result, TableView
from tracekit.analyses.scope import Scope, once, select
from tracekit.analyses.what_if.changes import Change
from tracekit.analyses.what_if.draft import Draft, FloatArray
from tracekit.analyses.what_if.graphs import WHOLE, CudaGraph
from tracekit.analyses.what_if.operators import operators
from tracekit.analyses.what_if.replay import Replay, replay
from tracekit.analyses.whole import whole_steps
from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError, UsageError
from tracekit.facts.idle_names import CAUSES
from tracekit.facts.units import count_of, format_ns, format_share
from tracekit.groups import groups, none_to_null, or_none
from tracekit.spans import Int64Array
from tracekit.trace import CATEGORIES, Trace

__all__ = ["TABLES", "WhatIf", "path_parts", "predicted", "what_if"]

_TITLES: Final = {"before_ns": "before", "after_ns": "after", "gain_ns": "gain"}
TABLES: Final = {
    "changes": TableView(
        "Changes",
        "change gain_ns gain_share",
        titles={"gain_ns": "alone it gains", "gain_share": "of the window"},
        main=True,
    ),
    "critical": TableView(
        "The critical path before and after",
        "resource part before_ns before_share after_ns after_share",
        titles=_TITLES | {"before_share": "of the window", "after_share": "of the window after"},
    ),
    "layers": TableView(
        "Layers on the critical path, before and after", "layer before_ns after_ns", titles=_TITLES
    ),
    "steps": TableView(
        "Steps on the host, before and after", "rank step name before_ns after_ns", titles=_TITLES
    ),
    "operators": TableView(
        "Operators by the shapes of their inputs: the time of one call, before and after",
        "operator shapes dtypes calls bytes flops call_ns call_after_ns",
        short="operator shapes calls call_ns call_after_ns bytes flops",
        titles={
            "call_ns": "time of a call",
            "call_after_ns": "time after",
            "bytes": "moved by a call",
            "flops": "FLOPs of a call",
        },
    ),
    "assumptions": TableView("Assumptions", "assumption"),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WhatIf(Result):
    """The window before and after changes."""

    changes: pl.DataFrame
    """Each `change` with what it would gain alone: `gain_ns` of the window (negative: a loss), `gain_share`."""
    critical: pl.DataFrame
    """The critical path by `resource` and `part` (a kind of work, or a cause): `before_ns`, `before_share` of the window, `after_ns`,
    `after_share` of the window then."""
    layers: pl.DataFrame | None
    """The critical path by `layer` (null: in none): `before_ns`, `after_ns`. None if no layer is known."""
    steps: pl.DataFrame | None
    """Of each step the time on the host `before_ns` and `after_ns`. None without steps."""
    operators: pl.DataFrame | None
    """Each `operator` with the `shapes` and `dtypes` of its inputs: `calls`, and of one call the `bytes` and `flops` (null: not known),
    its time on the device, `call_ns`, and that after the changes, `call_after_ns`. None where no operators were recorded."""
    assumptions: pl.DataFrame
    """What the prediction assumes, a sentence each."""
    before_ns: int
    """The window, as recorded; of a capture that measured its steps without recording, too, as long as they take then."""
    after_ns: int
    """The window after the changes."""
    low_ns: int
    """The low end of the range: the best case of the changes, less the error of a replay with usual lags, and less the part by which recorded
    steps differ (two standard deviations)."""
    high_ns: int
    """The high end: the worst case, and both more."""
    step_before_ns: int | None
    """The window by its number of steps; None without steps."""
    step_after_ns: int | None
    """The same after the changes."""


def what_if(of: Scope | Trace | Sequence[Scope | Trace], changes: Sequence[Change]) -> WhatIf:
    """The window after changes (`analyses.what_if.changes`), all at once; of several traces, which are the ranks of a job, that of the job.

    Of a file that ends too early only the whole steps count. Raises UsageError for a change that fits nothing in the window, for two that change
    the same, and if no collective links the ranks; InconclusiveError if no step is whole.

    >>> import tracekit
    >>> from tracekit.analyses.what_if import Scale, what_if
    >>> trace = tracekit.read("sample_traces/cnn_cpu/trace.json.gz")
    >>> result = what_if(trace, [Scale("category:convolution", 0.5)])
    >>> result.after_ns < result.before_ns
    True
    >>> unchanged = what_if(trace, [Scale("category:convolution", 1.0)])
    >>> unchanged.after_ns == unchanged.before_ns
    True
    """
    if not changes:
        raise UsageError("no change is given", remedy="give one, such as --scale category:gemm=0.5")
    _check_subjects(changes)
    if isinstance(of, Scope | Trace):
        return once(of, lambda scope: _of_whole([scope], changes))
    return _of_whole([select(one) if isinstance(one, Trace) else one for one in of], changes)


def _of_whole(scopes: Sequence[Scope], changes: Sequence[Change]) -> WhatIf:
    whole, told = whole_steps(scopes)
    found = _what_if(joint_graph(whole), changes)
    return replace(found, answer=f"{told} {found.answer}") if told else found


def _check_subjects(changes: Sequence[Change]) -> None:
    """Raises UsageError if two changes are of one kind, or of one selector: which of them counts, nobody could tell."""
    seen: dict[str, str] = {}
    whole = any(isinstance(one, CudaGraph) and one.of == WHOLE for one in changes)
    for one in changes:
        subject = str(getattr(one, "selector", one.label.partition(" ")[0]))
        if isinstance(one, CudaGraph) and not whole:  # each layer may have graphs of its own
            subject = one.label
        if subject in seen:
            fault = f"{seen[subject]} and {one.label} cannot both apply"
            fault = f"{one.label} is given twice" if seen[subject] == one.label else fault
            raise UsageError(fault, remedy="give one of them")
        seen[subject] = one.label


def predicted(of: Scope | Sequence[Scope], changes: Sequence[Change], spread: int = 0) -> int:
    """The window in ns after changes, in their best (−1), likeliest (0) or worst case (1); of several scopes that of the job."""
    return replay(joint_graph([of] if isinstance(of, Scope) else of), changes, spread).window


def _what_if(joint: Joint, changes: Sequence[Change]) -> WhatIf:
    if not joint.window:
        raise InconclusiveError(
            "the window holds no work",
            path=joint.members[0].scope.trace.meta.path,
            remedy="give a trace in which something ran, or choose another part of it with --step or --window",
        )
    before, after = replay(joint, []), replay(joint, changes)
    cases = [after.window, *(replay(joint, changes, spread).window for spread in (-1, 1))]
    low, high, doubt = _range(joint, cases)
    if after.window == before.window == min(cases) == max(cases):
        low, high, doubt = after.window, after.window, []
    alone = [before.window - (after if len(changes) == 1 else replay(joint, [one])).window for one in changes]
    steps = joint.steps
    critical, layers = _critical(joint, before, after)
    assumptions = dict.fromkeys(
        [*(sentence for draft in after.drafts for sentence in draft.assumptions), *doubt]
    )
    return WhatIf(
        answer=_answer(joint, before.window, after.window, (low, high), critical),
        not_captured=joint.missing,
        changes=pl.DataFrame(
            {"change": [one.label for one in changes], "gain_ns": alone},
            schema={"change": pl.String, "gain_ns": pl.Int64},
        ).with_columns((pl.col("gain_ns") / before.window).alias("gain_share")),
        critical=critical,
        layers=layers if layers["layer"].is_not_null().any() else None,
        steps=_steps(joint, before.times, after.times),
        operators=operators(after.drafts),
        assumptions=pl.DataFrame({"assumption": list(assumptions)}, schema={"assumption": pl.String}),
        before_ns=before.window,
        after_ns=after.window,
        low_ns=low,
        high_ns=high,
        step_before_ns=round(before.window / steps) if steps else None,
        step_after_ns=round(after.window / steps) if steps else None,
    )


_DEVIATIONS: Final = 2
"""The mean of another three recorded steps lies within so many standard deviations in 86 % of cases, of another four in 93 %."""
_ALIKE: Final = 0.5
"""Steps that differ by a larger part of their mean do different work."""
_RECORDED_ONCE: Final = "The range does not include how much repetitions differ, since the trace does not have two steps to show it."
_UNLIKE: Final = (
    "The recorded steps do different work: their times differ by more than half of their mean. A step is this mean, and the range does not "
    "include how they differ."
)


def _range(joint: Joint, cases: Sequence[int]) -> tuple[int, int, list[str]]:
    """The window in the best and the worst case, widened by the error of a replay with usual lags and by how steps differ; and in words what
    the range does not hold.
    """
    margin = abs(int(joint.graph.replay(joint.usual)[-1]) - joint.end) / joint.window
    parts = [part for made in joint.members if (part := _variation(made.scope)) is not None]
    varied = max(parts, default=0.0)
    doubt = [_UNLIKE] if varied > _ALIKE else [] if parts else [_RECORDED_ONCE]
    margin += 0.0 if doubt else _DEVIATIONS * varied
    return max(round(min(cases) * (1 - margin)), 0), round(max(cases) * (1 + margin)), doubt


def _variation(scope: Scope) -> float | None:
    """By which part of their mean the steps of a scope differ, in one standard deviation; a step lasts until its work is done. None if
    there are fewer than two.
    """
    if scope.window != "steps" or scope.steps.height < 2:
        return None
    done = scope.activities.group_by("step").agg(pl.col("end").max().alias("done"))
    steps = scope.steps.join(done, on="step", how="left", maintain_order="left")
    ends = steps.select(pl.max_horizontal("end", "done").cum_max()).to_series().to_numpy()
    times = np.diff(ends, prepend=scope.start)
    return float(times.std(ddof=1) / times.mean()) if times.mean() > 0 else None


# -- what becomes critical -------------------------------------------------------------------------


def _critical(joint: Joint, before: Replay, after: Replay) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The critical path by what it consists of, and by layer, before and after."""
    old, new = path_parts(joint, before), path_parts(joint, after)
    frames = []
    for keys in (["resource", "part"], ["layer"]):
        sums = [
            rows.group_by(keys)
            .agg(pl.col("ns").sum())
            .select(*keys, _whole(pl.col("ns")).alias(f"{when}_ns"))
            for rows, when in ((old, "before"), (new, "after"))
        ]
        joined = sums[0].join(sums[1], on=keys, how="full", coalesce=True, nulls_equal=True)
        joined = joined.with_columns(pl.col("before_ns", "after_ns").fill_null(0))
        frames.append(
            joined.sort(
                "after_ns", "before_ns", *keys, descending=[True, True, *[False] * len(keys)], nulls_last=True
            )
        )
    critical, layers = frames
    critical = critical.with_columns(
        (pl.col("before_ns") / max(before.window, 1)).alias("before_share"),
        (pl.col("after_ns") / max(after.window, 1)).alias("after_share"),
    )[["resource", "part", "before_ns", "before_share", "after_ns", "after_share"]]
    return critical, layers


def _whole(column: pl.Expr) -> pl.Expr:
    """A column of parts of ns as whole numbers with the same sum: the largest takes what rounding adds to the others."""
    rounded = column.round().cast(pl.Int64)
    rest = column.sum().round().cast(pl.Int64) - rounded.sum()
    return rounded + pl.when(pl.int_range(pl.len()) == column.arg_max()).then(rest).otherwise(0)


def path_parts(joint: Joint, replay: Replay) -> pl.DataFrame:
    """What the longest path of a replay consists of: `resource` (device, processor, host, wait), `part` (a kind of work, or a cause), `layer`, `ns`."""
    path = stretches(joint, replay.lengths, replay.times, int(replay.times[-1]) - replay.window)
    member, added = joint.member[path.vertex], np.zeros(joint.graph.time.size)
    for draft, where in zip(replay.drafts, joint.where, strict=True):
        added[where] = draft.added
    return pl.concat(
        [
            _path_of(draft, path.of(member == number), joint.graph.time - shift, added)
            for number, (draft, shift) in enumerate(zip(replay.drafts, joint.shift, strict=True))
        ]
    )


def _path_of(draft: Draft, path: Stretches, time: Int64Array, added: FloatArray) -> pl.DataFrame:
    """Those of one rank; `time` has the recorded times of the path's vertices on its clock, `added` the work that comes on top there."""
    ran, waited, threads = (np.flatnonzero(each >= 0) for each in (path.activity, path.cause, path.thread))
    took, rows = path.end - path.start, draft.rows[path.activity[ran]]
    category = rows["category"].to_physical().to_numpy().astype(np.int64) + len(CAUSES)
    in_none = np.full(waited.size, -1, dtype=np.int64)
    return pl.concat(
        [
            _named(draft, "device", category, or_none(rows["layer_id"]), took[ran]),
            _named(draft, "wait", path.cause[waited], in_none, took[waited]),
            *_code(draft, path.of(threads), time, added),
        ]
    )


def _named(
    draft: Draft, resource: str, part: Int64Array, layer: Int64Array, ns: Int64Array | FloatArray
) -> pl.DataFrame:
    """The sums of `ns` by `part`, numbers into the causes and after them the categories, and `layer`."""
    found = groups(part, layer)
    layers = attribution(draft.made.scope).layers["path"].cast(pl.String)
    return pl.DataFrame(
        {
            "part": pl.Series([*CAUSES, *CATEGORIES], dtype=pl.String).gather(found.keys[0]),
            "layer": layers.gather(none_to_null(found.keys[1])),
            "ns": pl.Series(np.bincount(found.of, weights=ns, minlength=found.size), dtype=pl.Float64),
        }
    ).select(pl.lit(resource).alias("resource"), "part", "layer", "ns")


def _code(draft: Draft, path: Stretches, time: Int64Array, added: FloatArray) -> Iterator[pl.DataFrame]:
    """What the code of threads on a path consists of: the pieces that were recorded there, so much of each as is left, and calls that a
    change has added.
    """
    made, host = draft.made, draft.host
    share = np.zeros(host.span.size)
    high = time[path.vertex]
    low = np.minimum(
        np.maximum(time[path.source], made.scope.start), high
    )  # nothing before the window is on a path
    for code in np.unique(path.thread).tolist():
        first, end = np.searchsorted(host.thread, [code, code + 1])
        edges = np.append(host.start[first:end], host.end[end - 1 : end])
        mine = path.thread == code
        # The part of each piece that lies in one of the stretches.
        starts, ends = np.sort(low[mine]), np.sort(high[mine])
        run = np.append(0, np.cumsum(ends - starts))
        knots, values = np.stack([starts, ends]).T.reshape(-1), np.stack([run[:-1], run[1:]]).T.reshape(-1)
        covered = np.interp(edges, knots, values)
        share[first:end] = np.diff(covered)
    share *= draft.left
    took = path.end - path.start
    calls = float(np.minimum(added[path.vertex], took).sum())
    # A wait counts only with what the call itself takes.
    total, whole = float(share.sum()), float(took.sum()) - calls
    share *= whole / total if total else 0.0
    calls += 0.0 if total else whole
    for resource, mine, part in (
        ("processor", host.category >= 0, host.category + len(CAUSES)),
        ("host", host.category < 0, host.cause),
    ):
        kept = np.flatnonzero(mine & (share > 0))
        yield _named(draft, resource, part[kept], host.layer[kept], share[kept])
    if calls:
        cause = np.full(1, CAUSE_NUMBER["launch_api"])
        yield _named(draft, "host", cause, np.full(1, -1), np.array([calls]))


def _steps(joint: Joint, before: Int64Array, after: Int64Array) -> pl.DataFrame | None:
    frames = [
        made.scope.steps.select(pl.lit(rank, pl.Int64).alias("rank"), "step", "name").with_columns(
            *(
                pl.Series(name, np.diff(times[where[made.steps]]))
                for name, times in (("before_ns", before), ("after_ns", after))
            ),
        )
        for made, where, rank in zip(joint.members, joint.where, joint.ranks, strict=True)
        if made.steps.size > 1
    ]
    if not frames:
        return None
    return pl.concat(frames) if len(joint.members) > 1 else frames[0].drop("rank")


# -- in words --------------------------------------------------------------------------------------


_SAID: Final = {"unexplained": "waiting of unknown cause", "other": "work of no known kind"}


def _answer(joint: Joint, before: int, after: int, case: tuple[int, int], critical: pl.DataFrame) -> str:
    steps = joint.steps
    each = max(steps, 1)
    what = "A step" if steps else "The window"
    if case == (before, before):
        return f"{what} still takes {format_ns(before / each)}: nothing changes."
    share = abs(before - after) / before
    way = "less" if after <= before else "more"
    low, high = (format_ns(one / each) for one in case)
    middle, was = format_ns(after / each), format_ns(before / each)
    within = f" ({low} to {high})" if (low, high) != (middle, middle) else ""
    if after == before:
        text = f"{what} would still take {middle}{within}."
    elif middle == was:  # three digits do not tell them apart
        by = format_ns(abs(before - after) / each)
        text = f"{what} would take {middle}{within}, {by} {way} than before ({format_share(share)})."
    else:
        much = f"{after / before:.3g} times as long" if share >= 1 else f"{format_share(share)} {way}"
        text = f"{what} would take {middle}{within} instead of {was}: {much}."
    top = critical.row(0, named=True) if critical.height else None
    if top is not None and top["after_ns"]:
        name = _SAID.get(top["part"]) or part_name(top["part"])
        text += f" The largest part of the critical path is then {name}, {format_share(top['after_share'])}."
    if steps > 1 and format_ns(after) != format_ns(before):
        every = "Both steps" if steps == 2 else f"All {count_of(steps, 'step')}"
        text += f" {every} take {format_ns(after)} instead of {format_ns(before)}."
    return text
