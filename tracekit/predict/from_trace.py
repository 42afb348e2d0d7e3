"""The step of one trace at another batch, on more devices, or on another device: from rooflines and links, without a fit.

A piece of work (`analyses.roofline.pieces`) keeps the distance from its roof that it shows, and its roof moves: with the batch its FLOPs
and the bytes of activations grow, and those of weights do not; on another device the ceilings are others. The start of a kernel
takes what it took. The host takes what it took, without recording as far as that is known, and the device waits for it where it does not
get enough work; so more work hides the host's time, and less work shows it. More devices copy the model and reduce its gradients around a ring, behind the backward pass.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.completeness import completeness
from tracekit.analyses.parts import DeviceParts, ProcessorParts, loader_ns, run_parts
from tracekit.analyses.recording import unrecorded_ns
from tracekit.analyses.roofline.other_device import ceilings_there
from tracekit.analyses.roofline.rated import device_ceilings
from tracekit.analyses.scope import Scope
from tracekit.analyses.what_if.replay import USUAL_SLOWING, host_speeds
from tracekit.analyses.whole import whole_steps
from tracekit.analyses.workload import workload
from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError, UsageError
from tracekit.facts.ceilings import chosen_device
from tracekit.facts.device_peaks import peak_link_gbps
from tracekit.facts.launch_apis import SYNCHRONISATION
from tracekit.facts.units import count_of, format_bytes, format_share
from tracekit.intervals import IntervalSet
from tracekit.names import clean
from tracekit.predict.support import FARTHEST
from tracekit.predict.trace_work import Conditions, gradient_bytes, placed_pieces, under_conditions

__all__ = ["PARTS", "FromTrace", "predict_from_trace"]

PARTS: Final = {
    "part": pl.String,
    "now_ns": pl.Float64,
    "predicted_ns": pl.Float64,
    "low_ns": pl.Float64,
    "high_ns": pl.Float64,
    "bound": pl.String,
    "assumption": pl.String,
}
_LEAST_TOLD: Final = 0.0005
"""A smaller share would be told as 0.0 %."""
_RING_START_NS: Final = 20_000
_BUCKET: Final = 25 << 20
"""Bytes of gradients that PyTorch reduces at once."""
_LINK: Final = {"low": 1.0, "predicted": 0.8, "high": 0.5}
"""The share of a link's peak that an all-reduce of large buckets reaches."""
_HOSTS_DIFFER: Final = 1.4
"""By so much the host's time differs between runs: of 12 pairs of captures on an H100 that it bounds, 10 lie within."""
_CASES: Final = ("predicted", "low", "high")


@dataclass(frozen=True, slots=True, eq=False)
class FromTrace:
    """A step as it is and as it would be.

    * `parts`: by part of the mean step, `now_ns`, `predicted_ns` with `low_ns` and `high_ns`, the roof that most of it is `bound` by (null where none is
      known), and the `assumption` in words; the parts sum to the steps
    * `unmodelled_share`: of the time of the work, that of pieces whose FLOPs and bytes are not known
    * `notes`: what else was assumed
    * `asked`: what changes, in words, and `samples`: how many times as many of them a step has then; `most`: so many times as many a second at
      most, since a step with more samples takes no less time on devices of one type
    """

    now_ns: float
    step_ns: float
    low_ns: float
    high_ns: float
    parts: pl.DataFrame
    unmodelled_share: float
    notes: tuple[str, ...]
    asked: str = ""
    samples: float = 1.0
    most: float = np.inf


@dataclass(slots=True)
class _Parts:
    """Rows of the parts, as they are found."""

    rows: list[tuple[str, float, float, float, float, str | None, str]] = field(default_factory=list)

    def add(
        self, part: str, now: float, times: dict[str, float], assumption: str, bound: str | None = None
    ) -> None:
        """One row; parts that take no time, now and then, are left out."""
        if now > 0 or max(times.values()) > 0:
            self.rows.append((part, now, times["predicted"], times["low"], times["high"], bound, assumption))

    def keep(self) -> None:
        """Make all parts what they are now: what nothing changes has no range, however unsure its time in another run may be."""
        self.rows = [(part, now, now, now, now, *rest) for part, now, _, _, _, *rest in self.rows]  # type: ignore[misc]


