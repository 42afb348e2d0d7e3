"""What the devices of a table can do: from its description, or else from the catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError
from tracekit.facts.device_peaks import Device, find_device
from tracekit.names import clean
from tracekit.predict.describe import FIGURES
from tracekit.predict.table import Floats, Runs

__all__ = ["Board", "Boards", "board_of", "boards_of"]

"""What a description's [devices] may say of a device."""

_PJ_PER_FLOP_AND_NM: Final = 1.4
"""The energy of a 32-bit operation with all that goes with it, by the process: matrix products run at 75 W ÷ (16 nm · 1.4) on a P4 and at
70 W ÷ (12 nm · 1.4) on a T4, which their power limits hold below their peaks."""
_ENERGY_OF: Final = {6.0: 7.0}
"""Processes whose name promises an energy that they do not have: N6 packs the transistors of N7 more densely."""
_SINGLE_ISSUE: Final = 0.85
"""A multiprocessor that issues one instruction for all its 128 lanes per clock has no slot left for loads beside its arithmetic; those
with 64 lanes use every second slot."""
_SINGLE_ISSUED: Final = frozenset({(8, 6), (8, 9), (9, 0)})
_SHARED_LANES: Final = 0.85
"""On a Pascal, as on all before it, addresses and counters are computed on the lanes of the floating-point arithmetic. Long products reach
0.6 of the peak on a P100, and 0.75 to 0.85 on a V100 and an A100."""
_SHARES_LANES_BEFORE: Final = (7, 0)
_FIRST_HBM: Final = 0.83
"""What the first memory of that kind reaches of its bandwidth, over what later ones do: 0.72 on a P100, 0.87 on V100 and A100."""
_FIRST_HBM_ON: Final = (6, 0)
_ECC_INLINE: Final = 0.87
"""What GDDR memories reach of their bandwidth, over what HBM does: their error correction takes part of it (0.75 on a P4 and a T4, 0.87 on
V100 and A100)."""
_L2_PER_CLOCK: Final = 16.0
"""Bytes that a multiprocessor gets from the second-level cache per clock."""
_L2_OVER_MEMORY: Final = 3.0
"""What that cache delivers over what the memory does, about, where the clock is not known."""
_PER_MULTIPROCESSOR: Final = 180.0
"""GFLOP/s of one, about, where their number is not known."""
_L2_PER_BANDWIDTH: Final = 8e-3
"""MB of cache for each GB/s, about, where it is not known."""


@dataclass(frozen=True, slots=True)
class Board:
    """What a device can do."""

    name: str
    vendor: str
    peak: float
    """fp32, GFLOP/s."""
    bandwidth: float
    """GB/s."""
    multiprocessors: float
    l2_mb: float
    limit: float
    """The rate that its power limit allows in long matrix products, GFLOP/s; infinite where that is not known."""
    issue: float = 1.0
    """The share of the peak that its issue slots allow in matrix products."""
    l2_gb_s: float = 0.0
    """What its second-level cache delivers, GB/s."""
    correction: float = 1.0
    """The share of the bandwidth that error correction leaves, over that of HBM."""
    generation: str = ""
    """Its compute capability, where that is known."""

    @property
    def sustained(self) -> float:
        """What it holds in long matrix products, GFLOP/s."""
        return min(self.peak * self.issue, self.limit)

    @property
    def streamed(self) -> float:
        """The bandwidth, GB/s, less what error correction takes of it."""
        return self.bandwidth * self.correction


@dataclass(frozen=True, slots=True, eq=False)
class Boards:
    """The devices of a table: each one's board, and which of them each row has."""

    boards: Sequence[Board]
    index: npt.NDArray[np.int64]

    def column(self, name: str) -> Floats:
        """A figure of the device of each row."""
        return np.array([getattr(board, name) for board in self.boards], dtype=np.float64)[self.index]


def boards_of(runs: Runs) -> Boards:
    """The devices of a table, by the role `device`, or else by their peaks and bandwidths.

    Raises InconclusiveError for a device whose peak or bandwidth is neither in the table nor in the description nor in the catalogue.
    """
    names = runs.names("device")
    peaks, bandwidths = runs.numbers("peak_gflops"), runs.numbers("bandwidth_gb_s")
    keys = list(zip(names, peaks.round(3).tolist(), bandwidths.round(3).tolist(), strict=True))
    told = list(dict.fromkeys(map(str, keys)))
    place = {key: number for number, key in enumerate(told)}
    first = {str(key): key for key in keys}
    boards = [board_of(first[key][0], runs.description.devices, *first[key][1:]) for key in told]
    return Boards(boards, np.array([place[str(key)] for key in keys], dtype=np.int64))


