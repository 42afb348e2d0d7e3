"""Peaks of accelerators: arithmetic, the vendors' dense figures in 10¹² floating-point operations a second, and the
bandwidth of their memory, of their link to the host and of those to other boards in 10⁹ bytes a second.

Sources of the arithmetic: NVIDIA's data sheets of each product (figures without sparsity; SXM boards unless the name says PCIe), AMD's data
sheets of MI250X (per card) and MI300X. A board that is not listed has no peak here; none is guessed.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "computes_fp8",
    "fp32_tflops_of_clock",
    "peak_bandwidth_gbps",
    "peak_link_gbps",
    "peak_tflops",
    "pinned_copy_gbps",
]

_FP32, _TF32, _HALF = 0, 1, 2
_COLUMN: Final = {"fp32": _FP32, "tf32": _TF32, "bf16": _HALF, "fp16": _HALF}
_PEAKS: Final[tuple[tuple[str, tuple[float | None, float | None, float | None]], ...]] = (
    (r"H100.*PCIe", (51.2, 378.0, 756.0)),
    (r"H[12]00", (66.9, 494.7, 989.4)),
    (r"A100", (19.5, 156.0, 312.0)),
    (r"V100", (15.7, None, 125.0)),
    (r"L40S", (91.6, 183.0, 362.0)),
    (r"\bL4\b", (30.3, 60.0, 121.0)),
    (r"\bA10\b", (31.2, 62.5, 125.0)),
    (r"\bT4\b", (8.1, None, 65.0)),
    (r"MI300X", (163.4, 653.7, 1307.4)),
    (r"MI250X", (47.9, None, 383.0)),
)
_BANDWIDTHS: Final[tuple[tuple[str, float], ...]] = (
    (r"\bH200\b", 4800.0),
    (r"\bH100\b(?!.*(PCIe|NVL))", 3350.0),
    (r"A100.*40GB", 1555.0),
    (r"A100.*80GB.*PCIe|A100.*PCIe.*80GB", 1935.0),
    (r"A100.*80GB", 2039.0),
    (r"V100(?!S)", 897.0),
    (r"\bT4\b", 320.0),
    (r"MI300X", 5300.0),
)
"""As public tables of specifications give the vendors' figures; boards that were not looked up are not listed."""

_PINNED: Final[tuple[tuple[str, float], ...]] = (
    (r"\b(V100|T4|P100)\b", 12.5),
    (r"\b(A100|A10G?|A30|A40|L4|L40S?)\b|MI(210|250)", 25.0),
    (r"\bH[12]00\b|MI3\d\d", 55.0),
)
"""The rate of large copies from and to pinned memory over 16 lanes of PCIe: about four fifths of the 16, 32 and 64 GB/s of its
generations 3, 4 and 5."""

_LINKS: Final[tuple[tuple[str, float], ...]] = (
    (r"V100.*SXM", 150.0),
    (r"A100.*SXM", 300.0),
    (r"\bH[12]00\b(?!.*(PCIe|NVL))", 450.0),
    (r"\bH20\b", 450.0),
    (r"\bB[12]00\b", 900.0),
    (r"MI300X", 448.0),
    (r"V100.*PCIe|\bT4\b", 15.75),
    (r"\b(A10G?|L4|L40S?)\b", 31.5),
)
"""In one direction, all links of a board together: NVLink of the SXM boards (NVIDIA's data sheets give both directions: V100 300, A100
600, H100, H200 and H20 900, B100 and B200 1,800 GB/s), AMD's Infinity Fabric (MI300X: 7 links of 128 GB/s in both), and for boards without
such links 16 lanes of PCIe 3 or 4. Boards whose bridges are optional (A100 and H100 for PCIe) and those whose links differ from board
to board (MI250X) are not listed."""

_WITH_FP8: Final = r"\b(H[12]00|H20|B[123]00|GB\d00|L4|L40S?|RTX (40|50)\d\d)\b|MI3\d\d"
"""Devices of compute capability 8.9 and more, and AMD's from CDNA 3 on."""

