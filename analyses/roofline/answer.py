"""What the rooflines say in a few sentences."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from tracekit.analyses.counters.analysis import has_ranges
from tracekit.analyses.flops.coverage import (
    CALLS_OTHERS,
    COMPILED,
    NO_FLOPS,
    NO_SHAPES,
    REPLAYED,
    UNMODELLED,
)
from tracekit.analyses.recording import is_slowed
from tracekit.analyses.roofline.rated import device_ceilings, lacks_peaks, rated_pieces, uncounted_kernels
from tracekit.analyses.roofline.without_roof import no_roof
from tracekit.analyses.scope import Scope
from tracekit.facts.ceilings import Ceilings
from tracekit.facts.units import format_ns, format_share
from tracekit.findings import SHOWN_SHARE
from tracekit.groups import distinct, kept
from tracekit.name_table import any_matching
from tracekit.names import shorten_name
from tracekit.readers import how_to_record
from tracekit.trace import empty

__all__ = ["answer", "says_of_whole"]

_WRONG: Final = 100
"""Caches make work faster than the memory's roof allows, but none by so much."""
_TOLD_SHARE: Final = 0.005
"""Less of the time is not worth a sentence."""
_MOST_SHARE: Final = 0.9
"""If less of the work whose FLOPs and bytes are known has a roof, the answer says how much."""
_NAME: Final = 60
"""Of a name in a sentence."""
_WITHOUT_GRAPHS: Final = {
    r"\bvllm::": "vLLM with `--enforce-eager`",
    r"\b(sgl_kernel|sglang)::": "SGLang with `--disable-cuda-graph`",
    r"Torch-Compiled Region|CompiledF": "`torch.compile` without the modes `reduce-overhead` and `max-autotune`",
}
"""How programs run without graphs, by names in their traces."""


def says_of_whole(model: dict[str, Any], *, measured: bool) -> bool:
    """Whether the roof of this row says something of the program: more than copies and fills have one, in more than no time."""
    return measured and (model["rated_ns"] or 0) >= _TOLD_SHARE * (model["device_ns"] or 0)


def answer(
    scope: Scope,
    model: dict[str, Any],
    operators: pl.DataFrame,
    unmodelled: pl.DataFrame | None,
    *,
    measured: bool,
) -> str:
    """The sentences, from the row of the table `model` and the tables; `measured` if more than the bytes of copies is known."""
    total = model["device_ns"]
    if not total and not has_ranges(scope.trace):
        return "The window holds no work."
    if not total:
        text = "The times are not known, since the kernels were replayed to count their work."
        lost = uncounted_kernels(scope)
        return (
            f"{text} The counters do not give the FLOPs of {lost}: sums over these are lower bounds."
            if lost
            else text
        )
    without = empty(UNMODELLED) if unmodelled is None else unmodelled
    overhead = int(kept(without, without["reason"] == CALLS_OTHERS)["device_ns"].sum())
    flops, moved = (
        format_share((model[name] or 0) / max(total - overhead, 1)) for name in ("flops_ns", "bytes_ns")
    )
    text = _known(scope, model, (flops, moved), overhead, measured=measured)
    text += _unknown(scope, kept(without, without["reason"] != CALLS_OTHERS), measured=measured)
    if model["least_ns"] is None:
        return f"{text} {no_roof(scope)}".rstrip()
    if not says_of_whole(model, measured=measured):
        little = f" Less than {format_share(_TOLD_SHARE)} of the time is work that has a roof."
        return text + little if measured else text
    work = _rated(model, total, whole=flops == moved == format_share(1))
    roof = (
        f"its roofline ({', '.join(sorted({_named(scope, one) for one in device_ceilings(scope).values()}))})"
    )
    if model["efficiency"] > _WRONG:
        text += f" {work} takes less time than {roof} allows: the recorded shapes or this device's ceilings are wrong."
        return text
    less = f"{format_ns(round(model['wasted_ns']))} less"
    if model["efficiency"] > 1:
        text += f" {work} is faster than {roof}, {_why_faster(scope)}."
        text += f" What is slower would take {less} at the roof." if round(model["wasted_ns"]) else ""
    else:
        text += f" {work} reaches {format_share(model['efficiency'])} of {roof}: at the roof it would take {less}."
    worst = kept(operators, operators["wasted_ns"] > 0).head(1)
    for name, wasted, share, bound in worst[["operator", "wasted_ns", "efficiency", "bound"]].rows():
        where = "outside operators" if name is None else f"in {shorten_name(name, _NAME)}"
        limit = "" if bound is None else f", {bound}-bound"
        most = "Most of that" if wasted > model["wasted_ns"] / 2 else "The largest part of that"
        text += f" {most} is {where}: {format_ns(round(wasted))}, at {format_share(share)}{limit}."
    utilisation = model["model_utilisation"] or 0.0
    if utilisation >= SHOWN_SHARE:
        least = "" if flops == format_share(1) and not lacks_peaks(scope) else "at least "
        over = " over the recorded time" if is_slowed(scope) else ""
        text += f" Model FLOPs utilisation is {least}{format_share(utilisation)}{over}."
    return text


