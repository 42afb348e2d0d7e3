"""What installed packages add to tracekit: their entry points."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["entry_points_of"]


def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of this group, by the packages on `sys.path`.

    >>> entry_points_of("no.such.group")
    ()
    """
    return tuple(_every(tuple(sys.path)).select(group=group))


@cache
def _every(_path: tuple[str, ...]) -> Any:
    """Of the packages on this path, which are looked through once: it takes 10 ms and more."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - `tracekit --help` does not need it

    return entry_points()
