"""When two traces are equal."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import polars as pl
import pytest
from paths import ROOT

import tracekit
from tracekit.trace import DeviceInfo, Excerpt, Meta, Trace

OF_FILE = {"path", "size_bytes"}
"""What a copy in another place, or a compressed one, has of its own."""

OTHER = {
    "producer": {"version": "?"},
    "process_ids": (1, 2, 3),
    "devices": (DeviceInfo(7),),
    "captured": frozenset({"nothing"}),
    "excerpt": Excerpt(0, 1, 2, 3, 4, 5),
}


@pytest.fixture(scope="module")
def trace() -> Trace:
    return tracekit.read(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz")


def test_a_copy_is_equal(trace: Trace, tmp_path: Path) -> None:
    copy = tmp_path / "trace.json.gz"
    copy.write_bytes(Path(trace.meta.path).read_bytes())
    assert tracekit.read(copy).equals(trace)


def test_a_trace_shows_itself_in_one_line(trace: Trace) -> None:
    assert repr(trace) == "<Trace trace: kineto, 8,163 events>"


def another(value: str | int | None) -> str | int:
    return f"{value}?" if isinstance(value, str) else (value or 0) + 1


@pytest.mark.parametrize("name", [field.name for field in fields(Meta)])
def test_a_trace_with_another_meta_is_another_one(trace: Trace, name: str) -> None:
    mine = getattr(trace.meta, name)
    other = OTHER.get(name) or another(mine)
    assert other != mine
    changed = replace(trace, meta=replace(trace.meta, **{name: other}))
    assert changed.equals(trace) is (name in OF_FILE)
    assert trace.equals(changed) is (name in OF_FILE)


def test_a_trace_with_another_frame_is_another_one(trace: Trace) -> None:
    later = trace.host.with_columns(pl.col("start") + 1)
    assert not replace(trace, host=later).equals(trace)
    assert not replace(trace, threads=trace.threads.head(0)).equals(trace)
    none = replace(trace, memory=None)
    assert trace.memory is None or not (none.equals(trace) or trace.equals(none))
