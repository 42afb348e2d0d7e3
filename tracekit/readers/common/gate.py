"""What no recording can hold is left out where a file is read, so that no sum behind it overflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from tracekit.health import HealthLog

__all__ = ["LONGEST_NS", "MOST_DEVICES", "leave_out_absurd"]

LONGEST_NS: Final = 1 << 46
"""19.5 hours: no event lies farther from the middle one of a recording, or lasts longer."""

MOST_DEVICES: Final = 64
"""No process that a profiler records works with more devices; all idle time of each is explained."""

_LARGEST: Final = 1 << 53
_LARGEST_SUM: Final = 1 << 62
_AMOUNTS: Final = dict.fromkeys(
    ("bytes", "allocated", "reserved", "elements_in", "elements_out", "blocks", "shared_memory"), _LARGEST
) | {"occupancy": 1}
"""What each may be at most."""

Frames = dict[str, pl.DataFrame | None]


def leave_out_absurd(raw: Frames, health: HealthLog) -> None:
    """Take rows out of these raw frames, with absolute times, that are too far from the others or too long.

    Amounts that no machine has become null. All of it is counted. After this, the times of a file differ by less than
    four times `LONGEST_NS`, and the durations of a frame add up to less than 2⁶².
    """
    starts = [frame["start"] for name in ("host", "device") if (frame := raw.get(name)) is not None]
    if not any(len(each) for each in starts):
        starts = [frame["start"] for frame in raw.values() if frame is not None and "start" in frame.columns]
    raw["device"] = _of_real_devices(raw.get("device"), health)
    middle = _middle(starts)
    for name, frame in raw.items():
        if frame is not None:
            raw[name] = _plausible(frame, middle, health, name)


def _of_real_devices(frame: pl.DataFrame | None, health: HealthLog) -> pl.DataFrame | None:
    """The activities of the `MOST_DEVICES` devices with the most activities."""
    if frame is None or frame["device_id"].n_unique() <= MOST_DEVICES:
        return frame
    counts = frame["device_id"].value_counts().sort("count", "device_id", descending=[True, False])
    kept = frame.filter(pl.col("device_id").is_in(counts["device_id"].head(MOST_DEVICES).implode()))
    health.count("too_many_devices", frame.height - kept.height, f"{counts.height:,} devices")
    return kept


def _middle(starts: Sequence[pl.Series]) -> float:
    """The median start, if some are too far from each other; else the least."""
    bounds = [bound for each in starts for bound in (each.min(), each.max()) if isinstance(bound, int)]
    if not bounds:
        return 0.0
    if max(bounds) - min(bounds) <= LONGEST_NS:
        return float(min(bounds))
    # The start of an event, so that one is left at least; of two the later, since a missing time is often written as 0.
    middle = pl.concat([each.cast(pl.Float64) for each in starts]).quantile(0.5, "higher")
    return middle if isinstance(middle, float) else 0.0


def _plausible(frame: pl.DataFrame, middle: float, health: HealthLog, name: str) -> pl.DataFrame:
    if "start" in frame.columns and not _near(frame["start"], middle):
        # As numbers of floating point, since the difference of two times of the file may not fit into 64 bits.
        far = (frame["start"].cast(pl.Float64) - middle).abs() > LONGEST_NS
        frame = _without(frame, far.fill_null(value=False), health, name)
    if "duration" in frame.columns and frame["duration"].dtype.is_integer():
        frame = _with_durations(frame, health, name)
    for amount in _AMOUNTS:
        if amount in frame.columns and frame[amount].dtype.is_numeric():
            frame = _with_amounts(frame, amount, health, name)
    return frame


def _near(start: pl.Series, middle: float) -> bool:
    least, most = start.min(), start.max()
    if not isinstance(least, int) or not isinstance(most, int):
        return True
    return middle - least <= LONGEST_NS and most - middle <= LONGEST_NS


def _with_durations(frame: pl.DataFrame, health: HealthLog, name: str) -> pl.DataFrame:
    duration = frame["duration"]
    longest = duration.max()
    limit = LONGEST_NS
    if not isinstance(longest, int) or longest <= min(limit, _LARGEST_SUM // frame.height):
        return frame  # their sum cannot be too large either
    if float(duration.cast(pl.Float64).clip(0).sum()) > _LARGEST_SUM:
        limit = min(limit, _LARGEST_SUM // frame.height)
    if longest > limit:
        frame = _without(frame, (duration > limit).fill_null(value=False), health, name)
    return frame


def _with_amounts(frame: pl.DataFrame, amount: str, health: HealthLog, name: str) -> pl.DataFrame:
    # Of the amounts only the bytes of an allocator's event may be negative.
    least, most = (-_LARGEST if name == "memory" and amount == "bytes" else 0), _AMOUNTS[amount]
    low, high = frame[amount].min(), frame[amount].max()
    if low is None or (isinstance(low, int) and isinstance(high, int) and least <= low and high <= most):
        return frame
    usual = pl.col(amount).is_between(least, most)
    if frame.select(usual.all()).item():
        return frame
    lost = frame.select((~usual).sum()).item()
    health.count("absurd_amount", lost, f"{amount} of {name} rows")
    return frame.with_columns(pl.when(usual).then(pl.col(amount)))


def _without(frame: pl.DataFrame, absurd: pl.Series, health: HealthLog, name: str) -> pl.DataFrame:
    if not absurd.any():
        return frame
    health.count("absurd_time", int(absurd.sum()), f"{name} rows")
    return frame.filter(~absurd)
