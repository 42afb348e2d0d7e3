"""The tables of XSP's analyses: each is a view of the layers or the kernels of a run, which its record in CATALOGUE describes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import polars as pl

from tracekit.analyses.stated import StatedTable, in_order, in_schema
from tracekit.analyses.xsp.answers import answer_of
from tracekit.analyses.xsp.catalogue import CATALOGUE, MISSING, Analysis
from tracekit.analyses.xsp.kernels import kernel_calls, union_by
from tracekit.analyses.xsp.layers import allocations, layer_table, module_table, own_time_ns
from tracekit.analyses.xsp.runs import PRECISIONS, XspRun
from tracekit.manifest import LEVELS
from tracekit.readers import RECORDABLE, flag_for
from tracekit.statistics import trimmed

__all__ = ["finished", "lacking_note", "tables_of"]

_TRAFFIC = ("dram_read_bytes", "dram_write_bytes", "dram_bytes")
_OF_CALL = ("kind", "operator", "grid", "block")
_SOURCES = ("flops_source", "dram_source", "occupancy_source")
_OF_LAYER = ~pl.col("layer").str.starts_with("<") | (pl.col("layer") == "<root>")


def tables_of(run: XspRun, keys: Iterable[str] = CATALOGUE) -> dict[str, StatedTable]:
    """The tables of these analyses for a single run, except A1, which is about a series."""
    views = _Views(run)
    return {key: views.table(CATALOGUE[key]) for key in keys if CATALOGUE[key].base != "runs"}


_OWN_LOOP = ": make the code a workload (docs/extending.md), since a loop of its own is recorded at one level"


def lacking_note(missing: Iterable[str], format_: str, *, own_loop: bool = False) -> str | None:
    """The missing data (keys of MISSING), and how a profiler of this format records them of code, which may have its own loop;
    None if no data are missing.
    """
    flags = {what: flag_for(what, format_) for what in RECORDABLE}
    for level in LEVELS:
        flags[level] = _OWN_LOOP if own_loop else f": tracekit capture … --levels {level}"
    return "; ".join(MISSING[key].format(**flags) for key in dict.fromkeys(missing)) or None


def finished(
    analysis: Analysis, rows: pl.DataFrame, answer: str, missing: Iterable[str], run: XspRun
) -> StatedTable:
    """The table with the columns of the analysis in order; columns that the rows lack are null."""
    frame = in_schema(rows, analysis.schema)
    return StatedTable(
        analysis.key,
        frame,
        answer if frame.height else "Nothing to show.",
        lacking_note(missing, run.format, own_loop=run.has_own_loop),
    )


class _Views:
    """The tables of one run. Data that several tables share are made once."""

    def __init__(self, run: XspRun) -> None:
        self.run = run

    @cached_property
    def layers(self) -> pl.DataFrame:
        return layer_table(self.run)

    @cached_property
    def memory(self) -> pl.DataFrame | None:
        return allocations(self.run.kernels)

    @cached_property
    def kernels(self) -> pl.DataFrame:
        return kernel_calls(self.run)

    def table(self, analysis: Analysis) -> StatedTable:
        """The view that the record describes."""
        run = self.run
        missing = self.lacking(analysis.needs)
        if missing:
            return finished(analysis, pl.DataFrame(), "", missing, run)
        if analysis.base == "levels":
            return _overhead(analysis, run)
        rows = self.of_kernels(analysis) if analysis.base == "kernels" else self.of_layers(analysis)
        if analysis.share:
            rows = rows.with_columns(_share(analysis.share))
        rows = in_order(rows, analysis.order)
        if "index" in analysis.columns and "index" not in rows.columns:
            rows = rows.with_row_index("index", 1)
        missing = self.lacking(analysis.wants)
        if analysis.filled:
            rows = rows.filter(pl.col(analysis.filled).is_not_null())
            missing = [] if rows.height else self.lacking(("shapes", "bytes")) or ["bytes"]
        answer = answer_of(analysis, rows, run) if rows.height else ""
        return finished(analysis, rows, answer, missing, run)

    def lacking(self, needs: Sequence[str]) -> list[str]:
        """The needed keys of MISSING whose data the run lacks."""
        return [key for need in needs if (key := self._lacks(need)) is not None]

    def _lacks(self, need: str) -> str | None:
        run = self.run
        if need in ("M", "ML", "MLG"):
            there = {"M": run.latency_ns, "ML": run.layers, "MLG": run.kernels}[need]
            return need if there is None else None
        if need == "layers":
            return None if self.layers.height else "layers" if run.recordings else "ML"
        if need == "memory":
            return "MLG" if run.kernels is None else "memory" if self.memory is None else None
        if need == "kernels":
            return None if self.kernels.height else "MLG"
        if need == "layer_kernels":
            return None if self.kernels.height and self.kernels.select(_OF_LAYER.any()).item() else "layers"
        figure = {"shapes": "flops", "bytes": "dram_bytes"}[need]
        works = self.kernels.filter(~pl.col("kind").is_in(["memcpy", "memset"]))
        return None if works[figure].count() else need

    def of_layers(self, analysis: Analysis) -> pl.DataFrame:
        """The layers, or their sums by type, with the figures of the analysis."""
        rows, run = self.layers, self.run
        if "allocated_bytes" in analysis.columns and self.memory is not None:
            # Layers without a row allocated nothing: allocations were captured.
            rows = rows.join(self.memory, on="layer", how="left", maintain_order="left").with_columns(
                pl.col("allocated_bytes", "forward_bytes").fill_null(0.0)
            )
            if analysis.base == "memory":  # allocations outside layers, by size
                others = self.memory.join(rows, on="layer", how="anti")
                rows = pl.concat([rows, in_order(others, ("-allocated_bytes", "layer"))], how="diagonal")
        if "parameters" in analysis.columns:
            rows = rows.join(
                module_table(run.recordings[0].trace), on="layer", how="left", maintain_order="left"
            )
        if "gpu_ns" in analysis.columns:
            rows = _with_device(rows, run)
        if not analysis.by:
            return rows
        sums = pl.col("calls", "self_ns", "^allocated_bytes$", "^forward_bytes$").sum()
        return rows.group_by(analysis.by).agg(
            pl.len().alias("layers"), pl.col("leaf").sum().alias("leaves"), sums
        )

    def of_kernels(self, analysis: Analysis) -> pl.DataFrame:
        """The kernels grouped by the columns of the analysis, with their roofline."""
        run, keys = self.run, list(analysis.by)
        rows = _grouped(self.kernels, keys)
        if "gpu_ns" in analysis.columns:
            rows = rows.join(union_by(run, keys), on=keys, how="left")
        if "latency_ns" in analysis.columns:
            flops = None if run.manifest is None else run.manifest.flops_per_step
            latency = pl.lit(run.latency_ns, pl.Float64)
            rows = rows.with_columns(
                pl.lit(run.batch, pl.Int64).alias("batch"),
                latency.alias("latency_ns"),
                (pl.lit(None) if run.on_cpu else pl.col("gpu_ns") / latency).alias("gpu_share"),
                pl.lit(flops, pl.Int64).alias("counted_flops"),
            )
        return _with_roofline(rows, run)


def _overhead(analysis: Analysis, run: XspRun) -> StatedTable:
    """The time that each level adds to the model's latency (at M, ML and MLG) and to the layers' (at ML and MLG).

    The latency of layers is the sum of their own times in a step; `ratio` is relative to the level that is valid for it.
    """
    latencies: dict[str, dict[str, float | None]] = {
        "model latency": {level: run.step_ns(level) for level in ("M", "ML", "MLG")},
        "layer latency": {"ML": own_time_ns(run.layers), "MLG": own_time_ns(run.kernels)},
    }
    rows: list[dict[str, Any]] = []
    missing = []
    for quantity, of_level in latencies.items():
        first, base = next(iter(of_level.items()))
        missing += [first] if base is None else []
        before = None
        for level, latency in of_level.items():
            if latency is not None:
                added = None if before is None else latency - before
                row = {"quantity": quantity, "level": level, "latency_ns": latency, "added_ns": added}
                rows.append({**row, "ratio": latency / base if base else None})
                before = latency
    answer = "A comparison of the model's latency needs level M and another level."
    of_model = [row for row in rows if row["quantity"] == "model latency" and row["ratio"]]
    if len(of_model) > 1:
        last = of_model[-1]
        answer = f"At level {last['level']} a step takes {last['ratio']:.2f} times as long as at level M."
    frame = pl.DataFrame(rows, schema=analysis.schema)
    return finished(analysis, frame, answer, missing if rows else ["M"], run)


def _with_device(rows: pl.DataFrame, run: XspRun) -> pl.DataFrame:
    """The part of the layers' own time in which the device works; only work that a call of the layer launched counts."""
    rest = pl.col("self_ns") - pl.col("gpu_ns")
    device = union_by(run, ["layer"], forward=True)
    return (
        rows.join(device, on="layer", how="left", maintain_order="left")
        .with_columns(pl.col("gpu_ns").fill_null(0.0))
        .with_columns(
            pl.when(rest >= 0).then(rest).alias("non_gpu_ns"),
            pl.when(pl.col("self_ns") > 0).then(pl.col("gpu_ns") / pl.col("self_ns")).alias("gpu_share"),
        )
    )


