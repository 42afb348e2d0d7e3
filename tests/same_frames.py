"""Whether a copy of an export that was made to be passed on is read as the export itself."""

from __future__ import annotations

from pathlib import Path

import polars as pl
from polars.testing import assert_frame_equal

import tracekit
from tracekit.trace import FRAMES

_OF_WHAT_IS_LEFT_OUT = (
    *(
        "unknown_rank",
        "unread_table",
        "table_without_row_ids",
        "other_process",
        "fewer_events",
        "maybe_incomplete",
        "unread_payload",
        "invalid_utf8",
    ),
)
"""Kinds of `health` that count what a copy has no more, or name the file."""


def assert_same_frames(before: Path, after: Path, *, threads: bool = True) -> None:
    """Two files give the same traces, but for notes on what is left out; without `threads` also for the names of threads."""
    old, new = tracekit.read_all(before), tracekit.read_all(after)
    assert len(old) == len(new)
    for one, other in zip(old, new, strict=True):
        for name in FRAMES:
            left, right = getattr(one, name), getattr(other, name)
            if name == "health":
                kind = pl.col("kind").cast(pl.String)
                left, right = (each.filter(~kind.is_in(_OF_WHAT_IS_LEFT_OUT)) for each in (left, right))
            if name == "threads" and not threads:
                left, right = left.drop("name"), right.drop("name")
            assert (left is None) == (right is None), name
            if left is not None:
                assert_frame_equal(left, right, categorical_as_str=True)
        for key in (
            "producer",
            "devices",
            "origin_utc_ns",
            "captured",
            "process_ids",
            "format_version",
            "event_count",
        ):
            assert getattr(one.meta, key) == getattr(other.meta, key), key
