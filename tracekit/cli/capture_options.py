"""The flags of `tracekit capture` and `tracekit sweep`, in groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.manifest import CaptureOptions, Level, Settings

__all__ = ["Extent", "PrecisionName", "Recording", "Setup", "Training"]


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


def _flag(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, **more)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a capture and all captures of a sweep set once."""

    data: Annotated[
        Path | None,
        _flag("Train on the real data at this path; the default is made-up data.", metavar="PATH"),
    ] = None
    device: Annotated[str, _flag("Train on this device: cpu, cuda or cuda:N.")] = "cpu"
    tiny: Annotated[bool, _flag("Train a tiny model of the same structure.", "--tiny")] = False
    max_rows: Annotated[
        int | None, _flag("Limit embedding tables to this many rows.", "--max-rows", min=1)
    ] = None
    ranks: Annotated[int, _flag("Train in this many processes, one per GPU.", min=1)] = 1
    seed: Annotated[int, _flag("The seed of the weights and the data.")] = 0

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
    batch: Annotated[int | None, _flag("The number of samples per batch.", min=1)] = None
    size: Annotated[
        int | None,
        _flag("The size of a sample: the side of an image, or the number of tokens or frames.", min=1),
    ] = None
    precision: Annotated[
        PrecisionName, _flag("The precision of the arithmetic; bf16 and fp16 use autocast.", "--precision")
    ] = PrecisionName.fp32
    compile_: Annotated[bool, _flag("Compile each repeated block with torch.compile.", "--compile")] = False
    channels_last: Annotated[bool, _flag("Store images with the channels last.", "--channels-last")] = False
    accumulate: Annotated[int, _flag("The number of batches per step.", min=1)] = 1
    checkpoint_activations: Annotated[
        bool, _flag("Save memory: recompute each block in the backward pass.", "--checkpoint-activations")
    ] = False
    workers: Annotated[
        int, _flag("The number of processes that load data; 0 loads it in the training loop.", min=0)
    ] = 0
    pin_memory: Annotated[
        bool | None, _flag("Put batches into page-locked memory. The default is to do so on a GPU.")
    ] = None
    threads: Annotated[int | None, _flag("The number of CPU threads that torch uses.", min=1)] = None
    parallel: Annotated[
        ParallelName, _flag("Replicate (ddp) or shard (fsdp) the model across ranks.", "--parallel")
    ] = ParallelName.ddp

    @property
    def settings(self) -> Settings:
        """The same for the capture, all but the data."""
        from msgspec.structs import replace

        return replace(
            self.setup.settings,
            batch=self.batch,
            size=self.size,
            precision=self.precision.value,
            compile=self.compile_,
            channels_last=self.channels_last,
            workers=self.workers,
            pin_memory=self.pin_memory,
            accumulate=self.accumulate,
            checkpoint_activations=self.checkpoint_activations,
            threads=self.threads,
            parallel=self.parallel.value,
        )


@dataclass(frozen=True, slots=True)
class Extent:
    """At which levels a training is recorded, and for how many steps."""

    levels: Annotated[
        str,
        _flag(
            "Record these levels one after the other. M: step times, without a profiler; ML: layers too; MLG: with the profiler; metrics: FLOPs.",
            metavar="LIST",
        ),
    ] = "M,MLG,metrics"
    steps: Annotated[int, _flag("The number of steps to record at each level.", min=1)] = 3
    warmup: Annotated[int, _flag("The number of steps to run before those.", min=1)] = 1

    @property
    def chosen(self) -> tuple[Level, ...]:
        """The levels in the list with commas. Raises UsageError for one that is none."""
        from tracekit.manifest import LEVELS  # msgspec takes a while, and the help needs none

        levels: list[Level] = []
        for part in self.levels.split(","):
            level = next((known for known in LEVELS if known == part.strip()), None)
            if level is None:
                raise UsageError(
                    f"there is no level {part.strip()!r}", remedy=f"choose from {','.join(LEVELS)}"
                )
            levels.append(level)
        return tuple(levels)

    @property
    def options(self) -> CaptureOptions:
        """How the profiler is set, the rest as by default."""
        from tracekit.manifest import CaptureOptions

        return CaptureOptions(steps=self.steps, warmup=self.warmup)


@dataclass(frozen=True, slots=True)
class Recording:
    """What of a training is recorded."""

    extent: Extent = field(default_factory=Extent)
    shapes: Annotated[bool, _flag("Record the input shapes of operators.")] = True
    memory: Annotated[bool, _flag("Record allocator events.", "--memory/--no-memory")] = True
    stack: Annotated[bool, _flag("Record Python stacks. They make traces much larger.")] = False

    @property
    def options(self) -> CaptureOptions:
        """How the profiler is set."""
        from msgspec.structs import replace

        return replace(
            self.extent.options, record_shapes=self.shapes, profile_memory=self.memory, with_stack=self.stack
        )
