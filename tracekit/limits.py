"""How much a reader takes from a file that it does not trust."""

from __future__ import annotations

from typing import Final

from tracekit.classes import dataclass

__all__ = ["LARGEST_NUMBER", "LONGEST_DEFAULT", "LONGEST_NAME", "LONGEST_TEXT", "SMALLEST_ROW", "Limits"]

LARGEST_NUMBER: Final = 1e30
"""Of a table of runs: nothing that is measured is larger, or without being 0 smaller than one part in so many. Fits multiply such numbers."""

LONGEST_NAME: Final = 1024
"""So many characters of a name are kept where one name may stand in many rows: a layer's path, a frame, a span."""

LONGEST_TEXT: Final = 1 << 14
"""So many characters of any text are kept: names of templates have some thousands."""

LONGEST_DEFAULT: Final = 64
"""Characters of the default of a database's column, which rows that were written before the column show without holding it."""

SMALLEST_ROW: Final = 4
"""Bytes of a database's file that a row takes at least: its place in the page, the size and its id."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a compressed file may grow before it is taken for an attack, and how many rows are held in memory.

    Real traces compress 8 to 60 times; a file of zeros compresses 1,000 times.
    """

    max_ratio: int = 200  # plain bytes for each byte of the file
    free_bytes: int = 256 << 20  # up to which the ratio is not looked at, since short files can be extreme
    max_bytes: int = 64 << 30
    enforced: bool = True
    max_events: int | None = None
    """Of a trace with more events only the steps around its middle are read that hold about as many; None reads all."""
    all_processes: bool = False
    """Also read the processes of a file that put no work on a device, all of them together as a last trace."""
