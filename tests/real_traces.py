"""Real traces as parameters of a test."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

import pytest

import tracekit
from tracekit.analyses.scope import Scope, select
from tracekit.report.build import build_report
from tracekit.report.model import Report
from tracekit.trace import Trace

__all__ = ["report_of", "scope_of", "trace_of", "traces"]

QUICK: Final = frozenset(
    {
        "cnn_cpu",
        "a100_alexnet",
        "cpu_only",
        "ddp_rank0",
        "mi300_bert_small",
        "torch_compile_triton",
    }
)
"""One of every kind that is read in a moment."""


LARGEST: Final = 600_000
"""Bytes of the largest trace that every test of all traces reads; `benchmarks/same_reports.py` reads the larger ones too."""


def traces(*paths: Path) -> list[Any]:
    """The paths as parameters with a name each; all but a few small ones are marked slow."""
    return [_parameter(path) for path in paths if path.stat().st_size < LARGEST]


def _parameter(path: Path) -> Any:
    name = path.name.removesuffix(".json.gz")
    short = path.parent.name if name.startswith("trace") else name
    label = f"{short}-{name}" if name.startswith("trace-") else short
    return pytest.param(path, id=label, marks=() if label in QUICK else pytest.mark.slow)


@lru_cache(maxsize=8)
def trace_of(path: Path) -> Trace:
    """The trace, read once for the tests that follow each other."""
    return tracekit.read(path)


@lru_cache(maxsize=8)
def scope_of(path: Path, window: Literal["steps", "trace"] = "steps") -> Scope:
    """The scope of a window of it, with what was computed of it."""
    return select(trace_of(path), window=window)


@lru_cache(maxsize=8)
def report_of(path: Path) -> Report:
    """Its report, made once, of what was computed for the scope."""
    return build_report(trace_of(path), scope=scope_of(path))
