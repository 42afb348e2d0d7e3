"""Traces that were made to fill the memory through names and nesting of layers, each named after what it once did."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracekit
from tracekit.analyses.attribution import Attribution, attribution
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.layers import layers
from tracekit.analyses.xsp.layers import module_table
from tracekit.limits import LONGEST_NAME
from tracekit.report.chrome.tracks import tracks

SECONDS = 10
"""A fast machine needs about one; before, each took minutes or all memory."""


def span(category: str, name: str, start: float, duration: float, **args: object) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def call(layer: str, start: float, duration: float) -> dict[str, Any]:
    return span("user_annotation", f"tracekit.layer/{layer}", start, duration, layer=layer)


def attributed(tmp_path: Path, events: list[dict[str, Any]]) -> Attribution:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = tracekit.read(path)
    began = time.process_time()
    found = attribution(trace)
    assert int(layers(trace).tree["device_own_ns"].sum()) == int(found.coverage["duration_ns"].sum())
    assert time.process_time() - began < SECONDS
    return found


@pytest.mark.slow
def test_leaves_below_ranges_with_long_names_do_not_repeat_them_all(tmp_path: Path) -> None:
    events = [span("user_annotation", f"{i} " + "x" * 2000, i, 10_000 - 2 * i) for i in range(100)]
    for i in range(1000):
        events += [span("user_annotation", f"leaf {i}", 200 + 4 * i, 3), span("cpu_op", "op", 201 + 4 * i, 1)]
    found = attributed(tmp_path, events)
    assert found.layers["path"].str.len_chars().max() == 1024
    assert found.coverage["method"].to_list() == ["range"]  # the leaves' work is in the outermost range


def test_a_range_with_a_path_that_is_too_long_counts_as_the_one_around_it(tmp_path: Path) -> None:
    events = [span("user_annotation", name, i, 90 - 2 * i) for i, name in enumerate(["a", "b" * 1022, "c"])]
    found = attributed(tmp_path, [*events, span("cpu_op", "op", 5, 1)])
    paths = found.layers.filter(found.layers["source"] == "range")["path"].to_list()
    assert paths == ["a", "a/" + "b" * 1022]
    assert found.layers["path"][found.activities["layer_id"][0]] == paths[-1]


@pytest.mark.slow
def test_nested_ranges_by_the_thousand(tmp_path: Path) -> None:
    depth = 20_000
    events = [span("user_annotation", f"r{i}", i, 4 * depth - 2 * i) for i in range(depth)]
    found = attributed(tmp_path, [*events, span("cpu_op", "op", depth + 1, 1)])
    assert found.layers["depth"].max() == 127
    assert found.layers["name"][found.activities["layer_id"][0]] == "r127"


def test_a_captured_name_of_many_parts_makes_up_no_containers(tmp_path: Path) -> None:
    name = "a." * 20_000 + "a"
    found = attributed(tmp_path, [call(name, 0, 9), span("cpu_op", "op", 1, 1)])
    rows = found.layers.filter(found.layers["source"] == "capture")
    assert rows["path"].to_list() == [name[:1024]] == rows["name"].to_list()
    assert rows["parent_layer_id"].to_list() == [None]


def test_a_captured_name_that_is_empty_is_no_layer(tmp_path: Path) -> None:
    found = attributed(tmp_path, [call("a", 0, 9), call("", 1, 7), span("cpu_op", "op", 3, 1)])
    assert found.coverage["method"].to_list() == ["unattributed"]


def test_a_module_with_more_parameters_than_a_number_holds(tmp_path: Path) -> None:
    table = {"layers": [{"name": "a", "range_name": "tracekit.layer/a", "type": "T", "parameters": 2**63}]}
    path = tmp_path / "t.json"
    path.write_text(
        json.dumps({"traceEvents": [call("a", 0, 9), span("cpu_op", "op", 1, 1)], "tracekit_layers": table})
    )
    modules = module_table(tracekit.read(path))
    assert modules.select("layer", "parameters").rows() == [("a", None)]


@pytest.mark.slow
def test_every_thread_with_every_sequence_number_is_more_than_memory_holds(tmp_path: Path) -> None:
    events = []
    for i in range(5000):
        events += [
            span("cpu_op", "aten::mm", 1, 5, **{"Sequence number": 1}) | {"tid": i},
            span("cpu_op", "MmBackward0", 100 + 10 * i, 5, **{"Sequence number": 1, "Fwd thread id": i + 1})
            | {"tid": 9999},
        ]
    attributed(tmp_path, events)


@pytest.mark.slow
def test_forward_threads_and_processes_by_the_thousand(tmp_path: Path) -> None:
    events = []
    for i in range(20_000):
        events += [
            span("user_annotation", "r", 1, 9) | {"tid": i},
            span("cpu_op", "aten::mm", 2, 5, **{"Sequence number": i}) | {"tid": i},
            span("cpu_op", "MmBackward0", 100, 5, **{"Sequence number": i, "Fwd thread id": i + 1})
            | {"tid": 99_999},
            span("user_annotation", "r", 1, 9) | {"pid": i + 2},
            span("cpu_op", "aten::mm", 2, 5) | {"pid": i + 2},
            span("cpu_op", "MmBackward0", 4, 1) | {"pid": i + 2, "tid": 2},
        ]
    found = attributed(tmp_path, events)
    assert found.coverage["method"].to_list() == ["range", "sequence", "enclosing-time"]


@pytest.mark.slow
def test_names_of_a_megabyte_are_not_repeated_for_every_piece_of_idle_time(tmp_path: Path) -> None:
    long = "x" * 1_000_000
    launches = []
    for number, at in enumerate((1, 90_000)):
        launches += [
            span("cuda_runtime", "cudaLaunchKernel", at, 1, correlation=number + 1),
            span("kernel", "k", at + 2, 1, correlation=number + 1, device=0, stream=7) | {"pid": 0, "tid": 7},
        ]
    events = [span("python_function", f"a.py(1): {long}", 0, 100_000), call(long, 0.5, 99_999)]
    events += [span("user_annotation", long, 0.75, 99_998)]
    events += [span("cpu_op", "op", 10 + 10 * i, 5) for i in range(500)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events + launches}))
    trace = tracekit.read(path)
    pieces = idle_causes(trace).pieces
    assert pieces.height > 1000
    assert pieces["frame"].cast(pl.String).str.len_chars().max() == LONGEST_NAME
    assert attribution(trace).layers["path"].str.len_chars().max() == LONGEST_NAME
    lines, _ = tracks(trace)
    assert max(map(len, lines)) < 10 * LONGEST_NAME
