"""What hardware counters and counter tracks measured."""

from tracekit.analyses.counters.analysis import TABLES, Counters, counters

__all__ = ["TABLES", "Counters", "counters"]
