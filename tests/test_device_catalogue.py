"""The catalogue of devices: that its figures are plausible, and that each name leads to one entry."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import PUBLIC_NSYS

import tracekit
from tracekit.facts.ceilings import catalogue_ceilings, recorded_ceilings
from tracekit.facts.device_peaks import (
    Device,
    computes_fp8,
    devices,
    find_device,
    fp32_tflops_of_clock,
    peak_bandwidth_gbps,
    peak_tflops,
)

ASKED_FOR = (
    "Tesla V100-SXM2-16GB",
    "Tesla V100-PCIE-32GB",
    "Tesla T4",
    "Tesla P4",
    "Tesla P100-SXM2-16GB",
    "Tesla P100-PCIE-16GB",
    "Quadro RTX 6000",
    "NVIDIA A10",
    "NVIDIA A10G",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA A100-PCIE-40GB",
    "NVIDIA A100 80GB PCIe",
    "NVIDIA L4",
    "NVIDIA L40S",
    "NVIDIA H100 PCIe",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H100 NVL",
    "NVIDIA H200",
    "NVIDIA H20",
    "NVIDIA B100",
    "NVIDIA B200",
    "NVIDIA GH200 480GB",
    "AMD Instinct MI210",
    "AMD Instinct MI250X",
    "AMD Instinct MI300X",
    "AMD Instinct MI325X",
)

each_device = pytest.mark.parametrize("device", devices(), ids=lambda device: device.name)


@each_device
def test_each_name_leads_to_its_own_entry_only(device: Device) -> None:
    memory = None if device.memory_gb is None else round(sum(device.memory_gb) / 2 * 1e9)
    assert device.examples
    for name in device.examples:
        assert find_device(name, memory) == device
        others = [one for one in devices() if one != device and one.is_named(name) and one.has_memory(memory)]
        # Of a name that stands for several boards, the entry without a size of memory holds what they share.
        assert all(device.memory_decides and not one.memory_decides for one in others)


@each_device
def test_the_figures_of_an_entry_fit_each_other(device: Device) -> None:
    matrix, vector = device.matrix_tflops, device.vector_tflops
    rates = [*matrix.values(), *vector.values()]
    assert all(rate > 0 for rate in rates)
    assert device.dram_gbps is None or 50 < device.dram_gbps < 10_000
    assert device.source.title
    assert device.source.url.startswith("https://")
    assert set(matrix) | set(vector) <= {"fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"}
    # The fewer bits, the faster: twice as fast on NVIDIA's tensor cores and AMD's matrix cores, to rounding.
    for slow, fast, least in (
        ("tf32", "fp16", 1.9),
        ("fp16", "fp8", 1.9),
        ("fp8", "fp4", 1.9),
        ("fp64", "fp16", 3.9),
        ("fp16", "int8", 1),
    ):
        if slow in matrix and fast in matrix:
            assert matrix[fast] >= least * matrix[slow], (slow, fast)
    if "bf16" in matrix:
        assert matrix["bf16"] in (matrix["fp16"], matrix["fp16"] / 2)  # half of it on AMD's MI100
    if "fp32" in vector:
        assert all(
            matrix[name] > vector["fp32"] for name in ("fp16", "bf16", "fp8", "int8") if name in matrix
        )
        assert matrix.get("tf32", vector["fp32"]) >= vector["fp32"]
        assert vector.get("fp64", 0) <= vector["fp32"]
    if "fp64" in vector:
        assert matrix.get("fp64", vector["fp64"]) >= vector["fp64"]
    if device.multiprocessors and device.name.split()[0] != "Instinct":
        of_clock = fp32_tflops_of_clock(
            device.compute_capability, device.multiprocessors, (device.boost_mhz or 0) * 10**6
        )
        assert of_clock == pytest.approx(vector["fp32"], rel=0.02)
    assert (device.dies > 1) == bool(device.card_gflops)
    if device.card_gflops:  # the last is at the clock of the entry
        assert device.card_gflops[-1] == pytest.approx(device.dies * vector["fp32"] * 1e3, rel=0.002)
    if device.link and device.pcie and device.link.kind.startswith("PCIe"):
        assert device.link.kind == f"PCIe {device.pcie} x16"


@each_device
def test_dense_half_precision_is_what_the_lanes_of_its_tensor_cores_can_do(device: Device) -> None:
    """A figure with sparsity in the place of a dense one would be twice too high against the FP32 lanes."""
    if (
        device.compute_capability >= (10, 0)
        or "fp16" not in device.matrix_tflops
        or "fp32" not in device.vector_tflops
    ):
        return
    ratio = device.matrix_tflops["fp16"] / device.vector_tflops["fp32"]
    # Per clock and multiprocessor: V100, T4 and their like 8; A100 16; boards with twice the FP32 lanes, and AMD's, 2 to 16.
    assert 1.9 < ratio < 17


@pytest.mark.parametrize("name", ASKED_FOR)
def test_the_boards_of_the_field_are_listed_with_arithmetic_and_bandwidth(name: str) -> None:
    found = catalogue_ceilings(name)
    assert found is not None
    assert found.peak("fp32")
    assert found.bandwidth["DRAM"]
    assert found.source.startswith("catalogue: ")
    assert found.threads is None


def test_a_board_that_shares_its_name_is_told_by_its_memory() -> None:
    assert find_device("Orin") is None, "an Orin module has any of five sizes"
    assert find_device("Orin", 64_000_000_000).matrix_tflops["int8"] == 85.0  # type: ignore[union-attr]
    assert peak_bandwidth_gbps("NVIDIA A100-PG509-200") is None
    assert peak_bandwidth_gbps("NVIDIA A100-PG509-200", 42_297_524_224) == 1555.0
    assert peak_tflops("NVIDIA A100-PG509-200", "bf16") == 312.0


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "GRID A100X-40C",
        "NVIDIA RTX 6000 Ada Generation",
        "NVIDIA A1000",
        "AMD Radeon Graphics",
        "AMD Instinct MI300A VF",
        "Some CPU",
        "NVIDIA L40S\nTesla T4",
    ],
)
def test_what_is_not_a_whole_board_of_the_catalogue_has_no_figures(name: str) -> None:
    assert catalogue_ceilings(name) is None


def test_a_partition_of_a_board_has_not_the_figures_of_the_whole() -> None:
    whole, part = 205_571_227_648, 25_769_803_776
    assert catalogue_ceilings("AMD Instinct MI300X VF", whole) == catalogue_ceilings(
        "AMD Instinct MI300X", 206_141_652_992
    )
    assert catalogue_ceilings("AMD Instinct MI300X", part) is None, "an eighth of it, in CPX mode"


def test_a_die_of_an_mi250x_has_half_of_the_card() -> None:
    card, die = 383.0, catalogue_ceilings("AMD Instinct MI250X")
    assert die is not None
    assert die.peak("fp16") == card / 2 * 1e12
    both = find_device("AMD Instinct MI250X/MI250")
    assert both is not None
    assert not both.matrix_tflops, "its arithmetic differs between the two cards of this name"
    assert "GCD" in both.of


def test_matrix_falls_back_to_the_vector_units_of_the_same_precision_only() -> None:
    a100 = catalogue_ceilings("NVIDIA A100-SXM4-40GB")
    assert a100 is not None
    assert a100.peak("fp32") == a100.peak("fp32", "vector") == 19.5e12, (
        "not the TF32 rate of its tensor cores"
    )
    assert a100.peak("fp64") == 19.5e12
    assert a100.peak("fp64", "vector") == 9.7e12
    assert a100.peak("tf32", "vector") is None
    assert a100.peak("fp8") is None
    assert a100.ridge("fp8") is a100.attainable(1.0, "fp8") is a100.ridge("fp16", level="L2") is None


def test_attainable_is_the_lower_of_both_ceilings_and_they_meet_at_the_ridge() -> None:
    h100 = catalogue_ceilings("NVIDIA H100 80GB HBM3")
    assert h100 is not None
    ridge = h100.ridge("bf16") or 0.0
    assert ridge == pytest.approx(989.4e12 / 3350e9)
    assert h100.attainable(ridge / 2, "bf16") == pytest.approx(989.4e12 / 2)
    assert h100.attainable(ridge * 2, "bf16") == 989.4e12
    assert h100.attainable(0.0, "bf16") == 0.0


def test_a_board_outside_the_catalogue_says_that_its_rate_is_from_lanes_and_clock() -> None:
    own = recorded_ceilings(
        "GeForce", compute_capability=(8, 6), sm_count=10, clock_hz=1_000_000_000, memory_bandwidth=None
    )
    assert own is not None
    assert own.peak("fp32") == 2 * 128 * 10 * 1e9
    assert own.bandwidth == {}
    assert own.source == "the trace: FP32 from lanes and clock"
    assert (
        recorded_ceilings("", compute_capability=(8, 6), sm_count=1, clock_hz=None, memory_bandwidth=None)
        is None
    )


@pytest.mark.parametrize(
    ("name", "capability", "computes"),
    [
        ("NVIDIA L4", None, True),
        ("NVIDIA A100-SXM4-40GB", (9, 9), False),
        ("NVIDIA GeForce RTX 3090", (8, 6), False),
        ("NVIDIA GeForce RTX 5090", (12, 0), True),
        ("NVIDIA B300", (10, 3), True),
        ("AMD Instinct MI325X", (9, 4), True),
        ("AMD Radeon Graphics", (9, 0), False),
        ("", (9, 4), False),
    ],
)
def test_which_devices_compute_in_eight_bits(
    name: str, capability: tuple[int, int] | None, computes: bool
) -> None:
    assert computes_fp8(name, capability) is computes


@pytest.mark.slow
@pytest.mark.parametrize("path", PUBLIC_NSYS, ids=lambda path: path.stem)
def test_real_boards_describe_themselves_as_the_catalogue_does(path: Path) -> None:
    """The driver's own figures in Nsight Systems' exports: bandwidth, and the lanes and the clock behind FP32."""
    for device in tracekit.read_all(path)[0].meta.devices:
        listed = catalogue_ceilings(device.name, device.memory_bytes)
        own = recorded_ceilings(
            device.name,
            compute_capability=device.compute_capability,
            sm_count=device.sm_count,
            clock_hz=device.clock_hz,
            memory_bandwidth=device.memory_bandwidth,
        )
        if listed is None or own is None:
            continue
        assert own.bandwidth["DRAM"] == pytest.approx(listed.bandwidth["DRAM"], rel=0.03)
        assert own.peak("fp32") == pytest.approx(listed.peak("fp32", "vector"), rel=0.01)


def test_blackwell_has_the_peaks_of_fp4_products() -> None:
    """Dense figures per GPU; those of the superchip are of two, and the most cited ones are with sparsity."""
    for name, tflops in (("NVIDIA B100", 7000), ("NVIDIA B200", 9000), ("NVIDIA GB200", 10_000)):
        found = catalogue_ceilings(name)
        assert found is not None
        assert found.peak("fp4") == pytest.approx(tflops * 1e12)
