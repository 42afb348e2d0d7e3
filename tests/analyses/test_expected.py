"""The figures that other tools, or an exact computation, give on the public traces."""

from __future__ import annotations

import json
from functools import cache
from math import prod
from typing import Any

import numpy as np
import polars as pl
import pytest
from paths import PUBLIC, ROOT, SAMPLES
from real_traces import scope_of, traces

import tracekit
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.flops import counted_operators
from tracekit.analyses.flops.work import models, read_inputs, work_of
from tracekit.analyses.idle import idle
from tracekit.analyses.kernels import kernels
from tracekit.analyses.scope import select
from tracekit.analyses.steps import steps
from tracekit.spans import kept_nesting
from tracekit.trace import Trace

TRACES = ROOT.parent / "shared" / "traces"
EXPECTED = json.loads((TRACES / "expected.json").read_text("utf-8")) if PUBLIC else []
pytestmark = pytest.mark.skipif(not PUBLIC, reason="the public traces are not beside this checkout")


def rows(table: str) -> list[Any]:
    found = [row for row in EXPECTED if row["table"] == table]
    return [pytest.param(row, id=f"{row['trace'].split('/')[-1]}-{i}") for i, row in enumerate(found)]


@cache
def trace_of(name: str) -> Trace:
    return tracekit.read(TRACES / name)


@pytest.mark.quick(4)
@pytest.mark.parametrize("row", rows("temporal"))
def test_temporal(row: dict[str, Any]) -> None:
    scope = select(trace_of(row["trace"]), window="trace")
    communication, compute = scope.intervals(None, "communication"), scope.intervals(None, "compute")
    busy = scope.intervals()
    got = {
        "n_gpu": scope.activities.height,
        "busy_us": busy.measure / 1e3,
        "span_us": scope.duration / 1e3,
        "idle_us": (scope.duration - busy.measure) / 1e3,
        "compute_us": compute.measure / 1e3,
        "comm_us": communication.measure / 1e3,
        "comm_comp_overlap_us": (communication & compute).measure / 1e3,
        "dur_sum_us": int(scope.activities["duration"].sum()) / 1e3,
        "max_dur_us": int(scope.activities["duration"].max() or 0) / 1e3,
    }
    for name, value in row["values"].items():
        assert got[name] == pytest.approx(value, abs=2e-4), name


@pytest.mark.parametrize("row", rows("gpu_timeline"))
def test_gpu_timeline(row: dict[str, Any]) -> None:
    """TraceLens counts memset as computation; tracekit counts it as memory. With that, every row agrees."""
    scope = select(trace_of(row["trace"]), window="trace")
    kind = pl.col("kind").cast(pl.String)
    memset = scope.overlapping.filter(kind == "memset")
    memcpy = scope.overlapping.filter(kind == "memcpy")

    def covered(frame: pl.DataFrame) -> Any:
        from tracekit.intervals import IntervalSet

        return IntervalSet.of(frame["start"].to_numpy(), frame["end"].to_numpy())

    compute = scope.intervals(None, "compute") | covered(memset)
    communication = scope.intervals(None, "communication")
    copies = covered(memcpy)
    busy = scope.intervals()
    got = {
        "computation_time": compute.measure,
        "exposed_comm_time": (communication - compute).measure,
        "exposed_memcpy_time": (copies - compute - communication).measure,
        "busy_time": busy.measure,
        "idle_time": scope.duration - busy.measure,
        "total_time": scope.duration,
        "total_comm_time": communication.measure,
        "total_memcpy_time": copies.measure,
    }
    assert got[row["row"]["type"]] / 1e6 == pytest.approx(row["value"], abs=2e-4)


@pytest.mark.quick(6)
@pytest.mark.parametrize("row", rows("kernel_summary"))
@pytest.mark.sampled(8)
def test_kernel_summary(row: dict[str, Any]) -> None:
    trace = trace_of(row["trace"])
    table = kernels(select(trace, window="trace")).by_name
    mine = table.filter(pl.col("name") == row["row"]["Kernel name"])
    if row["column"] == "count":
        assert int(mine["count"].sum()) == row["value"]
    else:
        assert int(mine["total_ns"].sum()) / 1e6 == pytest.approx(row["value"] / 1e3, abs=2e-4)


@cache
def calls_of(name: str) -> dict[tuple[str, str, str], list[tuple[int, int]]]:
    """FLOPs and bytes of the calls of a trace that count, by operator, shapes and types."""
    host = trace_of(name).host
    counted = counted_operators(host, kept_nesting(host))
    calls: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for span in np.flatnonzero(counted.flops >= 0):
        operator, shapes, dtypes = host.select("name", "shapes", "dtypes").row(int(span))
        key = operator, str(json.loads(shapes)), str(json.loads(dtypes))
        calls.setdefault(key, []).append(
            (int(counted.flops[span]), int(counted.read[span] + counted.written[span]))
        )
    return calls


