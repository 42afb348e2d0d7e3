from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from planted import MS, US, Planted, finding
from planted_gloo import gloo, on_processors

from tracekit.analyses.registry import get_analysis
from tracekit.analyses.rules import run
from tracekit.analyses.scope import select
from tracekit.facts.collectives import collective_name
from tracekit.readers.assemble import conform
from tracekit.trace import COLLECTIVE_SCHEMA, Trace

DDP = ("annotation", "DistributedDataParallel.forward")
FSDP = ("annotation", "FSDP::pre_forward (layer.0)")
FSDP_1 = ("annotation", "FullyShardedDataParallel._pre_forward")
BACKWARD = ("op", "AddmmBackward0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "spans", "word"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", [DDP, BACKWARD], "no_sync()"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", [BACKWARD], "as DistributedDataParallel does"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", [], "computation that does not need its result"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)", [FSDP], "forward_prefetch"),
        ("ncclDevKernel_AllGather_RING_LL(args)", [FSDP_1], "forward_prefetch"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)", [], "Start the collective earlier"),
        ("ncclDevKernel_SendRecv(args)", [], "exchange"),
        ("ncclDevKernel_Broadcast_RING_LL(args)", [], "Start collectives earlier"),
    ],
)
def test_fires_and_fits_the_advice_to_the_collective_and_the_run(
    name: str, spans: list[tuple[str, str]], word: str
) -> None:
    planted = Planted()
    for kind, span in spans:
        planted.span(kind, span, 0, MS)
    planted.activity("compute", 0, 6 * MS)
    planted.activity(name, 5 * MS, 5 * MS, stream=20)
    found = finding(planted.trace(), "breakdown", "exposed_communication")
    assert found is not None
    assert found.title == "Exposed communication takes 40.0 % of the time"
    assert "4.00 ms of the 5.00 ms" in found.evidence
    assert f" 4.00 ms of it is {collective_name(name)}, once." in found.evidence
    assert word in found.advice
    assert (found.ns_at_stake, found.severity) == (4 * MS, "critical")


