"""The peak of one device, where a table has the name, or the peak, of a card."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from tracekit.facts.device_peaks import devices, find_device

__all__ = ["die_of_name", "die_of_peak"]

_SAME: Final = 0.005
"""Peaks that differ by less are the same: tables round them."""

Known = Mapping[str, Mapping[str, float | str]]


def die_of_name(name: str, known: Known) -> float:
    """The fp32 peak of a device of this name, GFLOP/s, from `known` (the description's devices) or else the catalogue; NaN without one.

    >>> die_of_name("Tesla K80", {}), die_of_name("K80", {"K80": {"peak_gflops": 5591, "dies": 2}})
    (4370.0, 2795.5)
    """
    said = known.get(name)
    if said is not None and isinstance(said.get("peak_gflops"), int | float):
        return float(said["peak_gflops"]) / _dies(said)
    found = find_device(str(said.get("name", name)) if said is not None else name)
    if found is None:
        return float("nan")
    return 1e3 * found.vector_tflops.get("fp32", float("nan"))


def die_of_peak(card_gflops: float, known: Known) -> float:
    """The peak of a device, GFLOP/s, where a table has this one: half of it for a card that is known to have two dies, by `known` (the
    description's devices, by their peaks) or else the catalogue.

    >>> die_of_peak(5591, {}), die_of_peak(11339, {}), die_of_peak(5591, {"5591": {"dies": 1}})
    (2795.5, 11339.0, 5591.0)
    """
    for key, said in known.items():
        if _is_number(key) and _agree(float(key), card_gflops):
            peak = said.get("peak_gflops", card_gflops)
            return float(peak) / _dies(said)
    for peak, dies in _cards():
        if _agree(peak, card_gflops):
            return card_gflops / dies
    return float(card_gflops)


@cache
def _cards() -> tuple[tuple[float, int], ...]:
    """The peaks of the cards with several dies, and how many they have."""
    return tuple((peak, device.dies) for device in devices() for peak in device.card_gflops)


def _dies(said: Mapping[str, float | str]) -> float:
    """How many dies a card has: as the description says, or else as the device that it names has."""
    if "dies" in said:
        return max(float(said["dies"]), 1.0)
    found = find_device(str(said.get("name", "")))
    return float(found.dies) if found is not None else 1.0


def _agree(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME * other


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
