"""A2 to A7, and A13: layers, their latency, memory and types, and what of their time the device works."""

from __future__ import annotations

import polars as pl

from tracekit.analyses.xsp.kernels import UNATTRIBUTED, kernel_pieces
from tracekit.analyses.xsp.layers import allocations, layer_calls, layer_table, module_table
from tracekit.analyses.xsp.result import XspTable, lacking, made
from tracekit.analyses.xsp.runs import XspRun
from tracekit.analyses.xsp.sums import union_by
from tracekit.facts.units import format_bytes, format_ns, format_share
from tracekit.statistics import trimmed

__all__ = ["layer_tables"]


def layer_tables(run: XspRun) -> dict[str, XspTable]:
    """The tables A2 to A7 and A13 of a run."""
    layers = _layers(run)
    memory = _memory(run)
    # Latency is not asked of a run at level MLG, but which layers there are is no time.
    return {
        "A2": _information(run, layers, memory),
        "A3": _latency(run, layers),
        "A4": _allocation(run, layers, memory),
        "A5": _types(layers),
        "A6": _latency_by_type(run, layers),
        "A7": _memory_by_type(run, layers, memory),
        "A13": _device_part(run, layers),
    }


def _layers(run: XspRun) -> pl.DataFrame:
    """The layers in the order of execution, by the run at level ML, else without latencies by that at level MLG."""
    if run.layers is not None:
        return layer_table(layer_calls(run.layers))
    recording = run.kernels or run.counters
    if recording is None:
        return layer_table(pl.DataFrame(schema=_no_calls()))
    found = layer_table(layer_calls(recording))
    return found.with_columns(
        pl.lit(None, dtype=pl.Float64).alias(name) for name in ("latency_ns", "self_ns")
    )


def _no_calls() -> dict[str, pl.DataType]:
    return {
        "layer": pl.String(),
        "type": pl.String(),
        "step": pl.Int64(),
        "start": pl.Int64(),
        "latency_ns": pl.Int64(),
        "self_ns": pl.Int64(),
        "leaf": pl.Boolean(),
    }


def _memory(run: XspRun) -> pl.DataFrame | None:
    """`layer`, `allocated_bytes`, `forward_bytes` a step; None where no allocator was profiled."""
    found = None if run.kernels is None else allocations(run.kernels)
    if found is None:
        return None
    forward = pl.col("bytes").filter(pl.col("forward")).sum()
    steps = (
        found.with_columns(pl.col("layer").fill_null(UNATTRIBUTED))
        .group_by("layer", "step")
        .agg(pl.col("bytes").sum().alias("allocated_bytes"), forward.alias("forward_bytes"))
    )
    return steps.group_by("layer").agg(trimmed("allocated_bytes"), trimmed("forward_bytes"))


def _why_no_layers(run: XspRun) -> str:
    """Whether a trace lacks layers, or there is no trace."""
    return "ML" if run.layers is None and run.kernels is None and run.counters is None else "layers"


def _lacks_latency(run: XspRun) -> str | None:
    return "ML" if run.layers is None else None


def _lacks_memory(run: XspRun, memory: pl.DataFrame | None) -> str | None:
    return None if memory is not None else "MLG" if run.kernels is None else "memory"


def _information(run: XspRun, layers: pl.DataFrame, memory: pl.DataFrame | None) -> XspTable:
    if not layers.height:
        return lacking("A2", _why_no_layers(run))
    rows = layers
    recording = run.layers or run.kernels or run.counters
    if recording is not None:
        rows = rows.join(module_table(recording), on="layer", how="left", maintain_order="left")
    if memory is not None:
        rows = _with_memory(rows, memory)
    answer = f"{layers.height} layers, {int(layers['leaf'].sum())} of them without layers inside."
    return made("A2", rows, answer, _lacks_latency(run), _lacks_memory(run, memory))


def _with_memory(rows: pl.DataFrame, memory: pl.DataFrame) -> pl.DataFrame:
    """The rows with what they allocate: of a layer in which nothing was allocated that is 0, which was captured."""
    joined = rows.join(memory, on="layer", how="left", maintain_order="left")
    return joined.with_columns(pl.col("allocated_bytes", "forward_bytes").fill_null(0.0))


def _latency(run: XspRun, layers: pl.DataFrame) -> XspTable:
    if run.layers is None:
        return lacking("A3", "ML")
    if not layers.height:
        return lacking("A3", "layers")
    rows = layers.with_columns(_share("self_ns"))
    top = rows.sort("self_ns", descending=True, maintain_order=True).row(0, named=True)
    answer = (
        f"{top['layer']} takes the most: {format_ns(top['self_ns'])} of its own, {_part(top)} of all layers."
    )
    return made("A3", rows, answer)


