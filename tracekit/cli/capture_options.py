"""The flags of `tracekit capture` and `tracekit sweep`, in groups. What a sweep varies are lists with commas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from tracekit.classes import dataclass
from tracekit.cli.options import flag
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.capture.sweep import Grid
    from tracekit.manifest import CaptureOptions, Level, Precision, Settings

__all__ = [
    "Extent",
    "GridFlags",
    "Length",
    "PrecisionName",
    "Profile",
    "Recording",
    "Setup",
    "Training",
    "numbers_of",
    "workload_names",
]


def workload_names(incomplete: str) -> list[str]:
    """The workloads that a shell offers behind what is typed."""
    from tracekit.capture.listing import completions

    return completions(incomplete)


class PrecisionName(str, Enum):
    """The arithmetic of a run."""

    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
    fp16 = "fp16"


class ParallelName(str, Enum):
    """How a model runs on several ranks."""

    ddp = "ddp"
    fsdp = "fsdp"


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a capture that all captures of a sweep share."""

    data: Annotated[
        Path | None,
        flag("Train on the real data at this path; the default is synthetic data.", metavar="PATH"),
    ] = None
    device: Annotated[str, flag("Train on this device: cpu, cuda or cuda:N.", metavar="DEVICE")] = "cpu"
    tiny: Annotated[bool, flag("Train a tiny model of the same structure.", "--tiny")] = False
    max_rows: Annotated[
        int | None, flag("Limit embedding tables to this many rows.", "--max-rows", min=1)
    ] = None
    ranks: Annotated[int, flag("Train in this many processes, one per GPU.", min=1)] = 1
    seed: Annotated[int, flag("The seed of the weights and the data.")] = 0

    @property
    def settings(self) -> Settings:
        """The same for the capture, all but the data."""
        from tracekit.manifest import Settings

        return Settings(
            device=self.device, tiny=self.tiny, max_rows=self.max_rows, ranks=self.ranks, seed=self.seed
        )


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained."""

    setup: Setup = field(default_factory=Setup)
    batch: Annotated[int | None, flag("The number of samples per batch.", min=1)] = None
    size: Annotated[
        int | None,
        flag("The size of a sample: the side of an image, or the number of tokens or frames.", min=1),
    ] = None
    precision: Annotated[
        PrecisionName,
        flag("The precision of the arithmetic; bf16 and fp16 use autocast.", "--precision", of=PrecisionName),
    ] = PrecisionName.fp32
    compile_: Annotated[bool, flag("Compile each repeated block with torch.compile.", "--compile")] = False
    channels_last: Annotated[bool, flag("Store images with the channels last.", "--channels-last")] = False
    accumulate: Annotated[int, flag("The number of batches per step.", min=1)] = 1
    checkpoint_activations: Annotated[
        bool, flag("Save memory: recompute each block in the backward pass.", "--checkpoint-activations")
    ] = False
    workers: Annotated[
        int, flag("The number of processes that load data; 0 loads it in the training loop.", min=0)
    ] = 0
    pin_memory: Annotated[
        bool | None, flag("Put batches into page-locked memory. The default is to do so on a GPU.")
    ] = None
    threads: Annotated[int | None, flag("The number of CPU threads that torch uses.", min=1)] = None
    parallel: Annotated[
        ParallelName,
        flag("Replicate (ddp) or shard (fsdp) the model across ranks.", "--parallel", of=ParallelName),
    ] = ParallelName.ddp

    @property
    def settings(self) -> Settings:
        """The same for the capture, all but the data."""
        from msgspec.structs import replace

        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "setup"}
        values = {name: each.value if isinstance(each, Enum) else each for name, each in own.items()}
        return replace(self.setup.settings, compile=values.pop("compile_"), **values)


@dataclass(frozen=True, slots=True)
class Length:
    """The number of steps of a recording."""

    steps: Annotated[int, flag("The number of steps to record.", min=1)] = 3
    warmup: Annotated[int, flag("The number of steps to run before those.", min=1)] = 1


@dataclass(frozen=True, slots=True)
class Extent:
    """The levels of a recording, and the number of steps."""

    levels: Annotated[
        str,
        flag(
            "Record these levels one after the other. M: step times, without a profiler; ML: layers too; MLG: with the profiler; metrics: FLOPs.",
            metavar="LIST",
        ),
    ] = "M,MLG,metrics"
    length: Length = field(default_factory=Length)

    @property
    def chosen(self) -> tuple[Level, ...]:
        """The levels in the list with commas. Raises UsageError for one that is none."""
        from tracekit.manifest import LEVELS  # msgspec takes a while, and the help needs none

        levels: list[Level] = []
        for part in self.levels.split(","):
            level = next((name for name in LEVELS if name == part.strip()), None)
            if level is None:
                raise UsageError(
                    f"there is no level {part.strip()!r}", remedy=f"choose from {','.join(LEVELS)}"
                )
            levels.append(level)
        return tuple(levels)


@dataclass(frozen=True, slots=True)
class Profile:
    """The data that a profile holds."""

    shapes: Annotated[bool, flag("Record the input shapes of operators.")] = True
    memory: Annotated[bool, flag("Record allocator events.", "--memory/--no-memory")] = True
    stack: Annotated[bool, flag("Record Python stacks. They make traces much larger.")] = False

    def of(self, length: Length) -> CaptureOptions:
        """How the profiler is set to record these data for so many steps."""
        from tracekit.manifest import CaptureOptions

        return CaptureOptions(
            steps=length.steps,
            warmup=length.warmup,
            record_shapes=self.shapes,
            profile_memory=self.memory,
            with_stack=self.stack,
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """What a recording holds, and at which levels."""

    extent: Extent = field(default_factory=Extent)
    profile: Profile = field(default_factory=Profile)

    @property
    def options(self) -> CaptureOptions:
        """How the profiler is set."""
        return self.profile.of(self.extent.length)


_T = TypeVar("_T")
_FLAGS: Final = {"no": False, "yes": True}


@dataclass(frozen=True, slots=True)
class GridFlags:
    """The settings that a sweep varies, each a list."""

    batch: Annotated[str, flag("Numbers of samples per batch: 1,2,4,8.", "--batch", metavar="LIST")] = ""
    size: Annotated[
        str,
        flag("Sizes of a sample: the side of an image, or its tokens or frames.", "--size", metavar="LIST"),
    ] = ""
    precision: Annotated[
        str,
        flag(
            f"The arithmetic: some of {','.join(name.value for name in PrecisionName)}.",
            "--precision",
            metavar="LIST",
        ),
    ] = "fp32"
    threads: Annotated[str, flag("Numbers of CPU threads that torch uses.", "--threads", metavar="LIST")] = ""
    compile_: Annotated[
        str, flag("Whether to torch.compile each repeated block: no,yes.", "--compile", metavar="LIST")
    ] = "no"
    channels_last: Annotated[
        str,
        flag("Whether to store images with the channels last: no,yes.", "--channels-last", metavar="LIST"),
    ] = "no"
    checkpoint_activations: Annotated[
        str,
        flag(
            "Whether to recompute each block in the backward pass: no,yes.",
            "--checkpoint-activations",
            metavar="LIST",
        ),
    ] = "no"
    workers: Annotated[str, flag("Numbers of processes that load data.", "--workers", metavar="LIST")] = "0"
    accumulate: Annotated[str, flag("Numbers of batches per step.", "--accumulate", metavar="LIST")] = "1"
    repeat: Annotated[
        int,
        flag(
            "Run the whole grid this many times, each time with the next seed.",
            "--repeat",
            metavar="INTEGER",
            min=1,
        ),
    ] = 1

    def of(self, workloads: Sequence[str], seed: int) -> Grid:
        """All combinations, of these workloads; `seed` is the first. Raises UsageError for a value that is none."""
        from tracekit.capture.sweep import Grid

        return Grid(
            workloads=workloads,
            seed=range(seed, seed + self.repeat),
            size=_numbers_or_none("--size", self.size),
            precision=_precisions_of("--precision", self.precision),
            compile=_flags_of("--compile", self.compile_),
            channels_last=_flags_of("--channels-last", self.channels_last),
            checkpoint_activations=_flags_of("--checkpoint-activations", self.checkpoint_activations),
            accumulate=numbers_of("--accumulate", self.accumulate),
            workers=numbers_of("--workers", self.workers),
            threads=_numbers_or_none("--threads", self.threads),
            batch=_numbers_or_none("--batch", self.batch),
        )


def _numbers_or_none(flag: str, text: str) -> Sequence[int | None]:
    return numbers_of(flag, text) if text else ()


def numbers_of(flag: str, text: str) -> list[int]:
    """The whole numbers in a list with commas. Raises UsageError for what is none.

    >>> numbers_of("--batch", "1,2, 4")
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
    precisions: dict[str, Precision] = {name.value: name.value for name in PrecisionName}
    return _parsed(flag, text, precisions.get, f"choose from {','.join(precisions)}")


def _parsed(flag: str, text: str, parse: Callable[[str], _T | None], remedy: str) -> list[_T]:
    values = []
    for part in text.split(","):
        value = parse(part.strip())
        if value is None:
            raise UsageError(f"{flag} has the value {part.strip()!r}", remedy=remedy)
        values.append(value)
    return values
