"""The pieces of work under the ceilings of their devices, and shares of them that several answers need."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.counters.analysis import has_ranges
from tracekit.analyses.flops.coverage import coverage
from tracekit.analyses.processors import CPU_DEVICE
from tracekit.analyses.roofline.levels import under_roofs
from tracekit.analyses.roofline.pieces import pieces
from tracekit.analyses.scope import Scope
from tracekit.facts.ceilings import Ceilings, catalogue_ceilings, recorded_ceilings
from tracekit.facts.kernel_rules import ORDINARY_INSTRUCTIONS, TENSOR_CORE
from tracekit.facts.units import format_count
from tracekit.groups import are_known, kept
from tracekit.spans import BoolArray
from tracekit.trace import DeviceInfo

__all__ = [
    "TELLING_SHARE",
    "computing_share",
    "device_ceilings",
    "lacks_peaks",
    "matrix_utilisation",
    "overhead",
    "rated_pieces",
    "uncounted_kernels",
]

TELLING_SHARE: Final = 0.5
"""If the FLOPs of less than this part of the computation are known, their rate tells nothing of the whole."""


def device_ceilings(scope: Scope) -> dict[int, Ceilings]:
    """The ceilings of each device by its number: measured ones, if the trace has them, else those of the catalogue, else what the
    trace records.
    """
    measured = scope.trace.ceilings
    if scope.on_cpu:
        return {} if measured is None else {CPU_DEVICE: measured}
    found = {one.device_id: measured or _published(one) for one in scope.trace.meta.devices}
    return {number: ceilings for number, ceilings in found.items() if ceilings is not None}


def _published(device: DeviceInfo) -> Ceilings | None:
    listed = catalogue_ceilings(device.name, device.memory_bytes)
    return listed or recorded_ceilings(
        device.name,
        compute_capability=device.compute_capability,
        sm_count=device.sm_count,
        clock_hz=device.clock_hz,
        memory_bandwidth=device.memory_bandwidth,
    )


def rated_pieces(scope: Scope) -> pl.DataFrame:
    """The pieces of the scope under the ceilings of their devices."""
    return scope.once(rated_pieces, lambda: under_roofs(pieces(scope), device_ceilings(scope)))


def matrix_utilisation(scope: Scope, *, again: bool = False) -> float | None:
    """The matrix FLOPs of the scope over those of its devices at their peaks; with `again` also those that activation checkpointing
    computes again. FLOPs without a known peak are left out (`lacks_peaks`). None if there are none, if those with a peak take less than
    `TELLING_SHARE` of their time, or if they are more than the peaks allow: then shapes or device are wrong.
    """
    matrix, known = _matrix_pieces(scope)
    time = scope.duration * max(1, scope.activities["device_id"].n_unique())
    rated, whole = (int(rows["piece_ns"].sum()) for rows in (known, matrix))
    if not known.height or time <= 0 or rated < TELLING_SHARE * whole:
        return None
    chosen = known if again else kept(known, ~known["recomputed"])
    busy = float(chosen["compute_ns"].sum())
    return busy / time if busy <= time else None


def lacks_peaks(scope: Scope) -> bool:
    """Whether some matrix FLOPs have no known peak, so that the utilisation is a lower bound."""
    matrix, known = _matrix_pieces(scope)
    return known.height < matrix.height


def _matrix_pieces(scope: Scope) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The pieces with matrix FLOPs, and those of them whose peak and time are known."""
    rows = rated_pieces(scope)[["unit", "flops", "compute_ns", "piece_ns", "recomputed"]]
    matrix = kept(rows, (rows["unit"] == "matrix") & (rows["flops"] > 0))
    return matrix, kept(matrix, are_known(matrix["compute_ns"]) & are_known(matrix["piece_ns"]))


def overhead(scope: Scope) -> BoolArray:
    """Which of the rated pieces are overhead of a processor's operators, which have no work to know."""
    rows = rated_pieces(scope).height
    # With counters the pieces are those of kernels.
    return coverage(scope).overhead if scope.trace.counters is None else np.zeros(rows, dtype=bool)


def computing_share(scope: Scope) -> float | None:
    """The share of the time of kernels that compute whose FLOPs are known, 0 to 1; None without such a time."""
    rows = rated_pieces(scope)[["kind", "category", "flops", "piece_ns", "duration"]]
    rows = kept(rows, ~overhead(scope))
    rows = kept(rows, (rows["kind"] != "memcpy") & (rows["kind"] != "memset"))
    rows = kept(rows, rows["category"] != "communication")
    known = int(kept(rows, are_known(rows["flops"]))["piece_ns"].sum())
    total = int(rows["duration"].sum())
    return known / total if total else None


def uncounted_kernels(scope: Scope) -> str:
    """Of how many kernels the counters do not tell the FLOPs, where kernels were replayed; empty if they tell those of all."""
    rows = rated_pieces(scope)
    if not has_ranges(scope.trace) or are_known(rows["flops"]).all():
        return ""
    names = kept(rows, ~are_known(rows["flops"]))["name"].cast(pl.String)
    text = f"{format_count(names.len())} of {format_count(rows.height)} kernels"
    tensor = names.str.contains(f"(?i){TENSOR_CORE}") & ~names.str.contains(ORDINARY_INSTRUCTIONS)
    return f"{text}, which use tensor cores" if tensor.all() else text