def predict_from_trace(
    scope: Scope, *, batch: float = 1.0, gpus: int | None = None, device: str | None = None
) -> FromTrace:
    """The mean step at `batch` times the samples, on `gpus` devices with that batch each, on `device`.

    >>> import tracekit
    >>> from tracekit.analyses.scope import select
    >>> twice = predict_from_trace(select(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")), batch=2)
    >>> 1 < twice.step_ns / twice.now_ns < 2, twice.low_ns < twice.step_ns < twice.high_ns
    (True, True)

    Raises UsageError for a device that is not in the catalogue, and InconclusiveError for a trace whose times or work do not tell.
    """
    if not 0 < batch < np.inf or (gpus is not None and gpus < 1):
        raise UsageError(
            "the batch and the number of devices must be above 0",
            remedy="give, for example, --batch 2x or --gpus 8",
        )
    if not 1 / FARTHEST <= batch <= FARTHEST:
        raise InconclusiveError(
            f"{batch:g} times the batch is too far from the traced one",
            path=scope.trace.meta.path,
            remedy=f"trace a step closer to it; nothing is said beyond {FARTHEST:g} times",
        )
    if (gpus or 1) > FARTHEST:
        raise InconclusiveError(
            f"{gpus:,} devices are too many for one machine",
            path=scope.trace.meta.path,
            remedy=f"fit a model to runs on several machines (tracekit predict fit); nothing is said beyond {FARTHEST:g}",
        )
    (scope,), cut = whole_steps([scope])
    whole = run_parts(scope)
    if not isinstance(whole, DeviceParts | ProcessorParts):
        raise InconclusiveError("the trace has no times of work to predict from", path=scope.trace.meta.path)
    if isinstance(whole, ProcessorParts) and (device or (gpus or 1) > 1):
        raise InconclusiveError(
            "the trace is of processors; only another batch can be predicted from it",
            path=scope.trace.meta.path,
            remedy="give --batch, or the trace of a run on a device",
        )
    conditions = _conditions(scope, batch, device)
    work = under_conditions(placed_pieces(scope).filter(pl.col("piece_ns") > 0), conditions, scope)
    parts, notes = _Parts(), [*filter(None, [cut]), *_notes(scope, conditions, device)]
    steps = max(scope.steps.height, 1)
    if isinstance(whole, DeviceParts):
        only_more = gpus is not None and batch == 1 and device is None
        basis = _on_device(parts, [] if only_more else notes, scope, whole, work, conditions, steps)
        if only_more:
            parts.keep()
        if gpus is not None:
            _on_more(parts, notes, scope, work, gpus, device, steps)
    else:
        basis = _on_processors(parts, whole, work, batch, steps)
    found = _told(scope, parts, notes, work, basis)
    if found.unmodelled_share >= _LEAST_TOLD and (batch != 1 or device is not None):
        notes.append(_unknown(found.unmodelled_share, device))
    asked = _asked(batch, gpus, device)
    most = max(batch, 1.0) * (gpus or 1) if device is None else np.inf
    return replace(found, notes=tuple(notes), asked=asked, samples=batch * (gpus or 1), most=most)


def _asked(batch: float, gpus: int | None, device: str | None) -> str:
    """`FromTrace.asked`."""
    what = f"with {batch:g} times the batch" if batch != 1 else ""
    where = f"{count_of(gpus, 'device')} of type " if gpus is not None else ""
    name = "" if device is None else chosen_device(device).name
    where = f"on {where}{name}" if name else f"on {count_of(gpus, 'device')}" if gpus is not None else ""
    return " ".join(filter(None, (what, where)))


def _unknown(share: float, device: str | None) -> str:
    """What is assumed of work whose FLOPs or bytes are not known."""
    peaks = ", or as the peaks and bandwidths of the devices do" if device is not None else ""
    return (
        f"the FLOPs or bytes of work that takes {format_share(share)} of the time are not known: it is assumed to change as other work "
        f"does{peaks}; at the other end of the range it takes as long as now"
    )


def _told(scope: Scope, parts: _Parts, notes: list[str], work: pl.DataFrame, basis: float) -> FromTrace:
    """The parts, as long as the step takes without recording where that was measured."""
    table = pl.DataFrame(parts.rows, schema=PARTS, orient="row")
    measured = workload(scope).step_ns if scope.trace.manifest is not None else None
    if measured is not None:
        notes.append("times are scaled to the step that was measured without recording")
        times = pl.col("now_ns", "predicted_ns", "low_ns", "high_ns")
        table = table.with_columns(times * (measured / basis))
    time = float(work["piece_ns"].sum())
    known = float(work.filter(pl.col("modelled"))["piece_ns"].sum())
    unmodelled = 1 - known / time if time else 1.0
    now, step, low, high = (
        float(table[name].sum()) for name in ("now_ns", "predicted_ns", "low_ns", "high_ns")
    )
    return FromTrace(now, step, low, high, table, unmodelled, tuple(notes))


def _conditions(scope: Scope, batch: float, device: str | None) -> Conditions:
    here = device_ceilings(scope)
    if device is None:
        return Conditions(batch, here)
    there = ceilings_there(scope, device)
    if not here:
        raise InconclusiveError(
            "the ceilings of the trace's own device are not known", path=scope.trace.meta.path
        )
    return Conditions(batch, dict.fromkeys(scope.device_ids, there.ceilings), there)


