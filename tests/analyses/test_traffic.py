"""What collectives and copies carry, and on which threads the backward pass runs: traces planted by hand."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from planted import MS, US, Planted

from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.layers import layers
from tracekit.analyses.parts import DeviceParts, run_parts
from tracekit.analyses.scope import select
from tracekit.report.build import build_report
from tracekit.trace import Trace

GEMM = "ampere_sgemm_128x64_nn"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ENGINE = "autograd::engine::evaluate_function: "
ACCUMULATE = f"{ENGINE}torch::autograd::AccumulateGrad"


def launch(made: Planted, name: str, at: int, thread: int = 1, **columns: object) -> None:
    """An activity of 10 µs, and its launch 5 µs before."""
    made.activity(name, at + 5 * US, 10 * US, launch=at, **columns)  # type: ignore[arg-type]
    made.host[-1]["thread_id"] = thread


def copy(made: Planted, at: int, count: int = 1 << 20) -> None:
    made.copy("HtoD (Pageable -> Device)", at + 5 * US, 10 * US, count, launch=at)


def with_threads(trace: Trace, names: dict[int, str]) -> Trace:
    rows = {"process_id": [1] * len(names), "thread_id": list(names), "name": list(names.values())}
    return replace(trace, threads=pl.DataFrame(rows, schema=dict(trace.threads.schema)))


def places(trace: Trace, window: str = "trace") -> list[tuple[str, str | None]]:
    """The phase and the layer of each activity, in the order of their starts."""
    scope = select(trace, window=window)  # type: ignore[arg-type]
    rows = attributed(scope).join(attribution(scope).layers, on="layer_id", how="left").sort("start")
    return rows.select(pl.col("phase").cast(pl.String), "path").rows()


def training() -> Planted:
    """The forward of one layer on thread 1; its backward node (number 7) begins on thread 2 at 200 µs."""
    made = Planted()
    made.step(0, 0, MS)
    made.span("annotation", "tower", 10 * US, 60 * US)
    made.span("op", "aten::mm", 20 * US, 50 * US, sequence=7)
    launch(made, GEMM, 30 * US)
    made.span("op", f"{ENGINE}TowerBackward", 200 * US, 300 * US, 2, sequence=7, forward_thread=1)
    made.span("op", "TowerBackward", 205 * US, 295 * US, 2, sequence=7, forward_thread=1)
    return made


def collective(made: Planted, name: str, kernel: str, at: int, thread: int = 2) -> None:
    made.span("annotation", f"nccl:{name}", at, at + 20 * US, thread)
    launch(made, kernel, at + 2 * US, thread)


@pytest.mark.parametrize("name", ["all_to_all", "all_reduce", "_all_gather_base", "send 0->1"])
def test_what_a_backward_node_sends_belongs_to_its_layer(name: str) -> None:
    made = training()
    collective(made, name, SEND, 220 * US)
    assert places(made.trace())[1] == ("backward", "tower")


def test_a_range_in_a_backward_node_is_no_forward_that_runs_again() -> None:
    """It may be of anything, such as communication."""
    made = training()
    made.span("annotation", "alltoall_bwd", 210 * US, 250 * US, 2)
    collective(made, "all_to_all", SEND, 220 * US)
    made.span("annotation", "tower", 260 * US, 290 * US, 2)
    launch(made, GEMM, 270 * US, 2)
    trace = made.trace()
    assert places(trace)[1:] == [("backward", "alltoall_bwd"), ("backward", "tower")]
    assert attributed(select(trace)).sort("start")["recomputed"].to_list() == [False] * 3


def test_what_adds_up_a_gradient_reduces_it_whatever_the_kernel_is_called() -> None:
    made = training()
    made.span("op", ACCUMULATE, 310 * US, 400 * US, 2)
    made.span("op", "torch::autograd::AccumulateGrad", 311 * US, 320 * US, 2)
    collective(made, "all_reduce", SEND, 330 * US)
    assert places(made.trace())[1] == ("communication", "<gradient reduction>")


def test_a_gathering_in_the_backward_pass_reduces_no_gradient() -> None:
    made = training()
    made.span("annotation", "FSDP::pre_backward (tower)", 310 * US, 400 * US, 2)
    collective(made, "_all_gather_base", "ncclDevKernel_AllGather_RING_LL", 330 * US)
    assert places(made.trace())[1] == ("backward", "<FSDP>")


def test_fsdp_reduces_gradients_inside_a_numbered_node() -> None:
    made = training()
    node = "RegisterPostBackwardFunctionBackward"
    made.span("op", f"{ENGINE}{node}", 310 * US, 400 * US, 2, sequence=5, forward_thread=1)
    made.span("op", node, 311 * US, 399 * US, 2, sequence=5, forward_thread=1)
    made.span("annotation", "FSDP::post_backward_reduce (tower)", 315 * US, 390 * US, 2)
    launch(made, "chunk_cat_cuda_kernel", 320 * US, 2)
    collective(made, "_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 340 * US)
    assert places(made.trace())[1:] == [("communication", "<gradient reduction>")] * 2


def test_copies_between_buckets_and_gradients_are_no_work_of_a_layer() -> None:
    made = training()
    made.span("op", ACCUMULATE, 310 * US, 350 * US, 2)
    made.span("op", "torch::distributed::reducer::mul_out", 315 * US, 345 * US, 2)
    launch(made, "elementwise_kernel", 320 * US, 2)
    made.span("op", "torch.distributed.ddp.reducer::copy_bucket_to_grad", 360 * US, 390 * US, 2)
    made.span("op", "aten::copy_", 365 * US, 385 * US, 2)
    launch(made, "Memcpy DtoD (Device -> Device)", 370 * US, 2, kind="memcpy", call="cudaMemcpyAsync")
    assert places(made.trace())[1:] == [("communication", "<gradient reduction>")] * 2


@pytest.mark.parametrize("stacks", [False, True])
def test_buffers_are_sent_before_the_model_runs(stacks: bool) -> None:
    made = Planted()
    made.step(0, 0, MS)
    if stacks:
        made.span("module", "nn.Module: DistributedDataParallel_0", 5 * US, 500 * US)
        made.span("module", "nn.Module: ResNet_0", 200 * US, 490 * US)
    made.span("annotation", "DistributedDataParallel.forward", 10 * US, 495 * US)
    made.span("op", "aten::flatten_dense_tensors", 20 * US, 50 * US)
    launch(made, "CatArrayBatchedCopy", 30 * US)
    made.span("op", "c10d::broadcast_", 60 * US, 90 * US)
    collective(made, "broadcast", "ncclDevKernel_Broadcast_RING_LL", 65 * US, thread=1)
    made.span("op", "aten::copy_", 100 * US, 130 * US)
    launch(made, "Memcpy DtoD (Device -> Device)", 110 * US, kind="memcpy", call="cudaMemcpyAsync")
    made.span("op", "aten::conv2d", 220 * US, 300 * US, sequence=1)
    launch(made, GEMM, 230 * US)
    made.span("op", "Conv2dBackward", 600 * US, 700 * US, 2, sequence=1, forward_thread=1)
    launch(made, GEMM, 620 * US, 2)
    model = "DistributedDataParallel_0.ResNet_0" if stacks else "<DistributedDataParallel>"
    assert places(made.trace()) == [
        *[("communication", "<buffer synchronisation>")] * 3,
        ("forward", model),
        ("backward", model if stacks else "<backward>"),
    ]


def test_a_batch_is_copied_before_the_forward_pass_computes() -> None:
    """In the module that receives it, too; a later copy in a module is that module's."""
    made = Planted()
    for number in range(2):
        begin = number * MS
        made.step(number, begin, begin + MS)
        made.span("module", "nn.Module: Net_0", begin + 10 * US, begin + 500 * US)
        copy(made, begin + 20 * US)
        made.span("op", "aten::mm", begin + 100 * US, begin + 140 * US)
        launch(made, GEMM, begin + 110 * US)
        copy(made, begin + 200 * US, 64)
    assert (
        places(made.trace(), "steps") == [("data", "<data>"), ("forward", "Net_0"), ("forward", "Net_0")] * 2
    )


