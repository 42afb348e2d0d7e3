"""Work of replayed CUDA graphs belongs where its nodes were captured."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from synthetic.nsys_export import PID, Program, merged, write_parquetdir, write_sqlite
from synthetic.nsys_schema import NEWEST, VERSIONS

import tracekit
from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.scope import select
from tracekit.limits import Limits
from tracekit.trace import Trace

MAIN = 4242
CAPTURED = {11: "net.a", 12: "net.b"}
LOST, UNSEEN = 44, 99


def module(program: Program, name: str, start: int, end: int, pid: int) -> None:
    program.push_pop(f"{{'Module': '{name}'}}", start, end, tid=MAIN, pid=pid)


def captured(pid: int = PID, swapped: bool = False) -> Program:
    """A graph of two layers is captured and copied twice; LOST was made when it was copied, UNSEEN is never told of."""
    program = Program()
    names = ["net.b", "net.a"] if swapped else ["net.a", "net.b"]
    module(program, "net", 0, 1_000, pid)
    for at, (node, name) in enumerate(zip(CAPTURED, names, strict=True)):
        begun = 100 + 300 * at
        module(program, name, begun, begun + 200, pid)
        program.call("cudaLaunchKernel_v7000", begun + 50, begun + 60, correlation=1 + at, tid=MAIN, pid=pid)
        program.graph_node(node, begun + 55, tid=MAIN, pid=pid)
    program.call("cudaGraphInstantiate_v10000", 700, 800, correlation=5, tid=MAIN, pid=pid)
    for node in CAPTURED:
        program.graph_node(node + 10, 710, tid=MAIN, pid=pid)  # the copy is made as a node, too
        program.graph_node(node + 10, 711, tid=MAIN, pid=pid, original=node)
        program.graph_node(node + 20, 720, tid=MAIN, pid=pid, original=node + 10)
    program.graph_node(LOST, 730, tid=MAIN, pid=pid)
    return program


def replay(program: Program, at: int, correlation: int, pid: int = PID) -> None:
    program.call("cudaGraphLaunch_v10000", at, at + 10, correlation=correlation, tid=MAIN, pid=pid)
    for number, node in enumerate((21, 32, LOST, UNSEEN)):
        begun = at + 100 * (1 + number)
        program.kernel(f"k{node}", begun, begun + 50, correlation=correlation, graphNodeId=node, pid=pid)


def places(trace: Trace, since: int = 0) -> dict[str, tuple[str | None, str]]:
    """Layer and method of every kernel of the replay that begins then."""
    scope = select(trace, window="trace")
    rows = attributed(scope).join(attribution(scope).layers, on="layer_id", how="left")
    return {
        row["name"]: (row["path"], row["method"])
        for row in rows.iter_rows(named=True)
        if since <= row["start"] + trace.meta.origin_ns < since + 1_000
    }


def read(program: Program, tmp_path: Path, version: str = NEWEST) -> Trace:
    (trace,) = tracekit.read_all(write_sqlite(program, tmp_path / "t.sqlite", version))
    return trace


@pytest.mark.quick(1)
@pytest.mark.parametrize("version", VERSIONS[1:])
def test_nodes_belong_to_the_layer_of_their_capture(version: str, tmp_path: Path) -> None:
    program = captured()
    replay(program, 2_000, 9)
    assert places(read(program, tmp_path, version), 2_000) == {
        "k21": ("net.a", "graph"),
        "k32": ("net.b", "graph"),
        f"k{LOST}": ("<cuda graph>", "graph"),
        f"k{UNSEEN}": ("<cuda graph>", "graph"),
    }


def test_a_folder_of_parquet_says_the_same(tmp_path: Path) -> None:
    program = captured()
    replay(program, 2_000, 9)
    (trace,) = tracekit.read_all(write_parquetdir(program, tmp_path / "export"))
    assert places(trace, 2_000)["k32"] == ("net.b", "graph")


@pytest.mark.slow
def test_a_capture_says_more_than_a_range_or_than_the_layer_around_it(tmp_path: Path) -> None:
    program = captured()
    module(program, "net", 2_000, 3_000, PID)
    replay(program, 2_010, 9)
    program.push_pop("serve", 4_000, 5_000, tid=MAIN)
    replay(program, 4_010, 10)
    trace = read(program, tmp_path)
    of_nodes = {"k21": ("net.a", "graph"), "k32": ("net.b", "graph")}
    around = {f"k{LOST}": ("net", "capture"), f"k{UNSEEN}": ("net", "capture")}
    assert places(trace, 2_000) == of_nodes | around
    serving = {f"k{LOST}": ("serve", "range"), f"k{UNSEEN}": ("serve", "range")}
    assert places(trace, 4_000) == of_nodes | serving


def test_a_replay_in_another_layer_stays_there(tmp_path: Path) -> None:
    program = captured()
    module(program, "other", 2_000, 3_000, PID)
    replay(program, 2_010, 9)
    assert set(places(read(program, tmp_path), 2_000).values()) == {("other", "capture")}


def test_two_processes_number_their_nodes_alike(tmp_path: Path) -> None:
    first, second = captured(), captured(7777, swapped=True)
    replay(first, 2_000, 9)
    replay(second, 2_000, 9, 7777)
    traces = tracekit.read_all(write_sqlite(merged(first, second), tmp_path / "t.sqlite"))
    assert [places(trace, 2_000)["k21"][0] for trace in traces] == ["net.a", "net.b"]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 4_000])
def test_an_excerpt_knows_captures_outside_of_it(nodes: int, tmp_path: Path) -> None:
    """Of replays long after the capture; where very many nodes are replayed, those stay without a layer instead."""
    program = captured()
    for i in range(2_000):  # what lies between
        program.push_pop("between", 10_000 + 10 * i, 10_005 + 10 * i, tid=MAIN)
    replay(program, 100_000, 9)
    for i in range(nodes - 2):
        program.call("cudaLaunchKernel_v7000", 1_010 + i, 1_011 + i, correlation=0, tid=MAIN)
        program.graph_node(1_000 + i, 1_010 + i, tid=MAIN)
        program.kernel("more", 100_900, 100_910, correlation=9, graphNodeId=1_000 + i)
    for i in range(2 * nodes + 2_000):
        program.push_pop("after", 200_000 + 10 * i, 200_005 + 10 * i, tid=MAIN)
    path = write_sqlite(program, tmp_path / "t.sqlite")
    (whole,) = tracekit.read_all(path)
    (part,) = tracekit.read_all(path, limits=Limits(max_events=3_000))
    assert part.meta.excerpt is not None
    assert part.meta.excerpt.start + part.meta.origin_ns > 10_000
    known = {"k21": ("net.a", "graph"), "k32": ("net.b", "graph")}
    found = places(part, 100_000)
    assert places(whole, 100_000).items() >= known.items()
    if nodes == 2:
        assert found == places(whole, 100_000)
        assert set(
            part.host.filter(pl.col("start") + part.meta.origin_ns < 10_000)["name"].cast(pl.String)
        ) >= {"net", "net.a"}
    else:
        assert set(found.values()) == {("<cuda graph>", "graph")}


def test_a_circle_of_copies_ends(tmp_path: Path) -> None:
    program = captured()
    replay(program, 2_000, 9)
    program.graph_node(51, 740, tid=MAIN, original=52)
    program.graph_node(52, 741, tid=MAIN, original=51)
    program.kernel("round", 2_900, 2_950, correlation=9, graphNodeId=51)
    assert places(read(program, tmp_path), 2_000)["round"] == ("<cuda graph>", "graph")


def test_the_frame_tells_where_each_node_was_made(tmp_path: Path) -> None:
    nodes = read(captured_and_replayed(), tmp_path).graph_nodes
    assert nodes is not None
    found = {node: (thread, start) for _, node, thread, start in nodes.sort("graph_node").rows()}
    first, second = (MAIN, 155), (MAIN, 455)
    assert found == {11: first, 12: second, 21: first, 22: second, 31: first, 32: second, LOST: (MAIN, 730)}


def captured_and_replayed() -> Program:
    program = captured()
    replay(program, 2_000, 9)
    return program