def _notes(scope: Scope, conditions: Conditions, device: str | None) -> list[str]:
    notes = []
    complete = completeness(scope)
    if complete.broken and not complete.breaks:
        notes.append("records are missing: work without a record stays out of the prediction")
    if scope.window != "steps":
        notes.append("the trace has no steps: the times are those of the whole trace")
    if conditions.there is not None and conditions.there.told:
        notes.append(conditions.there.told)
    if device is not None:
        notes.append("the host is assumed to be the one of the trace")
    if conditions.batch != 1 and not attribution(scope).activities["phase"].is_in(["optimizer"]).any():
        notes.append("no optimizer phase is marked: all work is assumed to grow with the batch")
    return notes


def _work_rows(parts: _Parts, work: pl.DataFrame, total: float, steps: int) -> dict[str, float]:
    """The rows of the work by category, which now take `total` in all; what they will take in all, by case."""
    by = (
        work.group_by("category")
        .agg(
            pl.col("piece_ns", *_CASES).sum(),
            pl.col("bound").drop_nulls().mode().sort().first(),
            (pl.col("piece_ns").filter("modelled").sum() / pl.col("piece_ns").sum()).alias("modelled"),
        )
        .sort("piece_ns", descending=True)
    )
    scale = total / steps / float(by["piece_ns"].sum()) if by.height else 0.0
    for row in by.iter_rows(named=True):
        times = {case: row[case] * scale for case in _CASES}
        words = "scales with its roof" if row["modelled"] > 0.5 else "changes as other work does"
        parts.add(row["category"], row["piece_ns"] * scale, times, words, row["bound"])
    return {case: float(by[case].sum()) * scale for case in _CASES}


def _on_processors(
    parts: _Parts, whole: ProcessorParts, work: pl.DataFrame, batch: float, steps: int
) -> float:
    _work_rows(parts, work, whole.operators + whole.other_operators, steps)
    loading, outside = whole.loading / steps, (whole.outside + whole.stalled) / steps
    parts.add("data loading", loading, _between(loading, batch), "grows with the batch")
    parts.add("outside operators", outside, dict.fromkeys(_CASES, outside), "stays the same")
    return (whole.basis - whole.recording) / steps


def _between(now: float, factor: float) -> dict[str, float]:
    """A part that grows by the factor, or does not."""
    then = now * factor
    return {"predicted": then, "low": min(now, then), "high": max(now, then)}


def _on_device(
    parts: _Parts,
    notes: list[str],
    scope: Scope,
    whole: DeviceParts,
    work: pl.DataFrame,
    conditions: Conditions,
    steps: int,
) -> float:
    own = work.filter((pl.col("device_id") == whole.device_id) & (pl.col("category") != "communication"))
    copies = pl.col("kind").cast(pl.String).is_in(["memcpy", "memset"])
    computed = _work_rows(parts, own.filter(~copies), whole.compute, steps)
    copied, loading = whole.memory / steps, whole.data_loading / steps
    copying = _between(copied, conditions.batch)
    parts.add("exposed copies", copied, copying, "grow with the batch")
    communicated = whole.communication / steps
    parts.add(
        "exposed communication",
        communicated,
        dict.fromkeys(_CASES, communicated),
        "gradients have the same size",
    )
    loaded = _between(loading, conditions.batch)
    parts.add("waiting for data", loading, loaded, "grows with the batch")
    added = _added_by_recording(scope, whole) / steps
    waited = (whole.host_wait + whole.recording) / steps - added
    behind = min(_behind_others(scope, whole) / steps, waited)
    waited, following = waited - behind, _between(behind, conditions.batch)
    parts.add("waiting for other devices", behind, following, "grows with the batch")
    other = (whole.queued_wait + whole.unknown_wait) / steps
    parts.add("between kernels", other, dict.fromkeys(_CASES, other), "stays the same")
    busy = {
        case: computed[case] + copying[case] + communicated + other + loaded[case] + following[case]
        for case in _CASES
    }
    recorded, loads = _host_ns(scope, whole) / steps, loader_ns(scope) / steps * (conditions.batch - 1)
    speeds = _speeds(scope)
    host = {case: recorded / speed + loads for case, speed in speeds.items()}
    now = whole.compute / steps
    waits = {}
    for case in _CASES:
        faster = max(host["predicted"] - host[case], 0.0)
        waits[case] = max(waited - faster - max(computed[case] - now, 0.0), host[case] - busy[case], 0.0)
    # A host that waits for the device in each step hides nothing behind more work.
    waits["low"] = min(waits["low"], waits["predicted"])
    waits["high"] = max(*waits.values(), waited)
    parts.add("waiting for the host", waited, waits, "more work hides it, less exposes it")
    if not whole.launch_calls:
        notes.append("the host's calls were not recorded: how long the host needs for a step is not known")
    elif host_speeds(scope)[0] > speeds["predicted"] and waits["high"] > waited:
        notes.append(
            f"the device bounds the measured step, so it does not show the host's time: the host is assumed to be {speeds['predicted']:.1f} times as "
            "fast as recorded"
        )
    return whole.basis / steps - added


