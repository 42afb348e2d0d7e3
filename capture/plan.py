"""The plan of a capture, as data that can be passed to the process of a rank. It imports no torch."""

from __future__ import annotations

from typing import Final

import msgspec

from tracekit.errors import UsageError
from tracekit.manifest import LEVELS, CaptureOptions, Level, Settings

__all__ = ["DEFAULT_LEVELS", "Plan", "check_numbers"]

DEFAULT_LEVELS: tuple[Level, ...] = ("M", "MLG", "metrics")

_LEAST: Final = {
    **{"steps": 1, "warmup": 1, "wait": 0},
    **{"batch": 1, "size": 1, "workers": 0, "accumulate": 1, "max_rows": 1, "threads": 1, "ranks": 1},
}


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`workload` as the user named it, its settings, what to record, and the path of real data (None: synthetic data)."""

    workload: str
    settings: Settings = msgspec.field(default_factory=Settings)
    options: CaptureOptions = msgspec.field(default_factory=CaptureOptions)
    levels: tuple[Level, ...] = DEFAULT_LEVELS
    data: str | None = None

    def check(self) -> None:
        """Raise UsageError for a number out of range, or for an unknown, repeated or missing level."""
        check_numbers(self.options)
        check_numbers(self.settings)
        unknown = [level for level in self.levels if level not in LEVELS]
        if unknown or not self.levels or len(set(self.levels)) < len(self.levels):
            raise UsageError(
                f"the levels {','.join(self.levels)!r} are not a selection from {','.join(LEVELS)}",
                remedy="name each once, as in --levels M,ML,MLG",
            )


def check_numbers(part: CaptureOptions | Settings) -> None:
    """Raise UsageError for a number out of range."""
    for name, least in _LEAST.items():
        value = getattr(part, name, None)
        if value is not None and value < least:
            raise UsageError(f"{name} is {value}", remedy=f"it must be at least {least}")
