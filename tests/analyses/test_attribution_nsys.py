"""Attribution of Nsight Systems exports: planted layers, phases and operators, in every version and kind of mark."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from paths import PUBLIC_NSYS
from synthetic import nsys_oracle
from synthetic.layered import Shape
from synthetic.nsys_export import Program, write_parquetdir, write_sqlite
from synthetic.nsys_layered import MARKS, Expected, Style, both, shape_of, training
from synthetic.nsys_schema import NEWEST, VERSIONS

import tracekit
from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.layers import layers
from tracekit.analyses.scope import select
from tracekit.trace import Trace

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "same thread": {"same_thread": True},
    "reentrant": {"checkpoint": "reentrant"},
    "unpack": {"checkpoint": "unpack"},
    "reduction": {"reduction": True},
    "bare nodes": {"engine_spans": False},
    "no numbers": {"numbers": False},
}
"""What varies in the plan; two threads that run forward are left out, as `emit_nvtx` does not number them."""

STYLES: dict[str, Style] = {
    "plain": Style(),
    "no sizes": Style(sizes=False),
    "no driver": Style(nested_calls=0),
    "all driver": Style(nested_calls=1),
    "backtraces": Style(backtraces=True),
    "whole graphs": Style(whole_graphs=True),
}


def places(traces: list[Trace]) -> dict[tuple[int, int, int], dict[str, Any]]:
    """Every activity with its place, by process, stream and start in the file."""
    found = {}
    for trace in traces:
        scope = select(trace, window="trace")
        layers = attribution(scope).layers
        rows = attributed(scope).join(layers, on="layer_id", how="left")
        for row in rows.iter_rows(named=True):
            key = row["process_id"], row["stream_id"], row["start"] + trace.meta.origin_ns
            assert key not in found
            found[key] = row
    return found


def check(traces: list[Trace], expected: list[Expected]) -> None:
    """Each activity is there once and in its planted place; of the backward pass at least 99 %."""
    found = places(traces)
    assert len(found) == sum(trace.device.height for trace in traces) == len(expected)
    wrong, backward_ns, missed_ns = [], 0, 0
    for row in expected:
        got = found[row.key]
        assert got["name"] == row.name
        assert got["duration"] == row.duration
        assert (got["launch_id"] is not None) == row.launched
        if row.launched:
            assert got["operator"] == row.operator
        right = (got["path"], got["phase"], got["recomputed"]) == (
            row.place.layer,
            row.place.phase,
            row.place.recomputed,
        )
        if row.place.phase == "backward":
            backward_ns += row.duration
            missed_ns += row.duration * (not right)
        elif not right:
            wrong.append((row.name[:40], got["path"], got["phase"], got["method"], row.place))
    assert not wrong, f"{len(wrong)} of {len(found)}: {wrong[:4]}"
    assert missed_ns * 100 <= backward_ns
    assert backward_ns


@pytest.mark.quick(3)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.sampled(4)
def test_planted_places_in_every_version(marks: str, version: str, tmp_path: Path) -> None:
    export = training(VERSIONS.index(version), shape_of(marks), Style(marks=marks))
    check(tracekit.read_all(write_sqlite(export.program, tmp_path / "t.sqlite", version)), export.expected)


@pytest.mark.quick(2)
@pytest.mark.parametrize("marks", ["capture", "record", "fsdp"])
@pytest.mark.parametrize("changed", SHAPES)
@pytest.mark.sampled(4)
def test_planted_places_of_every_plan(changed: str, marks: str, tmp_path: Path) -> None:
    export = training(5, shape_of(marks, **SHAPES[changed]), Style(marks=marks))
    check(tracekit.read_all(write_parquetdir(export.program, tmp_path / "t")), export.expected)


@pytest.mark.quick(3)
@pytest.mark.parametrize("version", VERSIONS[1:])
@pytest.mark.parametrize("style", STYLES)
def test_planted_places_in_every_style(style: str, version: str, tmp_path: Path) -> None:
    """Version 1 tells neither backtraces nor the nodes of graphs apart."""
    export = training(7, shape_of("dict"), replace(STYLES[style], marks="dict"))
    check(tracekit.read_all(write_sqlite(export.program, tmp_path / "t.sqlite", version)), export.expected)


@pytest.mark.slow
def test_two_processes_with_the_same_correlation_ids(tmp_path: Path) -> None:
    plan = shape_of("dict")
    first = training(1, plan, Style(marks="dict"))
    second = training(2, replace(plan, steps=3), Style(marks="dict", pid=7777))
    export = both(first, second)
    path = write_sqlite(export.program, tmp_path / "t.sqlite", NEWEST)
    (joined,) = nsys_oracle.query(
        path,
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN CUPTI_ACTIVITY_KIND_RUNTIME USING (correlationId)",
    )
    traces = tracekit.read_all(path)
    assert [trace.meta.process_ids for trace in traces] == [(4242,), (7777,)]
    assert [trace.device.height for trace in traces] == [len(first.expected), len(second.expected)]
    assert joined[0] > sum(trace.device.filter(pl.col("kind") == "kernel").height for trace in traces)
    check(traces, export.expected)


def innermost_range(trace: Trace) -> dict[tuple[int, int, int], str | None]:
    """The NVTX range around each activity's launch, from the parents in the host frame."""
    host = trace.host.select("span_id", "parent_id", pl.col("kind", "name").cast(pl.String))
    parent = dict(zip(host["span_id"], host["parent_id"], strict=True))
    kind = dict(zip(host["span_id"], host["kind"], strict=True))
    name = dict(zip(host["span_id"], host["name"], strict=True))
    found = {}
    for pid, stream, start, launch in trace.device.select(
        "process_id", "stream_id", "start", "launch_id"
    ).rows():
        above = launch
        while above is not None and kind[above] in ("runtime", "sync", "overhead"):
            above = parent[above]
        found[pid, stream, start + trace.meta.origin_ns] = None if above is None else name[above]
    return found


