"""What hardware counters and counter tracks measured."""

from tracekit.analyses.counters.analysis import Counters, counters

__all__ = ["Counters", "counters"]
