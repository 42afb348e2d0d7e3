"""Readers: a package a format. Each turns a file into the same frames; the formats that there are stand here.

A package of somebody else's adds one as an entry point of the group `tracekit.readers`, whose value is a `Format`.
"""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Final

from tracekit.extensions import entry_points_of
from tracekit.readers.format import RECORDABLE, Format
from tracekit.readers.kineto import KINETO
from tracekit.readers.nsys import NSYS

__all__ = [
    "ENTRY_POINT_GROUP",
    "FORMATS",
    "KINETO",
    "RECORDABLE",
    "Format",
    "flag_for",
    "format_named",
    "format_of",
    "how_to_record",
    "installed_formats",
]

FORMATS: Final[tuple[Format, ...]] = (NSYS, KINETO)
"""tracekit's own; the last one takes every file, and says what is wrong with it."""

ENTRY_POINT_GROUP: Final = "tracekit.readers"


@functools.cache
def installed_formats() -> tuple[Format, ...]:
    """The formats of installed packages, then tracekit's own; of a package that cannot be imported a warning says so."""
    formats = []
    for point in entry_points_of(ENTRY_POINT_GROUP):
        try:
            formats.append(point.load())
        except Exception as error:  # noqa: BLE001, PERF203 - another package's fault must not take the others down
            warnings.warn(f"the reader {point.name} cannot be imported ({error})", stacklevel=2)
    return (*formats, *FORMATS)


def format_of(path: Path) -> Format:
    """The format of a file."""
    for one in installed_formats():
        if one.recognises(path):
            return one
    return KINETO


def format_named(name: str) -> Format:
    """The format with this `Meta.format`; the PyTorch profiler's for a name that no installed package has.

    >>> format_named("nsys").title
    'Nsight Systems'
    """
    own = next((one for one in FORMATS if one.name == name), None)
    return own or next((one for one in installed_formats() if one.name == name), KINETO)


def flag_for(what: str, format_: str, *, amd: bool = False) -> str:
    """`Format.flag_for` of the format with this name.

    >>> flag_for("memory", "kineto"), flag_for("memory", "nsys")
    ('profile_memory=True', '--cuda-memory-usage=true')
    """
    return format_named(format_).flag_for(what, amd=amd)


def how_to_record(what: str, format_: str) -> str:
    """`Format.how_to_record` of the format with this name."""
    return format_named(format_).how_to_record(what)