class Nested:
    """Random ranges that nest on each of some threads, with launches in and between them; no two ranges are equal."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.program = Program()
        self.clock = self.correlation = 0

    def tick(self) -> int:
        self.clock += self.random.randint(1, 50)
        return self.clock

    def run(self) -> Program:
        for pid in (7, 8):
            self.correlation = 0  # both processes count from the start
            for tid in range(pid, pid + 2):
                self.clock = self.random.randint(0, 3_000)
                while self.correlation < 40 * (1 + tid - pid):
                    self.work(pid, tid, 0)
        return self.program

    def work(self, pid: int, tid: int, depth: int) -> None:
        if depth > 5 or self.random.random() < 0.4:
            self.launch(pid, tid)
            return
        start = self.tick()
        for _ in range(self.random.randint(0, 3)):
            self.work(pid, tid, depth + 1)
        name = self.random.choice(
            ("net", "net.a", "aten::mm, op_id = 3", "aten::add, seq = 4, op_id = 5", "loss")
        )
        end = None if self.random.random() < 0.02 and not depth else self.tick()
        domain = self.random.choice((0, 0, 1))
        self.program.push_pop(name, start, end, pid=pid, tid=tid, domain=domain)

    def launch(self, pid: int, tid: int) -> None:
        start = self.tick()
        self.correlation += 1
        numbers = {"correlation": self.correlation, "pid": pid}
        end = start if self.random.random() < 0.1 else self.tick()
        self.program.call("cudaLaunchKernel_v7000", start, end, tid=tid, **numbers)
        begun = 10_000 * self.correlation
        self.program.kernel("gemm", begun, begun + self.random.randint(0, 9_000), stream=tid, **numbers)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(20))
def test_ranges_around_launches_of_random_files_are_those_of_the_oracle(seed: int, tmp_path: Path) -> None:
    path = write_sqlite(Nested(seed).run(), tmp_path / "t.sqlite", VERSIONS[1 + seed % 3])
    found: dict[tuple[int, int, int], str | None] = {}
    for trace in tracekit.read_all(path):
        found |= innermost_range(trace)
    expected = nsys_oracle.innermost(path)
    assert len(expected) >= 160
    for pid, stream, start, name, _ in expected:
        assert found[pid, stream, start] == (None if name is None else nsys_oracle.plain(name)), (pid, start)
    assert len({name for *_, name, _ in expected}) > 3


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("path", PUBLIC_NSYS, ids=lambda p: p.stem)
def test_ranges_around_launches_of_public_files_are_those_of_the_oracle(path: Path) -> None:
    """The innermost push/pop range on the launching thread at the launch's start, by comparing all with all."""
    found: dict[tuple[int, int, int], str | None] = {}
    for trace in tracekit.read_all(path):
        found |= innermost_range(trace)
    expected = nsys_oracle.innermost(path)
    assert expected
    inside = 0
    for pid, stream, start, name, _ in expected:
        assert found[pid, stream, start] == (None if name is None else nsys_oracle.plain(name)), (pid, start)
        inside += name is not None
    if not inside:
        pytest.skip("no range of this file is open at a launch")


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", PUBLIC_NSYS, ids=lambda p: p.stem)
def test_places_of_public_files_sum_to_the_device_time(path: Path) -> None:
    counts = {
        kind: nsys_oracle.totals(path, f"CUPTI_ACTIVITY_KIND_{kind}") for kind in nsys_oracle.ACTIVITIES
    }
    rows = total = 0
    for trace in tracekit.read_all(path):
        scope = select(trace, window="trace")
        found = attribution(scope)
        assert found.activities.height == trace.device.height
        rows += found.activities.height
        total += int(found.coverage["duration_ns"].sum())
    assert (rows, total) == (sum(count for count, _ in counts.values()), sum(ns for _, ns in counts.values()))