@pytest.mark.quick(8)
@pytest.mark.parametrize("row", [*rows("SDPA_fwd"), *rows("CONV_fwd"), *rows("GEMM")])
def test_work_of_operators(row: dict[str, Any]) -> None:
    """TraceLens counts no bias of a convolution, neither its sums nor its bytes; with that, every row agrees. Its MB is 2²⁰ bytes."""
    call = row["row"]
    calls = calls_of(row["trace"])[call["name"], str(call["Input Dims"]), str(call["Input type"])]
    ((flops, moved),) = set(calls)
    if row["table"] == "CONV_fwd":
        image, weight, bias, *_ = call["Input Dims"]
        steps = call["params"]["stride"]
        output = [(a - k) // s + 1 for a, k, s in zip(image[2:], weight[2:], steps, strict=True)]
        flops -= image[0] * bias[0] * prod(output)
        moved -= bias[0] * 2
    figures = {
        "name_count": len(calls),
        "GFLOPS_first": flops / 1e9,
        "Data Moved (MB)_first": moved / 2**20,
        "FLOPS/Byte_first": flops / moved,
    }
    if row["column"] in figures:  # the other columns are times
        assert figures[row["column"]] == pytest.approx(row["value"], rel=1e-9)


@pytest.mark.parametrize(
    ("trace", "outer", "inner"),
    [
        *(
            (f"{device}_bert_small", "_scaled_dot_product_flash_attention", "_flash_attention_forward")
            for device in ("h100", "mi300")
        ),
        ("mi300_owlv2", "_convolution", "miopen_convolution"),
        ("v100_resnet50_2021_workers0", "linear", "addmm"),
        ("ddp_rank0", "linear", "addmm"),
        ("ddp_rank0", "matmul", "bmm"),
    ],
)
@pytest.mark.quick(2)
def test_an_operator_and_the_one_in_it_do_the_same_work(trace: str, outer: str, inner: str) -> None:
    """Of attention the two have different layouts; TorchScript recorded its stack with the inputs."""
    host = trace_of(f"kineto/{trace}.json.gz").host
    calls = host.select(
        "parent_id", pl.col("name", "shapes", "dtypes", "concrete_inputs").cast(pl.String)
    ).with_row_index("span_id")
    pairs = calls.filter(pl.col("name") == f"aten::{inner}").join(
        calls.filter(pl.col("name") == f"aten::{outer}"), left_on="parent_id", right_on="span_id"
    )
    known = models()
    flops = [
        tuple(
            getattr(work_of(known[f"aten::{name}"], read_inputs(*inputs)), "flops", None)
            for name, inputs in ((inner, row[3:6]), (outer, row[8:]))
        )
        for row in pairs.rows()
    ]
    assert flops
    assert all(one == other is not None for one, other in flops)


@pytest.mark.parametrize("row", rows("overview"))
def test_overview(row: dict[str, Any]) -> None:
    """torch-tb-profiler counts the 2021 files' Optimizer ranges as operators; tracekit as annotations.

    So the time of operators is smaller here and the rest larger by the same amount; their sum agrees.
    """
    trace, values = trace_of(row["trace"]), row["values"]
    device = breakdown(trace).devices.row(0, named=True)
    assert device["kernel_utilisation"] == pytest.approx(values["gpu_utilization"], abs=5e-4)
    assert device["sm_efficiency"] == pytest.approx(values["est_sm_efficiency"], abs=5e-4)
    assert device["occupancy"] * 100 == pytest.approx(values["est_achieved_occupancy_pct"], abs=0.005)
    table = steps(trace).table
    mean = {name: float(table[f"{name}_ns"].mean() or 0) / 1e3 for name in (
        "span", "kernel", "memcpy", "memset", "runtime", "data_loader", "operator", "other"
    )}  # fmt: skip
    for name, key in (
        ("span", "mean_step_us"),
        ("kernel", "kernel_us"),
        ("memcpy", "memcpy_us"),
        ("memset", "memset_us"),
        ("runtime", "runtime_us"),
        ("data_loader", "dataloader_us"),
    ):
        assert mean[name] == pytest.approx(values[key], abs=0.1), name
    assert mean["operator"] + mean["other"] == pytest.approx(
        values["cpu_op_us"] + values["other_us"], abs=0.2
    )
    assert mean["operator"] < values["cpu_op_us"]


@pytest.mark.slow
@pytest.mark.parametrize("window", ["steps", "trace"])
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
@pytest.mark.sampled(8)
def test_conservation_laws(path: Any, window: Any) -> None:
    scope = scope_of(path, window)
    for row in breakdown(scope).devices.iter_rows(named=True):
        parts = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
        assert sum(row[part] for part in parts) == row["window_ns"] == scope.duration
        assert row["busy_ns"] + row["idle_ns"] == row["window_ns"]
    for row in idle(scope).streams.iter_rows(named=True):
        assert (
            row["host_wait_ns"] + row["kernel_wait_ns"] + row["other_ns"] + row["unknown_ns"]
            == row["idle_ns"]
        )
    table = kernels(scope)
    assert table.total_ns == int(scope.activities["duration"].sum()) == int(table.by_name["total_ns"].sum())
