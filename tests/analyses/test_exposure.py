"""Exposed communication by key and by the place in the step, against brute force, and the layers that calls carry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import US, Planted
from synthetic import oracle

import tracekit
from tracekit.analyses.calls import calls_of
from tracekit.analyses.carried import carried_layers
from tracekit.analyses.exposure import BINS, exposed_by, positions
from tracekit.analyses.overlap import overlap
from tracekit.analyses.scope import Scope, select
from tracekit.readers.assemble import conform
from tracekit.trace import COLLECTIVE_SCHEMA, Trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"
STEP = 600

Piece = tuple[str, int, int, int]
"""Group (empty for computation), device, start, duration."""

pieces = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b"]), st.integers(0, 1), st.integers(0, 3 * STEP - 90), st.integers(1, 80)
    ),
    min_size=1,
    max_size=14,
)


def planted(parts: list[Piece]) -> Trace:
    """Three steps of 600 ns; each activity is launched in the step in which it starts."""
    made = Planted()
    for number in range(3):
        made.step(number, number * STEP, (number + 1) * STEP)
    for stream, (group, device, start, duration) in enumerate(parts):
        if group:
            made.span("op", "record_param_comms", start, start + 2, thread=stream + 2)
        name = NCCL if group else "compute"
        made.activity(name, start, duration, stream=stream, device=device, launch=start)
        made.host[-1].update(thread_id=stream + 2, duration=1)
    trace = made.trace()
    known = trace.host.filter(pl.col("name").cast(pl.String) == "record_param_comms")
    rows = known.select("span_id", pl.lit("allreduce").alias("name"), pl.lit(2).alias("group_size"), "start")
    rows = rows.with_columns(
        pl.Series("group", [parts[thread - 2][0] for thread in known["thread_id"]], dtype=pl.String)
    )
    return replace(trace, collectives=conform(rows, COLLECTIVE_SCHEMA))


def spans(parts: list[Piece], device: int, *groups: str) -> list[tuple[int, int]]:
    return [(start, start + length) for group, on, start, length in parts if on == device and group in groups]


def exposed(parts: list[Piece], device: int, *groups: str) -> int:
    return oracle.measure(oracle.difference(spans(parts, device, *groups), spans(parts, device, "")))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(pieces)
def test_groups_are_unions_less_what_computes(parts: list[Piece]) -> None:
    scope = select(planted(parts), window="trace")
    table = calls_of(scope)
    number = pl.col("group").replace_strict({"a": 1, "b": 2}, return_dtype=pl.Int64)
    keyed = table.parts.join(table.table.select(pl.int_range(pl.len()).alias("call"), number), on="call")
    found = {"?ab"[group]: times for group, *times in exposed_by(scope, keyed, "group").rows()}
    expected = {
        group: [
            sum(oracle.measure(spans(parts, device, group)) for device in (0, 1)),
            sum(exposed(parts, device, group) for device in (0, 1)),
        ]
        for group in {group for group, *_ in parts if group}
    }
    assert found == expected
    result = overlap(scope)
    if len(expected) == 2:
        assert result.groups is not None
        both = result.groups["exposed_ns"].sum()
        assert both >= result.devices["exposed_ns"].sum() >= result.groups["exposed_ns"].max()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(pieces)
def test_each_fiftieth_of_a_step_ns_by_ns(parts: list[Piece]) -> None:
    scope = select(planted(parts))
    if scope.window != "steps":
        return
    found = positions(scope)
    totals, steps = [[0, 0] for _ in range(BINS)], 0
    for device in scope.device_ids:
        busy, computing = spans(parts, device, "a", "b"), spans(parts, device, "")
        first = {}
        for _, on, start, _ in parts:
            if on == device:
                number = start // STEP
                first[number] = min(first.get(number, start), start)
        begins = sorted(max(start, scope.start) for start in first.values())
        for begin, end in zip(begins, [*begins[1:], scope.end], strict=True):
            steps += 1
            edges = [begin + (end - begin) * part // BINS for part in range(BINS + 1)]
            for part in range(BINS):
                for now in range(edges[part], edges[part + 1]):
                    talks = any(low <= now < high for low, high in busy)
                    alone = talks and not any(low <= now < high for low, high in computing)
                    totals[part][0] += talks
                    totals[part][1] += alone
    assert found["mean_communication_ns"].to_list() == pytest.approx([talks / steps for talks, _ in totals])
    assert found["mean_exposed_ns"].to_list() == pytest.approx([alone / steps for _, alone in totals])


# -- layers -----------------------------------------------------------------------------------------


def training(*buckets: list[int], reduced: list[int] | None = None, accumulated: bool = False) -> Scope:
    """A backward pass over layers with gradients of these sizes, reduced in these buckets; `reduced` are the recorded sizes.

    With `accumulated`, an earlier pass has the same gradients and reduces none.
    """
    made = Planted()
    sizes = [size for bucket in buckets for size in bucket]
    ends = {sum(map(len, buckets[: at + 1])) - 1: at for at in range(len(buckets))}
    at, calls = 0, []
    for again in (False, True) if accumulated else (True,):
        for layer in range(len(sizes)):
            made.span("annotation", f"tracekit.layer/block.{layer}", at, at + 20 * US, layer=f"block.{layer}")
            made.span("op", "aten::linear", at + US, at + 15 * US, sequence=100 * again + layer)
            made.activity("gemm", at + 5 * US, 9 * US, launch=at + 2 * US)
            at += 20 * US
        for place, layer in enumerate(reversed(range(len(sizes)))):
            made.span(
                "op",
                "autograd::engine::evaluate_function: AddmmBackward0",
                at,
                at + 10 * US,
                2,
                sequence=100 * again + layer,
                forward_thread=1,
            )
            made.activity("gemm", at + 3 * US, 9 * US, launch=at + 2 * US)
            made.host[-1]["thread_id"] = 2
            node, at = at + 10 * US, at + 30 * US
            made.span(
                "op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", node, at, 2
            )
            made.span(
                "op",
                "torch::autograd::AccumulateGrad",
                node + US,
                node + 2 * US,
                2,
                shapes=f"[[{sizes[place]}]]",
            )
            if again and place in ends:
                made.span("op", "c10d::allreduce_", node + 3 * US, node + 15 * US, 2)
                made.span("op", "record_param_comms", node + 4 * US, node + 9 * US, 2)
                made.activity(NCCL, at, 5 * US, stream=20, launch=node + 5 * US, call_ns=US)
                made.host[-1]["thread_id"] = 2
                calls.append((reduced or list(map(sum, buckets)))[ends[place]])
    trace = made.trace()
    known = trace.host.filter(pl.col("name").cast(pl.String) == "record_param_comms").sort("start")
    rows = known.select("span_id", pl.lit("allreduce").alias("name"), pl.lit("Float").alias("dtype"), "start")
    rows = rows.with_columns(pl.Series("elements_in", calls), pl.lit(2).alias("group_size"))
    return select(replace(trace, collectives=conform(rows, COLLECTIVE_SCHEMA)))


def carried(scope: Scope) -> list[tuple[int, str | None, int]]:
    found = carried_layers(scope)
    assert set(found["carries"]) <= {"gradients"}
    return found.select("call", "layer", "bytes").rows()


BLOCKS = [
    (0, "block.4", 40),
    (0, "block.3", 80),
    (1, "block.2", 120),
    (1, "block.1", 160),
    (1, "block.0", 200),
]


@pytest.mark.parametrize("accumulated", [False, True])
def test_the_layers_of_each_bucket(accumulated: bool) -> None:
    scope = training([10, 20], [30, 40, 50], accumulated=accumulated)
    assert carried(scope) == BLOCKS
    layers = overlap(scope).layers
    assert layers is not None
    assert dict(layers.select("layer", "communication_ns").rows()) == {f"block.{n}": 5 * US for n in range(5)}


def test_a_bucket_whose_size_does_not_fit_is_not_explained() -> None:
    # The second holds something else too: 121 elements, of which 120 are gradients that arrived since the first.
    assert carried(training([10, 20], [30, 40, 50], reduced=[30, 121])) == BLOCKS[:2]
    # The last gradients alone would fit, but then one before them would be in no bucket.
    assert carried(training([10, 20], [30, 40, 50], reduced=[30, 90])) == BLOCKS[:2]
    assert carried(training([10, 20], reduced=[20])) == []


def test_fsdp_and_the_layers_own_calls() -> None:
    made = Planted()
    made.span("annotation", "FSDP::all_gather (model.0)", 0, 50 * US)
    made.activity("ncclDevKernel_AllGather_RING_LL(args)", 20 * US, 10 * US, launch=5 * US)
    made.span("annotation", "FSDP::post_backward_reduce (model.1)", 60 * US, 90 * US)
    made.activity("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(args)", 80 * US, 10 * US, launch=65 * US)
    made.span("annotation", "tracekit.layer/mlp", 100 * US, 130 * US, layer="mlp")
    made.activity("cross_device_reduce_1stage", 120 * US, 10 * US, launch=105 * US)
    made.activity("ncclDevKernel_Broadcast_RING_LL(args)", 150 * US, 10 * US, launch=140 * US)
    made.span("annotation", "tracekit.layer/head", 200 * US, 230 * US, layer="head")
    made.span(
        "annotation", "FullyShardedDataParallel._pre_forward", 201 * US, 220 * US
    )  # maybe another layer's
    made.activity("ncclDevKernel_AllGather_RING_LL(args)", 220 * US, 10 * US, launch=205 * US)
    found = carried_layers(select(made.trace()))
    assert found.select("call", "layer", "carries").rows() == [
        (0, "model.0", "parameters"),
        (1, "model.1", "gradients"),
        (2, "mlp", "own"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_the_bucket_of_a_real_run_on_gloo(rank: int) -> None:
    root = Path(__file__).resolve().parents[2]
    scope = select(tracekit.read(root / f"sample_traces/bert_cpu_ddp/trace-rank{rank}.json.gz"))
    found = (
        carried_layers(scope).group_by("call", "carries").agg(pl.col("bytes").sum(), pl.len()).sort("call")
    )
    assert found.select("carries", "bytes", "len").rows() == [("gradients", 153_608, 25)] * 3
    assert calls_of(scope).table["bytes"].gather(found["call"]).to_list() == [153_608] * 3