def _allocation(run: XspRun, layers: pl.DataFrame, memory: pl.DataFrame | None) -> XspTable:
    if memory is None:
        return lacking("A4", _lacks_memory(run, memory) or "memory")
    if not layers.height:
        return lacking("A4", _why_no_layers(run))
    # Layers first, in their order; then what was allocated in none, by size.
    others = memory.join(layers, on="layer", how="anti").sort(
        "allocated_bytes", "layer", descending=[True, False]
    )
    rows = pl.concat([_with_memory(layers, memory), others], how="diagonal").with_columns(
        _share("allocated_bytes")
    )
    total = float(rows["allocated_bytes"].sum())
    in_layers = float(rows.head(layers.height)["allocated_bytes"].sum())
    answer = f"{format_bytes(round(total))} are allocated a step, {format_bytes(round(in_layers))} of them by layers."
    return made("A4", rows, answer)


def _types(layers: pl.DataFrame) -> XspTable:
    if not layers.height:
        return lacking("A5", "layers")
    rows = (
        layers.group_by("type")
        .agg(pl.len().alias("layers"), pl.col("leaf").sum().alias("leaves"), pl.col("calls").sum())
        .with_columns(_share("layers"))
        .sort("layers", "type", descending=[True, False], nulls_last=True)
    )
    top = rows.row(0, named=True)
    return made("A5", rows, f"{rows.height} types; {_part(top)} of the layers are {_type(top)}.")


def _latency_by_type(run: XspRun, layers: pl.DataFrame) -> XspTable:
    if run.layers is None:
        return lacking("A6", "ML")
    if not layers.height:
        return lacking("A6", "layers")
    rows = (
        layers.group_by("type")
        .agg(pl.len().alias("layers"), pl.col("self_ns").sum())
        .with_columns(_share("self_ns"))
        .sort("self_ns", "type", descending=[True, False], nulls_last=True)
    )
    top = rows.row(0, named=True)
    return made("A6", rows, f"{_type(top)} takes {_part(top)} of the layers' own time.")


def _memory_by_type(run: XspRun, layers: pl.DataFrame, memory: pl.DataFrame | None) -> XspTable:
    if memory is None:
        return lacking("A7", _lacks_memory(run, memory) or "memory")
    if not layers.height:
        return lacking("A7", _why_no_layers(run))
    rows = (
        _with_memory(layers, memory)
        .group_by("type")
        .agg(pl.len().alias("layers"), pl.col("allocated_bytes", "forward_bytes").sum())
        .with_columns(_share("allocated_bytes"))
        .sort("allocated_bytes", "type", descending=[True, False], nulls_last=True)
    )
    top = rows.row(0, named=True)
    return made("A7", rows, f"{_type(top)} allocates {_part(top)} of what layers allocate.")


def _device_part(run: XspRun, layers: pl.DataFrame) -> XspTable:
    missing = [level for level, recording in (("ML", run.layers), ("MLG", run.kernels)) if recording is None]
    if missing or run.kernels is None:
        return lacking("A13", *missing)
    if not layers.height:
        return lacking("A13", "layers")
    # Only what is launched in a call of the layer is part of the call's time.
    device = union_by(kernel_pieces(run.kernels).filter("forward"), ["layer"])
    rest = pl.col("self_ns") - pl.col("gpu_ns")
    rows = (
        layers.join(device, on="layer", how="left", maintain_order="left")
        .with_columns(pl.col("gpu_ns").fill_null(0.0))
        .with_columns(
            pl.when(rest >= 0).then(rest).alias("non_gpu_ns"),
            pl.when(pl.col("self_ns") > 0).then(pl.col("gpu_ns") / pl.col("self_ns")).alias("gpu_share"),
        )
    )
    whole, busy = float(rows["self_ns"].sum()), float(rows["gpu_ns"].sum())
    what = "operators run" if run.on_cpu else "the device works"
    share = format_share(busy / whole) if whole else "an unknown part"
    answer = f"In {share} of the layers' own time {what}, {format_ns(busy)} of {format_ns(whole)}."
    return made("A13", rows, answer)


def _share(name: str) -> pl.Expr:
    total = pl.col(name).sum()
    return pl.when(total > 0).then(pl.col(name) / total).alias("share")


def _part(row: dict[str, object]) -> str:
    share = row["share"]
    return format_share(share) if isinstance(share, float) else "none"


def _type(row: dict[str, object]) -> str:
    return "an unknown type" if row["type"] is None else str(row["type"])
