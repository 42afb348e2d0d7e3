"""A figure that cannot be is named, with its table and column."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pytest

from tracekit.analyses.result import Result
from tracekit.report.possible import impossible


@dataclass(frozen=True, slots=True, kw_only=True)
class Made(Result):
    rows: pl.DataFrame


@pytest.mark.parametrize(
    ("column", "values", "named"),
    [
        ("total_ns", [5, -1], True),
        ("share", [0.5, 1.01], True),
        ("own_share", [-0.1], True),
        ("utilisation", [1.0 + 1e-12, 0.0], False),
        ("start", [-5], False),
        ("count", [0, 3], False),
        ("total_ns", [None], False),
    ],
)
def test_signs_and_ranges(column: str, values: list[float | None], named: bool) -> None:
    frame = pl.DataFrame({column: values}, schema={column: pl.Float64})
    said = [item.example for item in impossible({"kernels": Made(answer="", rows=frame)})]
    assert said == ([f"kernels.rows.{column}"] if named else [])
