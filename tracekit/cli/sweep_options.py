"""The flags of `tracekit sweep`: lists with commas, and how a sweep goes on."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from tracekit.cli.capture_options import PrecisionName
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.manifest import Precision

__all__ = [
    "AccumulateList",
    "BatchList",
    "ChannelsLastList",
    "CheckpointList",
    "CompileList",
    "FormatFlag",
    "PrecisionList",
    "Retry",
    "SizeList",
    "SweepFolder",
    "TableFormat",
    "ThreadsList",
    "Timeout",
    "WorkersList",
    "WorkloadNames",
    "flags_of",
    "numbers_of",
    "precisions_of",
]


class TableFormat(str, Enum):
    """How a table is written that goes to stdout."""

    table = "table"
    json = "json"
    md = "md"
    csv = "csv"
    parquet = "parquet"


_T = TypeVar("_T")
_GRID: Final = "Grid"
_SWEEP: Final = "Sweep"
_FLAGS: Final = {"no": False, "yes": True}

WorkloadNames = Annotated[
    list[str],
    typer.Argument(metavar="WORKLOAD...", help="NAME, NAME:VARIANT or FILE.py:FUNCTION; see capture --list."),
]
BatchList = Annotated[
    str, typer.Option("--batch", metavar="LIST", help="Samples a batch: 1,2,4,8.", rich_help_panel=_GRID)
]
SizeList = Annotated[
    str,
    typer.Option(
        "--size", metavar="LIST", help="Image side, tokens or frames of a sample.", rich_help_panel=_GRID
    ),
]
PrecisionList = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="LIST",
        help=f"Of {','.join(name.value for name in PrecisionName)}.",
        rich_help_panel=_GRID,
    ),
]
ThreadsList = Annotated[
    str,
    typer.Option("--threads", metavar="LIST", help="torch's threads on a CPU.", rich_help_panel=_GRID),
]
CompileList = Annotated[
    str,
    typer.Option(
        "--compile", metavar="LIST", help="torch.compile each repeated block: no,yes.", rich_help_panel=_GRID
    ),
]
ChannelsLastList = Annotated[
    str,
    typer.Option(
        "--channels-last", metavar="LIST", help="Images with channels last: no,yes.", rich_help_panel=_GRID
    ),
]
CheckpointList = Annotated[
    str,
    typer.Option(
        "--checkpoint-activations",
        metavar="LIST",
        help="Compute each block again in backward: no,yes.",
        rich_help_panel=_GRID,
    ),
]
WorkersList = Annotated[
    str,
    typer.Option("--workers", metavar="LIST", help="Processes that load data.", rich_help_panel=_GRID),
]
AccumulateList = Annotated[
    str, typer.Option("--accumulate", metavar="LIST", help="Batches a step.", rich_help_panel=_GRID)
]
SweepFolder = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="DIR", help="Holds the index and a folder per run.", rich_help_panel=_SWEEP
    ),
]
Retry = Annotated[
    bool,
    typer.Option(
        "--retry", help="Run again what failed, was out of memory or skipped.", rich_help_panel=_SWEEP
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Stop a run that takes longer.", rich_help_panel=_SWEEP),
]
FormatFlag = Annotated[
    TableFormat,
    typer.Option("--format", "-f", help="How the table on stdout is written.", rich_help_panel=_SWEEP),
]


def numbers_of(flag: str, text: str) -> list[int]:
    """The whole numbers in a list with commas. Raises UsageError for what is none.

    >>> numbers_of("--batch", "1,2, 4")
    [1, 2, 4]
    """

    def number(part: str) -> int | None:
        return int(part) if part.isascii() and part.isdigit() else None

    return _parsed(flag, text, number, "give whole numbers with commas, as in 1,2,4")


def flags_of(flag: str, text: str) -> list[bool]:
    """The `no` and `yes` in a list with commas. Raises UsageError for anything else."""
    return _parsed(flag, text, _FLAGS.get, "use no, yes or no,yes")


def precisions_of(flag: str, text: str) -> list[Precision]:
    """The precisions in a list with commas. Raises UsageError for one that is none."""
    known: dict[str, Precision] = {name.value: name.value for name in PrecisionName}
    return _parsed(flag, text, known.get, f"choose from {','.join(known)}")


def _parsed(flag: str, text: str, parse: Callable[[str], _T | None], remedy: str) -> list[_T]:
    values = []
    for part in text.split(","):
        value = parse(part.strip())
        if value is None:
            raise UsageError(f"{flag} has the value {part.strip()!r}", remedy=remedy)
        values.append(value)
    return values
