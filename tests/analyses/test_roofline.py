"""Rooflines: by hand on planted traces, against a brute-force oracle, and on public traces."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import planted_ncu as ncu
import polars as pl
import pytest
from paths import PUBLIC, SAMPLES
from planted import US, Planted
from planted_ncu import Launch, counted

import tracekit
from tracekit.analyses.counters.ncu import join_ncu
from tracekit.analyses.flops import operator_work
from tracekit.analyses.kernels import kernels
from tracekit.analyses.layers import layers
from tracekit.analyses.ops import ops
from tracekit.analyses.roofline import LEVEL_SCHEMA, Roofline, roofline
from tracekit.analyses.roofline.levels import level, under_roofs
from tracekit.analyses.roofline.pieces import PIECE_SCHEMA
from tracekit.facts.ceilings import Ceilings
from tracekit.readers.ncu import read_ncu
from tracekit.report.build import build_section
from tracekit.report.figures import encode
from tracekit.trace import DeviceInfo, Trace

A100 = DeviceInfo(0, "NVIDIA A100-SXM4-40GB", (8, 0), 108, 42_000_000_000, 2048, 32)
BF16, TF32, FP32, DRAM = 312e12, 156e12, 19.5e12, 1555e9
LEVELS = ("operators", "layers", "types", "kernels", "model")
SUMS = (
    "device_ns",
    "flops",
    "bytes",
    "least_ns",
    "wasted_ns",
    "faster_ns",
    "flops_ns",
    "bytes_ns",
    "rated_ns",
)


class Work(Planted):
    """A thread that calls operators one after the other, each with its kernels."""

    clock = 0

    def op(
        self,
        name: str,
        kernels: list[tuple[str, int]],
        *tensors: list[int],
        dtype: str = "c10::BFloat16",
        **columns: Any,
    ) -> None:
        begin = self.clock
        for kernel, ns in kernels:
            self.activity(
                kernel, self.clock + 10 * US, ns, launch=self.clock + US, grid="[1, 1, 1]", block="[32, 1, 1]"
            )
            self.clock += ns + 20 * US
        inputs = (
            {"shapes": json.dumps(tensors), "dtypes": json.dumps([dtype] * len(tensors))} if tensors else {}
        )
        self.span("op", name, begin, self.clock, **inputs, **columns)
        self.clock += US

    def mm(self, *kernels: tuple[str, int], m: int = 1024, **more: Any) -> None:
        self.op("aten::mm", list(kernels), [m, 1024], [1024, 1024], **more)


def found(made: Planted, device: DeviceInfo = A100) -> Roofline:
    return roofline(made.trace(devices=(device,)))


def row(frame: pl.DataFrame, **wanted: str) -> dict[str, Any]:
    return frame.row(by_predicate=pl.all_horizontal(pl.col(k) == v for k, v in wanted.items()), named=True)


def test_a_compute_bound_product() -> None:
    made = Work()
    made.mm(("gemm", 20 * US))
    flops, moved = 2 * 1024**3, 3 * 2 * 1024**2
    one = row(found(made).operators, operator="aten::mm")
    assert (one["calls"], one["device_ns"], one["flops"], one["bytes"]) == (1, 20 * US, flops, moved)
    assert (one["source"], one["bytes_source"], one["precision"], one["unit"]) == (
        "analytic",
        "analytic",
        "bf16",
        "matrix",
    )
    assert one["intensity"] == pytest.approx(flops / moved)
    assert (one["flops_per_s"], one["bytes_per_s"]) == (
        pytest.approx(flops / 20e-6),
        pytest.approx(moved / 20e-6),
    )
    assert one["least_ns"] == round(flops / BF16 * 1e9)
    assert one["attainable_flops_per_s"] == pytest.approx(BF16)
    assert (one["bound"], one["efficiency"]) == ("compute", pytest.approx(flops / BF16 / 20e-6))
    assert (one["wasted_ns"], one["faster_ns"], one["rated_share"]) == (20 * US - one["least_ns"], 0, 1.0)


def test_a_memory_bound_product() -> None:
    made = Work()
    made.mm(("gemv", 5 * US), m=1)
    one = row(found(made).operators, operator="aten::mm")
    moved = 2 * (1024 + 1024**2 + 1024)
    assert (one["bytes"], one["bound"], one["least_ns"]) == (moved, "memory", round(moved / DRAM * 1e9))
    assert one["attainable_flops_per_s"] == pytest.approx(one["intensity"] * DRAM)
    assert one["bandwidth_efficiency"] == pytest.approx(moved / DRAM / 5e-6)


@pytest.mark.parametrize(("m", "n", "k"), [(16, 16, 32), (1, 1, 1), (64, 64, 64), (900, 900, 900)])
def test_small_work_has_the_bound_of_its_intensity(m: int, n: int, k: int) -> None:
    """It had none, at an efficiency of 0, since its least time was less than half a nanosecond."""
    made = Work()
    made.op("aten::mm", [("gemm", 3 * US)], [m, k], [k, n])
    one = row(found(made).operators, operator="aten::mm")
    flops, moved = 2 * m * n * k, 2 * (m * k + k * n + m * n)
    bound = "memory" if flops / moved < BF16 / DRAM else "compute"
    assert (one["bound"], one["efficiency"]) == (bound, pytest.approx(max(flops / BF16, moved / DRAM) / 3e-6))
    made.span("module", "a", 0, made.clock, layer="a", module_type="T")
    assert layers(made.trace(devices=(A100,))).tree["bound"].to_list()[:1] == [bound]


def test_the_other_kernels_of_an_operator_waste_nothing_of_their_own() -> None:
    made = Work()
    made.mm(("gemm", 20 * US), ("splitk_reduce", 5 * US))
    result = found(made)
    gemm, reduce = row(result.kernels, name="gemm"), row(result.kernels, name="splitk_reduce")
    assert (gemm["device_ns"], gemm["rated_ns"], gemm["wasted_ns"]) == (
        20 * US,
        25 * US,
        25 * US - gemm["least_ns"],
    )
    assert (reduce["device_ns"], reduce["flops"], reduce["wasted_ns"], reduce["efficiency"]) == (
        5 * US,
        None,
        None,
        None,
    )
    whole = row(result.operators, operator="aten::mm")
    assert (whole["efficiency"], whole["calls"], gemm["calls"]) == (gemm["efficiency"], 1, 1)


def test_work_faster_than_its_roof_is_shown_and_offsets_no_waste() -> None:
    """Bytes that shapes tell may come from a cache."""
    made = Work()
    made.mm(("gemv", 1 * US), m=1)  # from device memory it takes 1.35 µs
    made.mm(("gemm", 20 * US))
    one = row(found(made).operators, operator="aten::mm")
    fast, slow = 2 * (1024 + 1024**2 + 1024) / DRAM, 2 * 1024**3 / BF16
    assert (one["faster_ns"], one["wasted_ns"]) == (1 * US, 20 * US - round(slow * 1e9))
    assert one["efficiency"] == pytest.approx((fast + slow) / 21e-6)
    assert row(found(made).kernels, name="gemv")["efficiency"] > 1


def test_kernels_that_multiply_in_tf32_have_its_peak() -> None:
    made = Work()
    made.mm(("ampere_sgemm_128x64", 300 * US), dtype="float")
    made.mm(("cutlass_80_tensorop_s1688gemm", 100 * US), dtype="float")
    kernels = found(made).kernels
    plain, tensor = (
        row(kernels, name="ampere_sgemm_128x64"),
        row(kernels, name="cutlass_80_tensorop_s1688gemm"),
    )
    assert (plain["precision"], plain["least_ns"]) == ("fp32", round(2 * 1024**3 / FP32 * 1e9))
    assert (tensor["precision"], tensor["least_ns"]) == ("tf32", round(2 * 1024**3 / TF32 * 1e9))


def test_copies_inside_the_device_are_read_and_written_and_those_over_a_link_have_no_roof() -> None:
    made = Work()
    made.mm(("gemm", 20 * US))
    made.copy("DtoD (Device -> Device)", 100 * US, 10 * US, 4_000_000)
    made.copy("HtoD (Pinned -> Device)", 200 * US, 10 * US, 4_000_000)
    kernels = found(made).kernels
    inside, link = (
        row(kernels, name="Memcpy DtoD (Device -> Device)"),
        row(kernels, name="Memcpy HtoD (Pinned -> Device)"),
    )
    assert (inside["bytes"], inside["bytes_source"], inside["bound"]) == (8_000_000, "recorded", "memory")
    assert inside["efficiency"] == pytest.approx(8_000_000 / DRAM / 10e-6, rel=1e-3)
    assert (link["bytes"], link["unit"], link["efficiency"]) == (4_000_000, None, None)


def test_what_has_no_figures_is_named_and_not_guessed() -> None:
    made = Work()
    made.mm(("gemm", 20 * US))
    made.op("aten::mm", [("unshaped", 10 * US)])
    made.mm(("strange", 10 * US), dtype="quint9")
    made.op("mylib::secret", [("secret_kernel", 30 * US)], [8, 8])
    result = found(made)
    strange = row(result.kernels, name="strange")
    assert (strange["flops"], strange["bytes"], strange["efficiency"]) == (2 * 1024**3, None, None)
    for name in ("unshaped", "secret_kernel"):
        assert {
            row(result.kernels, name=name)[figure] for figure in ("flops", "bytes", "source", "bound")
        } == {None}
    assert result.flops_share == pytest.approx(30 / 70)
    assert result.unmodelled is not None
    assert result.unmodelled["name"][0] == "mylib::secret"
    assert "The largest unknown is mylib::secret, 30.0 µs (no formula for it)." in result.answer
    assert result.coverage.filter(pl.col("source").is_null())["device_ns"].to_list() == [40 * US, 50 * US]


def test_a_rate_that_no_device_has_is_of_damaged_shapes() -> None:
    """A campaign of mutated traces met a product of 10¹⁶ operations in 128 ns, and one in no time at all."""
    made = Work()
    made.mm(("one", US))  # 2 PFLOP/s
    made.mm(("two", 1))
    made.mm(("three", 0))
    kernels = found(made).kernels
    assert row(kernels, name="one")["flops"] == 2 * 1024**3
    assert row(kernels, name="two")["flops"] is None
    assert row(kernels, name="three")["flops"] is None


def test_a_device_outside_the_catalogue_has_rates_and_no_roof() -> None:
    made = Work()
    made.mm(("gemm", 20 * US))
    result = found(made, replace(A100, name="GeForce 256"))
    one = row(result.operators, operator="aten::mm")
    assert one["flops_per_s"] == pytest.approx(2 * 1024**3 / 20e-6)
    assert {one[name] for name in ("attainable_flops_per_s", "efficiency", "bound", "wasted_ns")} == {None}
    assert result.ceilings.height == 0
    assert "The catalogue does not have GeForce 256: `tracekit machine` measures it." in result.answer


def test_a_precision_without_a_peak_has_no_roof() -> None:
    made = Work()
    made.mm(("gemm", 20 * US), dtype="c10::Float8_e4m3fn")
    result = found(made)
    assert result.efficiency is None
    assert "the catalogue has no peak in fp8, the precision of this work, which `tracekit machine` does not measure." in result.answer  # fmt: skip


def test_a_fill_inside_a_product_without_shapes_does_not_make_it_one_of_no_flops() -> None:
    made = Work()
    made.activity("Memset (Device)", 2 * US, 4 * US, launch=US, kind="memset", bytes=4096)
    made.op("aten::mm", [("gemm", 20 * US)])
    made.clock += 100 * US
    result = found(made)
    one = row(result.operators, operator="aten::mm")
    assert {one[name] for name in ("flops", "source", "intensity")} == {None}
    assert result.flops_share is None
    assert "None" not in result.answer
    assert "Only the bytes of copies and fills are known, 16.7 % of the device time." in result.answer
    # The roof of a fill of 4 µs says nothing of the program.
    assert "reaches" not in result.answer


def test_copies_whose_bytes_are_recorded_are_not_listed_as_unknown() -> None:
    made = Work()
    made.activity("Memcpy HtoD (Pageable -> Device)", 2 * US, 400 * US, kind="memcpy", bytes=4096)
    made.activity("saxpy(double*)", 500 * US, 20 * US)
    result = found(made)
    assert result.unmodelled is not None
    assert result.unmodelled["name"].to_list() == ["saxpy(double*)"]
    assert "a link bounds them" in result.answer
    assert "precision" not in result.answer


def test_a_window_without_work_does_not_blame_counters() -> None:
    assert found(Work()).answer == "The window holds no work."


def test_a_program_without_pytorch_is_not_told_to_record_its_shapes() -> None:
    made = Work()
    made.activity("saxpy(double*)", 500 * US, 20 * US)
    trace = made.trace(devices=(A100,))
    result = roofline(replace(trace, meta=replace(trace.meta, format="nsys")))
    assert "Nsight Compute" in str(result.not_captured)
    assert "pytorch" not in str(result.not_captured)


def test_an_answer_names_a_kernel_in_short() -> None:
    made = Work()
    made.activity(f"void at::native::add<{', '.join(['c10::BFloat16'] * 40)}>(int)", 2 * US, 400 * US)
    assert len(found(made).answer) < 250


def measured(made: Planted, tmp_path: Path, *launches: Launch) -> Trace:
    file = tmp_path / "ncu.csv"
    file.write_text(ncu.raw(launches))
    return join_ncu(made.trace(devices=(A100,)), read_ncu(file)).trace


def test_counters_come_before_a_model_if_they_measured_the_whole_operator(tmp_path: Path) -> None:
    def work() -> Work:
        made = Work()
        made.mm(("gemm", 20 * US), ("reduce", 5 * US), dtype="float")
        return made

    launches = [Launch("gemm", counted(3_000, read=500, written=100)), Launch("reduce", counted(40, read=7))]
    whole = roofline(measured(work(), tmp_path, *launches))
    gemm, reduce = (row(whole.kernels, name=name) for name in ("gemm", "reduce"))
    assert (gemm["flops"], gemm["bytes"], gemm["rated_ns"]) == (3_000, 600, 20 * US)
    assert (reduce["flops"], reduce["bytes"], reduce["rated_ns"]) == (40, 7, 5 * US)
    assert {one[name] for one in (gemm, reduce) for name in ("source", "bytes_source")} == {"counter (ncu)"}
    part = roofline(measured(work(), tmp_path, launches[0]))
    one = row(part.operators, operator="aten::mm")
    assert (one["flops"], one["source"]) == (2 * 1024**3, "analytic")
    assert part.unmodelled is None


def test_a_fill_that_counters_never_measure_does_not_hide_those_of_its_operator(tmp_path: Path) -> None:
    """A product with a fill before it stayed analytic, though both of its kernels were measured."""
    made = Work()
    made.mm(("gemm", 20 * US), ("reduce", 5 * US), dtype="float")
    made.activity("Memset (Device)", 5 * US, 2 * US, launch=2 * US, kind="memset", bytes=4_096)
    launches = [Launch("gemm", counted(3_000, read=500)), Launch("reduce", counted(40, read=7))]
    whole = roofline(measured(made, tmp_path, *launches))
    gemm, reduce, fill = (row(whole.kernels, name=name) for name in ("gemm", "reduce", "Memset (Device)"))
    assert {(one["source"], one["bytes_source"]) for one in (gemm, reduce)} == {("counter (ncu)",) * 2}
    assert [(one["flops"], one["bytes"]) for one in (gemm, reduce, fill)] == [
        (3_000, 500),
        (40, 7),
        (0, 4_096),
    ]
    assert (fill["source"], fill["device_ns"]) == ("recorded", 2 * US)
    (one,) = whole.operators.filter(operator="aten::mm").to_dicts()
    assert (one["flops"], one["device_ns"]) == (3_040, 27 * US)


def test_a_product_beside_a_fill_keeps_its_model_without_counters_of_it(tmp_path: Path) -> None:
    made = Work()
    made.mm(("gemm", 20 * US), ("reduce", 5 * US), dtype="float")
    made.activity("Memset (Device)", 5 * US, 2 * US, launch=2 * US, kind="memset", bytes=4_096)
    part = roofline(measured(made, tmp_path, Launch("reduce", counted(40, read=7))))
    one = row(part.operators, operator="aten::mm")
    assert (one["flops"], one["source"], one["rated_ns"]) == (2 * 1024**3, "analytic", 27 * US)


@pytest.mark.parametrize(
    ("counters", "precision", "unit", "peak"),
    [
        ({}, "fp32", "vector", FP32),
        ({"dfma": 10**6}, "fp64", "vector", 9.7e12),
        ({"sm__ops_path_tensor_src_bf16_dst_fp32.sum": 10**9}, "bf16", "matrix", BF16),
    ],
)
def test_counters_tell_the_precision_of_kernels_outside_pytorch(
    counters: dict[str, int], precision: str, unit: str, peak: float, tmp_path: Path
) -> None:
    made = Work()
    made.activity("saxpy", 0, 20 * US, launch=0, grid="[1, 1, 1]", block="[32, 1, 1]")
    instructions = {name: number for name, number in counters.items() if "_" not in name}
    tensor = {name: ("inst", str(number)) for name, number in counters.items() if "_" in name}
    metrics = {**counted(500_000, read=8, **instructions), **tensor}
    one = row(roofline(measured(made, tmp_path, Launch("saxpy", metrics))).kernels, name="saxpy")
    flops = 500_000 + 2 * instructions.get("dfma", 0) + sum(counters[name] for name in tensor)
    assert (one["flops"], one["precision"], one["unit"], one["bound"]) == (flops, precision, unit, "compute")
    assert one["least_ns"] == round(flops / peak * 1e9)


def test_counted_flops_and_modelled_bytes_are_told_apart(tmp_path: Path) -> None:
    made = Work()
    made.mm(("gemm", 20 * US), dtype="float")
    metrics = {name: value for name, value in counted(3_000).items() if "dram" not in name}
    one = row(roofline(measured(made, tmp_path, Launch("gemm", metrics))).operators, operator="aten::mm")
    assert (one["flops"], one["source"]) == (3_000, "counter (ncu)")
    assert (one["bytes"], one["bytes_source"]) == (3 * 4 * 1024**2, "analytic")


def test_the_caches_bound_work_whose_bytes_they_serve(tmp_path: Path) -> None:
    """Counters of L2 and L1; ceilings of them are measured."""
    made = Work()
    made.mm(("gemm", 20 * US), dtype="float")
    more = {"lts__t_bytes.sum": ("Mbyte", "4"), "l1tex__t_bytes.sum": ("Mbyte", "9")}
    trace = measured(made, tmp_path, Launch("gemm", {**counted(10**6, read=10**6), **more}))
    one = row(roofline(trace).operators, operator="aten::mm")
    assert (one["intensity"], one["l2_intensity"], one["l1_intensity"]) == (1.0, 0.25, pytest.approx(1 / 9))
    piece = dict.fromkeys(PIECE_SCHEMA) | {
        "flops": 10**6,
        "bytes": 10**6,
        "l2_bytes": 4 * 10**6,
        "l1_bytes": 9 * 10**6,
    }
    piece |= {
        "precision": "fp32",
        "unit": "vector",
        "piece_ns": 20_000,
        "device_id": 0,
        "duration": 20_000,
        "call": 1,
    }
    rows = pl.DataFrame(
        [piece], schema={**PIECE_SCHEMA, "device_id": pl.Int64, "duration": pl.Int64, "call": pl.Int64}
    )
    for l2, bound, least in ((3e12, "L1", 9e6 / 6e12), (1e12, "L2", 4e6 / 1e12)):
        ceilings = Ceilings(
            "made", "measured", {("fp32", "vector"): 1e13}, {"DRAM": 1e12, "L2": l2, "L1": 6e12}
        )
        (made_row,) = level(under_roofs(rows, {0: ceilings}), ["device_id"]).to_dicts()
        assert (made_row["bound"], made_row["least_ns"]) == (bound, round(least * 1e9))


def test_utilisation_counts_matrix_flops_and_not_what_is_computed_again() -> None:
    made = Work()
    made.step(0, 0, 1000 * US)
    made.mm(("gemm", 20 * US))
    one = found(made).model.row(0, named=True)
    assert one["window_ns"] == 1000 * US
    assert one["model_utilisation"] == one["hardware_utilisation"] == pytest.approx(2 * 1024**3 / BF16 / 1e-3)
    assert (one["steps"], one["name"]) == (1, "ProfilerStep#0")


@pytest.mark.parametrize(("shorter", "told"), [(1 * US, True), (30 * US, False)])
def test_a_small_product_without_a_peak_does_not_take_the_utilisation_away(shorter: int, told: bool) -> None:
    """It makes it a lower bound; where such products take most of the time, that would tell nothing."""
    made = Work()
    made.step(0, 0, 1000 * US)
    made.mm(("gemm", 20 * US))
    made.mm(("gemm of fp4", shorter), m=16, dtype="c10::Weird")
    seen = found(made)
    one = seen.model.row(0, named=True)
    expected = pytest.approx(2 * 1024**3 / BF16 / 1e-3) if told else None
    assert one["model_utilisation"] == one["hardware_utilisation"] == expected
    assert ("Model FLOPs utilisation is at least" in seen.answer) == told
    assert ("or more of the peak for bf16" in kernels(made.trace(devices=(A100,))).answer) == told


def test_shapes_of_an_absurd_product_gave_thirty_times_the_peak() -> None:
    made = Work()
    made.step(0, 0, 40)
    made.mm(("gemm", 20))
    seen = found(made)
    assert seen.model["model_utilisation"].item() is seen.model["hardware_utilisation"].item() is None
    assert "takes less time than its roofline" in seen.answer
    assert "of its roofline" not in seen.answer


def test_a_copy_of_petabytes_in_microseconds_has_no_known_bytes() -> None:
    made = Work()
    for size in (1 << 20, 1 << 53):
        made.activity("Memcpy HtoD", size >> 9, 20 * US, kind="memcpy", bytes=size)
    one = row(found(made).kernels, name="Memcpy HtoD")
    assert (one["calls"], one["bytes"], one["bytes_ns"]) == (2, 1 << 20, 20 * US)


def test_replayed_kernels_have_work_and_no_times() -> None:
    made = Work()
    made.mm(("gemm", 20 * US))
    made.counters = [
        {
            "name": "gemm",
            "series": f"smsp__sass_thread_inst_executed_op_{kind}{what}_pred_on.sum",
            "start": 5,
            "duration": 7,
            "value": 2.0,
        }
        for kind in "dfh"
        for what in ("add", "mul", "fma")
    ]
    result = found(made)
    one = row(result.operators, operator="aten::mm")
    assert (one["flops"], one["source"]) == (3 * (2 + 2 + 2 * 2), "counter")
    assert (one["flops_per_s"], one["efficiency"], one["wasted_ns"]) == (None, None, None)
    assert "replayed" in result.answer
    made.device = []  # as PyTorch leaves it: their times are not those of the program
    section = build_section(made.trace(), "roofline")
    assert section.question == "How close does the work come to what the device can do?"


def test_other_work_on_16_bit_tensors_is_computed_in_fp32() -> None:
    made = Work()
    made.op(
        "aten::add", [("elementwise", 20 * US)], [1 << 20], [1 << 20], [], concrete_inputs='["", "", "1"]'
    )
    one = row(found(made).operators, operator="aten::add")
    assert (one["precision"], one["unit"], one["bound"]) == ("fp32", "vector", "memory")
    assert one["least_ns"] == round(3 * 2 * (1 << 20) / DRAM * 1e9)


def test_measured_ceilings_come_first_and_are_those_of_processors() -> None:
    """A processor computes all in the lanes of its products."""
    made = Work()
    made.mm(("gemm", 20 * US))
    measured_ = Ceilings("a board", "measured", {("bf16", "matrix"): 1e15}, {"DRAM": 1e12})
    result = roofline(replace(made.trace(devices=(A100,)), ceilings=measured_))
    assert row(result.operators, operator="aten::mm")["least_ns"] == round(3 * 2 * 1024**2 / 1e12 * 1e9)
    assert "(a board, measured)" in result.answer
    host = Work()
    inputs = {"shapes": "[[1000, 1000], [1000, 1000], []]", "dtypes": '["float", "float", "Scalar"]'}
    host.span("op", "aten::add", 0, 900 * US, **inputs, concrete_inputs='["", "", "1"]')
    own = Ceilings("a processor", "measured", {("fp32", "matrix"): 1e8}, {"DRAM": 1e11}, threads=2)
    one = row(roofline(replace(host.trace(devices=()), ceilings=own)).operators, operator="aten::add")
    assert (one["bound"], one["least_ns"]) == ("compute", round(1_000_000 / 1e8 * 1e9))


def test_tables_of_kernels_operators_and_layers_have_the_rates() -> None:
    """In the tree, with those of the layers inside."""
    made = Work()
    made.mm(("gemm", 20 * US))
    made.span("module", "outer.inner", 0, made.clock, layer="outer.inner", module_type="Inner")
    made.mm(("gemv", 5 * US), m=1)
    made.span("module", "outer", 0, made.clock + US, layer="outer", module_type="Outer")
    trace = made.trace(devices=(A100,))
    first, second = 2 * 1024**3, 2 * 1024**2
    both = pytest.approx((first + second) / 25e-6)
    gemv = row(kernels(trace).by_name, name="gemv")
    assert (gemv["flops_per_s"], gemv["bound"]) == (pytest.approx(second / 5e-6), "memory")
    assert row(ops(trace).by_operator, operator="aten::mm")["flops_per_s"] == both
    by_shape = ops(trace).by_shape
    assert by_shape is not None
    assert set(by_shape["bound"]) == {"memory", "compute"}
    tree = {one["path"]: one for one in layers(trace).tree.to_dicts()}
    assert (tree["outer"]["flops_per_s"], tree["outer"]["bound"]) == (both, "compute")
    assert tree["outer.inner"]["flops_per_s"] == pytest.approx(first / 20e-6)
    by_type = layers(trace).by_type
    assert by_type is not None
    assert row(by_type, type="Outer")["flops_per_s"] == pytest.approx(second / 5e-6)


@pytest.mark.slow
def test_the_figures_draw_the_rows_below_the_roofs() -> None:
    made = Work()
    made.mm(("gemm", 20 * US))
    made.mm(("gemv", 5 * US), m=1)
    figures = {one.name: one for one in build_section(made.trace(devices=(A100,)), "roofline").figures}
    assert set(figures) == {"kernels"}  # one operator alone is no picture
    data = figures["kernels"].data
    dots = {one["label"]: one for one in data["series"] if one["style"] == "dots"}
    assert set(dots) == {"memory-bound", "compute-bound"}
    assert dots["compute-bound"]["y"] == [pytest.approx(2 * 1024**3 / 20e-6 / 1e12)]
    assert (dots["compute-bound"]["sizes"], dots["memory-bound"]["sizes"]) == (
        [1.0],
        [0.5],
    )  # areas are as the times
    (roof,) = [one for one in data["series"] if one["style"] == "dashes"]
    assert (roof["x"][1], roof["y"][1:]) == (pytest.approx(BF16 / DRAM), [312.0, 312.0])
    assert roof["label"] == "bf16 matrix, 312 TFLOP/s"
    assert encode(figures["kernels"], "svg").startswith(b"<?xml")


# -- sums ------------------------------------------------------------------------------------------


def random_work(seed: int) -> tuple[Work, list[dict[str, Any]]]:
    """Operators with zero to three kernels in layers, and each kernel with the figures that it should have."""
    rng = random.Random(seed)
    made, truth = Work(), []
    for number in range(rng.randint(1, 40)):
        name = rng.choice(("aten::mm", "aten::bmm", "mylib::odd"))
        kernels = [(f"k{rng.randint(0, 4)}", rng.randint(1, 40_000)) for _ in range(rng.randint(0, 3))]
        sizes = [rng.randint(1, 900) for _ in range(4)]
        batch = [] if name == "aten::mm" else sizes[:1]
        tensors = [[*batch, *sizes[1:3]], [*batch, *sizes[2:4]]] if rng.random() < 0.8 else []
        dtype = rng.choice(("c10::BFloat16", "float", "quint9"))
        layer = rng.choice(("a", "a.b", "c"))
        begin = made.clock
        made.op(name, kernels, *tensors, dtype=dtype)
        made.span("module", layer, begin, made.clock, layer=layer, module_type=f"T{layer[0]}")
        work = operator_work(name, tensors, [dtype] * 2, ["", ""]) if tensors else None
        longest = max(range(len(kernels)), key=lambda at: (kernels[at][1], -at), default=-1)
        for at, (kernel, ns) in enumerate(kernels):
            figures: dict[str, Any] = {
                "operators": name,
                "layers": layer,
                "kernels": kernel,
                "number": number,
                "device_ns": ns,
            }
            if work is not None and at == longest:
                whole = sum(ns for _, ns in kernels)
                moved = None if work.read is None or work.written is None else work.read + work.written
                figures |= {"flops": work.flops, "bytes": moved, "flops_ns": whole}
                figures |= (
                    {}
                    if moved is None
                    else {"bytes_ns": whole, **rated(work.flops or 0, moved, dtype, whole)}
                )
            truth.append(figures)
    return made, truth


def rated(flops: int, moved: int, dtype: str, whole: int) -> dict[str, int]:
    least = round(max(flops / (BF16 if dtype == "c10::BFloat16" else FP32), moved / DRAM) * 1e9)
    late = whole - least
    return {
        "rated_ns": whole,
        "least_ns": least,
        "wasted_ns": max(late, 0),
        "faster_ns": whole if late < 0 else 0,
    }


@pytest.mark.parametrize("seed", range(25))
def test_the_rows_of_every_level_agree_with_brute_force(seed: int) -> None:
    made, truth = random_work(seed)
    if not truth:
        return
    result = found(made)
    for name, key in (("operators", "operator"), ("layers", "layer"), ("kernels", "name")):
        expected: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(SUMS, 0))
        for kernel in truth:
            for figure in SUMS:
                expected[kernel[name]][figure] += kernel.get(figure) or 0
        table = (
            getattr(result, name).group_by(key).agg(pl.col(SUMS).sum())
        )  # kernels of a name differ in category
        assert {one[key]: {figure: one[figure] for figure in SUMS} for one in table.to_dicts()} == expected
    assert_laws(result)


def assert_laws(result: Roofline) -> None:
    """All levels have the same sums, and what is wasted is what is late."""
    (whole,) = result.model.to_dicts()
    for name in LEVELS:
        table = getattr(result, name)
        assert set(LEVEL_SCHEMA) <= set(table.columns)
        assert {figure: table[figure].sum() for figure in SUMS} == {
            figure: whole[figure] or 0 for figure in SUMS
        }, name
        known = table.filter(pl.col("rated_ns").is_not_null())
        assert (known["wasted_ns"] >= 0).all()
        late = known.filter(pl.col("faster_ns") == 0)
        assert (late["wasted_ns"] == late["rated_ns"] - late["least_ns"]).all()
    covered = result.coverage.group_by("figure").agg(pl.col("device_ns").sum())
    assert set(covered["device_ns"]) <= {whole["device_ns"] or 0}


@pytest.mark.quick(8)
@pytest.mark.parametrize("path", [*SAMPLES, *PUBLIC], ids=lambda path: path.parent.name + path.name)
@pytest.mark.sampled(4)
def test_the_laws_hold_on_real_traces(path: Path) -> None:
    for trace in tracekit.read_all(path):
        result = roofline(trace)
        if result.model.height and result.model["calls"][0] is not None:
            assert_laws(result)
            if path.name != "mi250_minitoy.json.gz":  # its copies from the host have no sizes
                assert_all_is_known_or_named(result)


def assert_all_is_known_or_named(result: Roofline) -> None:
    """What lacks FLOPs, and what lacks bytes, is in the table of what is not known."""
    (whole,) = result.model.to_dicts()
    if result.unmodelled is None or not whole["device_ns"]:
        return
    for figure, other in (("flops_ns", "bytes: "), ("bytes_ns", "FLOPs: ")):
        named = result.unmodelled.filter(~pl.col("reason").str.starts_with(other))["device_ns"].sum()
        assert (whole[figure] or 0) + named == pytest.approx(whole["device_ns"], rel=1e-4), figure


CUPTI = [path for path in PUBLIC if path.name == "a100_cupti_counters.json.gz"]


@pytest.mark.parametrize("path", CUPTI, ids=["cupti"] * len(CUPTI))
def test_ranges_that_are_layers_have_a_word_for_no_type(path: Path) -> None:
    """A table by type of layer had one row, and no name in it."""
    result = roofline(tracekit.read(path))
    assert result.layers.height > 1
    assert result.types["type"].to_list() == ["<no type>"]


@pytest.mark.parametrize("path", CUPTI, ids=lambda path: path.name)
def test_measured_flops_are_the_instructions_of_each_kernel(path: Path) -> None:
    """Additions, multiplications, and fused multiply-adds twice, summed from the file's own events."""
    import gzip

    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    expected: dict[str, int] = defaultdict(int)
    for event in events:
        if event.get("cat") == "cuda_profiler_range":
            for name, value in event["args"].items():
                if "_sass_thread_inst_executed_op_" in name:
                    expected[event["name"]] += int(value) * (2 if "fma" in name else 1)
    kernels = roofline(tracekit.read(path)).kernels
    assert dict(kernels.drop_nulls("flops").group_by("name").agg(pl.col("flops").sum()).rows()) == {
        name: flops for name, flops in expected.items() if name in set(kernels.drop_nulls("flops")["name"])
    }
    assert kernels["flops"].count() > 5
    assert set(kernels["source"].drop_nulls()) == {"counter"}


