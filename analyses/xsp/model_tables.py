"""A1, A15 over several runs, and what each level of recording adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracekit.analyses.xsp.batch import optimal_batch
from tracekit.analyses.xsp.layers import layer_calls, layer_table
from tracekit.analyses.xsp.result import XspTable, lacking, made
from tracekit.analyses.xsp.runs import Recording, XspRun
from tracekit.facts.units import NS_PER_S, format_ns

__all__ = ["best_run", "model_information", "model_kernels", "overhead"]


def best_run(runs: Sequence[XspRun]) -> int:
    """The number of the run at the optimal batch; the first where no two batches can be compared."""
    best, _ = optimal_batch(_timed(runs))
    return next((i for i, run in enumerate(runs) if best is not None and run.batch == best), 0)


def _timed(runs: Sequence[XspRun]) -> Mapping[int, tuple[int, float]]:
    return {
        run.batch: (run.samples, run.latency_ns)
        for run in runs
        if run.batch is not None and run.samples and run.latency_ns
    }


def model_information(runs: Sequence[XspRun]) -> XspTable:
    """A1: one row per run, by batch."""
    if all(run.latency_ns is None for run in runs):
        return lacking("A1", "M")
    best, is_open = optimal_batch(_timed(runs))
    rows: list[dict[str, object]] = [
        {
            "run": run.label,
            "workload": run.manifest.workload if run.manifest else None,
            "device_name": run.device_name,
            "precision": run.precision,
            "batch": run.batch,
            "samples_per_step": run.samples,
            "parameters": run.manifest.parameters if run.manifest else None,
            "latency_ns": run.latency_ns,
            "throughput_per_s": _rate(run),
            "optimal": None if len(runs) < 2 or run.batch is None else run.batch == best,
        }
        for run in runs
    ]
    missing = "M" if any(run.latency_ns is None for run in runs) else None
    return made("A1", _frame(rows).sort("batch", nulls_last=True), _speed(runs, best, is_open), missing)


def _frame(rows: list[dict[str, object]]) -> pl.DataFrame:
    return pl.DataFrame(rows, infer_schema_length=None, orient="row")


def _rate(run: XspRun) -> float | None:
    return run.samples / run.latency_ns * NS_PER_S if run.samples and run.latency_ns else None


def _speed(runs: Sequence[XspRun], best: int | None, is_open: bool) -> str:
    if len(runs) > 1 and best is not None:
        end = (
            "; a larger one may still gain"
            if is_open
            else ": twice as many bring at most 5 % more throughput"
        )
        return f"The optimal batch is {best}{end}."
    latency = next(run.latency_ns for run in runs if run.latency_ns is not None)
    return f"A step takes {format_ns(latency)}."


def model_kernels(rows: Sequence[XspTable]) -> XspTable:
    """A15: the rows of the runs, by batch."""
    found = [row for row in rows if row.frame.height]
    if not found:
        return rows[0]
    notes = dict.fromkeys(row.not_captured for row in rows if row.not_captured)
    frame = pl.concat([row.frame for row in found]).sort("batch", nulls_last=True)
    bound = frame["memory_bound"].drop_nulls()
    answer = found[0].answer if len(found) == 1 else f"{frame.height} runs"
    if len(found) > 1:
        answer += f", {int(bound.sum())} of them bound by memory." if bound.len() else "."
    return XspTable("A15", frame, answer, "; ".join(notes) or None)


def overhead(run: XspRun) -> XspTable:
    """What each level adds to the quantities above it: the model's latency at M, ML and MLG, the layers' at ML and MLG.

    The latency of layers is the sum of their own times in a step; `ratio` is over the level at which the quantity counts.
    """
    rows: list[dict[str, object]] = []
    model = {level: run.step_ns(level) for level in ("M", "ML", "MLG")}
    layers = {"ML": _layer_time(run.layers), "MLG": _layer_time(run.kernels)}
    for quantity, times in (("model latency", model), ("layer latency", layers)):
        base = before = None
        for level, latency in times.items():
            if latency is None:
                continue
            base = latency if level == next(iter(times)) else base
            rows.append(
                {
                    "quantity": quantity,
                    "level": level,
                    "latency_ns": latency,
                    "added_ns": None if before is None else latency - before,
                    "ratio": latency / base if base else None,
                }
            )
            before = latency
    if not rows:
        return lacking("overhead", "M")
    missing = [level for level in ("M", "ML") if (model if level == "M" else layers)[level] is None]
    deepest = [row for row in rows if row["quantity"] == "model latency" and row["ratio"] is not None]
    ratio = deepest[-1]["ratio"] if len(deepest) > 1 else None
    told = (
        f"At level {deepest[-1]['level']} a step takes {ratio:.2f} times as long."
        if ratio
        else "One level only."
    )
    return made("overhead", _frame(rows), told, *missing)


def _layer_time(recording: Recording | None) -> float | None:
    if recording is None:
        return None
    layers = layer_table(layer_calls(recording))
    return float(layers["self_ns"].sum()) if layers.height else None
