"""What installed packages add to tracekit: their entry points."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["entry_points_of", "registered_in"]


def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of this group, by the packages on `sys.path`.

    >>> entry_points_of("no.such.group")
    ()
    """
    return tuple(_every(tuple(sys.path)).select(group=group))


@cache
def _every(path: tuple[str, ...]) -> Any:
    """Of the packages on this path, which are looked through once.

    Python reads and sorts all that any package registers, which takes 10 ms and more; mostly none registers anything for tracekit.
    """
    from importlib.metadata import EntryPoints, entry_points  # noqa: PLC0415 - `tracekit --help` does not need it

    for entry in path:
        if Path(entry).is_file() or next(registered_in(entry), None):  # an archive may hold packages, too
            return entry_points()
    others = [one for one in sys.meta_path if one is not PathFinder and hasattr(one, "find_distributions")]
    return entry_points() if others else EntryPoints(())


def registered_in(folder: str) -> Iterator[tuple[str, bytes]]:
    """What the packages in a folder of the path register for tracekit: the path and the text of each."""
    with suppress(OSError, ValueError), os.scandir(folder or ".") as entries:
        for path in sorted(each.path for each in entries if each.name.lower().endswith(_METADATA)):
            with suppress(OSError, ValueError):
                text = Path(path, "entry_points.txt").read_bytes()
                if b"[tracekit." in text:
                    yield path, text


_METADATA = (".dist-info", "egg-info")
