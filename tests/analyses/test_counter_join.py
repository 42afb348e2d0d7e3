"""Which kernel a range of counters belongs to: planted, by brute force, and in a public trace."""

from __future__ import annotations

import random

import polars as pl
import pytest
from paths import PUBLIC
from planted import Planted

import tracekit
from tracekit.analyses.counters.analysis import (
    UNNAMED,
    has_ranges,
    join_kernels,
    join_launches,
    measured_ranges,
)

PRECISIONS = {"d": (1, 2, 3), "f": (10, 20, 30), "h": (100, 200, 300)}


def counted(name: str, start: int, **series: float) -> list[dict[str, object]]:
    return [
        {"name": name, "series": key, "start": start, "duration": 7, "value": value}
        for key, value in series.items()
    ]


def instructions(skip: str = "") -> dict[str, float]:
    return {
        f"smsp__sass_thread_inst_executed_op_{kind}{what}_pred_on.sum": value
        for kind, values in PRECISIONS.items()
        for what, value in zip(("add", "mul", "fma"), values, strict=True)
        if f"{kind}{what}" != skip
    }


def ranges_of(*rows: list[dict[str, object]]) -> pl.DataFrame:
    made = Planted()
    made.counters = [row for each in rows for row in each]
    return measured_ranges(made.trace())


def test_flops_of_all_precisions_count_and_fused_ones_twice() -> None:
    (row,) = ranges_of(counted("k", 5, **instructions())).to_dicts()
    assert row["flops"] == (1 + 2 + 2 * 3) + (10 + 20 + 2 * 30) + (100 + 200 + 2 * 300)
    assert (row["dram_read_bytes"], row["dram_write_bytes"], row["occupancy"]) == (None, None, None)


def test_what_was_not_measured_is_null() -> None:
    assert ranges_of(counted("k", 5, **instructions(skip="hfma")))["flops"][0] is None
    traffic = {"dram__bytes_read.sum": 64.0, "sm__warps_active.avg.pct_of_peak_sustained_active": 37.5}
    (row,) = ranges_of(counted("k", 5, **traffic)).to_dicts()
    assert row["flops"] is None
    assert (row["dram_read_bytes"], row["dram_write_bytes"], row["occupancy"]) == (64, None, 0.375)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("k", {"sm__inst_executed_pipe_tensor.sum": 3.0}), ("sm80_xmma_gemm_bf16bf16_tensor16x8x16", {})],
)
def test_work_of_tensor_cores_is_not_what_the_counters_count(name: str, tensor: dict[str, float]) -> None:
    assert ranges_of(counted(name, 5, **instructions(), **tensor))["flops"][0] is None
    none_used = {"sm__inst_executed_pipe_tensor.sum": 0.0}
    assert ranges_of(counted("k", 5, **instructions(), **none_used))["flops"][0] == 999


def test_samples_of_a_track_are_no_ranges() -> None:
    made = Planted()
    made.counters = [{"name": "power", "series": "W", "start": 3, "duration": None, "value": 5.0}]
    trace = made.trace()
    assert not has_ranges(trace)
    assert measured_ranges(trace).height == 0
    assert join_launches(trace) is None


def joined_by_hand(ranges: list[str], kernels: list[tuple[str, int]]) -> list[int | None]:
    """The number of the range of each kernel, by the rule in words."""
    if len(ranges) == len(kernels) and all(
        mine in (UNNAMED, theirs) for mine, (theirs, _) in zip(ranges, kernels, strict=True)
    ):
        return list(range(len(ranges)))
    found: list[int | None] = []
    for number, (name, step) in enumerate(kernels):
        places = [at for at, other in enumerate(ranges) if other == name]
        before = kernels[:number]
        in_all = [other for other, _ in kernels].count(name)
        in_steps = {kernels.count((name, s)) for s in {s for other, s in kernels if other == name}}
        if name != UNNAMED and len(places) == in_all:
            found.append(places[sum(other == name for other, _ in before)])
        elif name != UNNAMED and in_steps == {len(places)}:
            found.append(places[before.count((name, step))])
        else:
            found.append(None)
    return found


