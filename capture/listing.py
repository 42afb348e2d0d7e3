"""The list of workloads, from the catalogue that `tracekit.capture.catalogue` has counted. It imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tracekit.capture import workloads

__all__ = ["CATALOGUE", "Entry", "catalogue", "listing"]

CATALOGUE: Final = Path(__file__).with_name("catalogue.json")
_HEAD: Final = ("workload", "task", "parameters", "GFLOP", "size", "batch")
_NOTE: Final = (
    "GFLOP: 2 × the multiply-adds of matrix products, convolutions and attention in the forward pass of one sample of "
    "the\nsize given (pixels of a side, tokens, frames, …); a training step takes about three times as many. "
    "–: not countable without values.\nsize and batch are the defaults. More: timm:NAME and torchvision:NAME, where "
    "they are installed; FILE.py:FUNCTION for your own."
)


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload: its name with the variant, what it learns, its parameters, and its default batch and size.

    `forward_flops` are of one sample of the default size; None when they could not be counted.
    """

    name: str
    task: str
    parameters: int
    forward_flops: int | None
    batch: int
    size: int | None


def catalogue() -> list[Entry]:
    """The workloads that come with tracekit."""
    return msgspec.json.decode(CATALOGUE.read_bytes(), type=list[Entry])


def listing() -> str:
    """All workloads as text: a line each, the installed ones of other packages behind tracekit's own."""
    rows = [_HEAD, *(_row(entry) for entry in catalogue())]
    own = set(workloads.built_in())
    rows += [(name, "", "", "", "", "") for name in workloads.names() if name not in own]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", _NOTE])


def _row(entry: Entry) -> tuple[str, ...]:
    flops = "–" if entry.forward_flops is None else f"{entry.forward_flops / 1e9:,.4g}"
    size = "–" if entry.size is None else str(entry.size)
    return entry.name, entry.task, f"{entry.parameters:,}", flops, size, str(entry.batch)