def board_of(
    name: str,
    known: Mapping[str, Mapping[str, float | str]],
    peak: float = float("nan"),
    bandwidth: float = float("nan"),
) -> Board:
    """The board of a device; `peak` (GFLOP/s) and `bandwidth` (GB/s) of the table go first, then `known`, then the catalogue.

    >>> a100 = board_of("NVIDIA_A100-PCIE-40GB", {})
    >>> a100.peak, a100.bandwidth, a100.multiprocessors, a100.sustained
    (19500.0, 1555.0, 108.0, 19500.0)
    >>> t4 = board_of("T4 of ours", {"T4 of ours": {"name": "Tesla T4", "peak_gflops": 8000}})
    >>> t4.peak, t4.bandwidth, round(t4.sustained)
    (8000.0, 320.0, 4167)

    Raises InconclusiveError where the peak or the bandwidth is not known.
    """
    said = dict(known.get(name, {}))
    title = str(said.get("name", name))
    listed = _listed(title)
    figures = {**_catalogue(listed), **{key: _figure(said[key]) for key in FIGURES if key in said}}
    figures |= {
        key: value for key, value in (("peak_gflops", peak), ("bandwidth_gb_s", bandwidth)) if isfinite(value)
    }
    for key in ("peak_gflops", "bandwidth_gb_s"):
        if not 0 < figures.get(key, 0.0) < inf:
            raise InconclusiveError(
                f"{FIGURES[key]}, of device {clean(name) or 'without a name'} is not known",
                remedy=f'write {key} into [devices."{clean(name)}"] of the description',
            )
    peak, bandwidth = figures["peak_gflops"], figures["bandwidth_gb_s"]
    watts, nm = figures.get("watts", inf), figures.get("process_nm", 0.0)
    limit = 1e3 * watts / (_ENERGY_OF.get(nm, nm) * _PJ_PER_FLOP_AND_NM) if nm > 0 and watts > 0 else inf
    amd = "instinct" in title.replace("_", " ").lower() or title.lower().startswith("amd")
    single = listed is not None and not amd and listed.compute_capability in _SINGLE_ISSUED
    shared = listed is not None and not amd and listed.compute_capability < _SHARES_LANES_BEFORE
    inline = listed is not None and (listed.memory or "").startswith("GDDR")
    first = listed is not None and not amd and listed.compute_capability == _FIRST_HBM_ON
    generation = "" if listed is None else ".".join(map(str, listed.compute_capability))
    return Board(
        name,
        "AMD" if amd else "NVIDIA",
        peak,
        bandwidth,
        figures.get("multiprocessors", 0.0) or max(1.0, round(peak / _PER_MULTIPROCESSOR)),
        figures.get("l2_mb", 0.0) or bandwidth * _L2_PER_BANDWIDTH,
        limit,
        _SINGLE_ISSUE if single else _SHARED_LANES if shared else 1.0,
        figures.get("multiprocessors", 0.0) * figures.get("clock_mhz", 0.0) * 1e-3 * _L2_PER_CLOCK
        or bandwidth * _L2_OVER_MEMORY,
        _ECC_INLINE if inline else _FIRST_HBM if first else 1.0,
        f"AMD {generation}" if amd else generation,
    )


def _listed(title: str) -> Device | None:
    """The catalogue's entry; file names have underscores for blanks."""
    return find_device(title) or find_device(title.replace("_", " "))


def _catalogue(device: Device | None) -> dict[str, float]:
    if device is None:
        return {}
    peak = device.matrix_tflops.get("fp32", device.vector_tflops.get("fp32"))
    found = {
        "peak_gflops": None if peak is None else 1e3 * peak,
        "bandwidth_gb_s": device.dram_gbps,
        "multiprocessors": device.multiprocessors,
        "clock_mhz": device.boost_mhz,
        "l2_mb": None if device.l2_bytes is None else device.l2_bytes / (1 << 20),
        "watts": device.watts,
        "process_nm": device.process_nm,
    }
    return {key: float(value) for key, value in found.items() if value is not None}


def _figure(value: float | str) -> float:
    """A number of the description; NaN for a word in its place."""
    return float(value) if isinstance(value, int | float) else float("nan")
