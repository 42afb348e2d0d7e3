"""Bars of layers: against planted traces, and, activity by activity, against what the attribution says."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from paths import PUBLIC, SAMPLES
from small_traces import Script
from synthetic import generate, write

import tracekit
from tracekit.analyses.attribution import attribution
from tracekit.analyses.layers.tracks import layer_tracks
from tracekit.analyses.scope import select
from tracekit.trace import Trace

Bar = tuple[str, str, int, int, int]


def host_bars(trace: Trace) -> list[Bar]:
    """(phase, path, start, end, depth) in µs, in order."""
    scope = select(trace, window="trace")
    found = attribution(scope)
    bars = layer_tracks(scope, found).host.join(found.layers, on="layer_id", how="left", suffix="_of_tree")
    return sorted(
        (
            row["phase"],
            row["path"],
            row["start"] // 1000,
            (row["start"] + row["duration"]) // 1000,
            row["depth"],
        )
        for row in bars.iter_rows(named=True)
    )


def _module(script: Script, name: str, start: float, length: float) -> None:
    script.host(f"nn.Module: {name}", start, length, "python_function")


def _forward(script: Script, start: float, sequence: int) -> None:
    script.host("aten::linear", start, 5, **{"Sequence number": sequence, "Fwd thread id": 0})


def _node(script: Script, start: float, sequence: int, length: float = 8) -> None:
    more = {"Sequence number": sequence, "Fwd thread id": 1}
    name = "autograd::engine::evaluate_function: AddmmBackward0"
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 2,
        "ts": start,
        "dur": length,
        "args": more,
    }
    script.events.append(event)


def _step(script: Script, at: float, number: int, sequence: int) -> None:
    """A model of two blocks, the first of two layers; backward in the opposite order, on another thread."""
    script.step(number, at, 200)
    _module(script, "Net_0", at + 10, 60)
    _module(script, "Block_0", at + 12, 30)
    _module(script, "Linear_0", at + 14, 10)
    _forward(script, at + 15, sequence)
    _module(script, "Linear_1", at + 28, 10)
    _forward(script, at + 29, sequence + 1)
    _module(script, "Head_0", at + 50, 10)
    _forward(script, at + 51, sequence + 2)
    for place, offset in ((100, 2), (110, 1), (120, 0)):
        _node(script, at + place, sequence + offset)


def test_backward_bars_are_runs_of_nodes(tmp_path: Path) -> None:
    script = Script()
    _step(script, 0, 0, 10)
    assert host_bars(script.read(tmp_path)) == [
        ("backward", "Net_0", 100, 128, 0),
        ("backward", "Net_0.Block_0", 110, 128, 1),
        ("backward", "Net_0.Block_0.Linear_0", 120, 128, 2),
        ("backward", "Net_0.Block_0.Linear_1", 110, 118, 2),
        ("backward", "Net_0.Head_0", 100, 108, 1),
        ("forward", "Net_0", 10, 70, 0),
        ("forward", "Net_0.Block_0", 12, 42, 1),
        ("forward", "Net_0.Block_0.Linear_0", 14, 24, 2),
        ("forward", "Net_0.Block_0.Linear_1", 28, 38, 2),
        ("forward", "Net_0.Head_0", 50, 60, 1),
    ]


def test_a_run_ends_with_the_step(tmp_path: Path) -> None:
    script = Script()
    _step(script, 0, 0, 10)
    _step(script, 300, 1, 10)  # the numbers begin anew
    roots = [bar for bar in host_bars(script.read(tmp_path)) if bar[:2] == ("backward", "Net_0")]
    assert [(low, high) for _, _, low, high, _ in roots] == [(100, 128), (400, 428)]


def test_a_run_ends_with_the_pass(tmp_path: Path) -> None:
    """Two backward passes in one step: a thread works from high numbers to low ones, so a higher one is the next pass."""
    script = Script()
    script.step(0, 0, 500)
    for number in (0, 1):
        at = 200.0 * number
        _module(script, "Net_0", at + 10, 60)
        _forward(script, at + 20, 10 * number)
        _forward(script, at + 30, 10 * number + 1)
        _node(script, at + 100, 10 * number + 1)
        _node(script, at + 110, 10 * number)
    roots = [bar for bar in host_bars(script.read(tmp_path)) if bar[0] == "backward"]
    assert [(low, high) for _, _, low, high, _ in roots] == [(100, 118), (300, 318)]


def test_a_node_in_no_layer_ends_a_run(tmp_path: Path) -> None:
    script = Script()
    script.step(0, 0, 300)
    _module(script, "Net_0", 10, 60)
    _forward(script, 20, 5)
    _forward(script, 80, 4)  # after the module
    _forward(script, 30, 3)
    for at, number in ((100, 5), (110, 4), (120, 3)):
        _node(script, at, number)
    bars = [bar for bar in host_bars(script.read(tmp_path)) if bar[0] == "backward"]
    assert [(path, low, high) for _, path, low, high, _ in bars] == [("Net_0", 100, 108), ("Net_0", 120, 128)]


def test_phases_without_layers_have_bars_too(tmp_path: Path) -> None:
    script = Script()
    script.step(0, 0, 300)
    script.host("Optimizer.step#SGD.step", 100, 50, "user_annotation")
    script.host("aten::add_", 110, 5)
    assert host_bars(script.read(tmp_path)) == [("optimizer", "<optimizer>", 100, 150, 0)]


def _clipped(trace: Trace) -> list[dict[str, Any]]:
    """Activities with their places, in the order of their streams, each cut where the next of its stream begins."""
    scope = select(trace, window="trace")
    places = attribution(scope).activities.select("layer_id", "phase")
    rows = pl.concat([scope.activities.drop("phase", strict=False), places], how="horizontal")
    rows = rows.sort("device_id", "stream_id", "start", "end", nulls_last=True)
    made = list(rows.iter_rows(named=True))
    for row, after in itertools.pairwise(made):
        if (row["device_id"], row["stream_id"]) == (after["device_id"], after["stream_id"]):
            row["end"] = min(row["end"], after["start"])
    return made


@pytest.fixture(scope="module", params=[1, 2, 3])
def planted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    made = generate(seed=request.param, steps=3, devices=2, python_stacks=bool(request.param % 2))
    return tracekit.read(write(made, tmp_path_factory.mktemp("t") / "rank-0.json"))


def check_device_bars(trace: Trace) -> int:
    scope = select(trace, window="trace")
    found = attribution(scope)
    bars = list(layer_tracks(scope, found).device.iter_rows(named=True))
    if scope.on_cpu:
        assert not bars
        return 0
    parent = dict(found.layers.select("layer_id", "parent_layer_id").iter_rows())

    def chain(layer: int | None) -> list[int]:
        return [] if layer is None else [layer, *chain(parent[layer])]

    activities = _clipped(trace)
    for activity in activities:
        for layer in chain(activity["layer_id"]):
            around = [
                bar
                for bar in bars
                if (bar["device_id"], bar["stream_id"], bar["layer_id"])
                == (activity["device_id"], activity["stream_id"], layer)
                and bar["start"] <= activity["start"]
                and activity["end"] <= bar["start"] + bar["duration"]
            ]
            assert len(around) == 1 or activity["start"] == activity["end"]
    for bar in bars:
        inside = [
            activity
            for activity in activities
            if (activity["device_id"], activity["stream_id"]) == (bar["device_id"], bar["stream_id"])
            and bar["start"] <= activity["start"] < bar["start"] + bar["duration"]
            and activity["start"] < activity["end"]
        ]
        assert all(bar["layer_id"] in chain(activity["layer_id"]) for activity in inside)
        assert len({(activity["phase"], activity["step"]) for activity in inside}) == 1
        assert {activity["phase"] for activity in inside} == {bar["phase"]}
        assert sum(activity["end"] - activity["start"] for activity in inside) == bar["work_ns"]
        assert (bar["start"], bar["start"] + bar["duration"]) == (inside[0]["start"], inside[-1]["end"])
    return len(bars)


@pytest.mark.quick(2)
def test_every_activity_lies_in_the_bars_of_its_layers(planted: Trace) -> None:
    assert check_device_bars(planted) > 20


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "path", [p for p in PUBLIC if p.stat().st_size < 130_000], ids=lambda path: path.name
)
def test_real_streams(path: Path) -> None:
    check_device_bars(tracekit.read(path))


@pytest.mark.quick(2)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.parent.name)
def test_captures_have_every_layer_in_both_directions(path: Path) -> None:
    """Of a capture at level M or finer, each layer that has a forward bar and parameters has a backward bar."""
    trace = tracekit.read(path)
    bars = host_bars(trace)
    forward = {path for phase, path, *_ in bars if phase == "forward"}
    backward = {path for phase, path, *_ in bars if phase == "backward"}
    assert len(forward & backward) > 0.7 * len(forward)
