"""The flags of `tracekit sweep`: lists with commas, and how a sweep goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from tracekit.cli.capture_options import PrecisionName
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.capture.sweep import Grid
    from tracekit.manifest import Precision

__all__ = [
    "AccumulateList",
    "BatchList",
    "ChannelsLastList",
    "CheckpointList",
    "CompileList",
    "GridFlags",
    "PrecisionList",
    "Retry",
    "SizeList",
    "SweepFolder",
    "ThreadsList",
    "Timeout",
    "WorkersList",
    "WorkloadNames",
]


_T = TypeVar("_T")
_GRID: Final = "Grid"
_SWEEP: Final = "Sweep"
_FLAGS: Final = {"no": False, "yes": True}

WorkloadNames = Annotated[
    list[str],
    typer.Argument(metavar="WORKLOAD...", help="NAME, NAME:VARIANT or FILE.py:FUNCTION; see capture --list."),
]
BatchList = Annotated[
    str,
    typer.Option("--batch", metavar="LIST", help="Batch sizes, in samples: 1,2,4,8.", rich_help_panel=_GRID),
]
SizeList = Annotated[
    str,
    typer.Option(
        "--size",
        metavar="LIST",
        help="Sizes of a sample: the side of an image, or its tokens or frames.",
        rich_help_panel=_GRID,
    ),
]
PrecisionList = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar="LIST",
        help=f"Some of {','.join(name.value for name in PrecisionName)}.",
        rich_help_panel=_GRID,
    ),
]
ThreadsList = Annotated[
    str,
    typer.Option(
        "--threads", metavar="LIST", help="Numbers of CPU threads that torch uses.", rich_help_panel=_GRID
    ),
]
CompileList = Annotated[
    str,
    typer.Option(
        "--compile",
        metavar="LIST",
        help="Whether to torch.compile each repeated block: no,yes.",
        rich_help_panel=_GRID,
    ),
]
ChannelsLastList = Annotated[
    str,
    typer.Option(
        "--channels-last",
        metavar="LIST",
        help="Whether images have channels last: no,yes.",
        rich_help_panel=_GRID,
    ),
]
CheckpointList = Annotated[
    str,
    typer.Option(
        "--checkpoint-activations",
        metavar="LIST",
        help="Whether backward computes each block again: no,yes.",
        rich_help_panel=_GRID,
    ),
]
WorkersList = Annotated[
    str,
    typer.Option(
        "--workers", metavar="LIST", help="Numbers of processes that load data.", rich_help_panel=_GRID
    ),
]
AccumulateList = Annotated[
    str,
    typer.Option("--accumulate", metavar="LIST", help="Numbers of batches per step.", rich_help_panel=_GRID),
]
SweepFolder = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        help="Folder for the index and a folder per run.",
        rich_help_panel=_SWEEP,
    ),
]
Retry = Annotated[
    bool,
    typer.Option(
        "--retry", help="Repeat runs that failed, ran out of memory or were skipped.", rich_help_panel=_SWEEP
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Stop a run that takes longer than this.", rich_help_panel=_SWEEP),
]


@dataclass(frozen=True, slots=True)
class GridFlags:
    """The settings that a sweep varies, each a list."""

    batch: BatchList = ""
    size: SizeList = ""
    precision: PrecisionList = "fp32"
    threads: ThreadsList = ""
    compile_: CompileList = "no"
    channels_last: ChannelsLastList = "no"
    checkpoint_activations: CheckpointList = "no"
    workers: WorkersList = "0"
    accumulate: AccumulateList = "1"

    def of(self, workloads: Sequence[str]) -> Grid:
        """All combinations, of these workloads. Raises UsageError for a value that is none."""
        from tracekit.capture.sweep import Grid

        return Grid(
            workloads=workloads,
            size=_numbers_or_none("--size", self.size),
            precision=_precisions_of("--precision", self.precision),
            compile=_flags_of("--compile", self.compile_),
            channels_last=_flags_of("--channels-last", self.channels_last),
            checkpoint_activations=_flags_of("--checkpoint-activations", self.checkpoint_activations),
            accumulate=_numbers_of("--accumulate", self.accumulate),
            workers=_numbers_of("--workers", self.workers),
            threads=_numbers_or_none("--threads", self.threads),
            batch=_numbers_or_none("--batch", self.batch),
        )


def _numbers_or_none(flag: str, text: str) -> Sequence[int | None]:
    return _numbers_of(flag, text) if text else ()


def _numbers_of(flag: str, text: str) -> list[int]:
    """The whole numbers in a list with commas. Raises UsageError for what is none.

    >>> _numbers_of("--batch", "1,2, 4")
    [1, 2, 4]
    """

    def number(part: str) -> int | None:
        return int(part) if part.isascii() and part.isdigit() else None

    return _parsed(flag, text, number, "give whole numbers with commas, as in 1,2,4")


def _flags_of(flag: str, text: str) -> list[bool]:
    """The `no` and `yes` in a list with commas. Raises UsageError for anything else."""
    return _parsed(flag, text, _FLAGS.get, "use no, yes or no,yes")


def _precisions_of(flag: str, text: str) -> list[Precision]:
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
