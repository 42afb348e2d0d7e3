"""The pieces of work under the ceilings of their devices, and shares of them that several answers need."""

from __future__ import annotations

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
    "computing_share",
    "device_ceilings",
    "matrix_utilisation",
    "overhead",
    "rated_pieces",
    "uncounted_kernels",
]


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
    computes again. None if there are none, a peak is not known, or they are more than the peaks allow: then shapes or device are wrong.
    """
    rows = rated_pieces(scope)[["unit", "flops", "compute_ns", "piece_ns", "recomputed"]]
    matrix = kept(rows, (rows["unit"] == "matrix") & (rows["flops"] > 0))
    time = scope.duration * max(1, scope.activities["device_id"].n_unique())
    if not matrix.height or matrix["compute_ns"].null_count() or matrix["piece_ns"].null_count() or time <= 0:
        return None
    chosen = matrix if again else kept(matrix, ~matrix["recomputed"])
    busy = float(chosen["compute_ns"].sum())
    return busy / time if busy <= time else None


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