def test_the_plan_is_one_of_the_forward_pass_too(tmp_path: Path) -> None:
    """What `check` compares is not empty: layers of all depths, all phases, and work that was launched elsewhere."""
    export = training(0, Shape(source="range"), Style())
    layers = {row.place.layer for row in export.expected}
    assert {None, "<optimizer>", "<data>", "<cuda graph>", "net", "net/part0_0"} <= layers
    assert {"forward", "backward", "optimizer", "data"} <= {row.place.phase for row in export.expected}
    assert any(not row.launched for row in export.expected)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("kernel", "marked", "expected"),
    [
        ("saxpy(float*)", "solve", "other"),
        ("saxpy(float*)", "forward", "forward"),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", "solve", "forward"),
    ],
)
def test_only_a_model_has_a_forward_pass(tmp_path: Path, kernel: str, marked: str, expected: str) -> None:
    """A program that shows no PyTorch and trains nothing may compute anything; a range that says so tells the phase."""
    program = Program()
    program.push_pop(marked, 0, 900, tid=7)
    program.call("cudaLaunchKernel_v7000", 100, 120, correlation=1, tid=7)
    program.kernel(kernel, 300, 400, correlation=1)
    trace = tracekit.read(write_sqlite(program, tmp_path / "t.sqlite"))
    found = layers(select(trace, window="trace")).by_phase.filter(pl.col("device_ns") > 0)
    assert found["phase"].cast(pl.String).to_list() == [expected]


@pytest.mark.parametrize("engine", [True, False])
def test_work_that_may_be_backward_is_not_called_forward(engine: bool, tmp_path: Path) -> None:
    """The process has a thread of the autograd engine, on which nothing is recorded, and no operators tell the passes."""
    program = Program()
    if engine:
        program.thread("pt_autograd_0", tid=9)
    program.push_pop("solve", 0, 900, tid=7)
    for number in (1, 2):
        program.call("cudaLaunchKernel_v7000", 600 * number, 600 * number + 20, correlation=number, tid=7)
        program.kernel("void at::native::gemm", 700 * number, 800 * number, correlation=number)
    trace = tracekit.read(write_sqlite(program, tmp_path / "t.sqlite"))
    found = layers(select(trace, window="trace")).by_phase.filter(pl.col("device_ns") > 0)
    assert found["phase"].cast(pl.String).to_list() == ["other" if engine else "forward"]
