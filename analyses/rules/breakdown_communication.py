"""Rules about the time that communication takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Any, Final

import polars as pl

from tracekit.analyses.breakdown import Breakdown
from tracekit.analyses.calls import calls_of, of_one_rank
from tracekit.analyses.exposure import exposed_by
from tracekit.analyses.overlap import overlap
from tracekit.analyses.rules.breakdown_processors import small_on_processors, told_apart
from tracekit.analyses.rules.breakdown_reduction import (
    SEVERAL,
    accumulating,
    of_buckets,
    reduced_in_vain,
    slower_than_smaller,
    where_launched,
)
from tracekit.analyses.rules.breakdown_unequal import LEAST_EQUAL, UNEQUAL, ranks_on_time
from tracekit.analyses.rules.device_collectives import (
    collectives_of,
    exposed_time,
    waits_of,
    worst_device,
)
from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, Rule, by_share, densest, longest
from tracekit.analyses.scope import Scope
from tracekit.analyses.traits import traits
from tracekit.facts.collectives import ELEMENT_BYTES
from tracekit.facts.stack_names import GRADIENT_REDUCTION_LAYER
from tracekit.facts.units import (
    NS_PER_S,
    NS_PER_US,
    count_of,
    format_bytes,
    format_count,
    format_ns,
    format_share,
    times,
)
from tracekit.groups import at_rows
from tracekit.names import clean, shorten_name

__all__ = ["EXPOSED_COMMUNICATION", "SMALL_COLLECTIVES"]

# -- exposed_communication --------------------------------------------------------------------------

EXPOSED_SHARE: Final = 0.05
"""Less than a twentieth of the window can come from the first and last collective of a step, which nothing can hide."""

_REMEDY: Final[tuple[tuple[str, str], ...]] = (
    (
        r"^(send|recv)$",
        "Start the transfer earlier (torch.distributed.isend, irecv), alongside the computation of another part of the batch, "
        "and wait for it only where its result is used.",
    ),
    (
        r"send_?recv|all_?to_?all",
        "Start the exchange earlier, alongside computation, and wait for it only where its result is used; send fewer bytes "
        "({lower}balanced sharding)",
    ),
    (
        r"all_?gather|reduce_?scatter",
        "[fsdp] Prefetch the parameters of the next layer (forward_prefetch=True, BackwardPrefetch.BACKWARD_PRE, or "
        "set_modules_to_forward_prefetch of fully_shard), and shard within a node first.\n"
        "[!fsdp] Start the collective earlier, alongside computation, and wait for it only where its result is used.",
    ),
    (
        r"all_?reduce|reduce",
        "[training ddp] {buckets}Accumulate gradients {how}{in_bf16}.\n"
        "[training !ddp] {hidden}\n"
        "[!training] Overlap the collective with computation that does not need its result, or send fewer bytes.",
    ),
)
SLOWEST_BYTES_PER_S: Final = 25_000_000
"""A fifth of what a network of 1 Gbit/s carries. Collectives that send less a second mostly wait for other ranks."""

_SHAPE: Final = re.compile(r"\[(\d+(?:, ?\d+)*)\]")
_ITEM: Final = 4
"""Bytes of an element whose type is not recorded."""

_LONGEST: Final = 60

_NOT_HIDDEN: Final = (
    "Reduce gradients during the backward pass, as DistributedDataParallel does, or send fewer bytes."
)
_FEWER: Final = "send fewer bytes{how} accumulate gradients over more micro-batches."
_HIDDEN: Final = "Computation already hides {share} of the communication, so " + _FEWER
_TOO_SLOW: Final = (
    "The backward pass already launches the reductions but is too short to hide them, so " + _FEWER
)
_AFTER_UPDATE: Final = (
    "The reduction starts after the parameter update, when no backward pass is left to hide it: average the parameters less "
    "often, or send fewer bytes."
)
_IN_VAIN: Final = (
    "Gradients are reduced in {} and applied in {}: reduce them only before an update (no_sync() of DistributedDataParallel, "
    "set_requires_gradient_sync(False) of fully_shard)."
)
OVERLAPPED: Final = 0.25
"""From this part of it on, communication runs beside computation on purpose."""
MOSTLY: Final = 0.5
NARROW_BYTES: Final = 2
"""Gradients in 16 bits are not reduced in fewer."""
STEADY: Final = 1.25
"""Equal collectives of which none takes longer than this many times another rarely wait for different work of the ranks."""
OF_LAYERS: Final = ("forward", "backward")
"""Phases of collectives that layers launch; those of gradients have a phase of their own."""
LEAST_TOLD: Final = 0.25
"""Without ranges, only the nodes of the backward pass tell that layers launch collectives, which is half of them."""
_SEEN: Final = "[compared] See in the joint view for which rank the others wait."
_RANKS: Final = (
    f"[!compared] Compare the ranks first: part of this time may be spent waiting for a slower rank.\n{_SEEN}"
)
_RANKS_TOO: Final = f"[!compared] Compare the ranks as well: part of this time may be spent waiting for a slower rank.\n{_SEEN}"
_IN_LAYERS: Final = (
    "Layers launch this collective in the forward and the backward pass, so it carries no weight gradients: let fewer ranks "
    "share a layer, or split the batch so that one part computes while another is exchanged."
)


def exposed_communication(scope: Scope, result: Breakdown) -> Evidence | None:
    r"""Collectives run while no computation does (DEFINITIONS §3: |X \ C|).

    What equal collectives of a device take longer than the shortest of them is not at stake here, but in
    `unequal_collectives`. If the sizes are recorded and collectives send less than `SLOWEST_BYTES_PER_S`, the finding says that
    they wait, and its advice is about the ranks.

    Fires when the exposed communication of the worst device is `EXPOSED_SHARE` of the window or more.
    """
    worst = worst_device(result)
    if worst is None:
        return None
    device, exposed, communication, window = worst
    if not window or exposed / window < EXPOSED_SHARE:
        return None
    largest = _largest(scope)
    sent = _bytes_sent(scope, device)
    alone = of_one_rank(calls_of(scope).table)
    waiting = not alone and sent is not None and sent * NS_PER_S < SLOWEST_BYTES_PER_S * communication
    more = f" All collectives send only {format_bytes(sent)}." if waiting else _worst_layer(scope)
    slower = None if waiting or alone else slower_than_smaller(scope)
    if slower is not None:
        waiting, more = slower.exposed_ns >= MOSTLY * exposed, f"{slower.text}{more}"
    hidden = 1 - exposed / max(communication, 1)
    remedy = _OF_ONE_RANK if alone else _WAITS_FOR_RANKS if waiting else _remedy(scope, largest, hidden)
    if scope.on_cpu and not alone and small_on_processors(scope, window):
        remedy = _FEWER_CALLS
    waits = None if scope.on_cpu else waits_of(scope, device, unequal=UNEQUAL, least=LEAST_EQUAL)
    waited = 0 if waits is None else min(int(waits["exposed_wait"].sum()), exposed)
    waited = waited if waited >= WARNING_SHARE * window else 0
    apart = exposed_time(scope, device, told_apart(scope)).measure
    at_stake, rest = exposed - waited - apart, ""
    if apart:
        rest = f" {format_ns(apart)} of the exposed time has findings of its own, and is not at stake here."
    on_time = ranks_on_time(scope, max(waited, exposed - waited - apart))
    if waited:
        lost = "is lost where the network is slow" if on_time else "may be spent waiting for other ranks"
        rest = f" {format_ns(waited)} of the exposed time {lost}, which is not at stake here."
    part = "all" if exposed == communication else f"{format_ns(exposed)} of the"
    part = "nearly all" if part != "all" and format_ns(exposed) == format_ns(communication) else part
    mostly = "mostly latency or" if waiting else "most of which may be" if waited > MOSTLY * exposed else ""
    most = f", {mostly} waits for other ranks" if mostly and not on_time else ""
    return Evidence(
        title=f"Exposed communication takes {format_share(exposed / window)} of the time{most}",
        text=f"In a window of {format_ns(window)}, {part} {format_ns(communication)} of communication ran "
        f"while no computation did.{_of_largest(largest)}{more}{rest}",
        ns_at_stake=at_stake,
        severity=by_share(at_stake, window),
        advice=remedy,
        stretches=longest(
            scope.activities.filter((pl.col("class") == "communication") & (pl.col("device_id") == device))
        ),
    )


_OF_ONE_RANK: Final = Advice(
    "Its groups have one rank each, so nothing is exchanged: skip these calls when a run has only one rank."
)
_FEWER_CALLS: Final = Advice("Make fewer and larger calls first: the small ones have a finding of their own.")
_WAITS_FOR_RANKS: Final = Advice(
    "[processor] Give ranks on one machine cores of their own (taskset, torch.set_num_threads).\n[!compared] Compare the ranks over "
    "the same steps, and see which one arrives last: give it less work, or the same amount as the others.\n[compared] Give the rank that "
    "arrives last, which the joint view names, less work, or the same amount as the others."
)


def _largest(scope: Scope) -> dict[str, Any] | None:
    """The kind of collective in a group with the most exposed time; None if there is none."""
    calls = calls_of(scope)
    keyed = calls.table.with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("call"),
        pl.struct("name", "group").rank("dense").alias("key"),
    ).join(told_apart(scope)[["call"]], on="call", how="anti", maintain_order="left")
    rows = exposed_by(scope, calls.parts.join(keyed[["call", "key"]], on="call"), "key")
    rows = rows.filter(pl.col("exposed_ns") > 0).sort("exposed_ns", "key", descending=[True, False])
    if not rows.height:
        return None
    mine = keyed.filter(pl.col("key") == rows["key"][0])
    in_layers, backward, of_gradients = (
        int(mine.filter(which)["exposed_ns"].sum())
        for which in (
            pl.col("phase").is_in(OF_LAYERS),
            pl.col("phase") == "backward",
            pl.col("layer") == GRADIENT_REDUCTION_LAYER,
        )
    )
    # What a range of the program launches behind the backward pass, such as the mean of gradients, may count as forward.
    in_layers = in_layers if backward >= LEAST_TOLD * in_layers else 0
    widths = pl.col("dtype").replace_strict(ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    return {**mine.select(
        pl.col("name", "group").first(),
        pl.len().alias("count"),
        pl.lit(rows["exposed_ns"][0]).alias("exposed_ns"),
        pl.col("bytes").null_count().alias("unsized"),
        (widths.is_not_null().all() & (widths <= NARROW_BYTES).all()).alias("narrow"),
        *(getattr(pl.col(name), which)().alias(f"{which}_{name}") for name in ("bytes", "duration_ns") for which in ("min", "max")),
    ).row(0, named=True), "several": calls.table["group"].drop_nulls().n_unique() > 1,
        "in_layers": in_layers >= max(of_gradients, LEAST_TOLD * rows["exposed_ns"][0]),
        "gbps": (mine["bus_bytes"] / mine["duration_ns"].clip(1)).max()}  # fmt: skip


def _of_largest(row: dict[str, Any] | None) -> str:
    """What the evidence says of it: its sizes, and its group if there are others."""
    if row is None:
        return ""
    size = "" if row["unsized"] else f" of {_between(row, 'bytes', format_bytes)}"
    group = f" in group {clean(row['group'])}" if row["several"] and row["group"] is not None else ""
    each = times(row["count"])
    if row["count"] > 1:
        each += f" for {_between(row, 'duration_ns', format_ns)} each"
    if row["gbps"]:
        each += f", with a bus bandwidth of at most {row['gbps']:.3g} GB/s"
    return f" {format_ns(row['exposed_ns'])} of it is {row['name']}{size}{group}, {each}."


def _between(row: dict[str, Any], what: str, shown: Callable[[float | None], str]) -> str:
    low, high = shown(row[f"min_{what}"]), shown(row[f"max_{what}"])
    return low if low == high else f"{low} to {high}"


def _worst_layer(scope: Scope) -> str:
    """The layer with the most exposed communication, as a sentence; of several in one bucket the first and the number."""
    layers = overlap(scope).layers
    if layers is None or not layers.height or not layers["exposed_ns"][0]:
        return ""
    row = layers.row(0, named=True)
    alike = pl.all_horizontal(
        pl.col(name) == row[name] for name in ("exposed_ns", "communication_ns", "carries")
    )
    others = layers.filter(alike).height - 1
    more = f" and {count_of(others, 'other layer')}" if others else ""
    what = "calls in" if row["carries"] == "own" else f"{row['carries']} of"
    return f" {format_ns(row['exposed_ns'])} is for {what} {shorten_name(row['layer'], _LONGEST)}{more}."


def _remedy(scope: Scope, row: dict[str, Any] | None, hidden: float) -> Advice | None:
    """The advice about the collective of this row of `_largest`, if this part of communication is hidden; None if there is none of its own."""
    name = "" if row is None else row["name"]
    text = next((text for pattern, text in _REMEDY if re.search(pattern, name, re.IGNORECASE)), None)
    if text is None:
        return None
    if (vain := reduced_in_vain(scope)) is not None:
        return Advice(_IN_VAIN.format(*vain))
    steady = row is not None and _steady(row, scope)

    def with_ranks(words: str) -> Advice:
        return Advice(f"{words}\n{_RANKS_TOO}" if steady else f"{_RANKS}\n{words}")

    if row is not None and row["in_layers"] and name == "all_reduce" and "training" in traits(scope):
        return with_ranks(_IN_LAYERS)
    place = where_launched(scope, name) if re.search("reduce$", name) else ""
    if place == "after_update":
        return with_ranks(_AFTER_UPDATE)
    words = _HIDDEN if hidden >= OVERLAPPED else _TOO_SLOW if place == "backward" else _NOT_HIDDEN
    # Gradients in 16 bits are in a low precision already.
    wide = row is None or not row["narrow"]
    words = words.format(share=format_share(hidden), how=" (in a lower precision), or" if wide else ":")
    in_bf16 = ", or reduce them in bf16 with a communication hook" if wide else ""
    lower = "lower precision, " if wide else ""
    said = text.format(
        buckets=of_buckets(scope), how=accumulating(scope), hidden=words, in_bf16=in_bf16, lower=lower
    )
    return with_ranks(f"{said.removesuffix('.')}.")


def _steady(row: dict[str, Any], scope: Scope) -> bool:
    """Whether the calls of this row of `_largest` are several a step, of one size, and each takes about as long as the others."""
    steps = scope.steps.height if scope.window == "steps" else 1
    alike = not row["unsized"] and row["min_bytes"] == row["max_bytes"]
    return bool(
        alike
        and row["count"] >= SEVERAL * steps
        and row["max_duration_ns"] <= STEADY * row["min_duration_ns"]
    )


def _bytes_sent(scope: Scope, device: int) -> int | None:
    """What the collectives of a device send, in bytes; without a device about that. None if not all sizes are recorded."""
    if not scope.on_cpu:
        rows = collectives_of(scope, device)
        return int(rows["sent"].sum()) if rows.height and rows["sent"].is_not_null().all() else None
    rows = scope.activities.filter(pl.col("class") == "communication")
    of_backend = rows.filter(~pl.col("name").cast(pl.String).str.starts_with("c10d::"))
    # The same collective is an operator, and a range of the backend on another thread.
    spans = (of_backend if of_backend.height else rows)["launch_id"].unique()
    shapes = at_rows(scope.trace.host["shapes"], spans.drop_nulls()).cast(pl.String)
    sizes = [
        max((prod(map(int, each.split(","))) for each in _SHAPE.findall(text)), default=0)
        for text in shapes.drop_nulls()
    ]
    return _ITEM * sum(sizes) if sizes and all(sizes) and len(sizes) == spans.len() else None


EXPOSED_COMMUNICATION = Rule(
    id="exposed_communication",
    analysis="breakdown",
    evidence=exposed_communication,
    advice=Advice(
        f"Start collectives earlier, alongside computation, and wait for them only where the result is used.\n{_RANKS}",
        plain=(
            "Start communication earlier, on a separate stream, and wait for it only where the result is used; send "
            f"fewer bytes.\n{_RANKS}"
        ),
    ),
    answers=frozenset({"communication-bound"}),
)


# -- small_collectives ------------------------------------------------------------------------------

SMALL_NS: Final = 100 * NS_PER_US
"""Between GPUs of one machine, a collective of a few bytes takes some 10 µs, between machines some tens of µs."""
LEAST_COLLECTIVES_PER_STEP: Final = 20
"""Gradients of a large model fit into about as many buckets of 25 MB; more small collectives are avoidable."""


def small_collectives(scope: Scope, result: Breakdown) -> Evidence | None:
    """There are many short collectives, each of which costs the latency of all ranks, whatever its size; but not in groups of one.

    At stake is the time in which a device only runs collectives shorter than `SMALL_NS`. The evidence gives their mean size
    where the profile recorded it. Without a device, the sizes tell which are small: buckets of DistributedDataParallel below the
    first one's usual size, and calls up to 1 MiB that take hardly longer than those with a fourth of the bytes or less. Then at
    stake is their exposed time without the part of as many calls as could carry the same.

    Fires when a step (without steps: the window) runs `LEAST_COLLECTIVES_PER_STEP` of them on a device, or `LEAST_A_STEP` without
    one, and they run alone for `EXPOSED_SHARE` of the window.
    """
    worst = worst_device(result)
    if worst is None or of_one_rank(calls_of(scope).table):
        return None
    device, _, _, window = worst
    if scope.on_cpu:
        return small_on_processors(scope, window)
    rows = collectives_of(scope, device).filter(pl.col("duration") < SMALL_NS)
    steps = max(scope.steps.height, 1) if scope.window == "steps" else 1
    exposed = exposed_time(scope, device, rows).measure
    if rows.height / steps < LEAST_COLLECTIVES_PER_STEP or exposed < EXPOSED_SHARE * window:
        return None
    total = int(rows["duration"].sum())
    each = f", {rows.height / steps:,.0f} a step" if scope.window == "steps" else ""
    theirs = calls_of(scope).table.filter(
        (pl.col("device_id") == device) & (pl.col("duration_ns") < SMALL_NS)
    )
    of_layers = theirs["phase"].is_in(OF_LAYERS).sum() >= max(MOSTLY * theirs.height, 1)
    sent = rows["sent"]
    sizes = (
        ""
        if sent.is_null().any()
        else f" A rank puts {format_bytes(int(sent.sum()) / rows.height)} into each on average."
    )
    return Evidence(
        title=f"There are {format_count(rows.height)} short collectives{each}, which run alone for {format_share(exposed / window)} of the time",
        text=f"They take {format_ns(total / rows.height)} each on average and {format_ns(total)} in all; for "
        f"{format_ns(exposed)} of that, no computation runs.{sizes}",
        ns_at_stake=exposed,
        severity=by_share(exposed, window),
        advice=_SMALL_OF_LAYERS if of_layers and "training" in traits(scope) else None,
        stretches=densest(exposed_time(scope, device, rows), scope),
    )


_SMALL_OF_LAYERS: Final = Advice(
    "[sync_batch_norm] SyncBatchNorm exchanges its statistics in each layer, forward and backward: use BatchNorm where the batch "
    "per rank is large enough, or GroupNorm, which exchanges nothing.\n"
    "[!sync_batch_norm fsdp] Shard larger parts of the model at once, so that each collective carries more.\n"
    "[!sync_batch_norm !fsdp] Layers launch most of them in the forward and the backward pass, so they are not gradient "
    "reductions: pack what they exchange into fewer tensors, or let fewer ranks share a layer."
)

SMALL_COLLECTIVES = Rule(
    id="small_collectives",
    analysis="breakdown",
    evidence=small_collectives,
    advice=Advice(
        "[ddp] DistributedDataParallel puts gradients into buckets: raise bucket_cap_mb, and do not reduce them parameter by "
        "parameter.\n"
        "[fsdp] Shard larger parts of the model at once, so that each collective carries more.\n"
        "[!ddp !fsdp training] Reduce gradients in one collective: flatten them into one tensor, or use DistributedDataParallel, "
        "whose buckets (bucket_cap_mb) do so.\n"
        "[!ddp !fsdp !training] Use larger collectives: pack the tensors into one, or use torch.distributed._coalescing_manager.",
        plain="Send more in each collective: merge small buffers into one, or group the calls (ncclGroupStart, ncclGroupEnd).",
    ),
    answers=frozenset({"communication-bound"}),
    explains=frozenset({"exposed_communication"}),
)
