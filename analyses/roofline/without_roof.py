"""Why no work has a roof."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import polars as pl

from tracekit.analyses.roofline.rated import device_ceilings, rated_pieces
from tracekit.analyses.scope import Scope
from tracekit.facts.ceilings import Ceilings
from tracekit.groups import are_known, kept

__all__ = ["no_roof"]

_MEASURED: Final = ("fp64", "fp32", "tf32", "bf16", "fp16")
"""The precisions that `tracekit machine` measures, where the device has them."""


def no_roof(scope: Scope) -> str:
    """Why no work has a roof, in one sentence; empty if none is known that could have one."""
    rows = rated_pieces(scope)[["bytes", "unit", "flops", "compute_ns", "precision"]]
    moved = kept(rows, are_known(rows["bytes"]))
    if moved.height and (moved["unit"] == "link").all():
        copies = (
            "Communication has" if scope.on_cpu else "Copies between host and device, and communication, have"
        )
        return f"{copies} no roof: a link bounds {'it' if scope.on_cpu else 'them'}."
    if not scope.on_cpu and not moved["flops"].count():
        return ""
    ceilings = list(device_ceilings(scope).values())
    if not ceilings:
        return _without_ceilings(scope)
    both = moved.filter(pl.col("unit").ne_missing("link"), pl.col("flops").is_not_null())
    if not both.height:
        return "No work has a roof, since there is none of which both FLOPs and bytes are known."
    lacking = both.filter(pl.col("compute_ns").is_null())["precision"].unique().to_list()
    return _lacking(ceilings, lacking)


def _without_ceilings(scope: Scope) -> str:
    if scope.on_cpu:
        return "`tracekit machine` measures the ceilings of processors."
    names = sorted({one.name for one in scope.trace.meta.devices if one.name})
    if not names:
        return "The trace does not name its device, so its ceilings are not known."
    return f"The catalogue does not have {', '.join(names)}: `tracekit machine` measures it."


def _lacking(ceilings: Collection[Ceilings], precisions: Collection[str | None]) -> str:
    """What these ceilings lack: peaks in precisions (None is that of a type without one), or the bandwidth."""
    named = sorted(each for each in precisions if each is not None)
    measured = all(one.source.startswith("measured") for one in ceilings)
    names = ", ".join(sorted({one.device for one in ceilings}))
    whose = f"The ceilings measured on {names} have" if measured else f"For {names} the catalogue has"
    if precisions and not named:
        return f"No peak is known for the type of numbers of this work, so it has no roof on {names}."
    if not named:
        return f"{whose} no bandwidth of the memory: `tracekit machine` measures it."
    text = f"{whose} no peak in {', '.join(named)}, the precision of this work"
    if not set(named) <= set(_MEASURED):
        return f"{text}, which `tracekit machine` does not measure."
    return f"{text}." if measured else f"{text}: `tracekit machine` measures it."