_FP32_LANES: Final[dict[tuple[int, int], int]] = {
    (6, 0): 64,
    (6, 1): 128,
    (7, 0): 64,
    (7, 5): 64,
    (8, 0): 64,
    (8, 6): 128,
    (8, 9): 128,
    (9, 0): 128,
    (10, 0): 128,
    (12, 0): 128,
}
"""Single-precision results per clock and multiprocessor, by compute capability (table of arithmetic throughput in NVIDIA's
CUDA C++ Programming Guide).
"""

_NO_BF16: Final = re.compile(r"V100|\bT4\b")


def peak_tflops(device_name: str, precision: str) -> float | None:
    """The peak of a device, found by its name, for matrix products in this precision (fp32, tf32, bf16, fp16); None when it is
    not listed.

    >>> peak_tflops("NVIDIA A100-SXM4-80GB", "bf16"), peak_tflops("Tesla V100-SXM2-16GB", "bf16")
    (312.0, None)
    """
    if precision == "bf16" and _NO_BF16.search(device_name):
        return None
    for pattern, peaks in _PEAKS:
        if re.search(pattern, device_name):
            return peaks[_COLUMN[precision]]
    return None


def peak_bandwidth_gbps(device_name: str) -> float | None:
    """The peak bandwidth of a device's memory, found by its name, in 10⁹ bytes a second; None when it is not listed.

    An A100 whose name does not say how much memory it has is not listed: the two sizes differ in it.

    >>> peak_bandwidth_gbps("NVIDIA A100-SXM4-80GB"), peak_bandwidth_gbps("NVIDIA A100-PG509-200")
    (2039.0, None)
    >>> peak_bandwidth_gbps("NVIDIA H100 80GB HBM3"), peak_bandwidth_gbps("NVIDIA H100 PCIe")
    (3350.0, None)
    """
    return next((rate for pattern, rate in _BANDWIDTHS if re.search(pattern, device_name, re.I)), None)


def computes_fp8(device_name: str) -> bool:
    """Whether the matrix units of a device, found by its name, are known to compute in types of 8 bits.

    >>> computes_fp8("NVIDIA H100 80GB HBM3"), computes_fp8("AMD Instinct MI210")
    (True, False)
    """
    return re.search(_WITH_FP8, device_name) is not None


def pinned_copy_gbps(device_name: str) -> float | None:
    """About the rate of copies between a device, found by its name, and pinned memory of the host, in 10⁹ bytes a second; None
    when it is not listed.

    >>> pinned_copy_gbps("NVIDIA A100-SXM4-40GB"), pinned_copy_gbps("GeForce 256")
    (25.0, None)
    """
    return next((rate for pattern, rate in _PINNED if re.search(pattern, device_name)), None)


def peak_link_gbps(device_name: str) -> float | None:
    """The peak of the links from a device, found by its name, to the others of its machine, in one direction, in 10⁹ bytes a second;
    None when it is not listed.

    >>> peak_link_gbps("NVIDIA A100-SXM4-80GB"), peak_link_gbps("NVIDIA A100-PCIE-40GB")
    (300.0, None)
    """
    return next((rate for pattern, rate in _LINKS if re.search(pattern, device_name, re.I)), None)


def fp32_tflops_of_clock(
    compute_capability: tuple[int, int] | None, sm_count: int | None, clock_hz: int | None
) -> float | None:
    """The peak of a device outside its tensor cores, from its size and clock, in 10¹² FLOP/s: two operations (a
    multiplication and an addition) per lane and clock. None where one of them, or the generation, is not known.

    >>> fp32_tflops_of_clock((8, 0), 108, 1_410_000_000)
    19.49184
    """
    lanes = None if compute_capability is None else _FP32_LANES.get(compute_capability)
    if lanes is None or sm_count is None or clock_hz is None:
        return None
    return 2 * lanes * sm_count * clock_hz / 1e12
