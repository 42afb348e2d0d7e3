"""What kind of program a trace shows: one of PyTorch, another of Python, or neither.

Advice that names PyTorch, and `Python` as what keeps the host, are for programs that show it. What PyTorch's own
profiler wrote is PyTorch (`Format.of_pytorch`); of other formats the names tell: of ranges, kernels and sampled functions.
"""

from __future__ import annotations

import msgspec
import polars as pl

from tracekit.facts.program_names import PYTHON_FUNCTION, PYTHON_KERNEL, PYTORCH_KERNEL, PYTORCH_RANGE
from tracekit.groups import any_known, distinct
from tracekit.name_table import any_matching
from tracekit.readers import format_named
from tracekit.trace import Trace

__all__ = ["Program", "program"]

_OF_PYTHON = ("op", "python", "annotation", "module", "step")
"""Without a span of these kinds PyTorch's profiler recorded nothing of the host but API calls."""


class Program(msgspec.Struct, frozen=True):
    """`pytorch`: the trace shows PyTorch; `python`: it shows Python code, or operators and ranges that Python calls."""

    pytorch: bool
    python: bool


def program(trace: Trace) -> Program:
    """What the names in the trace show.

    >>> import tracekit
    >>> program(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    Program(pytorch=True, python=True)
    """
    if format_named(trace.meta.format).of_pytorch:
        kind = trace.host["kind"]
        return Program(pytorch=True, python=any((kind == each).any() for each in _OF_PYTHON))
    if _any(trace.host, "name", PYTORCH_RANGE) or any_known(trace.host["sequence"]):
        return Program(pytorch=True, python=True)
    # A program in C++ may use the library of PyTorch.
    pytorch = _any(trace.device, "name", PYTORCH_KERNEL)
    python = (
        bool((trace.host["kind"] == "python").any())
        or _any(trace.device, "name", PYTHON_KERNEL)
        or (trace.samples is not None and _any(trace.samples, "stack", PYTHON_FUNCTION))
    )
    return Program(pytorch=pytorch, python=python)


def _any(rows: pl.DataFrame, column: str, pattern: str) -> bool:
    """Whether one of the distinct names matches."""
    return any_matching(distinct(rows[column]).cast(pl.String).to_list(), pattern)
