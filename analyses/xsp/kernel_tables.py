"""A8 to A12, A14 and A15: kernels call by call, by name, by layer and of the model, with their rooflines."""

from __future__ import annotations

import polars as pl

from tracekit.analyses.counters.join import NCU_SUFFIX
from tracekit.analyses.xsp.kernels import kernel_calls, kernel_pieces
from tracekit.analyses.xsp.result import XspTable, lacking, made
from tracekit.analyses.xsp.runs import XspRun
from tracekit.analyses.xsp.sums import grouped, union_by, with_roofline
from tracekit.facts.units import format_count, format_ns, format_share
from tracekit.statistics import trimmed

__all__ = ["kernel_tables", "model_row"]

_EXACT = ("flops", "dram_read_bytes", "dram_write_bytes", "dram_bytes", "occupancy")


def kernel_tables(run: XspRun) -> dict[str, XspTable]:
    """The tables A8 to A12 and A14 of a run."""
    keys = ("A8", "A9", "A10", "A11", "A12", "A14")
    if run.kernels is None and run.counters is None:
        return {key: lacking(key, "MLG") for key in keys}
    calls = kernel_calls(run)
    if not calls.height:
        return {key: made(key, calls.clear(), "Nothing ran in the steps.", "MLG") for key in keys}
    each = _each_call(run, calls)
    layers = _by_layer(run, calls)
    untimed = "MLG" if run.kernels is None else None
    work = _lacks_work(calls)
    return {
        "A8": made("A8", each, _of_calls(run, each), untimed, *work),
        "A9": _roofline("A9", run, each, "kernels", calls),
        "A10": made("A10", names := _by_name(run, calls), _of_names(names), untimed, *work),
        "A11": _of_layers("A11", layers, untimed, *work),
        "A12": _of_layers("A12", layers, untimed, *work),
        "A14": _roofline("A14", run, layers, "layers", calls),
    }


def model_row(run: XspRun) -> XspTable:
    """A15 of one run: a single row."""
    if run.kernels is None and run.counters is None:
        return lacking("A15", "MLG")
    calls = kernel_calls(run)
    if not calls.height:
        return lacking("A15", "MLG")
    rows = _with_unions(run, grouped(calls, []), [])
    latency = pl.lit(run.latency_ns, dtype=pl.Float64)
    counted = None if run.manifest is None else run.manifest.flops_per_step
    rows = with_roofline(rows, run, "gpu_ns").with_columns(
        pl.lit(run.label).alias("run"),
        pl.lit(run.batch, dtype=pl.Int64).alias("batch"),
        latency.alias("latency_ns"),
        (pl.lit(None, dtype=pl.Float64) if run.on_cpu else pl.col("gpu_ns") / latency).alias("gpu_share"),
        pl.lit(counted, dtype=pl.Int64).alias("counted_flops"),
    )
    row = rows.row(0, named=True)
    busy = format_ns(row["gpu_ns"]) if row["gpu_ns"] is not None else "an unknown time"
    what = "operators run" if run.on_cpu else "kernels run"
    missing = ["M" if run.latency_ns is None else None, "MLG" if run.kernels is None else None]
    told = _of_bandwidth(run) if row["memory_bound"] is not None else ""
    return made("A15", rows, f"In a step {what} for {busy}.{told}", *missing, *_lacks_work(calls))


def _each_call(run: XspRun, calls: pl.DataFrame) -> pl.DataFrame:
    """One row per call in a step. A call of one step is the same as one of another when it is the k-th of its name in
    its layer and phase.
    """
    keys = ["layer", "phase", "name", "turn"]
    turned = calls.with_columns(pl.int_range(pl.len()).over("step", "layer", "phase", "name").alias("turn"))
    rows = (
        turned.sort("step", "order")
        .group_by(keys, maintain_order=True)
        .agg(
            pl.col("kind", "operator", "grid", "block", "precision").first(),
            pl.col("flops_source", "dram_source", "occupancy_source").drop_nulls().first(),
            pl.len().alias("steps"),
            trimmed("duration_ns"),
            *(trimmed(name) for name in _EXACT),
            pl.col("order").first(),
            pl.col("step").first().alias("first"),
        )
        # those that the first step lacks stand where a later step has them
        .sort("order", "first", "name", "layer", nulls_last=True)
        .with_columns(pl.int_range(1, pl.len() + 1).alias("index"))
    )
    return with_roofline(rows, run, "duration_ns")