@pytest.mark.quick(13)
@pytest.mark.parametrize("seed", range(60))
def test_the_join_is_that_of_the_rule(seed: int) -> None:
    rng = random.Random(seed)
    one = [rng.choice("abc") for _ in range(rng.randint(1, 6))]
    kernels = [(name, step) for step in range(rng.randint(1, 3)) for name in one]
    names = [name for name, _ in kernels] if rng.random() < 0.5 else list(one)
    if rng.random() < 0.3:
        names[rng.randrange(len(names))] = UNNAMED
    if rng.random() < 0.3:
        kernels.insert(rng.randrange(len(kernels) + 1), (rng.choice("abc"), 0))
    rows = [counted(name, at, **{"dram__bytes_read.sum": float(at)}) for at, name in enumerate(names)]
    frame = pl.DataFrame(kernels, schema={"name": pl.String, "step": pl.Int64}, orient="row")
    got = join_kernels(ranges_of(*rows), frame)
    assert got["dram_read_bytes"].to_list() == joined_by_hand(names, kernels)


def test_without_kernels_ranges_and_launches_join_in_order() -> None:
    made = Planted()
    for at in (50, 10, 30):
        made.span("op", f"aten::op{at}", at, at + 9)
        made.call("cudaLaunchKernel", at + 1, 5)
    made.call("cudaMemcpyAsync", 70, 5)
    # The times of ranges are made up; only their order tells.
    made.counters = [
        row
        for at, name in ((1000, "c"), (900, "b"), (800, "a"))
        for row in counted(name, at, **instructions())
    ]
    trace = made.trace()
    found = join_launches(trace)
    assert found is not None
    host = trace.host.rows_by_key("span_id", named=True, unique=True)
    parents = [host[host[launch]["parent_id"]]["name"] for launch in found["launch_id"]]
    assert list(zip(found["name"], parents, strict=True)) == [
        ("a", "aten::op10"),
        ("b", "aten::op30"),
        ("c", "aten::op50"),
    ]
    made.call("cudaLaunchKernel", 90, 5)
    assert join_launches(made.trace()) is None


COUNTERS = [path for path in PUBLIC if path.name == "a100_cupti_counters.json.gz"]


@pytest.mark.skipif(not COUNTERS, reason="the public traces are not here")
def test_a_public_trace_joins_each_range_to_the_operator_that_its_kernel_is_of() -> None:
    trace = tracekit.read(COUNTERS[0])
    found = join_launches(trace)
    assert found is not None
    assert found.height == 77
    host = trace.host.with_columns(pl.col("name").cast(pl.String))
    parents = host.select(pl.col("span_id").alias("launch_id"), "parent_id")
    operators = host.select(pl.col("span_id").alias("parent_id"), pl.col("name").alias("operator"))
    pairs = found.join(parents, on="launch_id").join(operators, on="parent_id", how="left")
    of = dict(pairs.group_by("name").agg(pl.col("operator").unique()).rows())
    telling = {
        "max_pool_forward": "aten::max_pool2d_with_indices",
        "fused_dropout": "aten::native_dropout",
        "ampere_sgemm": "aten::addmm",
        "nchwToNhwc": "aten::cudnn_convolution",
        "fft2d": "aten::cudnn_convolution",
    }
    for part, operator in telling.items():
        names = [name for name in of if part in name]
        assert names
        assert {other for name in names for other in of[name]} == {operator}
    tensor = found.filter(pl.col("name").str.contains("xmma"))
    assert tensor.height
    assert tensor["flops"].null_count() == tensor.height
    assert found.filter(~pl.col("name").str.contains("xmma"))["flops"].null_count() == 0
