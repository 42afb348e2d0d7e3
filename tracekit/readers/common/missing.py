"""Counts of what a trace lacks, for its health: work without a record, operators that were left out, endless calls."""

from __future__ import annotations

import polars as pl

from tracekit.facts.units import format_count, format_ns, format_share
from tracekit.groups import any_known
from tracekit.health import HealthLog
from tracekit.missing import LOST_SHARE, endless_calls, launch_calls, numbered_operators

__all__ = ["count_missing"]


def count_missing(
    host: pl.DataFrame, device: pl.DataFrame, counters: pl.DataFrame | None, health: HealthLog
) -> None:
    """Count what the assembled frames lack. A trace of which only a part was read lacks the rest by choice."""
    calls = endless_calls(host, device)
    if calls.height:
        name, _, ns = calls.row(0)
        health.count("endless_call", calls.height, f"{name} for {format_ns(ns)}")
    if "excerpt" in health:
        return
    if counters is None or not any_known(counters["duration"]):
        _count_launches(host, device, health)
    operators = numbered_operators(host)
    if operators.thin:
        share = format_share(operators.held / operators.numbered)
        held, numbered = format_count(operators.held), format_count(operators.numbered)
        example = f"{held} of at least {numbered} operators ({share}) are in the file"
        health.count("missing_operators", operators.numbered - operators.held, example)


def _count_launches(host: pl.DataFrame, device: pl.DataFrame, health: HealthLog) -> None:
    """A counter run measures kernels one by one and records none, so it is not asked."""
    launches = launch_calls(host, device)
    unanswered = launches.height - int(launches["answered"].sum())
    example = f"{format_count(unanswered)} of {format_count(launches.height)} launch calls"
    if launches.height and not device["kind"].is_in(["kernel", "graph"]).any():
        health.count("no_kernel", launches.height, f"{format_count(launches.height)} launch calls")
    elif unanswered >= LOST_SHARE * max(launches.height, 1):
        health.count("lost_activity", unanswered, example)
    else:
        health.count("launch_without_activity", unanswered, example)
