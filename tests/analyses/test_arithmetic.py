"""FLOPs of a run: by hand, against torch's counter, and how `info` and the report show them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import planted_ncu as ncu
import polars as pl
import pytest
from commands import ok
from paths import ROOT
from planted import Planted
from planted_ncu import Launch, counted

import tracekit
from tracekit.analyses.arithmetic import arithmetic
from tracekit.analyses.counters.ncu import join_ncu
from tracekit.readers.ncu import read_ncu
from tracekit.report.build import build_report
from tracekit.trace import Trace

SAMPLES = sorted(ROOT.glob("sample_traces/*/trace.json.gz"))


def loop(
    folder: Path, *, shapes: bool = True, dtype: str = "c10::BFloat16", other: str = "mylib::act"
) -> Path:
    """Two steps of 1 ms: a product of 2·1000·1000·1000 FLOPs whose two kernels take 300 µs, and 100 µs of another operator."""

    def event(cat: str, name: str, start: int, length: int, **args: Any) -> dict[str, Any]:
        row = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length}
        return {**row, "args": args}

    made = []
    for step in range(2):
        at = 1000 * step
        made.append(event("user_annotation", f"ProfilerStep#{step}", at, 1000))
        for number, (name, length) in enumerate((("aten::mm", 200), ("aten::mm", 100), (other, 100))):
            link = 1 + 3 * step + number
            if number != 1:  # the product launches two kernels
                inputs = {"Input Dims": [[1000, 1000], [1000, 1000]], "Input type": [dtype, dtype]}
                made.append(event("cpu_op", name, at + 200 * number, 300, **(inputs if shapes else {})))
            made.append(
                event("cuda_runtime", "cudaLaunchKernel", at + 10 + 200 * number, 5, correlation=link)
            )
            where = {"device": 0, "stream": 7, "correlation": link}
            made.append({**event("kernel", "k", at + 20 + 300 * number, length, **where), "pid": 0, "tid": 7})
    path = folder / "t.json"
    properties = [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}]
    path.write_text(json.dumps({"deviceProperties": properties, "traceEvents": made}))
    return path


def test_shapes_give_the_flops_of_a_step(tmp_path: Path) -> None:
    found = arithmetic(tracekit.read(loop(tmp_path)))
    assert (found.flops, found.flops_per_step, found.source) == (4 * 10**9, 2 * 10**9, "analytic")
    assert found.covered == pytest.approx(0.75)
    assert found.tflops == pytest.approx(2.0)
    assert (found.precision, found.utilisation) == ("bf16", pytest.approx(2.0 / 312))
    assert found.sentence == (
        "The run did at least 2.00 GFLOP a step by shapes (analytic), known for 75.0 % of the device time: at least 2.00 TFLOP/s "
        "on average. Over the same time, its matrix products reach 0.6 % or more of the peak for bf16."
    )


def test_the_peak_is_that_of_matrix_products_and_so_is_what_reaches_it(tmp_path: Path) -> None:
    """An addition of 10⁶ elements is arithmetic, but not of the units whose peak it is."""
    found = arithmetic(tracekit.read(loop(tmp_path, other="aten::add")))
    assert (found.flops, found.matrix_flops) == (2 * (2 * 10**9 + 10**6), 4 * 10**9)
    assert found.covered == pytest.approx(1.0)
    assert found.utilisation == pytest.approx(2.0 / 312)


def test_an_unlisted_precision_has_no_peak(tmp_path: Path) -> None:
    found = arithmetic(tracekit.read(loop(tmp_path, dtype="c10::Float8_e4m3fn")))
    assert (found.precision, found.utilisation) == ("fp8", None)
    assert "peak" not in found.sentence


def test_without_shapes_they_are_not_captured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = loop(tmp_path, shapes=False)
    assert (
        arithmetic(tracekit.read(path)).sentence
        == "FLOPs were not captured; record_shapes=True records them."
    )
    assert "FLOPs        not captured\n" in ok(capsys, "info", path)
    assert json.loads(ok(capsys, "info", path, "-f", "json"))["flops"]["source"] is None


@pytest.mark.slow
def test_info_and_report_show_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = loop(tmp_path)
    assert "2.00 GFLOP a step by shapes (analytic)" in " ".join(ok(capsys, "info", path).split())
    facts = json.loads(ok(capsys, "info", path, "-f", "json"))["flops"]
    assert (facts["per_step"], facts["source"]) == (2e9, "analytic")
    (section,) = [each for each in build_report(tracekit.read(path)).sections if each.name == "kernels"]
    assert "The run did at least 2.00 GFLOP a step" in section.answer
    assert section.scalars["flops_source"] == "analytic"
    assert section.scalars["flops_share"] == pytest.approx(0.75)


@pytest.mark.slow
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.parent.name)
@pytest.mark.sampled(4)
def test_shapes_agree_with_torchs_counter(path: Path) -> None:
    """It counts matrix products alone, without biases, and the attention of the small encoder is told otherwise."""
    trace = tracekit.read(path)
    assert trace.manifest is not None
    found = arithmetic(trace)
    assert found.source == "analytic"
    assert found.matrix_flops is not None
    steps = trace.manifest.flops_per_step * round(found.flops / found.flops_per_step)
    assert found.matrix_flops == pytest.approx(steps, rel=0.04)
    assert found.flops > found.matrix_flops
    of = "device" if trace.has_device else "operators'"
    assert found.covered is not None
    assert (f"of the {of} time" in found.sentence) == (found.covered < 0.995)


def without_shapes(trace: Trace) -> Trace:
    bare = trace.host.with_columns(pl.lit(None, pl.Categorical()).alias("shapes"))
    return replace(trace, host=bare, meta=replace(trace.meta, captured=trace.meta.captured - {"shapes"}))


def test_the_manifest_of_a_capture_is_the_last_source() -> None:
    trace = without_shapes(tracekit.read(ROOT / "sample_traces/cnn_cpu/trace.json.gz"))
    found = arithmetic(trace)
    assert trace.manifest is not None
    assert (found.source, found.flops_per_step) == ("manifest", trace.manifest.flops_per_step)
    assert "by torch's counter (manifest)" in found.sentence


def test_counters_come_first(tmp_path: Path) -> None:
    """Of the kernels that were measured."""
    made = Planted()
    for number, name in enumerate(("once", "twice", "twice")):
        made.activity(
            name,
            1000 * number + 100,
            300,
            launch=1000 * number,
            call_ns=20,
            grid="[1, 1, 1]",
            block="[32, 1, 1]",
        )
    file = tmp_path / "ncu.csv"
    file.write_text(ncu.raw([Launch("once", counted(600))]))
    trace = join_ncu(made.trace(), read_ncu(file)).trace
    found = arithmetic(trace)
    assert (found.flops, found.source) == (600, "counter")
    assert found.covered == pytest.approx(1 / 3)
    assert found.flops_per_step is None
    assert (
        "600 FLOP in the window by hardware counters (counter), known for 33.3 % of the device time"
        in found.sentence
    )


def test_without_operators_their_shapes_alone_record_no_flops() -> None:
    """A profile of a device alone, with record_shapes=True, was told to record shapes."""
    made = Planted()
    made.activity("gemm", 0, 50_000)
    found = arithmetic(made.trace(captured=frozenset({"device", "shapes"})))
    assert (
        found.sentence
        == "FLOPs were not captured; ProfilerActivity.CPU with record_shapes=True records them."
    )
