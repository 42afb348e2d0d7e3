"""Rules about copies between host and device."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.idle.gaps import stream_waits
from tracekit.analyses.idle.host_code import HOST_CODE
from tracekit.analyses.idle.span_causes import user_frames
from tracekit.analyses.memory import Memory, copies_of
from tracekit.analyses.rules.idle_time import LAUNCHING, LONG_GAP_NS, CausedIdle, caused_idle
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded, densest, longest, of_time
from tracekit.analyses.scope import Scope
from tracekit.facts.device_peaks import pinned_copy_gbps
from tracekit.facts.idle_names import FORWARDING_FRAME, PAGEABLE_COPY, PYTHON_FILE, VALUE_OPERATOR
from tracekit.facts.units import (
    NS_PER_US,
    count_of,
    format_bytes,
    format_count,
    format_ns,
    format_share,
    times,
)
from tracekit.groups import any_known, at_rows, distinct, kept, or_none, rows_of, with_series
from tracekit.intervals import IntervalSet
from tracekit.names import short_frame
from tracekit.spans import take
from tracekit.trace import one_of

__all__ = ["PAGEABLE_COPIES", "SMALL_COPIES", "WAITS_FOR_COPIES", "before_small_copies"]

# -- pageable_copies --------------------------------------------------------------------------------

LEAST_SHARE: Final = 0.01
"""A hundredth of the window: if a program reads a loss or a label now and then, the copies take far less."""
LEAST_BYTES_PER_COPY: Final = 64 * 1024
"""The bandwidth of smaller copies says how long a copy takes to start, not how fast it runs."""
LEAST_PART: Final = 0.1
"""A direction with a smaller part of the time is not worth a mention."""
MOST_OF_THEM: Final = 0.5
"""If layers of the model launch this part of the copies' time, the advice is about those."""
NEARLY_ALL: Final = 0.9
"""With this part of the time in one step, the copies are a matter of that step."""


def pageable_copies(scope: Scope, result: Memory) -> Evidence | None:
    """Copies go between the device and pageable host memory, so the driver stages them through a pinned buffer.

    Pinned copies are faster, and can run beside computation. So at stake is the time in which a device only runs these copies,
    less what the same bytes would take from pinned memory and longer than all computation. The rate of pinned copies is that of
    those in the trace, by direction; without any, that of the device's link to the host (`facts.device_peaks`). Without
    a known rate, all of the time is at stake.

    Reads of single values (`.item()`) do not count: what they cost is the wait for the value, of which `blocking_synchronisation` tells.
    Tensors that the layers of a model copy to the device, as masks and tables of positions, could be made there, or stay there.

    Fires when pageable copies from or to the host take `LEAST_SHARE` of the window.
    """
    if not result.copies.height:
        return None
    between = copies_of(_copies(scope)).filter(pl.col("direction").is_in(["HtoD", "DtoH"]))
    pageable = kept(between, between["host_memory"] == "pageable")
    total = int(pageable["total_ns"].sum())
    if total / scope.duration < LEAST_SHARE:
        return None
    at_stake, words = max(_at_stake(scope, between, device) for device in distinct(pageable["device_id"]))
    # The copy of a label beside the copy of a batch is not worth a mention.
    large = pageable.filter(pl.col("total_ns") >= LEAST_PART * total)
    listed = "; ".join(
        f"{row['direction']}: {count_of(row['count'], 'copy moves', 'copies move')} {format_bytes(row['bytes'])} in {format_ns(row['total_ns'])}"
        + (f" ({row['bandwidth_gbps']:.1f} GB/s)" if row["bandwidth_gbps"] is not None else "")
        for row in large.iter_rows(named=True)
    )
    directions = large["direction"].unique().to_list()
    ways, advice = _WAYS[directions[0]] if len(directions) == 1 else ("from or to", None)
    copies = _copies(scope).filter(pl.col("name").cast(pl.String).str.contains(PAGEABLE_COPY))
    where = _in_one_step(scope, copies)
    within = _within_layers(scope, copies) if directions == ["HtoD"] else None
    if within is not None:
        words, advice = f"{words} The model launches them in the forward pass.", Advice(_WITHIN_LAYERS)
        where = within or where
    return Evidence(
        title=f"Copies {ways} pageable memory take {format_share(total / scope.duration)} of the time{where}",
        text=f"{listed}.{words}",
        ns_at_stake=at_stake,
        advice=advice,
        stretches=longest(copies),
    )


