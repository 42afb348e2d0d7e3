"""What bounds the work of a device: its rates of arithmetic and of memory, from a data sheet or measured."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.classes import dataclass
from tracekit.errors import UsageError, nearest
from tracekit.facts.device_peaks import Device, devices, find_device, fp32_tflops_of_clock

__all__ = ["Ceilings", "catalogue_ceilings", "chosen_ceilings", "chosen_device", "recorded_ceilings"]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The ceilings of one device's roofline. What is not known is absent, never zero.

    * `device`: its name
    * `source`: where the figures come from, in words
    * `compute`: FLOP/s (for int8 operations/s) by precision (fp64, fp32, tf32, bf16, fp16, fp8, fp4, int8) and unit (`matrix`: tensor
      or matrix cores, and on a CPU matrix products; `vector`: the other lanes)
    * `bandwidth`: bytes/s by level: DRAM, L3, L2, L1
    * `threads`: of a CPU, those that did the work; None for other devices
    """

    device: str
    source: str
    compute: Mapping[tuple[str, str], float]
    bandwidth: Mapping[str, float]
    threads: int | None = None

    def peak(self, precision: str, unit: str = "matrix") -> float | None:
        """FLOP/s in a precision; None if it is not known.

        Where the matrix units do not compute in the precision, or the device has none, its matrix products run on the vector
        units: their peak stands in. No other precision ever does.

        >>> t4 = catalogue_ceilings("Tesla T4")
        >>> t4.peak("fp16") / 1e12, t4.peak("fp32") / 1e12, t4.peak("bf16")
        (65.0, 8.1, None)
        """
        found = self.compute.get((precision, unit))
        return self.compute.get((precision, "vector")) if found is None and unit == "matrix" else found

    def ridge(self, precision: str, unit: str = "matrix", level: str = "DRAM") -> float | None:
        """The arithmetic intensity (FLOP per byte) at which both ceilings meet; None if one of them is not known.

        >>> round(catalogue_ceilings("NVIDIA A100-SXM4-40GB").ridge("bf16"), 1)
        200.6
        """
        peak, bandwidth = self.peak(precision, unit), self.bandwidth.get(level)
        return None if peak is None or bandwidth is None else peak / bandwidth

    def attainable(
        self, intensity: float, precision: str, unit: str = "matrix", level: str = "DRAM"
    ) -> float | None:
        """FLOP/s that work of this arithmetic intensity (FLOP per byte) can reach: the lower of the peak and what the
        memory can feed. None if one of the ceilings is not known.

        >>> a100 = catalogue_ceilings("NVIDIA A100-SXM4-40GB")
        >>> a100.attainable(100, "bf16") / 1e12, a100.attainable(1000, "bf16") / 1e12
        (155.5, 312.0)
        """
        peak, bandwidth = self.peak(precision, unit), self.bandwidth.get(level)
        return None if peak is None or bandwidth is None else min(peak, intensity * bandwidth)


def catalogue_ceilings(device_name: str, memory_bytes: int | None = None) -> Ceilings | None:
    """The ceilings of a device as its vendor publishes them, found by its name in a trace; None if it is not in the catalogue.

    The size of its memory, where the trace has it, tells apart boards that share a name.

    >>> catalogue_ceilings("AMD Instinct MI300X").bandwidth["DRAM"] / 1e12
    5.3
    >>> catalogue_ceilings("NVIDIA A100-PG509-200", 42_297_524_224).bandwidth["DRAM"] / 1e9
    1555.0
    >>> catalogue_ceilings("GeForce 256") is None
    True
    """
    device = find_device(device_name, memory_bytes)
    return None if device is None else _of(device)


def chosen_ceilings(word: str) -> Ceilings:
    """The ceilings of the board that a user calls so. Raises UsageError if none is called so."""
    return _of(chosen_device(word))


def chosen_device(word: str) -> Device:
    """The board that a user calls so: by its name in traces or in the catalogue, or by a part of that: then the first such board there, which is the one for SXM sockets.

    >>> chosen_device("h200").name, chosen_device("H100 PCIe").name
    ('H200 SXM', 'H100 PCIe')

    Raises UsageError if none is called so.
    """
    found = find_device(word)
    if found is not None and found.dram_gbps is not None:
        return found
    boards = {one.name: one for one in devices() if one.dram_gbps is not None}
    parts = set(word.lower().replace("-", " ").split())
    called = [one for one in boards.values() if one.name.lower() == word.strip().lower()]
    called = called or [one for one in boards.values() if parts and parts <= set(one.name.lower().split())]
    if called:
        return called[0]
    remedy = nearest(word, boards, "name it as its vendor does, such as H100 SXM, L4 or MI300X")
    raise UsageError(f"the catalogue has no device {word!r}", remedy=remedy)


def _of(device: Device) -> Ceilings:
    units = (("matrix", device.matrix_tflops), ("vector", device.vector_tflops))
    return Ceilings(
        device=device.name,
        source=f"catalogue: {device.source.title}",
        compute={(name, unit): rate * 1e12 for unit, peaks in units for name, rate in peaks.items()},
        bandwidth={} if device.dram_gbps is None else {"DRAM": device.dram_gbps * 1e9},
    )


def recorded_ceilings(
    device_name: str,
    *,
    compute_capability: tuple[int, int] | None,
    sm_count: int | None,
    clock_hz: int | None,
    memory_bandwidth: int | None,
) -> Ceilings | None:
    """The ceilings of a device that is not in the catalogue, from what its trace says of it: the FP32 rate of its lanes at the
    highest clock, and the bandwidth of its memory (bytes/s). Its tensor cores stay unknown. None if the trace says neither.

    >>> rtx = recorded_ceilings(
    ...     "NVIDIA GeForce RTX 3080",
    ...     compute_capability=(8, 6),
    ...     sm_count=68,
    ...     clock_hz=1_710_000_000,
    ...     memory_bandwidth=760_080_000_000,
    ... )
    >>> round(rtx.peak("fp32") / 1e12, 1), rtx.peak("fp16"), rtx.source
    (29.8, None, 'the trace: FP32 from lanes and clock, bandwidth as recorded')
    """
    tflops = fp32_tflops_of_clock(compute_capability, sm_count, clock_hz)
    known = {"FP32 from lanes and clock": tflops, "bandwidth as recorded": memory_bandwidth}
    words = [name for name, figure in known.items() if figure is not None]
    if not words:
        return None
    return Ceilings(
        device=device_name,
        source=f"the trace: {', '.join(words)}",
        compute={} if tflops is None else {("fp32", "vector"): tflops * 1e12},
        bandwidth={} if memory_bandwidth is None else {"DRAM": float(memory_bandwidth)},
    )
