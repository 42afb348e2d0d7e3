"""A table of runs from captures: what was run, on what, and how long its steps took.

The columns that models read have the names of roles (`describe.NUMBERS`, `CATEGORIES`), so that the table needs no description.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.layer_spans import OF_MODEL
from tracekit.analyses.parts import DeviceParts, loader_ns, run_parts
from tracekit.analyses.roofline.rated import device_ceilings
from tracekit.analyses.scope import Scope, select
from tracekit.analyses.workload import NO_PHASE, workload
from tracekit.analyses.xsp.analysis import RunFiles, find_runs
from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError, UnreadableTraceError
from tracekit.facts.ceilings import catalogue_ceilings
from tracekit.facts.device_peaks import peak_link_gbps
from tracekit.manifest import PRECISIONS, Manifest, Settings
from tracekit.names import clean
from tracekit.predict.trace_work import gradient_bytes, placed_pieces
from tracekit.predict.work import dumped_work
from tracekit.trace import Schema, Trace
from tracekit.trajectory.runs import settings_of

__all__ = ["COLUMNS", "Dataset", "dataset"]

COLUMNS: Final[Schema] = {
    "id": pl.String,
    "network": pl.String,
    "option": pl.String,  # settings that have no column and are not the workload's own
    "mode": pl.String,
    # the model
    "parameters": pl.Int64,
    "gradient_bytes": pl.Int64,
    "layers": pl.Int64,  # modules of the model
    "depth": pl.Int64,  # of the tree of layers
    "layer_types": pl.String,  # JSON: how many layers of each type the trace has
    "work": pl.String,  # JSON: the work of each layer in each pass of a step, of one device (`predict.work`)
    "flops": pl.Float64,  # of a step, over all devices, as are the next four
    "forward_flops": pl.Float64,
    "backward_flops": pl.Float64,
    "bytes": pl.Float64,  # read and written
    "activation_bytes": pl.Float64,  # the most that the allocator held within a step beyond what it held before the step
    # the workload
    "batch": pl.Int64,  # samples of a step, over all devices
    "size": pl.Int64,  # of a sample, in the workload's own unit
    "accumulate": pl.Int64,
    "precision": pl.String,
    "workers": pl.Int64,  # processes that load data
    "measured_steps": pl.Int64,
    # the machine
    "device": pl.String,
    "gpus": pl.Int64,  # devices, or processes on processors
    "host_threads": pl.Int64,
    **{f"peak_{precision}_gflops": pl.Float64 for precision in PRECISIONS},  # of one device
    "bandwidth_gb_s": pl.Float64,
    "link_gb_s": pl.Float64,
    # what was measured, ns of a step
    "step_time_ns": pl.Float64,  # the median
    "spread": pl.Float64,  # the standard deviation of the steps over their mean
    "recorded": pl.Boolean,  # whether the profiler ran meanwhile, as no other steps were measured
    "forward_ns": pl.Float64,  # the recorded time of the host in the phase, as the next three are
    "backward_ns": pl.Float64,
    "optimizer_ns": pl.Float64,
    "no_phase_ns": pl.Float64,
    "device_busy_ns": pl.Float64,
    "exposed_communication_ns": pl.Float64,
    "loader_ns": pl.Float64,
}
"""The columns; what was not captured is null."""
_OF_COLUMNS: Final = ("workload", "device_name", "batch", "size", "precision", "workers", "threads", "ranks", "accumulate", "device")  # fmt: skip
_LEAST_FOR_SPREAD: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """`table` has one row for each run with COLUMNS, `left_out` a line for each run that has none."""

    table: pl.DataFrame
    left_out: tuple[str, ...]


def dataset(paths: Sequence[Path], read: Callable[[Path], Trace]) -> Dataset:
    """The runs in folders of captures, folders of sweeps and files of captures, with their traces as `read` gives them.

    >>> import tracekit
    >>> made = dataset([Path("sample_traces/cnn_cpu"), Path("sample_traces/encoder_cpu")], tracekit.read)
    >>> made.table["network", "batch", "gpus"].rows()
    [('cnn', 4, 1), ('encoder', 4, 1)]

    Raises UnreadableTraceError if nothing in a folder is a capture, and InconclusiveError if no run is left.
    """
    found = [_row_or_why(run, read) for run in find_runs(paths)]
    rows = [each for each in found if isinstance(each, dict)]
    left_out = [each for each in found if isinstance(each, str)]
    if not rows:
        raise InconclusiveError("no run has a row", remedy="; ".join(left_out) or "name folders of captures")
    return Dataset(pl.DataFrame(rows, schema=COLUMNS), tuple(left_out))


def _row_or_why(run: RunFiles, read: Callable[[Path], Trace]) -> dict[str, Any] | str:
    """The row of a run, or why it has none."""
    try:
        return _row(run, read)
    except (UnreadableTraceError, InconclusiveError) as error:
        return str(error)


def _row(run: RunFiles, read: Callable[[Path], Trace]) -> dict[str, Any]:
    manifest = run.manifest
    if manifest is None or manifest.settings is None:
        raise InconclusiveError(f"{clean(run.label)}: no manifest of a capture tells its settings")
    profiled = {one.trace for one in manifest.runs if one.level == "MLG"}
    file = next((path for path in run.traces if path.name in profiled), None)
    scope = None if file is None else select(read(file))
    times = manifest.step_times_ns("M")
    recorded = not times
    if recorded and scope is not None:
        times = scope.steps["duration"].to_list()
    if not times:
        raise InconclusiveError(f"{clean(run.label)}: no step was timed")
    return {
        "id": clean(run.label),
        **_settings(manifest, manifest.settings),
        **_machine(manifest, scope),
        **({} if scope is None else _of_trace(scope, manifest.settings.ranks)),
        "measured_steps": len(times),
        "step_time_ns": median(times),
        "spread": float(np.std(times, ddof=1) / np.mean(times)) if len(times) >= _LEAST_FOR_SPREAD else None,
        "recorded": recorded,
    }


def _settings(manifest: Manifest, chosen: Settings) -> dict[str, Any]:
    """What the manifest says of the model and the workload."""
    settings = settings_of(manifest)
    others = {
        name: value
        for name, value in settings.items()
        if name not in _OF_COLUMNS and value is not None and value != getattr(Settings(), name, None)
    }
    flops = manifest.flops_per_step
    return {
        "network": clean(manifest.workload),
        "option": " ".join(name if value is True else f"{name}={value}" for name, value in others.items()),
        "mode": "training",
        "parameters": manifest.parameters or None,
        "layers": manifest.layers or None,
        "flops": None if flops is None else float(flops * chosen.ranks),
        "batch": manifest.samples_per_step,
        "size": chosen.size,
        "accumulate": chosen.accumulate,
        "precision": chosen.precision,
        "workers": chosen.workers,
        "device": clean(manifest.device_name),
        "host_threads": settings["threads"],
    }


def _machine(manifest: Manifest, scope: Scope | None) -> dict[str, Any]:
    """The devices, and their ceilings as they were measured or as the catalogue has them."""
    ranks = manifest.settings.ranks if manifest.settings else 1
    found = [] if scope is None else [*device_ceilings(scope).values()]
    ceilings = found[0] if found else catalogue_ceilings(manifest.device_name)
    each = 1 if scope is None or scope.on_cpu else max(len(scope.device_ids), 1)
    peaks = {name: None if ceilings is None else ceilings.peak(name) for name in PRECISIONS}
    bandwidth = None if ceilings is None else ceilings.bandwidth.get("DRAM")
    return {
        "gpus": ranks * each,
        **{f"peak_{name}_gflops": None if peak is None else peak / 1e9 for name, peak in peaks.items()},
        "bandwidth_gb_s": None if bandwidth is None else bandwidth / 1e9,
        "link_gb_s": peak_link_gbps(manifest.device_name),
    }


def _of_trace(scope: Scope, ranks: int) -> dict[str, Any]:
    """What the trace of a rank tells, for a step; work is that of all ranks."""
    steps = max(scope.steps.height, 1)
    parts = run_parts(scope)
    device = isinstance(parts, DeviceParts)
    return {
        **_work(scope, steps, ranks),
        **_layers(scope),
        **_phases(scope),
        "work": dumped_work(scope),
        "gradient_bytes": gradient_bytes(scope),
        "activation_bytes": _activation_bytes(scope),
        "device_busy_ns": parts.busy / steps if isinstance(parts, DeviceParts) else None,
        "exposed_communication_ns": parts.communication / steps if isinstance(parts, DeviceParts) else None,
        "loader_ns": loader_ns(scope) / steps if device or scope.steps.height else None,
    }


def _work(scope: Scope, steps: int, ranks: int) -> dict[str, float | None]:
    """The FLOPs of the passes and the bytes of a step; null where no piece has them."""
    rows = placed_pieces(scope)

    def of(name: str, kept: pl.DataFrame) -> float | None:
        known = kept[name].drop_nulls()
        return float(known.sum()) * ranks / steps if known.len() else None

    return {
        "bytes": of("bytes", rows),
        **{
            f"{phase}_flops": of("flops", rows.filter(pl.col("phase") == phase))
            for phase in ("forward", "backward")
        },
    }


def _layers(scope: Scope) -> dict[str, Any]:
    """The depth of the tree of layers, and how many there are of each type."""
    own = attribution(scope).layers.filter(pl.col("source").is_in(OF_MODEL))
    if not own.height:
        return {}
    counts = own["type"].cast(pl.String).fill_null("").value_counts().sort("type").rows()
    return {
        "depth": int(own["depth"].max()) + 1,  # type: ignore[arg-type]
        "layer_types": json.dumps({clean(kind): count for kind, count in counts if kind}),
    }


def _phases(scope: Scope) -> dict[str, float]:
    found = workload(scope).phases
    if found is None:
        return {}
    means = dict(found.select("phase", "mean_ns").rows())
    named = {f"{phase}_ns": means[phase] for phase in ("forward", "backward", "optimizer") if phase in means}
    return {**named, "no_phase_ns": means[NO_PHASE]} if NO_PHASE in means else named


def _activation_bytes(scope: Scope) -> float | None:
    """The median over steps of the most memory that was held beyond what was held before; null where the allocator was not profiled."""
    events = scope.trace.memory
    if events is None or "allocated" not in events.columns or scope.window != "steps":
        return None
    # Of several devices the first: each holds its part of the model. −1 is the memory of the host.
    where = -1 if scope.on_cpu else min(scope.device_ids, default=0)
    events = events.filter(pl.col("allocated").is_not_null() & (pl.col("device_id") == where)).sort("start")
    if not events.height:
        return None
    at, held = events["start"].to_numpy(), events["allocated"].to_numpy()
    peaks = []
    for start, end in scope.steps.select("start", "end").rows():
        low, high = np.searchsorted(at, [start, end])
        if high > low:
            peaks.append(float(held[low:high].max() - held[max(low - 1, 0)]))
    return median(peaks) if peaks else None