@pytest.mark.parametrize(
    "name", ["to", "batch.to", "to_device", "load_inputs", "copy batch to GPU", "## H2D ##"]
)
def test_ranges_around_the_copies_of_a_batch_are_data(name: str) -> None:
    made = training()
    made.span("annotation", name, 100 * US, 150 * US)
    copy(made, 110 * US)
    assert places(made.trace())[1] == ("data", "<data>")


@pytest.mark.parametrize("name", ["tower", "toy", "total", "data_parallel", "stop", "input_norm"])
def test_other_ranges_are_layers(name: str) -> None:
    made = Planted()
    made.span("annotation", name, 10 * US, 100 * US)
    made.span("op", "aten::mm", 20 * US, 60 * US)
    launch(made, GEMM, 30 * US)
    assert places(made.trace()) == [("forward", name)]


def weights_first(*, again: bool = False) -> Planted:
    """A run without steps: long copies in a range, then one product; `again` copies as much once more."""
    made = Planted()
    made.span("annotation", "[param|cuda]", 0, 60 * MS)
    for number in range(4):
        made.copy(
            "HtoD (Pageable -> Device)",
            number * 10 * MS + 5 * US,
            9 * MS,
            (1 << 20) + number,
            launch=number * 10 * MS,
        )
    made.span("op", "aten::mm", 40 * MS, 40 * MS + 100 * US)
    for number in range(20):
        made.activity(GEMM, 40 * MS + number * MS, MS, launch=40 * MS + number * 20 * US)
    if again:
        for number in range(4):
            made.copy(
                "HtoD (Pageable -> Device)",
                (61 + number) * MS,
                MS,
                (1 << 20) + number,
                launch=(61 + number) * MS,
            )
    return made


