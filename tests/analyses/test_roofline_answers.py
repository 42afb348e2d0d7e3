"""What a roofline says of the time whose work is not known: how much it is, why, and how to record it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tracekit.analyses.roofline import roofline
from tracekit.facts.ceilings import Ceilings

SHAPED = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}


def launched(folder: Path, *calls: tuple[str, dict[str, Any], str, int]) -> tracekit.Trace:
    """A trace in which each call (the operator's name, its inputs, the launch's name, the kernel's µs) launches one kernel."""
    events: list[dict[str, Any]] = []
    for number, (name, inputs, api, length) in enumerate(calls, start=1):
        host, link = {"ph": "X", "pid": 1, "tid": 1}, {"correlation": number}
        at = 1000 * number
        events += [
            {**host, "cat": "cpu_op", "name": name, "ts": at, "dur": 100, "args": inputs},
            {**host, "cat": "cuda_runtime", "name": api, "ts": at + 10, "dur": 5, "args": link},
            {
                **{"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "k", "ts": at + 50, "dur": length},
                "args": {"device": 0, "stream": 7, **link},
            },
        ]
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return tracekit.read(path)


PRODUCT = ("aten::mm", SHAPED, "cudaLaunchKernel", 50)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("my::region", "record a run without graphs."),
        ("vllm::all_reduce", "record a run without graphs (vLLM with `--enforce-eager`)."),
        ("sgl_kernel::fwd", "record a run without graphs (SGLang with `--disable-cuda-graph`)."),
        (
            "Torch-Compiled Region: 0/0",
            "record a run without graphs (`torch.compile` without the modes `reduce-overhead` and `max-autotune`).",
        ),
    ],
)
def test_replayed_graphs_are_one_unknown(name: str, how: str, tmp_path: Path) -> None:
    """Its largest kernel was named alone, though the same holds of all of them."""
    replays = [(name, {}, "cudaGraphLaunch", length) for length in (30, 20)]
    answer = roofline(launched(tmp_path, PRODUCT, *replays)).answer
    assert (
        f" Another 50.0 µs (50.0 %) are kernels of replayed graphs, whose operators are not recorded: {how}"
        in answer
    )


def test_operators_without_shapes_are_one_unknown(tmp_path: Path) -> None:
    bare = [(name, {}, "cudaLaunchKernel", 25) for name in ("aten::mm", "aten::add")]
    answer = roofline(launched(tmp_path, PRODUCT, *bare)).answer
    text = "Another 50.0 µs (50.0 %) is in operators whose shapes were not recorded"
    assert f"{text}: profile with record_shapes=True." in answer
    alone = roofline(launched(tmp_path, *bare))
    assert "whose shapes were not recorded." in alone.answer
    assert alone.not_captured is not None


def test_compiled_code_is_told_as_such(tmp_path: Path) -> None:
    answer = roofline(
        launched(tmp_path, PRODUCT, ("CompiledFunction", SHAPED, "cudaLaunchKernel", 50))
    ).answer
    assert "Another 50.0 µs (50.0 %) is code of `torch.compile`." in answer
    assert "torch from 2.5 on records that of Triton kernels." in answer