def _copies(scope: Scope) -> pl.DataFrame:
    """The copies that are no reads of single values."""
    return scope.once(_copies, lambda: _without_reads(scope))


def _without_reads(scope: Scope) -> pl.DataFrame:
    copies, stack = (
        kept(scope.activities, scope.activities["kind"] == "memcpy"),
        attribution(scope).model.stack,
    )
    reads = stack.nesting.nearest_ancestor(stack.named(VALUE_OPERATOR, "op"))
    return kept(copies, take(reads, or_none(copies["launch_id"])) < 0)


def _within_layers(scope: Scope, copies: pl.DataFrame) -> str | None:
    """`, mostly in FRAME` of copies to the device that layers of the model launch in the forward pass, most of them; None of others."""
    places = attributed(scope).join(copies.select("activity_id"), on="activity_id", how="semi")
    inside = places.filter((pl.col("phase").cast(pl.String) == "forward") & pl.col("layer_id").is_not_null())
    most = MOST_OF_THEM * int(places["duration"].sum())
    if int(inside["duration"].sum()) < most:
        return None
    stack = attribution(scope).model.stack
    frames = take(stack.nesting.nearest_ancestor(user_frames(stack)), or_none(inside["launch_id"]))
    names = inside.select("duration", at_rows(stack.frame["name"], frames).cast(pl.String).alias("name"))
    by_name = names.drop_nulls("name").group_by("name").agg(pl.col("duration").sum()).sort("duration", "name")
    if not by_name.height or by_name["duration"][-1] < most:
        return ""
    return f", mostly in {short_frame(by_name['name'][-1])}"


def _in_one_step(scope: Scope, copies: pl.DataFrame) -> str:
    """`, nearly all in ProfilerStep#5`; empty if other steps copy as well."""
    sums = copies.group_by("step").agg(pl.col("duration").sum()).sort("duration", "step", nulls_last=False)
    if scope.window != "steps" or scope.steps.height < 2 or not sums.height:
        return ""
    step, ns = sums.row(-1)
    if step is None or ns < NEARLY_ALL * int(sums["duration"].sum()):
        return ""
    return f", nearly all in {scope.steps.filter(pl.col('step') == step)['name'][0]}"


def _at_stake(scope: Scope, copies: pl.DataFrame, device: int) -> tuple[int, str]:
    """What pinned memory could save a device, in ns, and the assumption behind it, as a sentence; `copies` are those between device and
    host.
    """
    names = pl.col("name").cast(pl.String).str.contains(PAGEABLE_COPY)
    mine = _copies(scope).filter((pl.col("device_id") == device) & names)
    region = IntervalSet.of(mine["start"].to_numpy(), mine["end"].to_numpy()).clip(scope.start, scope.end)
    exposed = (region - scope.intervals(device, "compute", "communication")).measure
    rows = copies.filter((pl.col("device_id") == device) & (pl.col("host_memory") == "pageable"))
    fastest = _pinned(copies).rename({"bandwidth_gbps": "pinned_gbps"})
    info = next((info for info in scope.trace.meta.devices if info.device_id == device), None)
    link = pinned_copy_gbps(info.name) if info else None
    rows = rows.join(fastest, on="direction", how="left").with_columns(
        pl.max_horizontal(pl.coalesce("pinned_gbps", pl.lit(link)), "bandwidth_gbps").alias("could_gbps")
    )
    large = rows.filter(pl.col("bytes").is_not_null())
    assumed = not large.height or large.sort("total_ns")["pinned_gbps"][-1] is None
    if not large.height or (assumed and link is None):
        return exposed, ""
    needed = round(large.select((pl.col("bytes") / pl.col("could_gbps")).sum()).item())
    free = scope.intervals(device, "compute").measure
    rate = (
        f"about {link:.3g} GB/s, the rate of the link"
        if assumed
        else "the rate of the pinned copies in this trace"
    )
    words = f" At {rate}, they would take {format_ns(needed)}; computation takes {format_ns(free)}."
    return max(exposed - max(needed - free, 0), 0), words


