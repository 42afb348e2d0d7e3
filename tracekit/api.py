"""The functions of the package's front door."""

from __future__ import annotations

import os
from collections.abc import Callable

from tracekit.readers import Limits, read_kineto
from tracekit.trace import Trace

__all__ = ["read"]


def read(
    path: str | os.PathLike[str],
    *,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Read a trace file of any known format.

    `progress` is called with (plain bytes decoded so far, size of the file in bytes). Raises UnreadableTraceError
    when the file is missing, is not a trace, or is damaged beyond repair.
    """
    return read_kineto(path, limits=limits, progress=progress)