@pytest.mark.parametrize("compared", [False, True])
def test_ranks_that_were_compared_are_not_to_be_compared(compared: bool) -> None:
    """The report of the rank that the others wait for, below the joint view, said to compare the ranks first."""
    planted = Planted()
    planted.activity("compute", 0, 6 * MS)
    planted.activity("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 5 * MS, 5 * MS, stream=20)
    scope = replace(select(planted.trace()), compared=0 if compared else None)
    (found,) = (
        one for one in run(get_analysis("breakdown"), scope).findings if one.id == "exposed_communication"
    )
    assert ("Compare the ranks" in found.advice) != compared
    assert ("in the joint view" in found.advice) == compared


def test_silent_when_computation_hides_it() -> None:
    planted = Planted()
    planted.activity("compute", 0, 10 * MS)
    planted.activity("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 5 * MS, 5_400_000, stream=20)
    assert finding(planted.trace(), "breakdown", "exposed_communication") is None


@pytest.mark.parametrize(("elements", "waits"), [(1_000, True), (1_000_000, False)])
def test_collectives_that_send_little_wait_for_other_ranks(elements: int, waits: bool) -> None:
    planted = Planted()
    planted.span("op", "aten::mm", 0, 10 * MS)
    planted.span("op", "c10d::allreduce_", 10 * MS, 15 * MS, shapes=f"[[[{elements}]], [], []]")
    planted.span("annotation", "gloo:all_reduce", 10 * MS, 15 * MS, 2, shapes=f"[[{elements}]]")
    found = finding(planted.trace(devices=()), "breakdown", "exposed_communication")
    assert found is not None
    assert ("All collectives send only 4.00 kB." in found.evidence) == waits
    assert ("cores of their own" in found.advice) == waits


def test_names_the_layer_whose_calls_are_exposed() -> None:
    planted = Planted()
    for layer in range(2):
        at = layer * 4 * MS
        planted.span("annotation", f"tracekit.layer/block.{layer}", at, at + 3 * MS, layer=f"block.{layer}")
        planted.activity("gemm", at + MS, MS, launch=at + 10_000)
        planted.activity("cross_device_reduce_1stage", at + 2 * MS, (layer + 1) * MS, launch=at + 20_000)
    found = finding(planted.trace(), "breakdown", "exposed_communication")
    assert found is not None
    assert found.evidence.endswith(
        " 3.00 ms of it is all_reduce, twice for 1.00 ms to 2.00 ms each. 2.00 ms is for calls in block.1."
    )


@pytest.mark.parametrize(
    ("buckets", "says"),
    [
        ([30_000_000], "All gradients are in one bucket (30.0 MB)"),
        ([10_000_000, 30_000_000], "Most of the exposed time is the last bucket (30.0 MB)"),
        ([10_000_000, 1_000_000], ""),  # too small to divide
        ([10_000_000, None], ""),
    ],
)
def test_bucket_sizes_are_only_advised_on_where_the_data_show_it(
    buckets: list[int | None], says: str
) -> None:
    planted = Planted()
    planted.step(1, 0, 40 * MS)
    planted.span("annotation", "DistributedDataParallel.forward", 0, MS)
    planted.span("op", "AddmmBackward0", 2 * MS, 3 * MS)
    planted.activity("gemm", 2 * MS, 12 * MS, launch=2 * MS)
    for number in range(len(buckets)):
        at = (4 + number) * MS
        planted.span("annotation", "torch.distributed.ddp.reducer::copy_bucket_to_view", at, at + 90_000)
        planted.span("op", "record_param_comms", at + 10_000, at + 80_000)
        planted.activity(
            "ncclDevKernel_AllReduce_Sum_f32", (10 + 9 * number) * MS, 9 * MS, stream=20, launch=at + 20_000
        )
    trace = planted.trace()
    spans = trace.host.filter(pl.col("name").cast(pl.String) == "record_param_comms")["span_id"]
    rows = pl.DataFrame({"span_id": spans, "name": "allreduce", "elements_in": buckets, "dtype": "Byte"})
    trace = replace(trace, collectives=conform(rows, COLLECTIVE_SCHEMA))
    found = finding(trace, "breakdown", "exposed_communication")
    assert found is not None
    assert says in found.advice
    assert ("bucket_cap_mb" in found.advice) == bool(says)
    assert "no_sync()" in found.advice


def reducing(
    times: list[tuple[int, int]], steps: int = 1, updates: int = 1, beside: tuple[str, str] | None = None
) -> Trace:
    """In each step reductions of so many bytes, each for so many ms, with nothing beside; and updates in the first steps. `beside`: a
    span of each step.
    """
    planted, at = Planted(), 0
    for number in range(steps):
        begin = at
        planted.span("annotation", "DistributedDataParallel.forward", at, at + MS)
        planted.span("op", "AddmmBackward0", at + 2 * MS, at + 3 * MS)
        planted.activity("gemm", at + 2 * MS, MS, launch=at + 2 * MS)
        at += 4 * MS
        for _, length in times:
            planted.span("annotation", "torch.distributed.ddp.reducer::copy_bucket_to_view", at, at + 90_000)
            planted.span("op", "record_param_comms", at + 10_000, at + 80_000)
            planted.activity(
                "ncclDevKernel_AllReduce_Sum_f32", at + 30_000, length * MS, stream=20, launch=at + 20_000
            )
            at += (length + 1) * MS
        if beside:
            planted.span(*beside, at - MS, at)
        if number < updates:
            planted.span("annotation", "Optimizer.step#SGD.step", at, at + MS)
        at += MS
        planted.step(number, begin, at)
    trace = planted.trace()
    spans = trace.host.filter(pl.col("name").cast(pl.String) == "record_param_comms")["span_id"]
    sizes = [size for size, _ in times] * steps
    rows = pl.DataFrame(
        {
            "span_id": spans,
            "name": "allreduce",
            "elements_in": sizes,
            "dtype": "Byte",
            "group_size": 8,
            "group": "0",
        }
    )
    return replace(trace, collectives=conform(rows, COLLECTIVE_SCHEMA))


def test_a_large_collective_with_less_bandwidth_than_a_small_one_waits() -> None:
    """Of a rank that waited 22 ms for another one, it said to reduce while the backward pass computes."""
    found = finding(reducing([(60_000_000, 20), (20_000_000, 1)]), "breakdown", "exposed_communication")
    assert found is not None
    assert "about 17.0 ms of its 20.0 ms may be spent waiting for another rank" in found.evidence
    assert "see which one arrives last" in found.advice
    alike = finding(reducing([(60_000_000, 6), (20_000_000, 2)]), "breakdown", "exposed_communication")
    assert alike is not None
    assert "wait" not in alike.evidence


@pytest.mark.parametrize(("updates", "in_vain"), [(1, True), (2, True), (3, False), (4, False), (0, False)])
def test_gradients_that_are_reduced_in_every_micro_step(updates: int, in_vain: bool) -> None:
    trace = reducing([(20_000_000, 3)], steps=4, updates=updates)
    found = finding(trace, "breakdown", "exposed_communication")
    assert found is not None
    assert (f"Gradients are reduced in 4 steps and applied in {updates}:" in found.advice) == in_vain


@pytest.mark.parametrize(
    ("reduced", "cleared", "said"),
    [
        (
            {0, 1, 2, 3},
            1,
            "Gradients are reduced in 24 passes and applied in 6 updates: reduce them only before",
        ),
        ({0, 1, 2, 3}, 4, "Accumulate gradients under DistributedDataParallel's no_sync()"),
        ({3}, 1, "Accumulate gradients over more micro-batches than now"),
    ],
)
def test_steps_of_several_passes(reduced: set[int], cleared: int, said: str) -> None:
    """A run that used no_sync() was told to, and one that reduced in each of its passes was told no more than others."""
    made = Planted()
    for at in (number * 40 * MS for number in range(6)):
        made.step(at // (40 * MS), at, at + 40 * MS)
        for number in range(4):
            begin = at + number * 9 * MS
            if number < cleared:
                made.span("annotation", "Optimizer.zero_grad#SGD.zero_grad", begin, begin + 10 * US)
            made.span("annotation", "DistributedDataParallel.forward", begin + 20 * US, begin + MS)
            made.span("op", "aten::linear", begin + 20 * US, begin + MS, sequence=number)
            made.span("op", "AddmmBackward0", begin + MS, begin + 2 * MS, sequence=number, forward_thread=1)
            if number in reduced:
                made.span("op", "torch::autograd::AccumulateGrad", begin + 2 * MS, begin + 3 * MS)
                made.span(
                    "op",
                    "c10d::allreduce_",
                    begin + 2 * MS,
                    begin + 2 * MS + 8 * US,
                    shapes="[[[900000]], []]",
                )
                gloo(made, begin + 2 * MS + 10 * US, 5 * MS, 900_000)
        made.span("annotation", "Optimizer.step#SGD.step", at + 39 * MS, at + 39 * MS + 100 * US)
    found = on_processors(made, "exposed_communication")
    assert found is not None
    assert said in found.advice


@pytest.mark.parametrize(
    "beside",
    [
        ("op", "aten::_amp_foreach_non_finite_check_and_unscale_"),
        ("annotation", "Optimizer.zero_grad#SGD.zero_grad"),
    ],
)
def test_an_update_that_a_gradient_scaler_leaves_out_reduces_nothing_in_vain(beside: tuple[str, str]) -> None:
    """GradScaler left two of four updates out, and gradients were said to be reduced in 4 steps and applied in 2."""
    trace = reducing([(20_000_000, 3)], steps=4, updates=2, beside=beside)
    found = finding(trace, "breakdown", "exposed_communication")
    assert found is not None
    assert "applied in" not in found.advice


def launching(place: str, dtype: str) -> Trace:
    """Three steps of 20 ms with a backward pass of 1 ms and three reductions of 5 ms, launched in it, after it or after the update."""
    planted = Planted()
    for number in range(3):
        at = 20 * MS * number
        planted.step(number, at, at + 20 * MS)
        first = {"in": at + MS, "after": at + 3 * MS, "update": at + 5 * MS}[place]
        for each in range(4):
            begin = at + MS + each * 400_000
            planted.span("op", "AddmmBackward0", begin, begin + 50_000)
            planted.activity("gemm", begin + 20_000, 250_000, launch=begin + 10_000)
        planted.span("annotation", "Optimizer.step#SGD.step", at + 4 * MS, at + 4_500_000)
        for each in range(3):
            begin = first + 100_000 + each * 400_000
            planted.span("op", "record_param_comms", begin, begin + 90_000)
            start = at + 2 * MS + each * 6 * MS
            planted.activity(
                "ncclDevKernel_AllReduce_Sum_f32", start, 5 * MS, stream=20, launch=begin + 20_000
            )
    trace = planted.trace()
    spans = trace.host.filter(pl.col("name").cast(pl.String) == "record_param_comms")["span_id"]
    rows = pl.DataFrame({"span_id": spans, "name": "allreduce", "elements_in": 10_000_000, "dtype": dtype})
    return replace(trace, collectives=conform(rows, COLLECTIVE_SCHEMA))


@pytest.mark.parametrize(
    ("place", "dtype", "says"),
    [
        ("in", "Float", "send fewer bytes (in a lower precision), or accumulate gradients over more"),
        (
            "in",
            "BFloat16",
            "already launches the reductions but is too short to hide them, so send fewer bytes: acc",
        ),
        ("after", "Float", "Reduce gradients during the backward pass"),
        ("update", "Float", "average the parameters less often, or send fewer bytes"),
    ],
)
def test_reductions_of_the_backward_pass_need_not_start_earlier(place: str, dtype: str, says: str) -> None:
    """On a slow network, buckets launched inside the backward pass hid little, and were told to overlap as they did."""
    found = finding(launching(place, dtype), "breakdown", "exposed_communication")
    assert found is not None
    assert says in found.advice
    assert ("as DistributedDataParallel does" in found.advice) == (place == "after")


def tensor_parallel(*, slowest: int = MS, ranges: bool = True) -> Trace:
    """Two steps in which each of four layers exchanges its result, forward and in a node of the backward pass."""
    planted, at = Planted(), 0
    for number in range(2):
        begin = at
        for backward in (False, True):
            for each in range(4):
                if backward:
                    planted.span("op", "RowParallelBackward", at, at + 90_000, sequence=each)
                elif ranges:
                    planted.span("annotation", "forward", at, at + 90_000)
                planted.span("op", "record_param_comms", at + 10_000, at + 80_000)
                planted.activity("gemm", at + 20_000, MS, launch=at + 5_000)
                length = slowest if each == 3 else MS
                planted.activity(
                    "ncclDevKernel_AllReduce_Sum_bf16",
                    at + MS + 30_000,
                    length,
                    stream=20,
                    launch=at + 20_000,
                )
                at += 4 * MS
        planted.span("annotation", "Optimizer.step#SGD.step", at, at + MS)
        at += MS
        planted.step(number, begin, at)
    trace = planted.trace()
    spans = trace.host.filter(pl.col("name").cast(pl.String) == "record_param_comms")["span_id"]
    rows = pl.DataFrame(
        {
            "span_id": spans,
            "name": "allreduce",
            "elements_in": 8_000_000,
            "dtype": "BFloat16",
            "group_size": 8,
        }
    )
    return replace(trace, collectives=conform(rows, COLLECTIVE_SCHEMA))


@pytest.mark.parametrize("ranges", [True, False])
def test_collectives_of_layers_are_no_reductions_of_gradients(ranges: bool) -> None:
    """Tensor parallelism was to accumulate gradients over more micro-batches."""
    found = finding(tensor_parallel(ranges=ranges), "breakdown", "exposed_communication")
    assert found is not None
    assert "it carries no weight gradients: let fewer ranks share a layer" in found.advice
    assert "micro-batches" not in found.advice
    assert "16 times for 1.00 ms each, with a bus bandwidth of at most 28 GB/s." in found.evidence


def test_ranks_are_compared_first_only_where_equal_collectives_differ() -> None:
    """Calls that all took as long were first of all said to wait for a slower rank."""
    steady, uneven = (
        finding(tensor_parallel(slowest=slowest), "breakdown", "exposed_communication")
        for slowest in (MS, 3 * MS)
    )
    assert steady is not None
    assert uneven is not None
    assert steady.advice.startswith("Layers launch this collective")
    assert "Compare the ranks as well" in steady.advice
    assert uneven.advice.startswith("Compare the ranks first")


@pytest.mark.parametrize(("dtype", "narrow"), [("Float", False), ("BFloat16", True)])
def test_gradients_in_16_bits_are_not_to_be_reduced_in_16_bits(dtype: str, narrow: bool) -> None:
    trace = reducing([(5_000_000, 4)])
    assert trace.collectives is not None
    trace = replace(
        trace,
        collectives=trace.collectives.with_columns(dtype=pl.lit(dtype, trace.collectives["dtype"].dtype)),
    )
    found = finding(trace, "breakdown", "exposed_communication")
    assert found is not None
    assert "no_sync()" in found.advice
    assert ("in bf16" in found.advice) != narrow


def test_what_a_range_launches_behind_the_backward_pass_is_of_no_layer() -> None:
    """A mean of gradients in a range of the program "carries no weight gradients: let fewer ranks share a layer"."""
    made, at = Planted(), 0
    for number in range(3):
        begin = at
        made.span("annotation", "forward", at, at + 2 * MS)
        made.activity("gemm", at + US, 4 * MS, launch=at)
        made.span(
            "op", "autograd::engine::evaluate_function: MmBackward0", at + 2 * MS, at + 4 * MS, thread=2
        )
        made.span("op", "MmBackward0", at + 2 * MS, at + 4 * MS, thread=2, sequence=number)
        made.activity("gemm", at + 4 * MS + US, 4 * MS)
        made.device[-1]["correlation"] = None
        made.span("annotation", "average_gradients", at + 4 * MS, at + 5 * MS)
        made.activity(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", at + 9 * MS, 4 * MS, launch=at + 4500 * US
        )
        made.span("annotation", "Optimizer.step#SGD.step", at + 13 * MS, at + 14 * MS)
        at += 14 * MS
        made.step(number, begin, at)
    found = finding(made.trace(), "breakdown", "exposed_communication")
    assert found is not None
    assert "let fewer ranks share a layer" not in found.advice
