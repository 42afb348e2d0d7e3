"""A1 to A15 against brute force on planted models."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import xsp_brute as brute
from xsp_planted import model

from tracekit.analyses.stated import StatedTable
from tracekit.analyses.xsp.runs import run_of
from tracekit.analyses.xsp.views import tables_of

BLOCKS, MODELS = 2, 12


def agrees(table: StatedTable, expected: list[dict[str, Any]]) -> None:
    """Same rows in the same order; every column that the table has and the truth knows."""
    assert table.frame.height == len(expected), table.key
    for got, row in zip(table.frame.iter_rows(named=True), expected, strict=True):
        for column in got.keys() & row.keys():
            want = pytest.approx(row[column]) if isinstance(row[column], float) else row[column]
            assert got[column] == want, (table.key, column, got, row)


def check(seed: int) -> None:
    planted = model(seed)
    run = run_of(
        "m",
        planted.layer_trace(),
        planted.kernel_trace(),
        manifest=planted.manifest,
        counters=planted.counters,
    )
    tables = tables_of(run)
    layers = brute.layers(planted.layers)
    sizes = brute.memory(planted.kernels)

    def with_memory(row: dict[str, Any]) -> dict[str, Any]:
        whole, forward = sizes.get(row["layer"], (0, 0))
        return {**row, "allocated_bytes": whole, "forward_bytes": forward}

    agrees(tables["A2"], [with_memory(row) for row in layers])
    agrees(tables["A3"], layers)
    if planted.kernels.made.memory:
        agrees(tables["A4"], brute.allocation(layers, planted.kernels))
        agrees(tables["A7"], brute.by_type(layers, "allocated_bytes", with_memory))
    else:
        assert not tables["A4"].frame.height
    agrees(tables["A5"], brute.by_type(layers, "layers"))
    agrees(tables["A6"], brute.by_type(layers, "self_ns"))
    calls, by_layer = brute.each_call(planted.kernels), brute.by_layer(planted.kernels)
    agrees(tables["A8"], calls)
    agrees(tables["A9"], [row for row in calls if row["intensity"] is not None])
    agrees(tables["A10"], brute.by_name(planted.kernels))
    if any(row["layer"] not in ("<optimizer>", "<unattributed>") for row in by_layer):
        agrees(tables["A11"], by_layer)
        agrees(tables["A12"], by_layer)
        agrees(tables["A14"], [row for row in by_layer if row["intensity"] is not None])
    else:
        assert not tables["A11"].frame.height
    agrees(tables["A13"], brute.device_part(layers, planted.kernels))
    latency = brute.middle(planted.manifest.runs[0].step_times_ns)
    whole = brute.work(planted.kernels.kernels, "fp32", None)
    share = whole["gpu_ns"] / latency
    row = {"run": "m", "batch": 4, "latency_ns": latency, "counted_flops": 123, "gpu_share": share}
    agrees(tables["A15"], [{**row, **whole}])


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(8))
def test_models_agree_with_brute_force(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_many_models_agree_with_brute_force(block: int) -> None:
    for seed in range(block * MODELS, (block + 1) * MODELS):
        check(seed)


@pytest.mark.slow
def test_the_planted_models_hold_what_the_tables_tell_apart() -> None:
    """That the oracle is not trivially right: layers that repeat, overlap, counters, missing layers, many steps."""
    models = [model(seed) for seed in range(40)]
    assert {m.counters_of for m in models} == {"none", "all", "step"}
    assert {len(m.manifest.runs[0].step_times_ns) for m in models} == set(range(1, 8))
    overlapping = mixed = 0
    for m in models:
        kernels = [(k.start, k.start + k.duration) for k in m.kernels.kernels]
        overlapping += brute.union(kernels) < sum(end - start for start, end in kernels)
        mixed += len({k.flops_source for k in m.kernels.kernels}) > 1
    assert overlapping > 20
    assert mixed > 10
    assert (
        pl.concat([pl.DataFrame({"calls": [r["calls"]]}) for m in models for r in brute.layers(m.layers)])[
            "calls"
        ].max()
        >= 2
    )
