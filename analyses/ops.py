"""Which operators take the time, on the host and on the device.

Operators are grouped by name. The *calls* of an operator are its spans that start in the scope's window on the host.
Host total is the time of the calls; a call inside another of the same name counts once. Host self is the part of it in
which no other operator inside is open. Device total is the summed time of the activities launched inside a call at any
depth. Device self is that of the activities for whose launch it is the innermost operator, so the self times of all
rows sum to the device time.

torch's `key_averages()` gives the same counts and times if operators contain only operators. It also subtracts every
other event inside a call from the self time (launch calls, user ranges), and counts a call inside another of the same
name twice in the total.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.result import PHASE_COLUMNS, NotCaptured, Result, TableView
from tracekit.analyses.roofline.rates import RATES, with_rates
from tracekit.analyses.scope import Scope, once
from tracekit.classes import dataclass
from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import count_of, format_ns, format_share
from tracekit.groups import Groups, at_rows, distinct, groups, kept, or_none, text_numbers
from tracekit.readers import how_to_record
from tracekit.spans import Int64Array
from tracekit.trace import Trace

__all__ = ["TABLES", "Ops", "ops"]

_SHAPE = ["operator", "shapes", "dtypes"]

_TITLES: Final = {
    "host_total_ns": "host",
    "host_self_ns": "host self",
    "device_total_ns": "device",
    "device_self_ns": "device self",
    "communication_ns": "gradients, buffers",
}

TABLES: Final = {
    "by_operator": TableView(
        "By operator",
        (
            "operator calls host_total_ns host_self_ns mean_host_ns device_total_ns device_self_ns "
            f"mean_device_ns launched {PHASE_COLUMNS} share {RATES}"
        ),
        short="operator device_self_ns share device_total_ns calls host_self_ns host_total_ns flops_per_s bound",
        titles=_TITLES,
        main=True,
    ),
    "by_shape": TableView(
        "By operator and shape",
        (
            "operator shapes dtypes calls host_total_ns host_self_ns mean_host_ns device_total_ns "
            f"device_self_ns mean_device_ns launched {PHASE_COLUMNS} share {RATES}"
        ),
        short="operator shapes device_self_ns share device_total_ns calls host_self_ns host_total_ns flops_per_s bound",
        titles=_TITLES,
    ),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Ops(Result):
    """Operators with their calls and times."""

    by_operator: pl.DataFrame
    """For each operator `calls`, `host_total_ns`, `host_self_ns`, `mean_host_ns` (total per call), `device_total_ns`,
    `device_self_ns`, `mean_device_ns` (total per call), the `launched` activities at any depth, the self time by phase
    (`forward_ns` … `other_ns`) and its `share` of the device time, or without a device of the operators' self time. The
    row without an operator has the activities that no operator launched. The device's columns are null if no device was
    captured. Rates are those of the work of its calls (`analyses.roofline.rates`), over the time of all their kernels.
    """
    by_shape: pl.DataFrame | None
    """The same for each combination of operator, shapes and types of inputs; these are null for a call without recorded
    inputs. None if shapes were not recorded.
    """
    calls: int
    """In all."""
    host_self_ns: int
    """In all."""


def ops(scope: Scope | Trace) -> Ops:
    """Operators of the scope, with their times on the host and on the device.

    >>> import tracekit
    >>> found = ops(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> int(found.by_operator["host_self_ns"].sum()) == found.host_self_ns
    True
    >>> found.by_operator["device_self_ns"].null_count() == found.by_operator.height
    True
    """
    return once(scope, _ops)


def _ops(scope: Scope) -> Ops:
    trace = scope.trace
    calls = _calls(scope)
    sums = _table(calls, ["operator"], scope)
    by_operator = with_rates(sums, scope, "operators", ["operator"])
    by_shape = _table(calls, _SHAPE, scope) if "shapes" in trace.meta.captured else None
    count = int(calls["calls"].sum())
    outside = int((trace.host["kind"] == "op").sum()) - count
    return Ops(
        answer=_answer(by_operator, count, outside, on_cpu=scope.on_cpu),
        not_captured=None
        if count or outside
        else NotCaptured("no operators", how_to_record("ops", trace.meta.format)),
        by_operator=by_operator,
        by_shape=None if by_shape is None else with_rates(by_shape, scope, "shapes", _SHAPE),
        calls=count,
        host_self_ns=int(calls["host_self_ns"].sum()),
    )


def _calls(scope: Scope) -> pl.DataFrame:
    """The calls and the times of each combination of operator, shapes and types with work in the scope, and of what no
    operator launched. There are few, while each column of all operators' spans takes as much as one of the trace.
    """
    host, stack = scope.trace.host, attribution(scope).model.stack
    spans = np.flatnonzero(stack.of_kind("op"))
    nesting = stack.nesting_of(spans)
    inputs = ("name", "shapes", "dtypes")
    texts = [text_numbers(at_rows(host[name], spans)) for name in inputs]
    outer, shape = ~nesting.in_same(texts[0]), groups(*texts)
    del texts
    counted = np.zeros(host.height, dtype=bool)
    counted[scope.host("op", columns=["span_id"])["span_id"].to_numpy()] = True
    counted = counted[spans]
    own = np.where(counted, nesting.self_time(), 0)
    columns = {
        "calls": shape.sums(counted),
        "host_total_ns": shape.sums((nesting.end - nesting.start) * (counted & outer)),
        "host_self_ns": shape.sums(own),
    }
    if scope.on_cpu:
        # An operator's phase is asked for only where no device's activities tell it.
        phase = attribution(scope).model.places(spans).phase
        found = [shape.sums(np.where(phase == at, own, 0)) for at in range(len(PHASES))]
        worked, outside = columns["calls"] > 0, None
    else:
        found, device, outside = _launched(scope, spans, shape)
        columns["device_self_ns"] = sum(found, np.zeros(shape.size, dtype=np.int64))
        for name, whole in zip(("device_total_ns", "launched"), device, strict=True):
            inside = nesting.sums_within(whole)
            columns[name] = shape.sums(inside * outer)
        worked = (columns["calls"] > 0) | (shape.sums(inside) > 0)
    columns |= {f"{phase}_ns": sums for phase, sums in zip(PHASES, found, strict=True)}
    frame = host[list(inputs)][spans[shape.first]].rename({"name": "operator"})
    frame = frame.with_columns(pl.Series(name, sums) for name, sums in columns.items()).filter(
        pl.Series(worked)
    )
    return frame if outside is None else pl.concat([frame, _outside(outside, frame.schema)])


def _launched(
    scope: Scope, spans: Int64Array, shape: Groups
) -> tuple[list[Int64Array], tuple[Int64Array, Int64Array], Int64Array | None]:
    """The time of the activities that the operators of each group launched themselves, by phase; per operator's span that time
    and the number of the activities; and both of those outside any operator, by phase and last the number, if there are any.
    """
    rows = attributed(scope)
    op, phase = or_none(rows["op_id"]), rows["phase"].to_physical().to_numpy()
    duration = rows["duration"].to_numpy()
    places = np.full(scope.trace.host.height + 1, spans.size)
    places[spans] = np.arange(spans.size)
    place = places[op]
    device = np.zeros(spans.size + 1, dtype=np.int64)
    np.add.at(device, place, duration)
    of = np.append(shape.of, shape.size)[place]
    found = np.zeros((len(PHASES), shape.size + 1), dtype=np.int64)
    np.add.at(found, (phase, of), duration)
    count = np.bincount(place, minlength=spans.size + 1)
    outside = np.append(found[:, -1], count[-1]) if count[-1] else None
    return list(found[:, :-1]), (device[:-1], count[:-1]), outside


def _outside(sums: Int64Array, schema: pl.Schema) -> pl.DataFrame:
    whole = int(sums[:-1].sum())
    row = {
        **dict.fromkeys(schema),
        **{"calls": 0, "host_total_ns": 0, "host_self_ns": 0},
        **{f"{phase}_ns": int(sums[at]) for at, phase in enumerate(PHASES)},
        **{"device_self_ns": whole, "device_total_ns": whole, "launched": int(sums[-1])},
    }
    return pl.DataFrame([row], schema=schema)


_OF_DEVICE: Final = ("device_total_ns", "device_self_ns", "launched")


def _table(calls: pl.DataFrame, keys: list[str], scope: Scope) -> pl.DataFrame:
    sums = calls.group_by(keys).agg(pl.exclude(*_SHAPE).sum())
    if scope.on_cpu:
        sums = sums.with_columns(pl.lit(None, dtype=pl.Int64).alias(name) for name in _OF_DEVICE)
    order = "host_self_ns" if scope.on_cpu else "device_self_ns"
    whole = int(sums[order].sum() or 0)
    some = pl.when(pl.col("calls") > 0)
    columns = sums.select(
        pl.col(keys).cast(pl.String),
        "calls",
        "host_total_ns",
        "host_self_ns",
        some.then(pl.col("host_total_ns") / pl.col("calls")).alias("mean_host_ns"),
        "device_total_ns",
        "device_self_ns",
        some.then(pl.col("device_total_ns") / pl.col("calls")).alias("mean_device_ns"),
        "launched",
        *(f"{phase}_ns" for phase in PHASES),
        (pl.col(order) / whole if whole else pl.lit(None, dtype=pl.Float64)).alias("share"),
    )
    return columns.sort(
        [order, "host_self_ns", *keys], descending=[True, True, *[False] * len(keys)], nulls_last=True
    )


def _answer(table: pl.DataFrame, calls: int, outside: int, *, on_cpu: bool) -> str:
    if not calls and outside:
        begin = "begins" if outside == 1 else "begin"
        return (
            f"No operator begins in the window; {count_of(outside, 'operator')} {begin} before or after it."
        )
    if not calls:
        return "No operator was recorded."
    rows = kept(table["operator", "share"], table["share"] > 0).head(4).rows()
    named = [(name, share) for name, share in rows if name is not None][:3]
    largest = ", ".join(f"{name} {format_share(share)}" for name, share in named)
    host = format_ns(int(table["host_self_ns"].sum()))
    what = "this time" if on_cpu else "the device time"
    text = f"{count_of(calls, 'call')} of {count_of(distinct(table['operator']).len(), 'operator')} took {host} on the host."
    return f"{text} The largest shares of {what}: {largest}." if largest else text