def test_weights_are_copied_to_set_the_program_up() -> None:
    assert places(weights_first().trace())[:5] == [*[("set_up", "<set-up>")] * 4, ("forward", "[param|cuda]")]


def test_copies_that_come_again_bring_a_batch() -> None:
    assert "set_up" not in {phase for phase, _ in places(weights_first(again=True).trace())}


def test_a_program_that_runs_already_is_not_set_up() -> None:
    """The device still works on what was launched before the recording."""
    made = weights_first()
    made.activity("Memset (Device)", 0, 10, kind="memset")
    assert "set_up" not in {phase for phase, _ in places(made.trace())}


def test_what_is_copied_before_the_first_step_sets_up() -> None:
    made = training()
    for row in (*made.host, *made.device):
        row["start"] += MS
    copy(made, 100 * US)
    made.span("annotation", "load_batch", 200 * US, 300 * US)
    copy(made, 210 * US)
    assert places(made.trace())[:2] == [("set_up", "<set-up>"), ("data", "<data>")]


def test_copies_of_the_set_up_do_not_bound_a_run() -> None:
    trace = weights_first().trace()
    parts = run_parts(trace)
    assert isinstance(parts, DeviceParts)
    assert (parts.memory, parts.set_up) == (4 * 9 * MS, 4 * 9 * MS)
    verdict = build_report(trace).verdict
    assert verdict.bound == "compute-bound"
    assert next(cost for cost in verdict.costs if cost.label == "set-up copies").ns == 36 * MS
    assert any("set up the program" in note for note in verdict.notes)
    again = build_report(weights_first(again=True).trace()).verdict
    assert again.bound == "memory-copy-bound"


@pytest.mark.parametrize("engine", ["pt_autograd_0", "thread 2 (pt_autograd_12)"])
def test_threads_of_the_engine_are_known_by_their_name(engine: str) -> None:
    """Without operators, as in exports of Nsight Systems without ranges of PyTorch."""
    made = Planted()
    made.span("annotation", "train", 0, 900 * US)
    made.span("annotation", "encoder", 10 * US, 100 * US)
    launch(made, GEMM, 20 * US)
    made.span("annotation", "loss.backward", 190 * US, 600 * US)
    launch(made, GEMM, 200 * US, 2)
    launch(made, ALL_REDUCE, 300 * US, 2)
    launch(made, SEND, 400 * US, 2)
    trace = made.trace()
    named = with_threads(trace, {1: "python", 2: engine})
    assert {phase for phase, _ in places(trace)} == {"forward"}
    assert places(named) == [
        ("forward", "train/encoder"),
        ("backward", "train/loss.backward"),
        ("communication", "<gradient reduction>"),
        ("backward", "train/loss.backward"),
    ]
    assert int(layers(named).tree["device_own_ns"].sum()) == 40 * US


def test_a_range_on_a_thread_of_the_engine_tells_the_phase() -> None:
    made = training()
    made.span("annotation", "optimizer_step", 500 * US, 600 * US, 2)
    launch(made, GEMM, 510 * US, 2)
    launch(made, GEMM, 700 * US, 2)
    named = with_threads(made.trace(), {2: "pt_autograd_0"})
    assert [phase for phase, _ in places(named)[1:]] == ["optimizer", "backward"]


def test_a_thread_of_the_backward_pass_without_a_name_does_not_only_communicate() -> None:
    """Its ranges of NCCL made it a thread of the backend, and its products communication outside the layers."""
    made = training()
    launch(made, GEMM, 220 * US, 2)
    collective(made, "all_reduce", ALL_REDUCE, 310 * US)
    assert [phase for phase, _ in places(made.trace())] == ["forward", "backward", "communication"]
