"""A rule about single calls of operators in which a device waits for long, and the table of such calls."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.idle import Idle
from tracekit.analyses.rules.idle_time import LONG_CALL_NS, caused_idle
from tracekit.analyses.rules.rule import (
    WARNING_SHARE,
    Advice,
    Evidence,
    Rule,
    all_idle,
    bounded,
    longest,
    of_time,
)
from tracekit.analyses.scope import Scope
from tracekit.facts.launch_apis import LAUNCH
from tracekit.facts.units import NS_PER_US, count_of, format_count, format_ns, listed
from tracekit.findings import Severity
from tracekit.groups import are_known, at_rows, groups, kept, or_none
from tracekit.intervals import IntervalSet
from tracekit.names import shorten_name
from tracekit.spans import BoolArray, Int64Array

__all__ = ["COMPUTES_NS", "LONG_CALLS", "LongCalls", "operators_by_idle", "waiting_calls"]

# -- the calls --------------------------------------------------------------------------------------

COMPUTES_NS: Final = 100 * NS_PER_US
"""To dispatch an operator takes some µs, a few tens while stacks are recorded; one that takes longer works."""
STANDS_OUT: Final = 10
"""Calls of an operator on the same inputs differ by less, even if something interrupts the host."""
_OPERATOR: Final = r"^[0-9A-Za-z_]+::"
_NODE: Final = r"autograd"
"""In a node of autograd, hooks and Python code run too."""
_INPUTS: Final = ("shapes", "dtypes", "concrete_inputs")


def waiting_calls(scope: Scope) -> pl.DataFrame:
    """The calls of operators during which a device waits for `COMPUTES_NS` or more, without the time of the calls in them.

    `span_id`, `name`, `start`, `duration`, `idle_ns`; `launches`, whether the call puts work on a device; `inputs`, a number for
    what it is called on (null: not recorded), `first`, whether it is the first on them in the trace, and `alike`, how many calls
    on them launch work too, or do not either; `stands_out`, whether it takes `STANDS_OUT` times as long as these usually do (if
    there are no others, as all calls of the operator do), and `long`, whether a device waits for `LONG_CALL_NS` besides; `others` and
    `usual_ns`, the number of the operator's calls that are not long, and their median.
    """
    return scope.once(waiting_calls, lambda: _waiting_calls(scope))


def _waiting_calls(scope: Scope) -> pl.DataFrame:
    pieces = caused_idle(scope, "operator_dispatch").columns("op_id", "duration_ns")
    pieces = kept(pieces, are_known(pieces["op_id"]))
    of = groups(or_none(pieces["op_id"]))
    idle = of.sums(pieces["duration_ns"].to_numpy())
    sums = pl.DataFrame({"span_id": of.keys[0], "idle_ns": idle}).filter(idle >= COMPUTES_NS)
    host, stack = scope.trace.host, attribution(scope).model.stack
    called = at_rows(host["name"], sums["span_id"]).cast(pl.String).unique()
    names = {each for each in called if re.search(_OPERATOR, each) and not re.search(_NODE, each)}
    rows = np.flatnonzero(stack.of_kind("op") & stack.names.which(names.__contains__))
    inputs = groups(*(or_none(at_rows(host[name], rows).to_physical()) for name in ("name", *_INPUTS)))
    calls = pl.DataFrame(
        [
            pl.Series("span_id", rows),
            *(at_rows(host[name], rows) for name in ("name", "start", "duration")),
            pl.Series("launches", _launches(scope, stack, rows)),
            pl.Series("on", inputs.of),
            pl.Series("sized", are_known(at_rows(host["shapes"], rows))),
        ]
    )
    calls = calls.join(sums, on="span_id", how="left", maintain_order="left").sort("start", "span_id")
    usual = pl.col("duration").quantile(0.5, "lower")
    like, same = ("name", "launches"), ("on", "launches")
    calls = calls.with_columns(
        pl.when("sized").then("on").alias("inputs"),
        (pl.int_range(pl.len()).over("on") == 0).alias("first"),
        pl.len().over(same).alias("alike"),
        pl.when(pl.len().over(same) > 1).then(usual.over(same)).otherwise(usual.over(like)).alias("usual"),
    )
    out = pl.col("idle_ns").is_not_null() & (pl.col("duration") >= STANDS_OUT * pl.col("usual"))
    long = out & (pl.col("idle_ns") >= LONG_CALL_NS).fill_null(value=False)
    calls = calls.with_columns(out.alias("stands_out"), long.alias("long"))
    rest = pl.col("duration").filter(~pl.col("long"))
    calls = calls.with_columns(
        rest.len().over(like).alias("others"), rest.median().over(like).alias("usual_ns")
    )
    calls = kept(calls, are_known(calls["idle_ns"])).drop("usual", "on", "sized")
    return calls.with_columns(pl.col("name").cast(pl.String))


def _launches(scope: Scope, stack: HostStack, rows: Int64Array) -> BoolArray:
    """Which of these host spans put work on a device, themselves or in what lies in them."""
    puts = stack.named(LAUNCH, "runtime")
    launched = or_none(scope.trace.device["launch_id"])
    puts[launched[launched >= 0]] = True
    found: BoolArray = stack.nesting.sums_within(puts.astype(np.int64))[rows] > 0
    return found


NAMED_PART: Final = 0.1
"""An operator with a smaller part of the time is not named."""
_NAMED: Final = 2
_LONGEST: Final = 72


def operators_by_idle(calls: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """The operators with most of the idle time of some `waiting_calls`, each with its calls, the one with most of it first."""
    parts = [
        (shorten_name(str(name), _LONGEST), mine)
        for (name,), mine in calls.group_by("name", maintain_order=True)
    ]
    idle = {name: int(mine["idle_ns"].sum()) for name, mine in parts}
    parts.sort(key=lambda part: (-idle[part[0]], part[0]))
    return [part for part in parts if idle[part[0]] >= NAMED_PART * sum(idle.values())][:_NAMED]


# -- long_calls -------------------------------------------------------------------------------------

MAIN_PART: Final = 0.5
"""If first calls have half of the time, new inputs are the reason."""
NEARLY_ALL: Final = 0.8
"""The part of the time of one call that lies in one place of it."""
_ON_INPUTS: Final = "inputs (shapes, types and arguments)"


class LongCalls(msgspec.Struct, frozen=True, eq=False):
    """Calls that stand out, and what there is to say of them."""

    calls: pl.DataFrame
    """Of `waiting_calls`, those of the operators with most of the time."""
    noun: str
    """`one call of aten::mm`."""
    text: str
    """Their times, and whether they are the first on their inputs, in sentences."""
    advice: Advice
    severity: Severity | None
    """None: by what is at stake."""

    @property
    def idle_ns(self) -> int:
        """How long a device waits during them."""
        return int(self.calls["idle_ns"].sum())

    @classmethod
    def among(cls, scope: Scope, wanted: pl.Expr) -> LongCalls | None:
        """Those for which `wanted` holds, which uses columns of `waiting_calls`; None if there are none."""
        operators = operators_by_idle(waiting_calls(scope).filter(pl.col("long") & wanted))
        if not operators:
            return None
        calls, names = pl.concat([mine for _, mine in operators]), listed([name for name, _ in operators])
        first = calls.filter("first") if not calls["inputs"].null_count() else None
        new = first is not None and int(first["idle_ns"].sum()) >= MAIN_PART * int(calls["idle_ns"].sum())
        again = first is not None and new and _recurs(scope, first)
        one = calls.height == 1
        return cls(
            calls,
            f"{'one call' if one else count_of(calls.height, 'call')} of {names}",
            " ".join([*(_times(name, mine, one) for name, mine in operators), _inputs(scope, calls, first)]),
            _advice(scope, names, first, new=new, again=again),
            "warning" if new and not again else None,  # the run itself may be fine
        )


def _times(name: str, calls: pl.DataFrame, one: bool) -> str:
    """How long the calls of one operator take, and its others; `one`: there is only one call in all."""
    others, times = int(calls["others"][0]), calls["duration"].sort()
    low, high = int(times[0]), int(times[-1])
    who = "The call" if one else f"{count_of(calls.height, 'call')} of {name}"
    took = f"takes {format_ns(high)}" if calls.height == 1 else f"take {format_ns(low)} to {format_ns(high)}"
    if not others:
        return f"{who} {took}."
    verb = "other takes" if others == 1 else "others take"
    return f"{who} {took}; the {format_count(others)} {verb} {format_ns(calls['usual_ns'][0])} (median)."


def _inputs(scope: Scope, calls: pl.DataFrame, first: pl.DataFrame | None) -> str:
    """Whether the calls are the first on their inputs."""
    it, their = ("It is", "its") if calls.height == 1 else ("All of them are", "their")
    if first is None:
        return "Shapes were not recorded, so the trace does not show whether inputs are new."
    if not first.height:
        return f"Other calls on the same {_ON_INPUTS} are short{_after_inner(scope, calls)}."
    if first.height < calls.height:
        it = f"{first.height} of them {'is' if first.height == 1 else 'are'}"
    later = ", and later calls on the same inputs are short" if _short_later(first) else ""
    return f"{it} the first on {their} {_ON_INPUTS} in the trace{later}."


def _short_later(first: pl.DataFrame) -> bool:
    """Whether there are other calls on the inputs of each of these."""
    return bool((first["alike"] > 1).all())


def _after_inner(scope: Scope, calls: pl.DataFrame) -> str:
    """That most of the wait comes when the operators inside a single call have ended; else empty."""
    stack, row = attribution(scope).model.stack, int(calls["span_id"][0])
    inside = np.arange(row + 1, stack.nesting.after[row])
    inside = inside[stack.of_kind("op")[inside]]
    if calls.height > 1 or not inside.size:
        return ""
    pieces = caused_idle(scope, "operator_dispatch", wanted=pl.col("op_id") == row)
    late = pieces.columns("start", "duration_ns").filter(pl.col("start") >= int(stack.end[inside].max()))
    ns = int(late["duration_ns"].sum())
    if ns < NEARLY_ALL * int(calls["idle_ns"][0]):
        return ""
    return f". {format_ns(ns)} of the wait comes after the operators inside the long call have ended"


def _recurs(scope: Scope, first: pl.DataFrame) -> bool:
    """Whether several steps have first calls, on several inputs; without steps, whether there are more than two inputs."""
    inputs = first["inputs"].n_unique()
    if scope.window != "steps":
        return inputs > 2
    step = np.searchsorted(scope.steps["start"].to_numpy(), first["start"].to_numpy(), side="right")
    return inputs > 1 and np.unique(step).size > 1


def _advice(scope: Scope, names: str, first: pl.DataFrame | None, *, new: bool, again: bool) -> Advice:
    if first is None:
        return LONG_CALLS.advice
    if not new:
        return _NO_REASON
    short = _short_later(first)
    if again:
        lines = [_NEW_SIZES, _SEEN if short else _LATER]
    else:
        lines = [_ONCE if short else _PROBABLY_ONCE, _BEFORE + (_OR_NOT if scope.window == "steps" else ".")]
    lines += [text for pattern, text in _LIBRARIES if re.search(pattern, names)]
    lines += [text for pattern, text in _REMEDIES if again and re.search(pattern, names)]
    return Advice("\n".join(lines))


_NEW_SIZES: Final = "Pad inputs to a few sizes, or sort them into buckets, so that few are new."
_SEEN: Final = "Sizes seen before cost nothing more: record later steps to see what remains."
_LATER: Final = "Record later steps to see whether sizes seen before cost this time again."
_ONCE: Final = "The run loses this time only once for these inputs."
_PROBABLY_ONCE: Final = "The run probably loses this time only once for these inputs."
_BEFORE: Final = "Run these inputs once before you record (in the warm-up)"
_OR_NOT: Final = ", or leave this step out (--step)."
_NO_REASON: Final = Advice(
    "New inputs do not explain this, and the trace shows no other reason. Record again: if other calls are long then, Python's "
    "garbage collection (gc.disable() for some steps will tell) or another program stopped the host."
)
_LIBRARIES: Final = (("cudnn", "cuDNN builds an execution plan for inputs it sees for the first time."),)
_REMEDIES: Final = (
    (
        "cudnn_attention",
        "Another attention backend may need none: torch.backends.cuda.enable_cudnn_sdp(False), or "
        "torch.nn.attention.sdpa_kernel around the model.",
    ),
    (
        "cudnn_convolution",
        "Leave torch.backends.cudnn.benchmark False if sizes vary: with True, cuDNN also times its algorithms for each new size.",
    ),
)
"""By operator."""


_ROUNDED: Final = 1.01
"""What differs by less is the same in a sentence."""


def long_calls(scope: Scope, _result: Idle) -> Evidence | None:
    """A few calls of an operator take many times as long as its others, and the device waits meanwhile.

    Libraries prepare for inputs that they have not seen: cuDNN builds an execution plan for each combination of shapes, types
    and arguments, in tens of ms to more than a second. If shapes were recorded, the rule compares a call with others on the same inputs and says
    whether it is the first on them in the trace; if it is not, something else stopped the host. Only the idle time counts
    that operator dispatch causes (`analyses.idle.causes`) in the call itself: API calls have a rule of their own (`cold_start`).

    Fires when calls that take `STANDS_OUT` times as long as usual keep the device idle for `WARNING_SHARE` of the window.
    """
    found = LongCalls.among(scope, pl.lit(value=True))
    if found is None or found.idle_ns < WARNING_SHARE * scope.duration:
        return None
    ns = bounded(found.idle_ns, scope)
    mine = pl.col("op_id").is_in(found.calls["span_id"].implode())
    idle = caused_idle(scope, "operator_dispatch", wanted=mine)
    keep = "keeps" if found.calls.height == 1 else "keep"
    start = found.calls["start"].to_numpy()
    meanwhile = (all_idle(scope) & IntervalSet.of(start, start + found.calls["duration"].to_numpy())).measure
    rest = f", {format_ns(ns)} of it outside API calls" if meanwhile > _ROUNDED * ns else ""
    return Evidence(
        title=f"{found.noun[0].upper()}{found.noun[1:]} {keep} the device idle for {of_time(max(meanwhile, ns), scope)}",
        text=f"{found.text} The device is idle for {format_ns(max(meanwhile, ns))} meanwhile{rest}{idle.where_in_code}.",
        ns_at_stake=ns,
        severity=found.severity,
        advice=found.advice,
        stretches=longest(found.calls, by="idle_ns"),
    )


LONG_CALLS = Rule(
    id="long_calls",
    analysis="idle",
    evidence=long_calls,
    runs="device",
    advice=Advice(
        "Record with {shapes} to see whether these calls are the first on new inputs, which can take long. If they are, record after a "
        "longer warm-up; if new sizes keep coming, pad inputs to a few sizes.",
        flags=("--shapes",),
    ),
    answers=frozenset({"host-bound", "launch/short-kernel-bound", "idle"}),
    explains=frozenset({"step_variability"}),
)
