"""Reports that are kept: the whole one as bytes, and what of it another question asks for."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tracekit.report.format import costliest
from tracekit.report.model import Report, Section, Table, Tree

__all__ = ["limited", "pack", "part_of", "unpack"]


def pack(report: Report) -> bytes:
    """The report as bytes that `unpack` reads.

    Raises OverflowError for a number of more than 64 bits.
    """
    return msgspec.msgpack.encode(report, enc_hook=_plain)


def unpack(data: bytes) -> Report | None:
    """The report that `pack` made; None if another state of the program made it."""
    try:
        return msgspec.msgpack.decode(data, type=Report, dec_hook=_frame)
    except (msgspec.MsgspecError, pl.exceptions.PolarsError):
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, pl.DataFrame):
        file = io.BytesIO()
        value.write_ipc_stream(file, compression="lz4")
        return file.getvalue()
    if isinstance(value, np.generic):
        return value.item()
    message = f"{type(value).__name__} is no part of a report"
    raise TypeError(message)


def _frame(kind: Any, value: Any) -> Any:
    if kind is pl.DataFrame:
        return pl.read_ipc_stream(value)
    message = f"{kind} is no part of a report"
    raise TypeError(message)


def part_of(report: Report, only: Sequence[str] | None, top: int | None) -> Report | None:
    """Of a whole report the sections `only`, with the first `top` rows of each table; None where a report of these sections alone
    may say something else.
    """
    sections = report.sections
    if only is not None:
        sections = tuple(each for each in sections if each.name in only)
        # Of sections that lack the same, only the first one says how to record it; and what was not run cannot be impossible.
        lacking = any(each.not_captured for each in sections)
        if (
            lacking
            or len(sections) < len(set(only))
            or any(item.severity == "error" for item in report.health)
        ):
            return None
    return replace(
        report,
        sections=tuple(limited(each, top) for each in sections),
        digest=report.digest if only is None else None,
    )


def limited(section: Section, top: int | None) -> Section:
    """The section with at most the first `top` rows of each table; of a tree those with the most time, in their order."""
    if top is None:
        return section
    return replace(
        section,
        tables=tuple(replace(each, frame=costliest(_as_it_comes(each), top)) for each in section.tables),
    )


def _as_it_comes(table: Table) -> Table:
    return replace(table, tree=Tree(largest_first=False)) if table.tree else table
