"""The flags of `tracekit capture` and of what builds on it, each declared once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.manifest import CaptureOptions, Level, Settings

__all__ = [
    "Accumulate",
    "Batch",
    "ChannelsLast",
    "Checkpoint",
    "Compile",
    "Data",
    "Device",
    "Levels",
    "ListFlag",
    "MaxRows",
    "MemoryFlag",
    "Nsys",
    "ParallelFlag",
    "ParallelName",
    "PinMemory",
    "PrecisionFlag",
    "PrecisionName",
    "Ranks",
    "Recording",
    "Seed",
    "Shapes",
    "Size",
    "Stack",
    "Steps",
    "Threads",
    "Tiny",
    "Training",
    "Warmup",
    "Workers",
    "WorkloadName",
    "levels_of",
]


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


def levels_of(text: str) -> tuple[Level, ...]:
    """The levels in a list with commas. Raises UsageError for one that is none."""
    from tracekit.manifest import LEVELS  # msgspec takes a while, and the help needs none

    levels: list[Level] = []
    for part in text.split(","):
        level = next((known for known in LEVELS if known == part.strip()), None)
        if level is None:
            raise UsageError(f"there is no level {part.strip()!r}", remedy=f"choose from {','.join(LEVELS)}")
        levels.append(level)
    return tuple(levels)


_TRAIN: Final = "Training"
_RECORD: Final = "Recording"

WorkloadName = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="NAME, NAME:VARIANT or FILE.py:FUNCTION; see --list.")
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Real data; without it they are made up.", rich_help_panel=_TRAIN),
]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.", rich_help_panel=_TRAIN)]
Batch = Annotated[int | None, typer.Option(min=1, help="Samples a batch.", rich_help_panel=_TRAIN)]
Size = Annotated[
    int | None, typer.Option(min=1, help="Image side, tokens or frames of a sample.", rich_help_panel=_TRAIN)
]
Tiny = Annotated[
    bool, typer.Option("--tiny", help="A tiny model of the same structure.", rich_help_panel=_TRAIN)
]
MaxRows = Annotated[
    int | None,
    typer.Option("--max-rows", min=1, help="Most rows of an embedding table.", rich_help_panel=_TRAIN),
]
PrecisionFlag = Annotated[
    PrecisionName, typer.Option("--precision", help="bf16 and fp16 by autocast.", rich_help_panel=_TRAIN)
]
Compile = Annotated[
    bool, typer.Option("--compile", help="torch.compile each repeated block.", rich_help_panel=_TRAIN)
]
ChannelsLast = Annotated[
    bool, typer.Option("--channels-last", help="Images with channels last.", rich_help_panel=_TRAIN)
]
Accumulate = Annotated[int, typer.Option(min=1, help="Batches a step.", rich_help_panel=_TRAIN)]
Checkpoint = Annotated[
    bool,
    typer.Option(
        "--checkpoint-activations", help="Compute each block again in backward.", rich_help_panel=_TRAIN
    ),
]
Workers = Annotated[
    int, typer.Option(min=0, help="Processes that load data; 0 loads in the loop.", rich_help_panel=_TRAIN)
]
PinMemory = Annotated[
    bool | None, typer.Option(help="Page-locked batches. Default: on a GPU.", rich_help_panel=_TRAIN)
]
Threads = Annotated[int | None, typer.Option(min=1, help="torch's threads on a CPU.", rich_help_panel=_TRAIN)]
Ranks = Annotated[int, typer.Option(min=1, help="Processes, one a GPU.", rich_help_panel=_TRAIN)]
ParallelFlag = Annotated[
    ParallelName, typer.Option("--parallel", help="Replicated or sharded ranks.", rich_help_panel=_TRAIN)
]
Seed = Annotated[int, typer.Option(help="Seed of weights and data.", rich_help_panel=_TRAIN)]

Levels = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="M: steps, no profiler; ML: and layers; MLG: the profiler; metrics: FLOPs.",
        rich_help_panel=_RECORD,
    ),
]
Steps = Annotated[int, typer.Option(min=1, help="Recorded steps of each level.", rich_help_panel=_RECORD)]
Warmup = Annotated[int, typer.Option(min=1, help="Steps before them.", rich_help_panel=_RECORD)]
Shapes = Annotated[bool, typer.Option(help="Record operator shapes.", rich_help_panel=_RECORD)]
MemoryFlag = Annotated[
    bool, typer.Option("--memory/--no-memory", help="Record allocator events.", rich_help_panel=_RECORD)
]
Stack = Annotated[
    bool, typer.Option(help="Record Python stacks (much larger traces).", rich_help_panel=_RECORD)
]
Nsys = Annotated[
    bool,
    typer.Option(
        "--nsys", help="Record with Nsight Systems, in place of torch's profiler.", rich_help_panel=_RECORD
    ),
]
ListFlag = Annotated[
    bool,
    typer.Option("--list", help="List the workloads, with parameters and FLOPs.", rich_help_panel=_RECORD),
]


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained."""

    data: Data = None
    device: Device = "cpu"
    batch: Batch = None
    size: Size = None
    tiny: Tiny = False
    max_rows: MaxRows = None
    precision: PrecisionFlag = PrecisionName.fp32
    compile_: Compile = False
    channels_last: ChannelsLast = False
    accumulate: Accumulate = 1
    checkpoint_activations: Checkpoint = False
    workers: Workers = 0
    pin_memory: PinMemory = None
    threads: Threads = None
    ranks: Ranks = 1
    parallel: ParallelFlag = ParallelName.ddp
    seed: Seed = 0

    @property
    def settings(self) -> Settings:
        """The same for the capture, all but the data."""
        from tracekit.manifest import Settings

        return Settings(
            device=self.device,
            batch=self.batch,
            size=self.size,
            precision=self.precision.value,
            compile=self.compile_,
            channels_last=self.channels_last,
            workers=self.workers,
            pin_memory=self.pin_memory,
            accumulate=self.accumulate,
            checkpoint_activations=self.checkpoint_activations,
            tiny=self.tiny,
            max_rows=self.max_rows,
            threads=self.threads,
            ranks=self.ranks,
            parallel=self.parallel.value,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """What of a training is recorded."""

    levels: Levels = "M,MLG,metrics"
    steps: Steps = 3
    warmup: Warmup = 1
    shapes: Shapes = True
    memory: MemoryFlag = True
    stack: Stack = False

    @property
    def options(self) -> CaptureOptions:
        """How the profiler is set."""
        from tracekit.manifest import CaptureOptions

        return CaptureOptions(
            steps=self.steps,
            warmup=self.warmup,
            record_shapes=self.shapes,
            profile_memory=self.memory,
            with_stack=self.stack,
        )
