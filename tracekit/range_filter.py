"""Which of the ranges that a person named count as layers: a choice that travels with a `Trace`.

It imports nothing heavy, so that the command line can make the choice before it knows whether a trace must be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from tracekit.errors import UsageError, not_a_pattern

__all__ = ["DEFAULT_DOMAIN", "RangeFilter"]

DEFAULT_DOMAIN: Final = "default"
"""What stands for the NVTX domain that has no name, in which every range of a PyTorch profile lies, too."""


class RangeFilter(msgspec.Struct, frozen=True):
    """Named ranges (NVTX push/pop, `record_function`) that count as layers of the source `range`.

    A range that does not count is a host span like before: it still tells a phase, can be
    a step, and is drawn in the timeline.

    Raises UsageError for what is no regular expression, and for a depth below 1.

    >>> RangeFilter(depth=2, exclude=("^sync$",)).label
    "--nvtx-depth 2 --nvtx-exclude '^sync$'"
    """

    depth: int | None = None  # of the ranges that count, those nested deeper are no layers of their own
    include: tuple[str, ...] = ()  # regular expressions: the name matches one of them; none: any name
    exclude: tuple[str, ...] = ()  # the name matches none of them
    domains: tuple[str, ...] = ()  # the range lies in one of them; none: in any

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth < 1:
            raise UsageError(f"--nvtx-depth {self.depth} leaves no level", remedy="use 1 or more")
        for flag, patterns in (("include", self.include), ("exclude", self.exclude)):
            for pattern in patterns:
                _check(flag, pattern)

    @property
    def label(self) -> str:
        """The flags of the command line that make this choice."""
        return " ".join(self._flags())

    def _flags(self) -> Iterator[str]:
        if self.depth is not None:
            yield f"--nvtx-depth {self.depth}"
        for flag, values in (("include", self.include), ("exclude", self.exclude), ("domain", self.domains)):
            yield from (f"--nvtx-{flag} {value!r}" for value in values)


def _check(flag: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise not_a_pattern(f"--nvtx-{flag}", pattern, error) from error
