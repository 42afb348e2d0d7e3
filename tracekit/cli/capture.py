"""`tracekit capture`: run a training loop under the profiler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["capture"]


def capture(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="cnn, transformer, or an installed one.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Default: runs/WORKLOAD-TIME.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    steps: Annotated[int, typer.Option(min=1, help="Profiled steps.")] = 3,
    warmup: Annotated[int, typer.Option(min=1, help="Steps before the profiler records.")] = 1,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples a step.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Image side, or tokens of a sequence.")] = None,
    shapes: Annotated[bool, typer.Option(help="Record operator shapes.")] = True,
    memory: Annotated[bool, typer.Option(help="Record allocator events.")] = True,
    stack: Annotated[bool, typer.Option(help="Record Python stacks (much larger traces).")] = False,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 0,
) -> None:
    """Train a small model under torch.profiler, with layer ranges; writes a trace and a manifest."""
    import time

    from tracekit.capture.run import run

    target = output or Path("runs") / f"{workload}-{time.strftime('%Y%m%d-%H%M%S')}"
    quiet = not sys.stderr.isatty()
    result = run(
        workload,
        target,
        device=device,
        steps=steps,
        warmup=warmup,
        batch=batch,
        size=size,
        record_shapes=shapes,
        profile_memory=memory,
        with_stack=stack,
        seed=seed,
        progress=None if quiet else lambda text: typer.echo(text, err=True),
    )
    typer.echo(f"{result.trace}\n{result.manifest_path}")
    if result.manifest.trace_defect:
        typer.echo(f"warning: {result.manifest.trace_defect}", err=True)