def _by_name(run: XspRun, calls: pl.DataFrame) -> pl.DataFrame:
    rows = _with_unions(run, grouped(calls, ["name"]), ["name"])
    kinds = calls.group_by("name").agg(pl.col("kind").first())
    rows = rows.join(kinds, on="name").with_columns(_share("sum_ns"))
    order = ["sum_ns", "kernels", "name"]
    rows = rows.sort(order, descending=[True, True, False], nulls_last=True)
    return with_roofline(rows, run, "gpu_ns")


def _by_layer(run: XspRun, calls: pl.DataFrame) -> pl.DataFrame:
    """One row per layer in the order in which its first kernel is launched in a step."""
    rows = _with_unions(run, grouped(calls, ["layer"]), ["layer"])
    types = calls.group_by("layer").agg(pl.col("type").drop_nulls().first())
    rows = rows.join(types, on="layer").with_columns(_share("sum_ns")).sort("order", "layer")
    return with_roofline(rows.with_columns(pl.int_range(1, pl.len() + 1).alias("index")), run, "gpu_ns")


def _with_unions(run: XspRun, rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    if run.kernels is None:
        return rows.with_columns(pl.lit(None, dtype=pl.Float64).alias("gpu_ns"))
    unions = union_by(kernel_pieces(run.kernels), keys)
    return rows.join(unions, on=keys) if keys else pl.concat([rows, unions], how="horizontal")


def _share(name: str) -> pl.Expr:
    total = pl.col(name).sum()
    return pl.when(total > 0).then(pl.col(name) / total).alias("share")


def _lacks_work(calls: pl.DataFrame) -> list[str]:
    kernels = calls.filter(pl.col("kind").is_in(["memcpy", "memset"]).not_())
    lacks = []
    if not kernels["flops"].count():
        lacks.append("shapes")
    if not kernels["dram_bytes"].count():
        lacks.append("bytes")
    return lacks


def _of_calls(run: XspRun, each: pl.DataFrame) -> str:
    what = "operators' calls (no device was captured)" if run.on_cpu else "kernels, copies and fills"
    return f"{format_count(each.height)} {what} a step."


def _of_names(names: pl.DataFrame) -> str:
    name, share = names.select("name", "share").row(0)
    told = f"; {name} takes {format_share(share)}" if share is not None else ""
    return f"{format_count(names.height)} names{told}."


def _of_layers(key: str, layers: pl.DataFrame, *missing: str | None) -> XspTable:
    """A table by layer; without layers there is nothing but what is in none."""
    if not layers.filter(~pl.col("layer").str.starts_with("<") | (pl.col("layer") == "<root>")).height:
        return lacking(key, "layers")
    top = layers.sort("share", descending=True, nulls_last=True, maintain_order=True).row(0, named=True)
    share = top["share"]
    told = f"{top['layer']} takes {format_share(share)} of the kernels' time." if share is not None else ""
    return made(key, layers, told or f"{layers.height} layers with kernels.", *missing)


def _roofline(key: str, run: XspRun, rows: pl.DataFrame, what: str, calls: pl.DataFrame) -> XspTable:
    """The rows whose arithmetic intensity is known; `index` is that of the table that holds them all."""
    known = rows.filter(pl.col("intensity").is_not_null())
    if not known.height:
        return lacking(key, *(_lacks_work(calls) or ["bytes"]))
    bound = known["memory_bound"]
    if not bound.count():
        precise = known["precision"].count()
        lacks = (
            "the peaks of the device are"
            if precise
            else "the precision of the arithmetic, and so the peak, is"
        )
        counted = f"{format_count(known.height)} {what.removesuffix('s') if known.height == 1 else what}"
        return made(key, known, f"{counted}; {lacks} not known." + _of_sources(known))
    return made(
        key,
        known,
        f"{int(bound.sum())} of {known.height} {what} are bound by memory, the others by arithmetic."
        + _of_sources(known)
        + _of_bandwidth(run),
    )


def _of_sources(rows: pl.DataFrame) -> str:
    """How FLOPs and bytes are known, when Nsight Compute tells any."""
    told = {
        what: rows[column].drop_nulls().str.split("+").explode().unique().sort().to_list()
        for what, column in (("FLOPs", "flops_source"), ("bytes", "dram_source"))
    }
    if not any(NCU_SUFFIX in one for sources in told.values() for one in sources):
        return ""
    return " " + "; ".join(f"{what}: {', '.join(sources)}" for what, sources in told.items()) + "."


def _of_bandwidth(run: XspRun) -> str:
    """Where the roof comes from, when it is not the vendor's figure."""
    rate = run.recorded_bandwidth_gbps
    return "" if rate is None else f" The peak bandwidth, {rate:,.0f} GB/s, is that which the trace tells."
