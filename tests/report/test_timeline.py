"""The timeline's data: what is drawn, how it is packed, and how it hangs together."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import polars as pl
import pytest
import small_traces
from hypothesis import strategies as st
from paths import PUBLIC, SAMPLES
from polars.testing import assert_frame_equal
from real_traces import report_of, trace_of, traces
from synthetic import generate, write

import tracekit
from tracekit.analyses.attribution import METHODS, attribution
from tracekit.analyses.idle.causes import cause_name, idle_causes
from tracekit.analyses.scope import select
from tracekit.facts.idle_names import CAUSES
from tracekit.facts.stack_names import PHASES
from tracekit.report.build import build_report
from tracekit.report.html.timeline import shapes_drawn, timeline, varints, zigzag
from tracekit.report.html.timeline_shapes import GROUPS
from tracekit.trace import Trace

SIGNED = ("link", "ended")
FROM_ONE = ("layer", "phase", "method", "note")


def _numbers(data: bytes) -> list[int]:
    """Written after the description of LEB128, one byte at a time."""
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(value)
            value = shift = 0
    assert shift == 0
    return found


def unpacked(shapes: dict[str, Any]) -> dict[str, list[int]]:
    """The columns as the page has them after unpacking, with the lane of each shape and its line."""
    data, at = zlib.decompress(base64.b64decode(shapes["data"])), 0
    columns: dict[str, list[int]] = {}
    for name, size in shapes["columns"]:
        columns[name] = _numbers(data[at : at + size])
        at += size
        assert len(columns[name]) == shapes["shapes"]
    assert at == len(data)
    for name in SIGNED:
        steps = [-(value + 1) // 2 if value % 2 else value // 2 for value in columns[name]]
        columns[name] = np.cumsum(steps).tolist()
    for name in FROM_ONE:
        columns[name] = [value - 1 for value in columns[name]]
    columns["lane"], columns["line"], starts = [], [], []
    for number, lane in enumerate(shapes["lanes"]):
        for line, size in enumerate(lane["rows"]):
            time = 0
            for step in columns["start"][len(starts) : len(starts) + size]:
                time += step
                starts.append(time)
            columns["lane"] += [number] * size
            columns["line"] += [line] * size
    columns["start"] = starts
    return columns


def drawn(trace: Trace, **more: Any) -> tuple[dict[str, Any], dict[str, list[int]]]:
    shapes = timeline(trace, build_report(trace).window, **more)
    assert shapes is not None
    return shapes, unpacked(shapes)


def names_in(shapes: dict[str, Any], columns: dict[str, list[int]], label: str) -> list[str]:
    lane = [one["label"] for one in shapes["lanes"]].index(label)
    return [
        shapes["names"][name] for name, at in zip(columns["name"], columns["lane"], strict=True) if at == lane
    ]


@hypothesis.given(st.lists(st.integers(0, 2**62)))
def test_varints_are_those_of_the_description(values: list[int]) -> None:
    assert _numbers(varints(values)) == values


@hypothesis.given(st.lists(st.integers(-(2**40), 2**40), min_size=1))
def test_zigzag_keeps_the_sign(values: list[int]) -> None:
    coded = zigzag(np.array(values, dtype=np.int64)).tolist()
    assert [-(one + 1) // 2 if one % 2 else one // 2 for one in coded] == values


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="from 0 on"):
        varints([3, -1])


def test_a_step(tmp_path: Path) -> None:
    shapes, columns = drawn(small_traces.host_bound(tmp_path))
    assert shapes["title"] == "ProfilerStep#3"
    assert names_in(shapes, columns, "device 0, stream 7") == ["gemm_kernel"] * 10
    idle = [one["group"] for one in shapes["lanes"]].index("idle")
    lengths = [d for d, lane in zip(columns["duration"], columns["lane"], strict=True) if lane == idle]
    assert sum(lengths) == 9 * 80_000
    streams = [one["group"] for one in shapes["lanes"]].index("streams")
    calls = {
        shapes["names"][columns["name"][link]]
        for link, lane in zip(columns["link"], columns["lane"], strict=True)
        if lane == streams
    }
    assert calls == {"cudaLaunchKernel"}
    ended = {
        shapes["names"][columns["name"][end]]
        for end, lane in zip(columns["ended"], columns["lane"], strict=True)
        if lane == idle
    }
    assert ended == {"gemm_kernel"}


@pytest.mark.slow
def test_of_too_many_the_longest_are_kept(tmp_path: Path) -> None:
    trace = small_traces.host_bound(tmp_path)
    whole, _ = drawn(trace)
    shapes, columns = drawn(trace, limit=40)
    assert shapes["shapes"] == len(columns["start"]) == 40
    left = whole["shapes"] - 40
    assert shapes["note"] == f"The longest 40 shapes are drawn; {left} shorter ones are left out."
    assert whole["note"] == ""
    assert "ProfilerStep#3" in shapes["names"]
    assert "gemm_kernel" in shapes["names"]


@pytest.mark.slow
def test_the_step_is_the_median_one(tmp_path: Path) -> None:
    script = small_traces.Script()
    for number, (start, length) in enumerate(((0.0, 500), (1000.0, 900), (2000.0, 700))):
        script.step(number, start, length)
        script.work("gemm_kernel", start + 5, start + 10, 100)
    trace = script.read(tmp_path)
    shapes, _ = drawn(trace)
    assert shapes["title"] == "ProfilerStep#2"
    chosen = timeline(trace, build_report(trace, step="ProfilerStep#1").window)
    assert chosen is not None
    assert chosen["title"] == "ProfilerStep#1"


@pytest.mark.quick(3)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
def test_packing_loses_nothing(path: Path) -> None:
    trace = trace_of(path)
    window = report_of(path).window
    made = shapes_drawn(trace, window)
    shapes = timeline(trace, window)
    assert made is not None
    assert shapes is not None
    columns = unpacked(shapes)
    frame = made[0].frame
    assert columns["start"] == (frame["start"] - made[0].low).to_list()
    assert columns["duration"] == (frame["end"] - frame["start"]).to_list()
    assert [shapes["lanes"][lane]["label"] for lane in columns["lane"]] == frame["lane"].to_list()
    for name in ("line", "link", "ended"):
        assert columns[name] == frame[name].to_list()
    paths = [shapes["layers"][layer]["path"] if layer >= 0 else None for layer in columns["layer"]]
    known = dict(made[0].layers.select("layer_id", "path").iter_rows())
    assert paths == [known.get(layer) for layer in frame["layer_id"].to_list()]
    order = [GROUPS.index(lane["group"]) for lane in shapes["lanes"]]
    assert order == sorted(order)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return tracekit.read(
        write(generate(seed=5, steps=3, python_stacks=True), tmp_path_factory.mktemp("t") / "t.json.gz")
    )


@pytest.mark.slow
def test_shapes_of_a_line_do_not_overlap_on_threads(planted: Trace) -> None:
    made = shapes_drawn(planted, build_report(planted).window)
    assert made is not None
    hosts = made[0].frame.filter(
        pl.col("group").is_in([GROUPS.index(g) for g in ("threads", "python", "layers", "idle")])
    )
    late = hosts.with_columns(pl.col("end").shift(1).over("order", "line").alias("before"))
    assert late.filter(pl.col("start") < pl.col("before")).height == 0


@pytest.mark.slow
def test_everything_of_the_step_is_drawn(planted: Trace) -> None:
    """Activities launched in the step, and the spans in its time, counted one by one."""
    made = shapes_drawn(planted, build_report(planted).window)
    assert made is not None
    shapes, total, title = made
    step = next(row for row in planted.host.iter_rows(named=True) if row["name"] == title)
    low, high = step["start"], step["start"] + step["duration"]
    launched = [
        row["activity_id"]
        for row in planted.device.iter_rows(named=True)
        if low
        <= (planted.host["start"][row["launch_id"]] if row["launch_id"] is not None else row["start"])
        < high
    ]
    shown = shapes.frame["activity_id"].drop_nulls().to_list()
    assert set(launched) <= set(shown)
    assert len(shown) == len(set(shown))
    kinds = {"step", "annotation", "module", "op", "runtime", "sync", "python"}
    spans = [
        row["span_id"]
        for row in planted.host.iter_rows(named=True)
        if row["kind"] in kinds and row["start"] < shapes.high and row["start"] + row["duration"] > shapes.low
    ]
    assert sorted(shapes.frame["span_id"].drop_nulls().to_list()) == spans
    assert total == shapes.frame.height


@pytest.mark.slow
def test_layers_and_phases_are_those_of_the_attribution(planted: Trace) -> None:
    made = shapes_drawn(planted, build_report(planted).window)
    assert made is not None
    found = attribution(select(planted, window="trace")).activities
    truth = {row["activity_id"]: row for row in found.iter_rows(named=True)}
    rows = made[0].frame.filter(pl.col("activity_id").is_not_null()).iter_rows(named=True)
    for row in rows:
        one = truth[row["activity_id"]]
        assert (row["layer_id"], PHASES[row["phase"]], METHODS[row["method"]]) == (
            one["layer_id"],
            one["phase"],
            one["method"],
        )


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", [pytest.param(None, id="planted"), *traces(*PUBLIC)])
def test_idle_time_is_that_of_the_whole_trace(path: Path | None, planted: Trace) -> None:
    trace = planted if path is None else trace_of(path)
    made = shapes_drawn(trace, build_report(trace, only=["steps"]).window, limit=10**9)
    if made is None or not trace.has_device:
        return
    shapes, _, _ = made
    low, high = shapes.low, shapes.high
    whole = idle_causes(select(trace, window="trace")).pieces
    whole = whole.select(
        "device_id", "start", (pl.col("start") + pl.col("duration_ns")).alias("end"), "cause", "layer_id"
    )
    near = whole.filter((pl.col("start") < high) & (pl.col("end") > low))
    near = near.with_columns(pl.col("start", "end").clip(low, high), pl.col("cause").cast(pl.String))
    names = {cause_name(cause): cause for cause in CAUSES}
    found = shapes.frame.filter(pl.col("group") == GROUPS.index("idle")).select(
        pl.col("key").alias("device_id"),
        "start",
        "end",
        pl.col("name").replace_strict(names).alias("cause"),
        "layer_id",
    )
    order = ["device_id", "start", "end"]
    assert_frame_equal(found.sort(order), near.sort(order))