def _pinned(copies: pl.DataFrame) -> pl.DataFrame:
    """The `bandwidth_gbps` of pinned copies by `direction`, for those that are large enough to tell."""
    large = pl.col("bytes") / pl.col("count") >= LEAST_BYTES_PER_COPY
    rows = copies.filter((pl.col("host_memory") == "pinned") & pl.col("bandwidth_gbps").is_not_null() & large)
    return rows.group_by("direction").agg(pl.col("bandwidth_gbps").max())


_TO_DEVICE: Final = (
    "[loader] Use pinned memory (DataLoader(pin_memory=True)) and .to(device, non_blocking=True).\n"
    "[!loader] Use pinned memory (tensor.pin_memory()) and .to(device, non_blocking=True).\n"
)
_TO_HOST: Final = "Copy to the host less often, or into a buffer of pinned memory (pinned.copy_(tensor, non_blocking=True)) that is read later.\n"
_FASTER: Final = "Copies then run at full speed and overlap computation."
_WAYS: Final = {
    "HtoD": ("from", Advice(_TO_DEVICE + _FASTER, flags=("--pin-memory",))),
    "DtoH": ("to", Advice(_TO_HOST + _FASTER)),
}
"""The words for copies in one direction, and the advice."""

_WITHIN_LAYERS: Final = (
    "Make these tensors on the device (device=x.device), or keep them there as buffers (register_buffer), so that nothing is "
    "copied. If they are weights that do not fit on the device, pin them and copy them ahead of their layer, on a separate "
    "stream."
)
"""About copies that the layers of a model make."""

PAGEABLE_COPIES = Rule(
    id="pageable_copies",
    analysis="memory",
    evidence=pageable_copies,
    runs="device",
    advice=Advice(
        f"{_TO_DEVICE}{_TO_HOST}{_FASTER}",
        plain=(
            "[!python] Allocate host memory with cudaMallocHost, or register it with cudaHostRegister.\n"
            "[python] Use the library's pinned memory (cudaMallocHost).\n"
            "Copy with asynchronous calls on a separate stream. Copies then run at full speed and overlap computation."
        ),
        flags=("--pin-memory",),
    ),
    answers=frozenset({"memory-copy-bound"}),
)


# -- small_copies -----------------------------------------------------------------------------------

SMALL_BYTES: Final = 64 * 1024
"""At some 10 GB/s, this many bytes take about 6 µs, as long as the start of a copy."""
LEAST_COPIES_PER_STEP: Final = 20
"""A batch has only a few tensors, so twenty small copies a step are avoidable."""


def small_copies(scope: Scope, result: Memory) -> Evidence | None:
    """There are many small copies between host and device, and each costs a launch and the latency of a transfer.

    At stake is the time of the copies, and the idle time in which the host prepares and starts those to the device
    (`before_small_copies`), without that of other Python code before them, as of a simulator. Reads of single values (`.item()`) do
    not count.

    Fires when a step makes `LEAST_COPIES_PER_STEP` small copies (without steps: the window does).
    """
    if not result.copies.height:
        return None
    rows = copies_of(_copies(scope)).filter(
        pl.col("direction").is_in(["HtoD", "DtoH"]) & (pl.col("bytes") / pl.col("count") < SMALL_BYTES)
    )
    count, total, moved = int(rows["count"].sum()), int(rows["total_ns"].sum()), int(rows["bytes"].sum())
    steps = scope.steps.height if scope.window == "steps" else 1
    if not steps or count / steps < LEAST_COPIES_PER_STEP:
        return None
    idle = before_small_copies(scope)
    waited = idle.ns if idle else 0
    at_stake = bounded(total + waited, scope)
    per = f", {count / steps:.0f} a step" if scope.window == "steps" else ""
    takes, before = "", ""
    if idle is not None and waited > total:
        takes = f"; they and the idle time before them take {of_time(at_stake, scope)}"
        before = f" Before them, the device is idle for {format_ns(waited)} while the host prepares and starts them{idle.where}."
    return Evidence(
        title=f"There are {format_count(count)} small copies between host and device{per}{takes}",
        text=f"They move {format_bytes(moved)} in {format_ns(total)}, {format_bytes(moved / count)} a copy on average.{before}",
        ns_at_stake=at_stake,
        stretches=densest(_time_of(_small(scope, "HtoD|DtoH")), scope),
    )