def _known(
    scope: Scope, model: dict[str, Any], shares: tuple[str, str], overhead: int, *, measured: bool
) -> str:
    """Of how much of the time FLOPs and bytes are known, their `shares`, beside the overhead of a processor's operators."""
    time = "operators' time" if scope.on_cpu else "device time"
    flops, moved = shares
    text = ""
    if overhead >= _TOLD_SHARE * model["device_ns"]:
        share = format_share(overhead / model["device_ns"])
        text = f"Views and operator wrappers take {share} of the {time}, and have no work to do. "
        time = "rest"
    if measured and flops == moved:
        return f"{text}FLOPs and bytes are known for {flops} of the {time}."
    if measured:
        return f"{text}FLOPs are known for {flops} of the {time}, and bytes for {moved}."
    if model["bytes_ns"]:
        return f"{text}Only the bytes of copies and fills are known, {moved} of the {time}."
    return f"{text}Neither FLOPs nor bytes are known for any of the {time}."


def _rated(model: dict[str, Any], total: int, *, whole: bool) -> str:
    """The work that has a roof: without communication, and what no ceiling is known for."""
    known = min(model["flops_ns"] or 0, model["bytes_ns"] or 0)
    if (model["rated_ns"] or 0) < _MOST_SHARE * known:
        return f"The work that has a roof, {format_share((model['rated_ns'] or 0) / total)} of the time,"
    return "The work" if whole else "The work for which both are known"


def _unknown(scope: Scope, rows: pl.DataFrame, *, measured: bool) -> str:
    """What most of the time without figures is: a reason that holds for many kernels, or else an operator."""
    reasons = (
        rows.group_by("reason").agg(pl.col("device_ns", "share").sum()).sort("device_ns", descending=True)
    )
    for reason, _, share in reasons[:1].rows():
        if share < _TOLD_SHARE:
            return ""
        if told := _of_reason(scope, kept(rows, rows["reason"] == reason), reason, share, measured=measured):
            return f" {told}"
    for name, reason, ns, share in rows[:1, ["name", "reason", "device_ns", "share"]].rows():
        if share >= _TOLD_SHARE:
            return f" The largest unknown is {shorten_name(name, _NAME)}, {format_ns(ns)} ({reason})."
    return ""


def _of_reason(scope: Scope, rows: pl.DataFrame, reason: str, share: float, *, measured: bool) -> str:
    """What these rows of one reason, of a share of the time, have in common; empty if it is best told of the longest alone."""
    ns, first = int(rows["device_ns"].sum()), shorten_name(rows["name"][0], _NAME)
    lost = f"Another {format_ns(ns)} ({format_share(share)})"
    if reason == REPLAYED:
        how = f"record a run without graphs{_without_graphs(scope)}"
        return f"{lost} are kernels of replayed graphs, whose operators are not recorded: {how}."
    if reason == NO_SHAPES and rows["name"].n_unique() > 1:
        # Where nothing is known, the result says how to record it.
        how = f": {how_to_record('shapes', scope.trace.meta.format)}" if measured else ""
        return f"{lost} is in operators whose shapes were not recorded{how}."
    if reason == COMPILED:
        how = (
            "record a run without it" if scope.on_cpu else "torch from 2.5 on records that of Triton kernels"
        )
        return f"{lost} is code of `torch.compile`. What it reads and writes is not recorded: {how}."
    if reason == NO_FLOPS:
        most = int(rows["device_ns"][0])
        where = f"all in {first}" if most == ns else f"the largest part in {first} ({format_ns(most)})"
        return f"{lost} is work of which only the bytes are known, {where}."
    return ""


def _why_faster(scope: Scope) -> str:
    """What lets work take less time than its roof allows: caches, unless arithmetic bounds it."""
    rows = rated_pieces(scope)[["bound", "piece_ns", "least_ns"]]
    gained = kept(rows, rows["piece_ns"] < rows["least_ns"]).group_by("bound").agg((pl.col("least_ns") - pl.col("piece_ns")).sum().alias("ns"))  # fmt: skip
    if gained.sort("ns", descending=True)["bound"].head(1).to_list() != ["compute"]:
        return "as where caches hold what it reads"
    measured = all(one.source.startswith("measured") for one in device_ceilings(scope).values())
    again = "was measured too low (`tracekit machine` measures it again)" if measured else "is listed too low"
    return f"and no cache makes arithmetic faster: its peak {again}, or other shapes ran than were recorded"


def _without_graphs(scope: Scope) -> str:
    """How this program runs without graphs, if its names show what it is."""
    names = [
        name
        for frame in (scope.trace.host, scope.trace.device)
        for name in distinct(frame["name"]).cast(pl.String).to_list()
    ]
    shown = [how for pattern, how in _WITHOUT_GRAPHS.items() if any_matching(names, pattern)]
    return f" ({shown[0]})" if shown else ""


def _named(scope: Scope, ceilings: Ceilings) -> str:
    """Whose ceilings they are, and where they come from; of a processor that is not the manifest's, which one that is."""
    text = f"{ceilings.device}, {ceilings.source.partition(':')[0]}"
    manifest = scope.trace.manifest
    own = manifest.device_name if scope.on_cpu and manifest is not None else ""
    return f"{text}; this ran on {own}" if own and own != ceilings.device else text