def test_what_only_moves_data_inside_a_counted_operator_has_no_rate() -> None:
    made = Planted()
    made.step(0, 0, 1000 * US)
    # On processors a product first copies its bias to the output, and here that takes longer than the product itself.
    made.span(
        "op",
        "aten::addmm",
        0,
        900 * US,
        shapes="[[64], [8, 32], [32, 64]]",
        dtypes='["float", "float", "float"]',
    )
    made.span("op", "aten::copy_", 100 * US, 700 * US)
    rows = kernels(made.trace(devices=())).by_name
    rate = dict(rows[["name", "flops_per_s"]].rows())
    assert rate["aten::copy_"] is None
    assert rate["aten::addmm"] == pytest.approx((2 * 8 * 32 * 64 + 8 * 64) / 900e-6)


@pytest.mark.parametrize(("others", "told"), [(0, "Most of that"), (2, "The largest part of that")])
def test_the_largest_part_of_a_waste_is_most_of_it_only_beyond_half(others: int, told: str) -> None:
    """`Most of that is in aten::mm` stood where it was 5.48 ms of 18.2 ms."""
    made = Work()
    made.mm(("gemm", 100 * US))
    for at in range(others):
        made.op(
            f"aten::{('bmm', 'addmm')[at]}",
            [("gemm", 90 * US)],
            *([[1, 512, 512]] * 2, [[512], [512, 512], [512, 512]])[at],
        )
    assert f"{told} is in aten::mm" in found(made).answer
