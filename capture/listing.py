"""The list of workloads, from the catalogue that `tracekit.capture.catalogue` wrote. It imports no torch."""

from __future__ import annotations

import re
import string
from pathlib import Path
from textwrap import wrap
from typing import Final

from tracekit.capture import workloads
from tracekit.capture.entries import Entry, catalogue

__all__ = ["completions", "listing"]

_HEAD: Final = ("workload", "task", "parameters", "GFLOP", "size", "batch")
_FUNCTION: Final = re.compile(r"^def ([A-Za-z]\w*)\(", re.MULTILINE)
_PIPED_WIDTH: Final = 100
_GAP: Final = "  "
_NOTE: Final = (
    "GFLOP: 2 × the multiply-adds of matrix products, convolutions and attention in the forward pass of one sample "
    "of the listed size (pixels of a side, tokens, frames, …); a training step takes about three times as many.",
    "–: cannot be counted without values. size and batch are the defaults.",
    "FILE.py:FUNCTION trains a workload of your own, such as a model of timm or torchvision.",
)


def completions(beginning: str) -> list[str]:
    """The names of workloads that begin so, with their variants only behind the colon, and folders and functions of scripts."""
    known = [*workloads.names(), *workloads.SHORT_NAMES]
    if ":" in beginning:
        known = [entry.name for entry in catalogue()]
    files = [name for path in _paths(beginning.partition(":")[0]) for name in _of_path(path)]
    return [name for name in (*known, *sorted(files)) if name.startswith(beginning)]


def _of_path(path: Path) -> list[str]:
    """The folder, or the script with each of its functions."""
    if path.is_dir():
        return [f"{path}/"]
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return []
    return [f"{path}:{function}" for function in _FUNCTION.findall(text)]


def _paths(beginning: str) -> list[Path]:
    folder, _, name = beginning.rpartition("/")
    try:
        there = list(Path(folder or ("/" if beginning.startswith("/") else ".")).iterdir())
    except OSError:
        return []
    return [
        path
        for path in there
        if path.name.startswith(name or tuple(string.ascii_letters))
        and (path.suffix == ".py" or path.is_dir())
    ]


def listing(width: int | None = None) -> str:
    """All workloads as text, one per line: tracekit's own, then those of installed packages.

    With the `width` of a terminal, counts of parameters are rounded and tasks cut until the lines fit.
    """
    narrow = width is not None
    head = tuple("params" if narrow and title == "parameters" else title for title in _HEAD)
    rows = [head, *(_row(entry, rounded=narrow) for entry in catalogue())]
    own = set(workloads.built_in())
    rows += [(name, "", "", "", "", "") for name in workloads.names() if name not in own]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    if width is not None:
        rest = sum(widths) - widths[1] + len(_GAP) * (len(_HEAD) - 1)
        widths[1] = min(widths[1], max(width - rest, len(_HEAD[1])))
    lines = [_GAP.join(_cells(row, widths)).rstrip() for row in rows]
    notes = [part for note in _NOTE for part in wrap(note, width or _PIPED_WIDTH)]
    return "\n".join([*lines, "", *notes])


def _cells(row: tuple[str, ...], widths: list[int]) -> list[str]:
    """The cells at the width of their columns: texts to the left, cut if necessary, numbers to the right."""
    cut = [
        cell if len(cell) <= width else f"{cell[: width - 1]}…"
        for cell, width in zip(row, widths, strict=True)
    ]
    return [
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cut, widths, strict=True))
    ]


def _row(entry: Entry, *, rounded: bool) -> tuple[str, ...]:
    flops = "–" if entry.forward_flops is None else f"{entry.forward_flops / 1e9:,.4g}"
    size = "–" if entry.size is None else str(entry.size)
    parameters = _rounded(entry.parameters) if rounded else f"{entry.parameters:,}"
    return entry.name, entry.task, parameters, flops, size, str(entry.batch)


def _rounded(count: int) -> str:
    """The count in three digits.

    >>> _rounded(25_557_032), _rounded(38_402), _rounded(999_999_999), _rounded(90)
    ('25.6 M', '38.4 k', '1 G', '90')
    """
    value, units = float(f"{count:.3g}"), ["G", "M", "k", ""]
    while value >= 1000 and len(units) > 1:
        value, _ = value / 1000, units.pop()
    return f"{value:.3g} {units[-1]}".rstrip()