def before_small_copies(scope: Scope) -> CausedIdle | None:
    """The idle time in short gaps that end with a small copy to the device, in which the host prepares and starts the copy, or waits
    for the one before; None if there are less than `LEAST_COPIES_PER_STEP` such copies a step. No graph and no faster launch saves
    it, but one copy of all does. A call of Python code that returned before the launch did something else.
    """
    return scope.once(before_small_copies, lambda: _before_small_copies(scope))


def _before_small_copies(scope: Scope) -> CausedIdle | None:
    copies = _small(scope, "HtoD")
    if copies.height < LEAST_COPIES_PER_STEP * max(scope.steps.height if scope.window == "steps" else 1, 1):
        return None
    ends = pl.col("ended_by").is_in(copies["activity_id"].implode())
    elsewhere = one_of("cause", *HOST_CODE) & pl.col("start").is_in(_elsewhere(scope, ends).implode())
    return caused_idle(scope, *LAUNCHING, "synchronisation", wanted=ends & ~elsewhere, below=LONG_GAP_NS)


def _elsewhere(scope: Scope, ends: pl.Expr) -> pl.Series:
    """The `start` of the pieces of idle time before small copies (`ends`) in calls of Python code that launched none of them."""
    pieces, stack = (
        idle_causes(scope).pieces.filter(ends & one_of("cause", *HOST_CODE)),
        attribution(scope).model.stack,
    )
    code = stack.named(PYTHON_FILE, "python") & ~stack.named(FORWARDING_FRAME, "python")
    call = take(stack.nesting.nearest_ancestor(code), or_none(pieces["span_id"]))
    launch = take(or_none(scope.trace.device["launch_id"]), or_none(pieces["ended_by"]))
    around = (call <= launch) & (launch < take(stack.nesting.after, call))
    return kept(pieces, (call >= 0) & (launch >= 0) & ~around)["start"]


def _small(scope: Scope, directions: str) -> pl.DataFrame:
    """The small copies between host and device, in these directions."""
    return _copies(scope).filter(
        (pl.col("bytes") < SMALL_BYTES) & pl.col("name").cast(pl.String).str.contains(directions)
    )


def _time_of(rows: pl.DataFrame) -> IntervalSet:
    return IntervalSet.of(rows["start"].to_numpy(), rows["end"].to_numpy())


SMALL_COPIES = Rule(
    id="small_copies",
    analysis="memory",
    evidence=small_copies,
    runs="device",
    advice=Advice(
        "Create tensors on the device (device=… instead of .to()), pack small inputs into one tensor that you copy "
        "once, and keep indices and masks on the device.",
        plain=("Create data on the device, and pack small inputs into one buffer that you copy once."),
    ),
    answers=frozenset({"memory-copy-bound", "host-bound", "launch/short-kernel-bound"}),
)


# -- waits_for_copies -------------------------------------------------------------------------------

WAITS_FOR_COPIES_LEAST_SHARE: Final = 0.05
"""Less than a twentieth of the window can be the first copy of a step, which nothing can hide."""
_JUST_BEFORE_NS: Final = 5 * NS_PER_US


