"""Labels and units of Nsight Compute's pages: the details page's name of each metric, and the factor of each printed unit.

Source: NVIDIA's Nsight Compute CLI manual and Kernel Profiling Guide (docs.nvidia.com/nsight-compute).
"""

from __future__ import annotations

from typing import Final

from tracekit.facts.gpu_metrics import BYTES_PER_SECOND, DURATION, OCCUPANCY, REGISTERS

__all__ = ["DETAILS_NAMES", "base_unit"]

DETAILS_NAMES: Final[dict[tuple[str, str], str]] = {
    ("Duration", "ns"): DURATION,
    ("Memory Throughput", "byte/s"): BYTES_PER_SECOND,
    ("DRAM Throughput", "byte/s"): BYTES_PER_SECOND,
    ("DRAM Throughput", "fraction"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ("Achieved Occupancy", "fraction"): OCCUPANCY,
    ("Registers Per Thread", "register/thread"): REGISTERS,
}
"""The details page's label and base unit of a metric, and its name on the raw page."""

_PREFIXES: Final = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SECONDS: Final = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_UNITS: Final[dict[str, tuple[str, float]]] = {
    "%": ("fraction", 1e-2),
    **{f"{letter}{name}": ("byte", by) for letter, by in _PREFIXES.items() for name in ("byte", "B")},
    **{f"{letter}{name}": ("hz", by) for letter, by in _PREFIXES.items() for name in ("hz", "Hz")},
    **{
        f"{letter}{name}": (name, by)
        for letter, by in _PREFIXES.items()
        for name in ("inst", "cycle", "sector", "request", "thread", "warp", "block", "register", "sample")
    },
    **{f"{letter}{name}": ("ns", by * 1e9) for letter, by in _SECONDS.items() for name in ("second", "s")},
}
"""Every unit that is converted: its base unit and factor. A K is a thousand, as in Nsight Compute."""
_TIMES: Final = {f"{letter}{name}": by for letter, by in _SECONDS.items() for name in ("second", "s")}


def base_unit(unit: str) -> tuple[str, float]:
    """The base unit of a printed unit, and the factor of the value: `byte`, `ns`, `fraction`, `hz`, or `… /s` for a rate.

    An unknown unit stays as it is, with the factor 1.

    >>> base_unit("Gbyte/second"), base_unit("%"), base_unit("inst/cycle")
    (('byte/s', 1000000000.0), ('fraction', 0.01), ('inst/cycle', 1.0))
    """
    over, slash, under = unit.partition("/")
    base, factor = _UNITS.get(over, (over, 1.0))
    if not slash:
        return base, factor
    if under in _TIMES:  # cycles per nanosecond, bytes per second
        return f"{base}/s", factor / _TIMES[under]
    return f"{base}/{under}", factor
