"""Of how much device time the work is known: the parts sum to the whole, and what is missing is named with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from paths import PUBLIC, SAMPLES

import tracekit
from tracekit.analyses.arithmetic import arithmetic
from tracekit.analyses.flops import counted
from tracekit.analyses.flops.coverage import CALLS_OTHERS, coverage
from tracekit.analyses.scope import select
from tracekit.spans import take


def launched(folder: Path, calls: list[tuple[str | None, dict[str, Any], str, int]]) -> Path:
    """A trace in which each call (the operator's name, its inputs, the launch's name, the kernel's µs) launches one kernel."""
    events: list[dict[str, Any]] = []
    for number, (name, inputs, api, length) in enumerate(calls, start=1):
        host = {"ph": "X", "pid": 1, "tid": 1, "ts": 1000 * number, "dur": 100}
        if name:
            events.append({**host, "cat": "cpu_op", "name": name, "args": inputs})
        link = {"correlation": number}
        launch = {"ts": 1000 * number + 10, "dur": 5, "cat": "cuda_runtime", "name": api, "args": link}
        events.append({**host, **launch})
        kind = (
            {"cat": "gpu_memcpy", "name": "Memcpy DtoD"}
            if "Memcpy" in api
            else {"cat": "kernel", "name": "k"}
        )
        where = {"ph": "X", "pid": 0, "tid": 7, "ts": 1000 * number + 50, "dur": length, **kind}
        sized = {"bytes": 64} if "Memcpy" in api else {}
        events.append({**where, "args": {"device": 0, "stream": 7, **link, **sized}})
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


SHAPED = {"Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
ODD = {"Input Dims": [[4, 8], [9, 2]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
LAUNCH = "cudaLaunchKernel"


def test_each_activity_is_known_or_named_with_its_reason(tmp_path: Path) -> None:
    trace = tracekit.read(
        launched(
            tmp_path,
            [
                ("aten::mm", SHAPED, LAUNCH, 100),
                ("my::copies", {}, "cudaMemcpyAsync", 20),
                ("aten::mm", ODD, LAUNCH, 7),
                ("aten::mm", {}, LAUNCH, 6),
                ("my::mystery", SHAPED, LAUNCH, 5),
                ("my::mystery", SHAPED, LAUNCH, 4),
                ("my::region", {}, "cudaGraphLaunch", 3),
                (None, {}, LAUNCH, 2),
            ],
        )
    )
    known = coverage(trace)
    assert (known.device_ns, known.launched_ns) == (147_000, 145_000)
    assert (known.flops_ns, known.bytes_ns) == (100_000, 20_000)
    assert known.share == pytest.approx(120 / 145)
    assert known.flops_share == pytest.approx(100 / 145)
    assert known.unmodelled.drop("share").rows() == [
        ("my::mystery", "no formula for it", 2, 9_000),
        ("aten::mm", "its inputs do not tell", 1, 7_000),
        ("aten::mm", "shapes not recorded", 1, 6_000),
        ("my::region", "replayed graph", 1, 3_000),
        ("k", "no operator", 1, 2_000),
    ]


def test_on_processors_views_and_callers_are_told_apart_from_what_lacks_a_formula(tmp_path: Path) -> None:
    events = [
        {
            "ph": "X",
            "pid": 1,
            "tid": 1,
            "cat": "cpu_op",
            "name": name,
            "ts": start,
            "dur": dur,
            "args": inputs,
        }
        for name, start, dur, inputs in (
            ("ProfilerStep#1", 0, 1_000, {}),
            ("aten::linear", 0, 50, {}),
            ("aten::t", 10, 5, {}),
            ("aten::mm", 20, 20, SHAPED),
            ("autograd::engine::evaluate_function: MmBackward0", 100, 30, {}),
            ("MmBackward0", 110, 10, {}),
            ("my::mystery", 200, 40, {}),
            ("aten::empty", 210, 10, {}),
            ("MyFunctionBackward", 300, 7, {}),
        )
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    reasons = dict(coverage(tracekit.read(path)).unmodelled["name", "reason"].rows())
    assert {name for name, reason in reasons.items() if reason == CALLS_OTHERS} == {
        "aten::linear",
        "aten::t",
        "autograd::engine::evaluate_function: MmBackward0",
        "MmBackward0",
        "aten::empty",
    }
    assert reasons["my::mystery"] == reasons["MyFunctionBackward"] == "no formula for it"


def test_a_trace_without_activities_has_no_share(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        '{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]}'
    )
    known = coverage(tracekit.read(path))
    assert (known.device_ns, known.share, known.unmodelled.height) == (0, None, 0)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "path", [*SAMPLES, *PUBLIC], ids=lambda path: path.name if path in PUBLIC else path.parent.name
)
@pytest.mark.sampled(8)
def test_what_is_known_and_what_is_not_make_the_whole(path: Path) -> None:
    known = coverage(tracekit.read(path))
    assert known.flops_ns + known.bytes_ns <= known.launched_ns <= known.device_ns
    missing = known.unmodelled
    assert known.flops_ns + known.bytes_ns + missing["device_ns"].sum() == known.device_ns
    assert missing["share"].sum() == pytest.approx(missing["device_ns"].sum() / max(known.device_ns, 1))
    for overhead in (False, True):
        assert missing.filter((pl.col("reason") == CALLS_OTHERS) == overhead)["device_ns"].is_sorted(
            descending=True
        )
    assert (missing["reason"] == CALLS_OTHERS).is_sorted()
    assert known.overhead_ns == missing.filter(pl.col("reason") == CALLS_OTHERS)["device_ns"].sum()


COVERED = {
    **dict.fromkeys(("h100_bert_small", "mi300_bert_small", "mi250_minitoy", "torch_compile_triton"), 0.99),
    **dict.fromkeys(("h100_timesformer", "mi300_owlv2", "mi300_qwen"), 0.99),
    "v100_resnet50_2021_workers0": 0.75,  # the strides of the convolutions were not recorded
    "vllm_decode_cuda_graph": 0.95,  # of the 3 % that operators launched
    "xdit_flux": 0.14,  # the rest are replayed graphs
}
TRACES = [path for path in PUBLIC if path.name.removesuffix(".json.gz") in COVERED]


@pytest.mark.quick(2)
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_the_launched_time_of_public_traces_is_covered(path: Path) -> None:
    known = coverage(tracekit.read(path))
    assert known.share is not None
    assert known.share >= COVERED[path.name.removesuffix(".json.gz")]
    reasons = set(known.unmodelled.filter(pl.col("share") > 0.01)["reason"])
    assert reasons <= {"replayed graph", "its inputs do not tell"}


LIMITS = {
    "v100_resnet50_2021_workers0": (900, 30e6),
    "h100_timesformer": (3350, 100e6),
}
"""The bandwidth of the board in GB/s, and the bytes from which on its caches do not help."""
STREAMING = ("aten::add", "aten::add_", "aten::mul", "aten::threshold_backward", "aten::relu_")


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [path for path in PUBLIC if path.name.removesuffix(".json.gz") in LIMITS],
    ids=lambda path: path.name,
)
def test_no_operator_moves_more_bytes_than_its_device_can(path: Path) -> None:
    """Bytes that are counted twice would pass the bandwidth; streaming operators come near it, so that none are left out."""
    peak, least = LIMITS[path.name.removesuffix(".json.gz")]
    trace = tracekit.read(path)
    work = counted(trace)
    rows = select(trace).activities.filter(pl.col("kind") == "kernel")
    anchor = rows.select(pl.coalesce("launch_id", "op_id").fill_null(-1)).to_series().to_numpy()
    owners = pl.DataFrame({"owner": take(work.owner, anchor), "ns": rows["duration"]}).filter(
        pl.col("owner") >= 0
    )
    calls = owners.group_by("owner").agg(pl.col("ns").sum())
    spans = calls["owner"].to_numpy()
    moved = pl.Series("bytes", work.read[spans] + work.written[spans])
    names = trace.host["name"].gather(calls["owner"]).cast(pl.String)
    large = calls.with_columns(moved, names).filter(
        (pl.col("bytes") > least) & pl.Series(~work.matrix[spans])
    )
    rates = large.with_columns((pl.col("bytes") / pl.col("ns")).alias("rate"))
    assert rates.height > 20
    assert rates["rate"].max() <= peak
    streaming = rates.filter(pl.col("name").is_in(STREAMING))
    assert streaming.height
    assert streaming["rate"].median() >= 0.6 * peak


ON_PROCESSORS = [path for path in SAMPLES if "_cpu" in path.parent.name]


@pytest.mark.quick(2)
@pytest.mark.parametrize("path", ON_PROCESSORS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_work_of_samples_on_processors_is_covered(path: Path) -> None:
    """Beside views and calls, of which half of a step may consist."""
    known = coverage(tracekit.read(path))
    assert known.share is not None
    assert known.share > 0.99
    assert 0 < known.overhead_ns == known.unmodelled.filter(reason=CALLS_OTHERS)["device_ns"].sum()


def test_a_step_whose_work_is_known_did_not_do_at_least_so_much() -> None:
    """The overhead of views was work of which FLOPs are not known."""
    path = next(path for path in ON_PROCESSORS if path.parent.name == "cnn_cpu")
    assert arithmetic(tracekit.read(path)).sentence.startswith(
        "The run did 650 MFLOP a step by shapes (analytic): "
    )
