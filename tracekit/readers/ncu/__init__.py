"""Nsight Compute's metrics of single kernels, from the output of `ncu --csv`: the details page and the raw page."""

from tracekit.readers.ncu.reader import KERNEL_SCHEMA, METRIC_SCHEMA, NcuReport, read_ncu, values_as_counters

__all__ = ["KERNEL_SCHEMA", "METRIC_SCHEMA", "NcuReport", "read_ncu", "values_as_counters"]