def _grouped(calls: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """For each group, the trimmed means over steps of the number of kernels, their summed time and their work.

    FLOPs are the sum of the known FLOPs, null if none are known. Bytes are null unless all kernels of the group have
    them: otherwise a part of the traffic would look like all of it. Occupancy is weighted by duration.

    With `turn` among the keys, a group has one kernel in a step, and its texts are those of the first step.
    """
    single = "turn" in keys
    is_kernel = pl.col("kind") == "kernel"
    ordered = calls.sort("step", "order")
    means = ordered.group_by(*keys, "step").agg(
        pl.len().alias("kernels"),
        _sum_of_some("duration_ns").alias("sum_ns"),
        _sum_of_some("flops").alias("flops"),
        *(_sum_of_all(name, is_kernel).alias(name) for name in _TRAFFIC),
        (pl.col("occupancy").first() if single else _weighted("occupancy")).alias("occupancy"),
    )
    by_flops = pl.col("precision", "unit").sort_by("flops", nulls_last=False).drop_nulls().last()
    others = [name for name in _OF_CALL if name not in keys]
    about = ordered.group_by(keys).agg(
        pl.col(others).first(),
        *([] if "type" in keys else [pl.col("type").drop_nulls().first()]),
        *(pl.col(name).drop_nulls().first() if single else _joined(name) for name in _SOURCES),
        pl.col("precision", "unit").first() if single else by_flops,
        pl.col("order").first() if single else pl.col("order").min(),
        pl.col("step").first().alias("first_step"),
        pl.col("step").n_unique().alias("steps"),
    )
    figures = ("kernels", "sum_ns", "flops", *_TRAFFIC, "occupancy")
    rows = means.group_by(keys).agg(trimmed(name) for name in figures).join(about, on=keys, nulls_equal=True)
    return rows.with_columns(pl.col("sum_ns").alias("duration_ns"))


def _with_roofline(rows: pl.DataFrame, run: XspRun) -> pl.DataFrame:
    """The rows with the columns of a roofline, over their `gpu_ns`, else their `duration_ns`.

    The precision, and the unit whose peak counts, are those of the operator with the most FLOPs, else those of matrix products of the
    run. Null if FLOPs, bytes, or the
    device's peaks are not known.
    """
    time = pl.col("gpu_ns" if "gpu_ns" in rows.columns else "duration_ns")
    peaks = {
        f"{name} {unit}": run.peak_tflops(name, unit) for name in PRECISIONS for unit in ("matrix", "vector")
    }
    of_peak = pl.concat_str("precision", pl.col("unit").fill_null("matrix"), separator=" ")
    peak = of_peak.replace_strict(peaks, default=None, return_dtype=pl.Float64)
    bandwidth = pl.lit(run.bandwidth_gbps, dtype=pl.Float64)
    # The bytes shown as read and as written add up to the bytes shown as moved.
    moved = pl.coalesce(pl.col("dram_read_bytes") + pl.col("dram_write_bytes"), "dram_bytes")
    # FLOPs per ns are 10⁹ a second; so is intensity × bandwidth.
    roof = pl.min_horizontal(peak, pl.col("intensity") * bandwidth / 1e3)
    return (
        rows.with_columns(
            pl.coalesce("precision", pl.lit(run.precision, dtype=pl.String)).alias("precision"),
            moved.alias("dram_bytes"),
            pl.when(moved > 0).then(pl.col("flops") / moved).alias("intensity"),
            pl.when(time > 0).then(pl.col("flops") / time / 1e3).alias("tflops"),
        )
        .with_columns((pl.col("intensity") < peak * 1e3 / bandwidth).alias("memory_bound"))
        # min_horizontal would ignore a null
        .with_columns(pl.when(pl.col("memory_bound").is_not_null()).then(roof).alias("attainable_tflops"))
    )


def _share(name: str) -> pl.Expr:
    total = pl.col(name).sum()
    return pl.when(total > 0).then(pl.col(name) / total).alias("share")


def _sum_of_some(name: str) -> pl.Expr:
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum())


def _sum_of_all(name: str, of: pl.Expr) -> pl.Expr:
    values = pl.col(name).filter(of)
    return pl.when((values.null_count() == 0) & (values.len() > 0)).then(values.sum())


def _weighted(name: str) -> pl.Expr:
    present = pl.col(name).is_not_null()
    weight = pl.col("duration_ns").fill_null(1).filter(present)
    return pl.when(weight.sum() > 0).then((pl.col(name).filter(present) * weight).sum() / weight.sum())


def _joined(name: str) -> pl.Expr:
    values = pl.col(name).drop_nulls().unique().sort()
    return pl.when(values.len() > 0).then(values.str.join("+")).alias(name)