def test_overhead_of_processors_is_no_unknown_work(tmp_path: Path) -> None:
    """Half of the time was said to have no known FLOPs, though nothing is computed in it."""
    calls = (
        ("aten::linear", 0, 100, {}),
        ("aten::mm", 10, 40, SHAPED),
        ("my::mystery", 200, 40, {}),
        ("CompiledFunction", 300, 80, SHAPED),
    )
    events = [
        {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "args": args}
        for name, ts, dur, args in calls
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = roofline(tracekit.read(path))
    assert found.answer.startswith(
        "Views and operator wrappers take 27.3 % of the operators' time, and have no work to do. FLOPs and bytes are known for 25.0 % "
        "of the rest. Another 80.0 µs (36.4 %) is code of `torch.compile`. What it reads and writes is not recorded: record a run "
        "without it."
    )
    assert (found.flops_share, found.bytes_share) == (0.25, 0.25)
    rows = found.coverage["figure", "source", "device_ns"].rows()
    assert rows[:3] == [("FLOPs", "no work", 60_000), ("FLOPs", "analytic", 40_000), ("FLOPs", None, 120_000)]


def test_all_work_is_known_beside_overhead(tmp_path: Path) -> None:
    """Utilisation was said to be at least so much, and the work to be only that for which both are known, on every processor."""
    calls = (("aten::linear", 0, 1000, {}), ("aten::mm", 100, 800, SHAPED))
    events = [
        {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "args": args}
        for name, ts, dur, args in calls
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    own = Ceilings("a processor", "measured", {("fp32", "matrix"): 1e9}, {"DRAM": 1e11}, threads=2)
    answer = roofline(replace(tracekit.read(path), ceilings=own)).answer
    assert (
        "FLOPs and bytes are known for 100.0 % of the rest. The work reaches 65.5 % of its roofline" in answer
    )
    assert answer.endswith("Model FLOPs utilisation is 52.4 %.")


def test_communication_alone_is_not_told_to_be_measured(tmp_path: Path) -> None:
    """`tracekit machine` measures no link."""
    args = {"Input Dims": [[4096]], "Input type": ["float"], "Concrete Inputs": [""]}
    events = [
        {
            "ph": "X",
            "pid": 1,
            "tid": 1,
            "cat": "cpu_op",
            "name": f"gloo:{name}",
            "ts": ts,
            "dur": 50,
            "args": args,
        }
        for name, ts in (("all_reduce", 0), ("broadcast", 100))
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = roofline(tracekit.read(path))
    assert found.answer == (
        "FLOPs are known for 50.0 % of the operators' time, and bytes for 100.0 %. Another 50.0 µs (50.0 %) is work of which "
        "only the bytes are known, all in gloo:all_reduce. Communication has no roof: a link bounds it."
    )
    assert found.coverage["figure", "source"].rows() == [
        ("FLOPs", "analytic"),
        ("FLOPs", None),
        ("bytes", "analytic"),
    ]


def test_an_efficiency_of_little_work_says_so(tmp_path: Path) -> None:
    """Of a step that mostly communicates, the copies' efficiency was said to be that of all work that is known."""
    sums = {
        "Input Dims": [[1 << 20], [1 << 20]],
        "Input type": ["float", "float"],
        "Concrete Inputs": ["", ""],
    }
    launched(
        tmp_path,
        ("c10d::alltoall_base_", sums, "cudaLaunchKernel", 900),
        ("aten::relu", {**sums, "Input Dims": [[1 << 20]]}, "cudaLaunchKernel", 100),
    )
    path = tmp_path / "t.json"
    written = json.loads(path.read_text())
    for event in written["traceEvents"]:
        if event["cat"] == "kernel" and event["dur"] == 900:
            event["name"] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    written["deviceProperties"] = [
        {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}
    ]
    path.write_text(json.dumps(written))
    answer = roofline(tracekit.read(path)).answer
    assert "The work that has a roof, 10.0 % of the time, reaches" in answer


def test_work_above_the_roof_is_not_said_to_reach_a_part_of_it(tmp_path: Path) -> None:
    """It was said to reach 264 % of its roofline, and to take less time at the roof."""
    inputs = {"Input Dims": [[4096, 4096]], "Input type": ["float"], "Concrete Inputs": [""]}
    slow = {"Input Dims": [[4, 4]], "Input type": ["float"], "Concrete Inputs": [""]}
    launched(
        tmp_path, ("aten::relu", inputs, "cudaLaunchKernel", 10), ("aten::relu", slow, "cudaLaunchKernel", 9)
    )
    path = tmp_path / "t.json"
    written = json.loads(path.read_text())
    written["deviceProperties"] = [
        {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}
    ]
    path.write_text(json.dumps(written))
    found = roofline(tracekit.read(path))
    assert found.efficiency is not None
    assert found.efficiency > 1
    assert "reaches" not in found.answer
    assert "What is slower would take 9.00 µs less at the roof." in found.answer


def rated(trace: tracekit.Trace, **compute: float) -> str:
    """The answer under measured ceilings of 1 TB/s and these peaks."""
    peaks = {(precision, "vector"): rate for precision, rate in compute.items()}
    measured = Ceilings("a device", "measured on 2026-01-02", peaks, {"DRAM": 1e12}, threads=1)
    return roofline(replace(trace, ceilings=measured)).answer


def on_device(folder: Path, *calls: tuple[str, dict[str, Any], str, int]) -> tracekit.Trace:
    launched(folder, *calls)
    path = folder / "t.json"
    written = json.loads(path.read_text())
    written["deviceProperties"] = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    path.write_text(json.dumps(written))
    return tracekit.read(path)


def inputs(*sizes: list[int], dtype: str) -> dict[str, Any]:
    return {"Input Dims": list(sizes), "Input type": [dtype] * len(sizes), "Concrete Inputs": [""] * len(sizes)}  # fmt: skip


def test_arithmetic_above_its_peak_is_not_explained_by_caches(tmp_path: Path) -> None:
    product = inputs([1024, 1024], [1024, 1024], dtype="float")
    trace = on_device(tmp_path, ("aten::mm", product, "cudaLaunchKernel", 100))
    told = rated(trace, fp32=1e12)  # 2.1 GFLOP in 100 µs
    assert "caches hold" not in told
    assert "no cache makes arithmetic faster: its peak was measured too low" in told
    assert "0 ns less" not in told
    cached = on_device(tmp_path, ("aten::relu", inputs([4096, 4096], dtype="float"), "cudaLaunchKernel", 10))
    assert "as where caches hold what it reads" in rated(cached, fp32=1e15)


def test_why_nothing_has_a_roof_is_the_true_reason(tmp_path: Path) -> None:
    """With measured ceilings it was said that `tracekit machine` measures them, and it measures no int8."""
    trace = on_device(tmp_path, ("aten::_int_mm", inputs([64, 64], [64, 64], dtype="signed char"), "cudaLaunchKernel", 9))  # fmt: skip
    told = rated(trace, fp32=1e12)
    assert "The ceilings measured on a device have no peak in int8, the precision of this work, which `tracekit machine` does not measure." in told  # fmt: skip
    update = {
        "Input Dims": [*[[[64, 64]]] * 3, *[[]] * 7],
        "Input type": [*["TensorList"] * 3, *["Scalar"] * 7],
        "Concrete Inputs": ["", "", "", "0.0", "0.9", "0.1", "0.0", "False", "False", "False"],
    }
    told = rated(on_device(tmp_path, ("aten::_fused_sgd_", update, "cudaLaunchKernel", 9)), fp32=1e12)
    assert "aten::_fused_sgd_, 9.00 µs (bytes: the types in its lists are not recorded)" in told
    assert "tracekit machine" not in told


@pytest.mark.parametrize("name", [None, ""])
def test_a_device_without_a_name_is_not_called_null(name: str | None, tmp_path: Path) -> None:
    product = inputs([64, 64], [64, 64], dtype="float")
    on_device(tmp_path, ("aten::mm", product, "cudaLaunchKernel", 9))
    path = tmp_path / "t.json"
    path.write_text(path.read_text().replace('"NVIDIA A100-SXM4-80GB"', json.dumps(name)))
    answer = roofline(tracekit.read(path)).answer
    assert "The trace does not name its device, so its ceilings are not known." in answer


def test_a_type_that_is_not_known_is_named(tmp_path: Path) -> None:
    """900 µs without bytes were not in the largest unknown, which was said to be of 300 µs."""
    strange = inputs([64, 64], [64, 64], dtype="c10::Float8_e3m4")
    found = roofline(
        on_device(
            tmp_path,
            ("aten::mm", strange, "cudaLaunchKernel", 90),
            ("mylib::secret", inputs([8], dtype="float"), "cudaLaunchKernel", 30),
            ("aten::relu", inputs([64, 64], dtype="c10::Float8_e3m4"), "cudaLaunchKernel", 20),
        )
    )
    assert "The largest unknown is aten::mm, 90.0 µs (bytes: unknown type c10::Float8_e3m4)." in found.answer
    assert found.unmodelled is not None
    assert found.unmodelled["name", "reason"].rows() == [
        ("aten::mm", "bytes: unknown type c10::Float8_e3m4"),
        ("mylib::secret", "no formula for it"),
        ("aten::relu", "unknown type c10::Float8_e3m4"),
    ]


VARLEN = {
    "Input Dims": [*[[3000, 8, 64]] * 3, *[[4]] * 2, *[[]] * 10],
    "Input type": [*["c10::BFloat16"] * 3, "int", "int", *["Scalar"] * 5, *[""] * 5],
    "Concrete Inputs": [*[""] * 5, "1500", "1500", "0.", "True", "False", *[""] * 5],
}
"""Attention over sequences of unknown lengths: these shapes tell bytes and no FLOPs."""


def test_work_of_which_only_bytes_are_known_is_named(tmp_path: Path) -> None:
    """It was 95 % of the time, and in no list of what is not known."""
    long = ("aten::_flash_attention_forward", VARLEN, "cudaLaunchKernel", 950)
    found = roofline(on_device(tmp_path, PRODUCT, long))
    assert (found.flops_share, found.bytes_share) == (0.05, 1.0)
    assert "Another 950 µs (95.0 %) is work of which only the bytes are known, all in aten::_flash_attention_forward." in found.answer  # fmt: skip
    assert found.unmodelled is not None
    assert found.unmodelled.rows() == [("aten::_flash_attention_forward", "FLOPs: its inputs do not tell", 1, 950_000, 0.95)]  # fmt: skip
    # Recorded copies compute nothing, so they lack nothing.
    assert roofline(on_device(tmp_path, PRODUCT)).unmodelled.is_empty()  # type: ignore[union-attr]


@pytest.mark.parametrize(("length", "told"), [(40, True), (60, False)])
def test_a_part_of_the_computation_is_not_told_as_the_utilisation(
    length: int, told: bool, tmp_path: Path
) -> None:
    """Of FLOPs that were known for 5 % of the time, the line below the answer gave a utilisation without reserve."""
    secret = ("aten::_flash_attention_forward", VARLEN, "cudaLaunchKernel", length)
    found = roofline(on_device(tmp_path, PRODUCT, secret))
    assert (found.model_utilisation is not None) == told
    assert found.model["model_utilisation", "hardware_utilisation"].null_count().row(0) == (
        not told,
        not told,
    )
    assert found.efficiency is not None  # of the product, as the answer says


def test_a_roof_of_next_to_no_time_is_no_headline(tmp_path: Path) -> None:
    """The efficiency of fills, a ten-thousandth of the time, stood as that of the program."""
    long = ("aten::mm", {}, "cudaLaunchKernel", 90_000)
    for first, ending in (
        (PRODUCT, "Less than 0.5 % of the time is work that has a roof."),
        (long, "The largest unknown is aten::mm, 180 ms (shapes not recorded)."),
    ):
        on_device(tmp_path, first, long)
        path = tmp_path / "t.json"
        written = json.loads(path.read_text())
        fill = {"device": 0, "stream": 7, "correlation": 2, "bytes": 4096}
        written["traceEvents"].append({"ph": "X", "pid": 0, "tid": 7, "cat": "gpu_memset", "name": "Memset (Device)", "ts": 1, "dur": 5, "args": fill})  # fmt: skip
        path.write_text(json.dumps(written))
        found = roofline(tracekit.read(path))
        assert found.model["efficiency"].null_count() == 0
        assert (found.efficiency, found.wasted_ns) == (None, None)
        assert found.answer.endswith(ending)