def waits_for_copies(scope: Scope, _result: Memory) -> Evidence | None:
    """Kernels that were launched in time, and whose stream is free, start only when a copy on another stream ends.

    The copy is on a stream of its own, but computation needs its result at once, so nothing runs beside it. That a kernel
    waits for the copy, an event in its stream shows; if the trace has no such events, the times do: it starts within 1.5 µs
    after the copy's end. At stake is the time of such waits in which the device only copies.

    Fires when waits for copies on other streams take `WAITS_FOR_COPIES_LEAST_SHARE` of the window.
    """
    worst = max(
        (_waits_of(scope, device) for device in scope.device_ids), key=lambda waits: waits[0], default=None
    )
    if worst is None or worst[0] < max(WAITS_FOR_COPIES_LEAST_SHARE * scope.duration, 1):
        return None
    waited, waits = worst
    copy = (
        waits.group_by("name", "on").agg(pl.len(), pl.col("ns").sum()).sort("ns", "name").row(-1, named=True)
    )
    events = scope.trace.syncs is not None and any_known(scope.trace.syncs["wait_on_stream"])
    shown = (
        "An event in the stream shows this"
        if events
        else "The trace contains no events between streams; the times show this"
    )
    return Evidence(
        title=f"Computation waits for copies on another stream for {format_share(waited / scope.duration)} of the time",
        text=f"{count_of(waits.height, 'kernel starts', 'kernels start')} only at the end of a copy on another stream, although "
        f"launched earlier; meanwhile, the device does nothing but copy for {format_ns(waited)}. Most wait for {copy['name']} on "
        f"stream {copy['on']} ({times(copy['len'])}). {shown}.",
        ns_at_stake=bounded(waited, scope),
        stretches=longest(
            waits.select(
                pl.col("ready").alias("start"), (pl.col("start") - pl.col("ready")).alias("duration"), "ns"
            ),
            by="ns",
        ),
    )


def _waits_of(scope: Scope, device: int) -> tuple[int, pl.DataFrame]:
    """The time in ns in which a device only copies while kernels of another stream wait; and these: `ns`, `name` and `on`,
    the copy and its stream.
    """
    copying = scope.intervals(device, "memory") - scope.intervals(device, "compute", "communication")
    columns = ("activity_id", "device_id", "stream_id", "launch_id", "class", "start")
    rows = scope.activities[list(columns)]
    rows = kept(rows, (rows["device_id"] == device) & (rows["class"] != "memory"))
    # Only a kernel that starts when copying ends can have waited for a copy alone.
    last = copying.coverage(rows["start"].to_numpy() - _JUST_BEFORE_NS, rows["start"].to_numpy())
    waits = stream_waits(scope, kept(rows, last > 0))
    others = scope.overlapping
    source = rows_of(others["activity_id"], waits["source"].to_numpy())
    ns = copying.coverage(waits["ready"].to_numpy(), waits["start"].to_numpy())
    waits = with_series(
        waits,
        at_rows(others["class"], source),
        at_rows(others["name"], source),
        at_rows(others["stream_id"], source).alias("on"),
        pl.Series("ns", ns, dtype=pl.Int64),
    )
    waits = kept(waits, (waits["class"] == "memory") & (waits["ns"] > 0))
    waits = with_series(waits, waits["name"].cast(pl.String))
    region = IntervalSet.of(waits["ready"].to_numpy(), waits["start"].to_numpy())
    return (region & copying).measure, waits


WAITS_FOR_COPIES = Rule(
    id="waits_for_copies",
    analysis="memory",
    evidence=waits_for_copies,
    runs="device",
    advice=Advice(
        "Start the copy earlier, before work that does not need it: copy the next batch or the next layer's weights while this "
        "one computes, and let the stream wait for the copy's event only then. Avoid copies within the device that a view or an "
        "in-place operation can replace.",
        plain=(
            "Start the copy earlier, before work that does not need it (two buffers in turn), and wait for its event only "
            "where the data are used. Avoid copies within the device."
        ),
    ),
    answers=frozenset({"memory-copy-bound"}),
)
