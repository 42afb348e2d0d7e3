"""Devices × models: measured latencies of cases (a model with its settings) on several devices, compared case by case."""

from tracekit.compare.comparison import Comparison, compare
from tracekit.compare.measured import Measured, joined, measured_runs
from tracekit.compare.ranks import kendall_taus, pareto_sets
from tracekit.compare.tables import is_table, read_table

__all__ = [
    "Comparison",
    "Measured",
    "compare",
    "is_table",
    "joined",
    "kendall_taus",
    "measured_runs",
    "pareto_sets",
    "read_table",
]