def _speeds(scope: Scope) -> dict[str, float]:
    """How many times as fast as recorded the host is, by case. Where nothing tells, it is as recorded, and at best as without recording."""
    best, likely, worst = host_speeds(scope)
    if unrecorded_ns(scope) is None:
        best = USUAL_SLOWING
    elif best == worst:  # what it was in this run, not in the next
        best, worst = likely * _HOSTS_DIFFER, likely / _HOSTS_DIFFER
    return {"predicted": likely, "low": best, "high": worst}


def _added_by_recording(scope: Scope, whole: DeviceParts) -> float:
    """What the recording adds to the window, in ns: it slows the host, so it is a part of the wait for it; 0 where that was not measured."""
    plain = unrecorded_ns(scope)
    longer = whole.basis - plain if plain is not None else 0.0
    return min(max(longer, 0.0), whole.host_wait + whole.recording)


def _behind_others(scope: Scope, whole: DeviceParts) -> float:
    """How long the device does nothing while another one of its process works, in ns: it may wait for that one's results."""
    if whole.devices < 2:
        return 0.0
    rows, own = scope.activities, scope.activities["device_id"] == whole.device_id
    mine, others = (
        IntervalSet.of(part["start"].to_numpy(), part["end"].to_numpy())
        for part in (rows.filter(own), rows.filter(~own))
    )
    return float((others - mine).measure)


def _host_ns(scope: Scope, whole: DeviceParts) -> float:
    """How long the host works in the window: until its last step ends, without what it waits for the device; 0 where its calls were not
    recorded.
    """
    if not whole.launch_calls:
        return 0.0
    calls = scope.host("runtime", "sync", columns=["name", "start", "duration"])
    waits = calls.filter(pl.col("name").cast(pl.String).str.contains(SYNCHRONISATION))
    last = min(scope.end, scope.host_window()[1])  # beyond, the device does what is left
    start = np.clip(waits["start"].to_numpy(), scope.start, last)
    end = np.clip((waits["start"] + waits["duration"]).to_numpy(), scope.start, last)
    return max(float(whole.basis - (scope.end - last) - IntervalSet.of(start, end).measure), 0.0)


def _link(scope: Scope, device: str | None) -> tuple[str, float | None]:
    """What the device is called, and the peak of its links, GB/s; a word of a user may be a part of its name."""
    if device is None:
        name = next((one.name for one in scope.trace.meta.devices), "")
        return name, peak_link_gbps(name)
    board = chosen_device(device)
    return board.name, None if board.link is None else board.link.gbps


def _on_more(
    parts: _Parts,
    notes: list[str],
    scope: Scope,
    work: pl.DataFrame,
    gpus: int,
    device: str | None,
    steps: int,
) -> None:
    """The all-reduce of the gradients, as far as the backward pass does not hide it."""
    ranks = scope.trace.meta.world_size or 1
    if ranks > 1 or (work["category"].cast(pl.String) == "communication").any():
        raise InconclusiveError(
            "the trace is of a run that communicates already",
            path=scope.trace.meta.path,
            remedy="give the trace of a run on one device, or fit a model to runs (tracekit predict fit)",
        )
    size = gradient_bytes(scope)
    name, link = _link(scope, device)
    if gpus > 1 and (size is None or link is None):
        lacking = "the bytes of the gradients are" if size is None else f"the link of {clean(name)!r} is"
        raise InconclusiveError(f"{lacking} not known", path=scope.trace.meta.path)
    if gpus == 1 or size is None or link is None:
        return
    backward = work.filter(pl.col("phase") == "backward")
    times = {}
    for case in _CASES:
        ring = 2 * (gpus - 1) / gpus * size / (link * _LINK[case]) + _RING_START_NS * -(-size // _BUCKET)
        last = ring * min(_BUCKET / size, 1.0)
        hidden = 0.0 if case == "high" else float(backward[case].sum()) / steps
        times[case] = min(last + max(ring - last - hidden, 0.0), ring)
    parts.add(
        "exposed reduction of gradients",
        0.0,
        times,
        f"{format_bytes(size)} around a ring of {count_of(gpus, 'device')} at {link:g} GB/s, behind the backward pass",
    )
    notes.append("each device has a whole batch of its own, and all devices are in one machine")
