"""The tables of several runs of a model that differ in the batch: A1, A15 for all of them, and XSP's optimal batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

import polars as pl

from tracekit.analyses.stated import StatedTable
from tracekit.analyses.xsp.catalogue import CATALOGUE
from tracekit.analyses.xsp.runs import XspRun
from tracekit.analyses.xsp.views import finished
from tracekit.facts.units import NS_PER_S, format_ns

__all__ = ["GAIN", "best_run", "model_information", "model_kernels", "optimal_batch"]

GAIN: Final = Fraction(5, 100)
"""A doubled batch that brings no more throughput than this is not worth its memory; XSP's threshold."""


def optimal_batch(runs: Mapping[int, tuple[int, float]]) -> tuple[int | None, bool]:
    """The smallest batch b for which 2b was run too and brings at most 5 % more throughput, and True if it is open.

    `runs` gives for each batch the samples of a step and its time in ns. If every doubling gains more, the result is the
    largest batch, and open: a larger batch may gain more. Without runs it is None, and open.

    >>> optimal_batch({1: (1, 100.0), 2: (2, 110.0), 4: (4, 220.0)})
    (2, False)
    >>> optimal_batch({1: (1, 100.0), 2: (2, 110.0)})
    (2, True)
    """
    # As fractions: a gain of exactly 5 % must not depend on how a quotient was rounded.
    rates = {batch: Fraction(samples) / Fraction(time) for batch, (samples, time) in runs.items()}
    for batch in sorted(rates):
        if 2 * batch in rates and rates[2 * batch] <= (1 + GAIN) * rates[batch]:
            return batch, False
    return max(rates, default=None), True


def best_run(runs: Sequence[XspRun]) -> int:
    """The number of the run at the optimal batch; the first run if no two batches can be compared."""
    best, _ = optimal_batch(_times(runs))
    return next((i for i, run in enumerate(runs) if best is not None and run.batch == best), 0)


def _times(runs: Sequence[XspRun]) -> Mapping[int, tuple[int, float]]:
    return {
        run.batch: (run.samples, run.latency_ns)
        for run in runs
        if run.batch is not None and run.samples and run.latency_ns
    }


def model_information(runs: Sequence[XspRun]) -> StatedTable:
    """A1: one row per run, by batch."""
    analysis = CATALOGUE["A1"]
    latencies = [run.latency_ns for run in runs if run.latency_ns is not None]
    if not latencies:
        return finished(analysis, pl.DataFrame(), "", ["M"], runs[0])
    best, is_open = optimal_batch(_times(runs))
    rows = [
        (
            *(run.label, run.manifest and run.manifest.workload, run.device_name, run.precision, run.batch),
            *(run.samples, run.manifest and run.manifest.parameters, run.latency_ns),
            run.samples / run.latency_ns * NS_PER_S if run.samples and run.latency_ns else None,
            None if len(runs) < 2 or run.batch is None else run.batch == best,
        )
        for run in runs
    ]
    frame = pl.DataFrame(rows, schema=analysis.schema, orient="row").sort("batch", nulls_last=True)
    answer = f"A step takes {format_ns(latencies[0])}."
    if len(runs) > 1 and best is not None:
        gain = "a larger batch may gain more" if is_open else "twice the batch gains at most 5 % throughput"
        answer = f"The optimal batch is {best}{';' if is_open else ':'} {gain}."
    without = [run for run in runs if run.latency_ns is None]
    return finished(analysis, frame, answer, ["M"] if without else [], (without or runs)[0])


def model_kernels(tables: Sequence[StatedTable]) -> StatedTable:
    """A15 for all runs, by batch, from the table of each run."""
    full = [table for table in tables if table.frame.height]
    if not full:
        return tables[0]
    notes = dict.fromkeys(table.not_captured for table in tables if table.not_captured)
    frame = pl.concat([table.frame for table in full]).sort("batch", nulls_last=True)
    answer = full[0].answer
    if len(full) > 1:
        bound = frame["memory_bound"].drop_nulls()
        by_memory = f", {int(bound.sum())} of them bound by memory" if bound.len() else ""
        answer = f"{frame.height} runs{by_memory}."
    return StatedTable("A15", frame, answer, "; ".join(notes) or None)
