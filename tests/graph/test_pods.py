"""Inputs sorted by length, and samples that devices share, on planted steps whose times are known by hand."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tests.rules.planted import MS, US, Planted
from tracekit.analyses.scope import Scope, select
from tracekit.analyses.what_if import Bandwidth, BucketInputs, PartitionSpace, predicted, what_if
from tracekit.errors import UsageError
from tracekit.readers.assemble import conform
from tracekit.trace import COLLECTIVE_SCHEMA, DeviceInfo

A100 = DeviceInfo(0, "NVIDIA A100-SXM4-40GB", (8, 0), 108, 40_000_000_000, 2048, 32)
PICTURE = "[8, 16, 32, 32]"
CONVOLUTION = ("aten::cudnn_convolution", f"[{PICTURE}, [16, 16, 3, 3], []]", "conv_kernel")
Call = tuple[str, str | None, str, int]
"""An operator, the shapes of its inputs, its kernel and how long that takes."""


def steps(*of_steps: list[Call]) -> Scope:
    """Steps whose kernels run one after the other, launched long before; the host waits for the last of each."""
    planted, clock = Planted(), 10 * MS
    for number, calls in enumerate(of_steps):
        begin = clock
        free = clock + MS
        clock += US
        planted.span("annotation", "tracekit.phase/forward", clock, clock + 20 * US * len(calls))
        for operator, shapes, kernel, ns in calls:
            texts = {} if shapes is None else {"shapes": shapes, "dtypes": '["float", "float"]'}
            planted.span("op", operator, clock, clock + 19 * US, **texts)
            planted.activity(kernel, free, ns, launch=clock + 5 * US)
            clock, free = clock + 20 * US, free + ns
        planted.call("cudaDeviceSynchronize", clock + US, free - clock - US)
        clock = free + 10 * US
        planted.step(number, begin, clock)
    return select(planted.trace(devices=(A100,)))


def test_devices_share_pictures_and_convolutions_pay_for_borders() -> None:
    scope = steps(
        [
            (*CONVOLUTION, 8 * MS),
            ("aten::relu", f"[{PICTURE}]", "relu_kernel", 4 * MS),
            ("aten::softmax", "[[8, 16, 64, 64]]", "softmax_kernel", 2 * MS),  # as large as no picture
            ("aten::mm", "[[64, 512], [512, 512]]", "gemm", MS),
        ]
    )
    before = predicted(scope, [])
    sent = 2 * 1 * 8 * 16 * 32 * 4
    for spread, share, start in ((-1, 1.0, 2 * US), (0, 0.8, 5 * US), (1, 0.5, 10 * US)):
        halo = sent / (300 * share) + start
        after = predicted(scope, [PartitionSpace(4)], spread)
        assert before - after == pytest.approx(0.75 * 8 * MS + 0.75 * 4 * MS - halo, abs=20), spread
    # 32 rows are 11, 11 and 10 for three devices.
    assert before - predicted(scope, [PartitionSpace(3)]) == pytest.approx(
        12 * MS * 21 / 32 - sent / 240 - 5 * US, abs=20
    )
    assert any("halos" in line for line in what_if(scope, [PartitionSpace(4)]).assumptions["assumption"])


def test_without_pictures_or_with_one_device_nothing_is_shared() -> None:
    plain = steps([("aten::mm", "[[64, 512], [512, 512]]", "gemm", MS)])
    with pytest.raises(UsageError, match="no kernel of the forward or backward pass works on images"):
        predicted(plain, [PartitionSpace(2)])
    with pytest.raises(UsageError, match="no kernel"):  # 32 rows are too few for 17 devices
        predicted(steps([(*CONVOLUTION, MS)]), [PartitionSpace(17)])
    with pytest.raises(UsageError, match="fewer than two devices"):
        PartitionSpace(1)


def of_lengths(lengths: list[int], waits: list[int], *, shapes: bool = True) -> Scope:
    """A step for each length of the inputs, with an all-reduce of 1 ms that also waits for longer ranks."""
    return steps(
        *(
            [
                ("aten::mm", f"[[{length}, 512], [512, 512]]" if shapes else None, "gemm", 4 * MS),
                ("c10d::allreduce_", None, "ncclKernel_AllReduce_RING_LL_Sum_float", MS + wait),
            ]
            for length, wait in zip(lengths, waits, strict=True)
        )
    )


def test_sorted_inputs_leave_of_each_collective_the_shortest() -> None:
    scope = of_lengths([64, 128, 96], [0, 3 * MS, 2 * MS])
    before = predicted(scope, [])
    assert before - predicted(scope, [BucketInputs()]) == pytest.approx(5 * MS, abs=20)
    assert predicted(scope, [BucketInputs()], 1) == before  # the waits may have other reasons


def test_equal_inputs_have_nothing_to_sort() -> None:
    with pytest.raises(UsageError, match="the same shapes in all steps"):
        predicted(of_lengths([64, 64], [0, MS]), [BucketInputs()])
    with pytest.raises(UsageError, match="fewer than two steps"):
        predicted(of_lengths([64], [0]), [BucketInputs()])
    told = what_if(of_lengths([64, 64], [0, MS], shapes=False), [BucketInputs()]).assumptions["assumption"]
    assert any("no shapes that would show it" in line for line in told)


def reductions(*sizes: tuple[int, int]) -> Scope:
    """A step of all-reduces over 8 ranks, one after the other, each of so many elements and ns; 0 elements: its size was not recorded."""
    planted, free = Planted(), 2 * MS
    for number, (_, ns) in enumerate(sizes):
        at = MS + 20 * US * number
        planted.span("op", "record_param_comms", at, at + 19 * US)
        planted.activity("ncclDevKernel_AllReduce_Sum_f32_RING_LL", free, ns, launch=at + 5 * US)
        free += ns
    planted.call("cudaDeviceSynchronize", MS + 20 * US * len(sizes), free - MS - 20 * US * len(sizes))
    planted.step(1, MS, free + 10 * US)
    trace = planted.trace(devices=(A100,))
    spans = trace.host.filter(pl.col("name").cast(pl.String) == "record_param_comms")["span_id"]
    rows = pl.DataFrame({"span_id": spans, "elements_in": [count or None for count, _ in sizes]})
    rows = rows.with_columns(name=pl.lit("allreduce"), dtype=pl.lit("Float"), group_size=8)
    return select(replace(trace, collectives=conform(rows, COLLECTIVE_SCHEMA)))


@pytest.mark.parametrize(
    ("sizes", "latency", "said"),
    [
        (((1_000, 60 * US), (1_001_000, 1_060 * US), (1_000, 90 * US)), 59 * US, "59.0 µs as their times by size"),
        (((1_000_000, 1_000 * US), (1_000_000, 1_200 * US)), 20 * US, "20.0 µs is assumed, since their sizes do not differ"),
        (((1_000, 400 * US), (1_000_000, 300 * US)), 20 * US, "since the largest do not take long enough to show it"),
        (((0, 300 * US), (0, 400 * US)), 300 * US, "that of the shortest one"),
    ],
    ids=["unlike", "alike", "disturbed", "unknown"],
)  # fmt: skip
def test_a_full_bucket_is_no_latency(sizes: tuple[tuple[int, int], ...], latency: int, said: str) -> None:
    scope = reductions(*sizes)
    before = predicted(scope, [])
    gain = sum(ns - latency for _, ns in sizes) / 2
    assert before - predicted(scope, [Bandwidth(2)]) == pytest.approx(gain, abs=50)
    shortest = min(ns for _, ns in sizes)
    assert before - predicted(scope, [Bandwidth(2)], 1) == pytest.approx(sum(ns - shortest for _, ns in sizes) / 2, abs=50)  # fmt: skip
    assert before - predicted(scope, [Bandwidth(2)], -1) == pytest.approx(sum(ns for _, ns in sizes) / 2, abs=50)  # fmt: skip
    assert said in what_if(scope, [Bandwidth(2)]).assumptions["assumption"][0]
