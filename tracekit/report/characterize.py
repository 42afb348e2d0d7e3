"""What a sweep says about each model, after XSP's tables: latency, throughput, the batch from which it stops to gain,
and what the profile at that batch shows.

XSP is "XSP: Across-Stack Profiling and Characterization of Machine Learning Models on GPUs" (IPDPS 2020). Its models
infer; here a step trains. This module stands above the report and below the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl

import tracekit
from tracekit.analyses.xsp.series import GAIN, optimal_batch
from tracekit.errors import TracekitError
from tracekit.limits import Limits
from tracekit.manifest import MANIFEST_FILE, read_manifest
from tracekit.report.build import build_report
from tracekit.report.model import Report
from tracekit.sweep_index import ASKED, DONE, OUT_OF_MEMORY, read_index, typed

__all__ = ["FIGURES", "GAIN", "SETTINGS", "characterize", "optimal_batch"]

SETTINGS: Final[dict[str, pl.DataType]] = {
    "workload": ASKED["workload"],
    "device": ASKED["device"],
    "device_name": pl.String(),
    **{
        name: kind
        for name, kind in ASKED.items()
        if name not in ("key", "series", "workload", "device", "batch")
    },
}

FIGURES: Final = typed(
    "online_latency_ns float, maximum_throughput_per_s float, optimal_batch int, open flag, "
    "out_of_memory_batch int, convolution_share float, gpu_share float, bound text, roofline_bound text, "
    "parameters int, runs int, note text"
)


def characterize(folder: Path, *, limits: Limits | None = None) -> pl.DataFrame:
    """One row per series of the sweep in `folder`: runs of one workload on one kind of device that differ only in the batch.

    The columns of `SETTINGS` say which settings; null leaves the choice to the workload, or to torch. Those of
    `FIGURES` are null where they were not captured:

    * `online_latency_ns`: ns of a step at batch 1, the trimmed mean of the level M (DEFINITIONS §9).
    * `maximum_throughput_per_s`: samples a second, the most at any batch; at one batch it is the samples of a step,
      over all ranks, over the trimmed mean of the step times.
    * `optimal_batch`: the smallest batch b for which 2b was run too and brings at most 5 % more throughput. When none
      does, the largest that was run, and `open` is true: a larger one may still gain.
    * `out_of_memory_batch`: the smallest batch that did not fit the memory.
    * `convolution_share`: 0 to 1, convolutions in the summed time of device activities in the trace at the optimal
      batch; of operators' self time where no device was captured. Of the first rank.
    * `gpu_share`: 0 to 1, the part of the step window in which the device is busy (`breakdown`'s utilisation; of
      several devices their mean); null without a device.
    * `bound`: what bounds the run at the optimal batch, the report's verdict.
    * `roofline_bound`: memory or compute by the roofline; always null, since it needs the counters and peaks of the
      device, which are not captured.
    * `parameters` of the model; `runs`: how many of the series succeeded; `note`: why figures of the trace are null.

    `limits` bound how much of each trace is read. Raises `UnreadableTraceError` or `UsageError` when `folder` holds no
    index that can be read. Where a series has no run that succeeded its figures are null.
    """
    index = read_index(folder)
    rows = [_series(group, folder, limits) for group in _groups(index)]
    return pl.DataFrame(rows, schema={**SETTINGS, **FIGURES}, orient="row")


def _groups(index: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The series; one whose runs were made on machines that differ is one for each, since no figure compares them."""
    for _, group in index.group_by("series", maintain_order=True):
        done = pl.col("status") == DONE
        names = group.filter(done)["device_name"].unique(maintain_order=True).to_list()
        for name in names or [None]:
            yield group.filter(~done | pl.col("device_name").eq_missing(name))


def _series(group: pl.DataFrame, folder: Path, limits: Limits | None) -> dict[str, Any]:
    done = {row["batch"]: row for row in _with_batches(group.filter(pl.col("status") == DONE))}
    timed = {
        batch: (int(row["samples_per_step"]), float(row["step_trimmed_mean_ns"]))
        for batch, row in done.items()
        if batch is not None and row["samples_per_step"] and row["step_trimmed_mean_ns"]
    }
    best, is_open = optimal_batch(timed)
    first = next(iter(done.values()), group.row(0, named=True))
    rates = [row["throughput_per_s"] for row in done.values() if row["throughput_per_s"] is not None]
    return {
        **{name: first[name] for name in SETTINGS},
        "online_latency_ns": done[1]["step_trimmed_mean_ns"] if 1 in done else None,
        "maximum_throughput_per_s": max(rates, default=None),
        "optimal_batch": best,
        "open": None if best is None else is_open,
        "out_of_memory_batch": group.filter(pl.col("status") == OUT_OF_MEMORY)["batch"].min(),
        "roofline_bound": None,
        "parameters": first["parameters"],
        "runs": len(done),
        **_of_trace(None if best is None else folder / str(done[best]["folder"]), limits),
    }


def _with_batches(done: pl.DataFrame) -> list[dict[str, Any]]:
    """The rows by batch; one whose batch was left to the workload gets the one that its samples tell.

    Where that batch was also asked for, the run that asked for it counts.
    """
    own = pl.col("samples_per_step") // (pl.col("accumulate") * pl.col("ranks"))
    ordered = done.sort("batch", nulls_last=True).with_columns(pl.coalesce("batch", own).alias("batch"))
    return (
        ordered.unique("batch", keep="first", maintain_order=True).sort("batch", nulls_last=True).to_dicts()
    )


def _of_trace(run: Path | None, limits: Limits | None) -> dict[str, Any]:
    """The figures that the profile of a run gives, or a note that says why it gives none."""
    if run is None:
        return {"note": "no run has both a step time (level M) and a number of samples"}
    try:
        manifest = read_manifest(run / MANIFEST_FILE)
        trace = next((it.trace for it in manifest.runs if it.level == "MLG" and it.trace is not None), None)
        if trace is None:
            return {"note": "no trace at the optimal batch; sweep with the level MLG"}
        report = build_report(tracekit.read(run / trace, limits=limits), only=["kernels", "breakdown"])
    except TracekitError as error:
        # One trace that was moved or damaged leaves the step times of its series as good as they were.
        return {"note": f"no figures of the trace: {run.name}: {error.fault}"}
    return {
        "convolution_share": _convolutions(report),
        "gpu_share": _busy(report),
        "bound": report.verdict.bound,
    }


def _table(report: Report, section: str, table: str) -> pl.DataFrame:
    whole = report.section(section)
    rows = None if whole is None else whole.table(table)
    if rows is None:
        message = f"the report has no table {section}.{table}"
        raise LookupError(message)
    return rows.frame


def _convolutions(report: Report) -> float | None:
    """None when nothing ran; 0 when what ran was never a convolution."""
    categories = _table(report, "kernels", "by_category")
    if not categories["total_ns"].sum():
        return None
    share = categories.filter(pl.col("category") == "convolution")["share"].sum()
    return float(share)


def _busy(report: Report) -> float | None:
    if report.window.on_cpu:
        return None
    devices = _table(report, "breakdown", "devices")
    window = int(devices["window_ns"].sum())
    return int(devices["busy_ns"].sum()) / window if window else None
