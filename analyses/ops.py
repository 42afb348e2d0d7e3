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

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.result import PHASE_COLUMNS, NotCaptured, Result, TableView
from tracekit.analyses.roofline.rates import RATES, with_rates
from tracekit.analyses.scope import Scope, once
from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import count_of, format_ns, format_share
from tracekit.groups import distinct, kept, or_none
from tracekit.readers import how_to_record
from tracekit.spans import Int64Array, Nesting, nest, thread_codes
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
    own = calls["host_self"].filter(calls["counted"])
    sums = _table(calls, ["operator"], scope)
    by_shape = _table(calls, _SHAPE, scope) if "shapes" in trace.meta.captured else None
    del calls  # there may be as many as events, and to rate work takes room too
    by_operator = with_rates(sums, scope, "operators", ["operator"])
    return Ops(
        answer=_answer(by_operator, own.len(), on_cpu=scope.on_cpu),
        not_captured=None
        if sums.height
        else NotCaptured("no operators", how_to_record("ops", trace.meta.format)),
        by_operator=by_operator,
        by_shape=None if by_shape is None else with_rates(by_shape, scope, "shapes", _SHAPE),
        calls=own.len(),
        host_self_ns=int(own.sum()),
    )


_NEEDED = ("span_id", "process_id", "thread_id", "start", "duration", "name", "shapes", "dtypes")
"""What is read of the host spans: a copy of all their columns would be the largest thing in memory."""


def _calls(scope: Scope) -> pl.DataFrame:
    """One row per operator's span with work in the scope, and one for activities outside any operator.

    `counted` are the calls of the scope, `repeats` those inside another of the same name.
    """
    trace = scope.trace
    spans = kept(trace.host[list(_NEEDED)], trace.host["kind"] == "op")
    counted = np.zeros(trace.host.height, dtype=bool)
    counted[scope.host("op", columns=["span_id"])["span_id"].to_numpy()] = True
    counted = counted[spans["span_id"].to_numpy()]
    nesting = _nesting(spans)
    name = spans["name"].to_physical().cast(pl.Int64).to_numpy()
    launched, outside = _launched(scope, spans)
    device = launched[:, : len(PHASES)].sum(axis=1)
    whole = nesting.sums_within(np.column_stack([device, launched[:, -1]]))
    columns = [
        spans["name"].alias("operator"),
        *spans[["shapes", "dtypes"]],
        pl.Series("host_total", nesting.end - nesting.start),
        pl.Series("host_self", nesting.self_time()),
        pl.Series("repeats", nesting.in_same(name)),
        pl.Series("counted", counted),
        pl.Series("host_phase", _host_phases(scope, spans)),
        *(pl.Series(f"self_{phase}", launched[:, at]) for at, phase in enumerate(PHASES)),
        pl.Series("device_self", device),
        pl.Series("device_total", whole[:, 0]),
        pl.Series("launched", whole[:, 1]),
    ]
    frame = kept(pl.DataFrame(columns), counted | (whole[:, 1] > 0))
    return pl.concat([frame, _outside(outside, frame.schema)]) if outside[-1] else frame


def _host_phases(scope: Scope, spans: pl.DataFrame) -> Int64Array:
    """The phase of each operator, as a number into PHASES; asked for only where no device's activities tell it."""
    if not scope.on_cpu:
        return np.full(spans.height, -1, dtype=np.int64)
    return attribution(scope).model.places(spans["span_id"].to_numpy()).phase


def _nesting(spans: pl.DataFrame) -> Nesting:
    """The operators' nesting among themselves."""
    start = spans["start"].to_numpy()
    return nest(thread_codes(spans), start, start + spans["duration"].to_numpy())


def _launched(scope: Scope, spans: pl.DataFrame) -> tuple[Int64Array, Int64Array]:
    """Per operator's span the time of the activities that it launched itself, by phase, and their number.

    Beside it the same of the activities outside any operator. Zeros without a device.
    """
    columns = len(PHASES) + 1
    found = np.zeros((spans.height + 1, columns), dtype=np.int64)
    if not scope.on_cpu:
        rows = attributed(scope)
        span = or_none(rows["op_id"])
        place = np.searchsorted(spans["span_id"].to_numpy(), span)
        op = np.where(span < 0, -1, place)  # −1 is the last row
        phase = rows["phase"].to_physical().to_numpy()
        np.add.at(found, (op, phase), rows["duration"].to_numpy())
        np.add.at(found[:, -1], op, 1)
    return found[:-1], found[-1]


def _outside(sums: Int64Array, schema: pl.Schema) -> pl.DataFrame:
    whole = int(sums[:-1].sum())
    row = {
        **dict.fromkeys(schema),
        **{f"self_{phase}": int(sums[at]) for at, phase in enumerate(PHASES)},
        **{"device_self": whole, "device_total": whole, "launched": int(sums[-1])},
        **{"counted": False, "repeats": False},
    }
    return pl.DataFrame([row], schema=schema)


def _table(calls: pl.DataFrame, keys: list[str], scope: Scope) -> pl.DataFrame:
    counted, outer = pl.col("counted"), ~pl.col("repeats")
    device = [
        pl.col("device_total").filter(outer).sum().alias("device_total_ns"),
        pl.col("device_self").sum().alias("device_self_ns"),
        pl.col("launched").filter(outer).sum().alias("launched"),
    ]
    if scope.on_cpu:
        phases = [
            pl.col("host_self").filter(counted & (pl.col("host_phase") == at)).sum().alias(f"{phase}_ns")
            for at, phase in enumerate(PHASES)
        ]
        device = [pl.lit(None, dtype=pl.Int64).alias(one.meta.output_name()) for one in device]
    else:
        phases = [pl.col(f"self_{phase}").sum().alias(f"{phase}_ns") for phase in PHASES]
    sums = calls.group_by(keys).agg(
        counted.sum().cast(pl.Int64).alias("calls"),
        pl.col("host_total").filter(counted & outer).sum().alias("host_total_ns"),
        pl.col("host_self").filter(counted).sum().alias("host_self_ns"),
        *device,
        *phases,
    )
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


def _answer(table: pl.DataFrame, calls: int, *, on_cpu: bool) -> str:
    if not table.height:
        return "No operator was recorded."
    rows = kept(table["operator", "share"], table["share"] > 0).head(4).rows()
    named = [(name, share) for name, share in rows if name is not None][:3]
    largest = ", ".join(f"{name} {format_share(share)}" for name, share in named)
    host = format_ns(int(table["host_self_ns"].sum()))
    what = "this time" if on_cpu else "the device time"
    text = f"{count_of(calls, 'call')} of {count_of(distinct(table['operator']).len(), 'operator')} took {host} on the host."
    return f"{text} The largest shares of {what}: {largest}." if largest else text
