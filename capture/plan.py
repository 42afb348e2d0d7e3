"""What a capture is to do, as data that a process of another rank can be given. It imports no torch."""

from __future__ import annotations

import sys
from typing import Final

import msgspec

from tracekit.errors import UsageError
from tracekit.manifest import LEVELS, CaptureOptions, Level, Settings

__all__ = ["DEFAULT_LEVELS", "Plan", "process_of"]

DEFAULT_LEVELS: tuple[Level, ...] = ("M", "MLG", "metrics")

_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; main(sys.argv[2:])"
)

_LEAST = {"steps": 1, "warmup": 1, "wait": 0}
_LEAST_SETTINGS = {
    "batch": 1,
    "size": 1,
    "workers": 0,
    "accumulate": 1,
    "max_rows": 1,
    "threads": 1,
    "ranks": 1,
}


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`workload` as the user named it, how it is to run, what is recorded, and where real data lie (None: made up)."""

    workload: str
    settings: Settings = msgspec.field(default_factory=Settings)
    options: CaptureOptions = msgspec.field(default_factory=CaptureOptions)
    levels: tuple[Level, ...] = DEFAULT_LEVELS
    data: str | None = None

    def check(self) -> None:
        """Raise UsageError for a number out of range, or a level that is none, comes twice or is missing."""
        for part, least in ((self.options, _LEAST), (self.settings, _LEAST_SETTINGS)):
            for name, bound in least.items():
                value = getattr(part, name)
                if value is not None and value < bound:
                    raise UsageError(f"{name} is {value}", remedy=f"it must be at least {bound}")
        unknown = [level for level in self.levels if level not in LEVELS]
        if unknown or not self.levels or len(set(self.levels)) < len(self.levels):
            raise UsageError(
                f"the levels {','.join(self.levels)!r} are not a choice of {','.join(LEVELS)}",
                remedy="name each once, as in --levels M,ML,MLG",
            )


def process_of(module: str, plan: Plan, *more: object) -> list[str]:
    """The words of a process that finds what this one finds, and calls `main` of the module with the plan and `more`."""
    return [
        *(sys.executable, "-c", _START.format(module=module)),
        *(msgspec.json.encode(each).decode() for each in (sys.path, plan)),
        *map(str, more),
    ]
