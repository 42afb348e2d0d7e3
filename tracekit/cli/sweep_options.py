"""The settings that `tracekit sweep` varies: lists with commas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from tracekit.cli.capture_options import PrecisionName
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.capture.sweep import Grid
    from tracekit.manifest import Precision

__all__ = ["GridFlags"]

_T = TypeVar("_T")
_FLAGS: Final = {"no": False, "yes": True}


def _list(name: str, text: str) -> Any:
    return typer.Option(name, metavar="LIST", help=text)


@dataclass(frozen=True, slots=True)
class GridFlags:
    """The settings that a sweep varies, each a list."""

    batch: Annotated[str, _list("--batch", "The numbers of samples per batch: 1,2,4,8.")] = ""
    size: Annotated[
        str,
        _list("--size", "The sizes of a sample: the side of an image, or the number of tokens or frames."),
    ] = ""
    precision: Annotated[
        str,
        _list(
            "--precision",
            f"The precisions of the arithmetic: some of {','.join(name.value for name in PrecisionName)}.",
        ),
    ] = "fp32"
    threads: Annotated[str, _list("--threads", "The numbers of CPU threads that torch uses.")] = ""
    compile_: Annotated[
        str, _list("--compile", "Whether to compile each repeated block with torch.compile: no,yes.")
    ] = "no"
    channels_last: Annotated[
        str, _list("--channels-last", "Whether to store images with the channels last: no,yes.")
    ] = "no"
    checkpoint_activations: Annotated[
        str,
        _list("--checkpoint-activations", "Whether to recompute each block in the backward pass: no,yes."),
    ] = "no"
    workers: Annotated[str, _list("--workers", "The numbers of processes that load data.")] = "0"
    accumulate: Annotated[str, _list("--accumulate", "The numbers of batches per step.")] = "1"

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
