from __future__ import annotations

import re

import pytest
from paths import ROOT
from planted import MS, US, Planted, finding

import tracekit
from tracekit.analyses.scope import select
from tracekit.analyses.what_if import Scale, predicted
from tracekit.trace import DeviceInfo

KNOWN = DeviceInfo(0, "NVIDIA A100-SXM4-40GB", (8, 0), 108, 40_000_000_000, 2048, 32)
BATCH_NORM = "void at::native::batch_norm_backward_kernel<c10::BFloat16, float, float, int>(args)"


def planted(blocks: int | None, *, name: str = "scan(float*)", duration: int = MS, times: int = 1) -> Planted:
    """10 ms of work on 108 multiprocessors, of which some kernels have so many blocks."""
    made = Planted()
    for at in range(times):
        made.activity(name, at * duration, duration, blocks=blocks)
    made.activity("sm80_xmma_gemm_f16", times * duration, 10 * MS - times * duration, blocks=4096)
    return made


def test_fires_on_a_kernel_with_half_of_the_blocks() -> None:
    found = finding(planted(27).trace(), "kernels", "few_blocks")
    assert found is not None
    assert found.ns_at_stake == 750 * US
    assert found.severity == "warning"
    assert (
        found.title == "Kernels with fewer blocks than the device has multiprocessors take 10.0 % of the time"
    )
    assert found.evidence == (
        "1 kernel of 10 µs or more, with 27 blocks for 108 multiprocessors, takes 1.00 ms; on average, 75.0 % of the "
        "multiprocessors have no block meanwhile. scan(float*) leaves the most unused."
    )
    assert found.stretches == ((0, MS),)


def test_batch_norm_is_told_to_change_its_layout() -> None:
    found = finding(planted(27, name=BATCH_NORM).trace(), "kernels", "few_blocks")
    assert found is not None
    assert "channels_last" in found.advice


@pytest.mark.parametrize(
    ("elements", "stake"), [(110_000_000, None), (65_000_000, 500 * US), (1_000, 750 * US)]
)
def test_no_block_makes_a_kernel_faster_than_its_roof(elements: int, stake: int | None) -> None:
    """An addition at 85 %, half and nothing of the bandwidth of the memory."""
    made = Planted()
    shapes = f"[[{elements}], [{elements}], []]"
    made.span("op", "aten::add", 0, 20 * US, shapes=shapes, dtypes='["float", "float", "Scalar"]')
    made.activity("vectorized_elementwise_kernel", MS, MS, blocks=27, launch=5 * US)
    made.activity("sm80_xmma_gemm_f16", 2 * MS, 8 * MS, blocks=4096)
    found = finding(made.trace(devices=(KNOWN,)), "kernels", "few_blocks")
    assert (found is None) == (stake is None)
    assert found is None or found.ns_at_stake == pytest.approx(stake, abs=5 * US)


@pytest.mark.parametrize(
    ("blocks", "duration", "times"),
    [(108, MS, 1), (None, MS, 1), (0, MS, 1), (60, MS, 1), (1, 9 * US, 200)],
    ids=["as many", "unknown", "none", "little lost", "short"],
)
def test_silent(blocks: int | None, duration: int, times: int) -> None:
    made = planted(blocks, duration=duration, times=times)
    assert finding(made.trace(), "kernels", "few_blocks") is None


def test_what_runs_beside_another_kernel_leaves_nothing_unused() -> None:
    made = planted(27)
    made.activity("sm80_xmma_gemm_f16", MS // 2, US, blocks=4096, stream=8)
    assert finding(made.trace(), "kernels", "few_blocks") is None


def test_collectives_take_few_blocks_on_purpose() -> None:
    made = planted(24, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)")
    assert finding(made.trace(), "kernels", "few_blocks") is None


@pytest.mark.slow
def test_faster_kernels_save_no_more_than_the_host_lets_them() -> None:
    """A loop that its host slows down was promised 27 ms; with kernels that take no time it would have gained 3."""
    scopes = {
        name: select(tracekit.read(ROOT / f"sample_traces/{name}/trace.json.gz"))
        for name in ("yolov5_gpu_bf16", "resnet50_gpu_bf16", "resnet50_gpu_fp32")
    }
    gain = {
        name: max(predicted(one, [], at) - predicted(one, [Scale("kernel:*", 0.0)], at) for at in (-1, 0))
        for name, one in scopes.items()
    }
    found = {name: finding(one.trace, "kernels", "few_blocks") for name, one in scopes.items()}
    assert gain["yolov5_gpu_bf16"] < 4 * MS
    assert found["yolov5_gpu_bf16"] is None
    capped = found["resnet50_gpu_bf16"]
    assert capped is not None
    assert capped.ns_at_stake == gain["resnet50_gpu_bf16"]
    rate = finding(scopes["resnet50_gpu_fp32"].trace, "kernels", "no_tensor_cores")
    assert rate is not None  # its device is hardly idle
    assert (rate.ns_at_stake or 0) > 100 * MS


@pytest.mark.parametrize(
    ("waits", "shift", "turn", "says"),
    [
        (60, 0, 1, r"^Streams 7 and 13 take turns and never overlap: remove the waits .* \(60 calls of cudaStreamWaitEvent\)"),
        (0, 0, 1, r"^Streams 7 and 13 take turns and never overlap: see what keeps"),
        (60, 0, 30, r"^Give each launch more work.* on a separate stream"),  # two parts of a program
        (60, 3 * MS, 1, r"^Give each launch more work.* on a separate stream"),  # some overlap
    ],
)  # fmt: skip
def test_kernels_on_several_streams_are_not_told_to_use_another(
    waits: int, shift: int, turn: int, says: str
) -> None:
    """Two streams whose kernels wait for one another were told to run them on a stream of their own."""
    made = Planted()
    for number in range(60):
        stream = (7, 13)[number // turn % 2]
        made.activity("gemm", number * MS, MS, blocks=24, stream=stream, launch=number * 10 * US)
    for number in range(waits):
        made.call("cudaStreamWaitEvent", number * 10 * US + 7 * US, US)
    made.activity("gemm", 60 * MS - shift, 4 * MS, blocks=24, stream=13, launch=700 * US)
    found = finding(made.trace(), "kernels", "few_blocks")
    assert found is not None
    assert re.search(says, found.advice), found.advice
