"""Rules about calls of communication that a run without a device need not make: barriers, exchanges of Python objects, many small ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.breakdown import Breakdown
from tracekit.analyses.calls import calls_of, of_one_rank
from tracekit.analyses.processors import CPU_DEVICE
from tracekit.analyses.rules.device_collectives import exposed_time
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded, by_share, densest, longest
from tracekit.analyses.scope import Scope
from tracekit.analyses.traits import traits
from tracekit.facts.stack_names import GRADIENT_REDUCTION_LAYER
from tracekit.facts.units import format_bytes, format_count, format_ns, format_share, times
from tracekit.groups import none_to_null
from tracekit.intervals import IntervalSet
from tracekit.spans import take

__all__ = ["BARRIER_IN_STEPS", "OBJECT_COLLECTIVES", "small_on_processors", "told_apart"]

LEAST_SHARE: Final = 0.01
"""A hundredth of the window: it costs one line to save it."""


class Few(msgspec.Struct, frozen=True, eq=False):
    """Some calls of a run: rows of `calls_of`, and the time that the program gives to them."""

    rows: pl.DataFrame
    region: IntervalSet

    def a_step(self, scope: Scope) -> int:
        """How many of them a step has."""
        return round(self.rows.height / max(scope.steps.height, 1))


def told_apart(scope: Scope) -> pl.DataFrame:
    """The calls (columns of `calls.CALLS`, and `call`, their row in that table) that have a finding of their own here."""
    return scope.once(told_apart, lambda: _told_apart(scope))


def _told_apart(scope: Scope) -> pl.DataFrame:
    found = [_barriers(scope), _objects(scope)]
    rows = [each.rows for each in found if each is not None]
    return pl.concat(rows) if rows else _calls(scope).clear()


def _calls(scope: Scope) -> pl.DataFrame:
    """The calls of a run without a device that exchange something, with their row as `call`; by the time at which they begin."""
    return scope.once(_calls, lambda: _exchanging(scope))


def _exchanging(scope: Scope) -> pl.DataFrame:
    table = calls_of(scope).table
    rows = table.with_row_index("call").with_columns(pl.col("call").cast(pl.Int64))
    return rows if scope.on_cpu and not of_one_rank(table) else rows.clear()


def _if_much(scope: Scope, few: Few) -> Few | None:
    """The calls if each step has one, and they take a time that matters; else None."""
    per_step = scope.window == "steps" and few.rows.height >= scope.steps.height > 0
    return few if per_step and few.region.measure >= LEAST_SHARE * scope.duration else None


# -- barrier_in_steps -------------------------------------------------------------------------------


def barrier_in_steps(scope: Scope, _result: Breakdown) -> Evidence | None:
    """Each step of a run without a device has a barrier, which moves nothing and lets every rank wait for the last one.

    At stake is the time in which only barriers run. It is an upper bound: what a rank no longer waits here, it may wait at the next
    collective.

    Fires when the steps have a barrier each on average, and these run alone for `LEAST_SHARE` of the window.
    """
    few = _barriers(scope)
    if few is None:
        return None
    ns, took, many = few.region.measure, few.rows["duration_ns"].to_numpy(), few.a_step(scope)
    what = "A barrier in each step takes" if many == 1 else f"{format_count(many)} barriers in each step take"
    return Evidence(
        title=f"{what} {format_share(ns / scope.duration)} of the time",
        text=f"{format_count(took.size)} barriers take {format_ns(int(took.min()))} to {format_ns(int(took.max()))} each; for "
        f"{format_ns(ns)}, no computation runs. A barrier moves no data: this is its latency, and the wait for the last rank.",
        ns_at_stake=bounded(ns, scope),
        severity=by_share(bounded(ns, scope), scope.duration),
        stretches=longest(few.rows, length="duration_ns"),
    )


def _barriers(scope: Scope) -> Few | None:
    rows = _calls(scope).filter(pl.col("name") == "barrier")
    return _if_much(scope, Few(rows, exposed_time(scope, CPU_DEVICE, rows)))


BARRIER_IN_STEPS = Rule(
    id="barrier_in_steps",
    analysis="breakdown",
    evidence=barrier_in_steps,
    runs="processor",
    advice=Advice(
        "Remove the barrier from the step: collectives already order the ranks. A rank that is late is then waited for only where its "
        "result is needed."
    ),
)


# -- object_collectives -----------------------------------------------------------------------------

_OF_OBJECTS: Final = ("all_gather", "gather", "broadcast")


def object_collectives(scope: Scope, _result: Breakdown) -> Evidence | None:
    """Each step of a run without a device exchanges Python objects (`all_gather_object` and similar functions): they pickle the objects,
    exchange the sizes, then the bytes, and read the sizes.

    Such an exchange is a call with bytes right after one with a single number of type long. At stake is the time from the operator
    that queues the first call to the end of the second.

    Fires when the steps have such an exchange each on average, and these take `LEAST_SHARE` of the window.
    """
    few = _objects(scope)
    if few is None:
        return None
    ns, count = bounded(few.region.measure, scope), len(few.rows) // 2
    sizes = few.rows.filter(pl.col("dtype") == _BYTES)["elements_in"]
    each = times(round(count / scope.steps.height))
    return Evidence(
        title=f"Python objects are exchanged between the ranks {each} a step, which takes {format_share(ns / scope.duration)} of the time",
        text=f"{format_count(count)} exchanges take {format_ns(ns)}. Each first exchanges the size of the pickled object, then its bytes: "
        f"{format_bytes(int(sizes.max() or 0))} of a rank at most.",  # type: ignore[arg-type]
        ns_at_stake=ns,
        severity=by_share(ns, scope.duration),
        stretches=longest(few.rows, length="duration_ns"),
    )


_BYTES: Final = "unsigned char"


def _objects(scope: Scope) -> Few | None:
    calls = _calls(scope)
    known = pl.col("name").is_in(_OF_OBJECTS)
    size = known & (pl.col("dtype") == "long int") & (pl.col("elements_in") == 1)
    content = known & (pl.col("dtype") == _BYTES) & size.shift(1)
    found = calls.select(content.fill_null(value=False)).to_series().to_numpy()
    second = np.flatnonzero(found)
    queued = take(calls_of(scope).launch_span, calls["call"].to_numpy()[second - 1])
    start = calls["start"].to_numpy()[second - 1]
    begin = np.where(queued >= 0, take(attribution(scope).model.stack.start, queued), start)
    region = IntervalSet.of(np.minimum(begin, start), calls["end"].to_numpy()[second])
    rows = calls[np.sort(np.append(second - 1, second))]
    return _if_much(scope, Few(rows, region.clip(scope.start, scope.end)))


OBJECT_COLLECTIVES = Rule(
    id="object_collectives",
    analysis="breakdown",
    evidence=object_collectives,
    runs="processor",
    advice=Advice(
        "Exchange tensors of a fixed size instead (torch.distributed.all_gather, all_reduce), which need neither pickling nor sizes, or "
        "exchange objects only in the steps that log them."
    ),
)


# -- small_collectives ------------------------------------------------------------------------------

LEAST_A_STEP: Final = 10
"""Fewer calls have little to save."""
FIRST_BUCKET: Final = 1 << 20
"""Bytes of the first bucket of DistributedDataParallel, if its `bucket_cap_mb` is not lowered."""
BUCKET: Final = 25 << 20
"""Bytes of its other buckets."""
FLAT: Final = 2
"""A call that takes less than so many times as long as one with a fourth of the bytes mostly takes its latency."""
LARGER: Final = 4
SURE_CALLS: Final = 5
"""The shortest of so many calls hardly waited for another rank."""
SMALL_SHARE: Final = 0.05
"""A twentieth of the window, as for `exposed_communication`."""
MOSTLY: Final = 0.5


def small_on_processors(scope: Scope, window: int) -> Evidence | None:
    """The evidence of `small_collectives` for a run without a device (its docstring says when it fires); `window` in ns."""
    return scope.once(small_on_processors, lambda: _small(scope, window))


def _small(scope: Scope, window: int) -> Evidence | None:
    rows = _largest_kind(scope)
    if not window or not rows.height:
        return None
    of_ddp = (
        "ddp" in traits(scope)
        and int((rows["place"] == GRADIENT_REDUCTION_LAYER).sum()) > MOSTLY * rows.height
    )
    most, why = _latency_bound(rows)
    if of_ddp and (rows["bytes"] < FIRST_BUCKET).all():
        most = FIRST_BUCKET
        why = f" Without a lower bucket_cap_mb, DistributedDataParallel's first bucket has {format_bytes(most)}, and others more."
    rows = rows.filter(pl.col("bytes") <= most)
    steps = max(scope.steps.height, 1) if scope.window == "steps" else 1
    exposed = exposed_time(scope, CPU_DEVICE, rows)
    if rows.height < LEAST_A_STEP * steps or exposed.measure < SMALL_SHARE * window:
        return None
    moved = int(rows["bytes"].sum()) // steps
    needed = 1 + (-(-max(moved - FIRST_BUCKET, 0) // BUCKET) if of_ddp else 0)
    saved = bounded(exposed.measure * max(rows.height - needed * steps, 0) // rows.height, scope)
    each = f", {rows.height / steps:,.0f} a step" if scope.window == "steps" else ""
    whose = "Those of a step carry" if scope.window == "steps" else "They carry"
    in_layers = int(rows["place_phase"].is_in(["forward", "backward"]).sum()) > MOSTLY * rows.height
    return Evidence(
        title=f"There are {format_count(rows.height)} small collectives{each}, which run alone for "
        f"{format_share(exposed.measure / window)} of the time",
        text=f"They are {rows['name'][0]} of {_range(rows, 'bytes', format_bytes)}, for {_range(rows, 'duration_ns', format_ns)} each."
        f"{why} {whose} {format_bytes(moved)} together.",
        ns_at_stake=saved,
        severity=by_share(saved, window),
        advice=_BUCKETS if of_ddp else _OF_LAYERS if in_layers else _ONE_BY_ONE,
        stretches=densest(exposed, scope),
    )


_BUCKETS: Final = Advice(
    "Raise bucket_cap_mb of DistributedDataParallel (25 by default), so that fewer buckets carry the gradients."
)
_OF_LAYERS: Final = Advice(
    "Layers launch most of them: pack what they exchange into fewer tensors, or let fewer ranks share a layer."
)
_ONE_BY_ONE: Final = Advice(
    "Exchange all of these tensors in one call: copy them into one flat tensor (torch._utils._flatten_dense_tensors), and back after "
    "the call.\n[training !ddp] If they are gradients, DistributedDataParallel does so, while the backward pass still runs."
)


def _largest_kind(scope: Scope) -> pl.DataFrame:
    """The collectives of the name with the most exposed time, apart from those with a finding of their own, with known sizes.

    `place` and `place_phase` are the layer and the phase of the operator that queued each.
    """
    calls = _calls(scope)
    queued = pl.Series(none_to_null(calls_of(scope).launch_span[calls["call"].to_numpy()]))
    rows = calls.with_columns(queued.alias("queued")).filter(
        ~pl.col("name").is_in(["barrier", "send", "recv", "send_recv"])
        & ~pl.col("call").is_in(told_apart(scope)["call"].implode())
    )
    if not rows.height:
        return rows
    names = rows.group_by("name").agg(pl.col("exposed_ns").sum()).sort("exposed_ns", "name")["name"]
    layers = attribution(scope).layers.select("layer_id", pl.col("path").cast(pl.String).alias("place"))
    operators = attributed(scope).select(
        pl.col("launch_id").alias("queued"), "layer_id", pl.col("phase").cast(pl.String).alias("place_phase")
    )
    operators = operators.unique("queued", keep="first").join(layers, on="layer_id", how="left")
    chosen = rows.filter((pl.col("name") == names[-1]) & (pl.col("bytes") > 0))
    return chosen.join(operators, on="queued", how="left", maintain_order="left")


def _latency_bound(rows: pl.DataFrame) -> tuple[int, str]:
    """Up to how many bytes calls hardly take longer than smaller ones, and a sentence that shows it; 0 if none do so.

    The shortest call of each size counts, since it waited least.
    """
    sizes = rows.group_by("bytes").agg(pl.col("duration_ns").min().alias("ns"), pl.len().alias("count"))
    known = sizes.filter((pl.col("count") >= SURE_CALLS) & (pl.col("bytes") <= FIRST_BUCKET)).sort("bytes")
    for size, ns, _ in reversed(known.rows()):
        smaller = known.filter((pl.col("bytes") * LARGER <= size) & (pl.col("ns") * FLAT >= ns)).head(1)
        if smaller.height:
            low, took, _ = smaller.row(0)
            return size, (
                f" The shortest of {format_bytes(size)} takes {format_ns(ns)}, that of {format_bytes(low)} {format_ns(took)}, so the time "
                "hardly depends on the size."
            )
    return 0, ""


def _range(rows: pl.DataFrame, column: str, shown: Callable[[float | None], str]) -> str:
    low, high = (
        shown(each)
        for each in rows.select(pl.col(column).min().alias("low"), pl.col(column).max().alias("high")).row(0)
    )
    return low if low == high else f"{low} to {high}"
