"""Peaks of accelerators from `devices.json`: the vendors' dense figures, each entry with its source.

A rate that the vendor does not publish is left out, and a board that is not listed has no peak here; none is guessed.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

__all__ = [
    "Device",
    "Link",
    "Source",
    "computes_fp8",
    "devices",
    "find_device",
    "fp32_tflops_of_clock",
    "peak_bandwidth_gbps",
    "peak_link_gbps",
    "peak_tflops",
    "pinned_copy_gbps",
]


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The document that the figures are from."""

    title: str
    url: str


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links to the other boards of a machine, all of a board together, in one direction; the vendors print both."""

    kind: str
    gbps: float  # 10⁹ bytes a second


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the catalogue. Rates are in 10¹² operations and 10⁹ bytes a second."""

    name: str
    pattern: str  # of the whole name in a trace, without the vendor before it
    examples: list[str]  # names in traces
    memory_gb: tuple[float, float] | None = None  # between these; with less, a device is a part of it
    memory_decides: bool = False  # the name stands for several boards: unknown memory fits none of them
    of: str = "the board"  # what the figures are of
    dies: int = 1  # devices of a trace on one card, where the figures are of one of several
    card_gflops: tuple[
        float, ...
    ] = ()  # fp32 peaks of such a card, as tables print them: at the base and the boost clock
    compute_capability: tuple[int, int]
    matrix_tflops: dict[str, float]  # by precision
    vector_tflops: dict[str, float]
    memory: str | None = None  # its kind
    dram_gbps: float | None = None
    l2_bytes: int | None = None
    multiprocessors: int | None = None  # or compute units
    boost_mhz: int | None = None
    watts: float | None = None  # the power limit
    process_nm: float | None = None  # as the foundry names its process
    link: Link | None = (
        None  # None as well where bridges are optional, or the links differ from board to board
    )
    pcie: int | None = None  # its generation, with 16 lanes
    source: Source
    note: str | None = None

    def is_named(self, name: str) -> bool:
        """Whether a device with this name in a trace may be this one."""
        return re.fullmatch(self.pattern, _VENDOR.sub("", name.strip())) is not None

    def has_memory(self, memory_bytes: int | None) -> bool:
        """Whether a device with this much memory, if that is known, may be this one."""
        if memory_bytes is None or self.memory_gb is None:
            return not self.memory_decides
        return self.memory_gb[0] <= memory_bytes / 1e9 <= self.memory_gb[1]


_VENDOR: Final = re.compile(r"^((NVIDIA|AMD|Tesla|Instinct)\s+)+")

_PINNED: Final = {3: 12.5, 4: 25.0, 5: 55.0}
"""The rate of large copies from and to pinned memory over 16 lanes of PCIe by its generation: about four fifths of the 16, 32 and
64 GB/s."""

_FIRST_FP8: Final = (8, 9)
"""The first compute capability of NVIDIA's whose tensor cores compute in 8-bit floating point."""

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


@cache
def devices() -> tuple[Device, ...]:
    """All entries of the catalogue."""
    content = Path(__file__).with_name("devices.json").read_bytes()
    return tuple(msgspec.json.decode(content, type=list[Device]))


@cache
def find_device(name: str, memory_bytes: int | None = None) -> Device | None:
    """The entry of a device by its name in a trace, and its memory where the name stands for several; None when it has none.

    A part of a device (a MIG instance, a virtual GPU) has none: its figures are not those of the whole.

    >>> find_device("NVIDIA A100-SXM4-80GB").name, find_device("NVIDIA A100-SXM4-80GB MIG 3g.40gb")
    ('A100 SXM 80 GB', None)
    """
    found = [one for one in devices() if one.is_named(name) and one.has_memory(memory_bytes)]
    return max(found, key=lambda one: one.memory_decides, default=None)


def peak_tflops(device_name: str, precision: str, memory_bytes: int | None = None) -> float | None:
    """The peak of a device, found by its name, for matrix products in this precision (fp32, tf32, bf16, fp16); None when it is
    not listed.

    >>> peak_tflops("NVIDIA A100-SXM4-80GB", "bf16"), peak_tflops("Tesla V100-SXM2-16GB", "bf16")
    (312.0, None)
    """
    device = find_device(device_name, memory_bytes)
    if device is None:
        return None
    return device.matrix_tflops.get(precision, device.vector_tflops.get(precision))


def peak_bandwidth_gbps(device_name: str, memory_bytes: int | None = None) -> float | None:
    """The peak bandwidth of a device's memory, found by its name, in 10⁹ bytes a second; None when it is not listed.

    >>> peak_bandwidth_gbps("NVIDIA A100-SXM4-80GB"), peak_bandwidth_gbps("NVIDIA A100-PG509-200")
    (2039.0, None)
    >>> peak_bandwidth_gbps("NVIDIA H100 80GB HBM3"), peak_bandwidth_gbps("NVIDIA H100 PCIe")
    (3350.0, 2000.0)
    """
    device = find_device(device_name, memory_bytes)
    return None if device is None else device.dram_gbps


def computes_fp8(device_name: str, compute_capability: tuple[int, int] | None = None) -> bool:
    """Whether the matrix units of a device are known to compute in 8-bit floating point: by its name, or for NVIDIA's that are not in
    the catalogue by their compute capability.

    >>> computes_fp8("NVIDIA H100 80GB HBM3"), computes_fp8("AMD Instinct MI210", (9, 0))
    (True, False)
    >>> computes_fp8("NVIDIA GeForce RTX 4090", (8, 9))
    True
    """
    device = find_device(device_name)
    if device is not None:
        return "fp8" in device.matrix_tflops
    nvidia = device_name.startswith(("NVIDIA", "GeForce", "Quadro"))
    return nvidia and compute_capability is not None and compute_capability >= _FIRST_FP8


def pinned_copy_gbps(device_name: str) -> float | None:
    """About the rate of copies between a device, found by its name, and pinned memory of the host, in 10⁹ bytes a second; None
    when it is not listed.

    >>> pinned_copy_gbps("NVIDIA A100-SXM4-40GB"), pinned_copy_gbps("GeForce 256")
    (25.0, None)
    """
    device = find_device(device_name)
    return None if device is None or device.pcie is None else _PINNED[device.pcie]


def peak_link_gbps(device_name: str) -> float | None:
    """The peak of the links from a device, found by its name, to the others of its machine, in one direction, in 10⁹ bytes a second;
    None when it is not listed.

    >>> peak_link_gbps("NVIDIA A100-SXM4-80GB"), peak_link_gbps("NVIDIA A100-PCIE-40GB")
    (300.0, None)
    """
    device = find_device(device_name)
    return None if device is None or device.link is None else device.link.gbps


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
