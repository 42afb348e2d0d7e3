"""Severities, bounds and the calls that several rules share."""

from __future__ import annotations

import polars as pl
from planted import US, Planted

from tracekit.analyses.rules.idle_time import outermost_operators
from tracekit.analyses.rules.rule import all_idle, bounded, by_share
from tracekit.analyses.scope import select


def test_severity_by_share_of_the_window() -> None:
    assert [by_share(ns, 1000) for ns in (1000, 200, 199, 50, 49, 0)] == [
        "critical",
        "critical",
        "warning",
        "warning",
        "info",
        "info",
    ]
    assert by_share(None, 1000) == "info"
    assert by_share(5, 0) == "info"


def test_idle_counts_only_where_no_device_works() -> None:
    planted = Planted()
    planted.activity("a", 0, 10 * US)
    planted.activity("b", 5 * US, 10 * US, device=1)
    planted.activity("c", 30 * US, 10 * US)
    scope = select(planted.trace())
    assert all_idle(scope).pairs() == [(15 * US, 30 * US)]
    assert [bounded(ns, scope) for ns in (-1, 7, 10**9)] == [0, 7, 40 * US]


def test_the_outermost_operator_of_an_unbroken_chain_is_named() -> None:
    planted = Planted()
    planted.span("annotation", "validate", 0, 100)
    planted.span("op", "aten::is_nonzero", 10, 90)
    planted.span("op", "aten::item", 20, 80)
    planted.span("op", "aten::_local_scalar_dense", 30, 70)
    planted.call("cudaStreamSynchronize", 40, 20)
    planted.call("cudaDeviceSynchronize", 95, 2)
    trace = planted.trace()
    spans = trace.host.filter(pl.col("kind") == "runtime")["span_id"]
    assert outermost_operators(select(trace), spans).to_list() == ["aten::is_nonzero", None]
