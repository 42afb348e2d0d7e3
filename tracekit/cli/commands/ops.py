"""`tracekit ops`: which operators take the time."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli.commands.analysis import Part, run_analysis
from tracekit.cli.options import Request, with_flags

__all__ = ["ops"]


@with_flags
def ops(
    request: Request,
    by_shape: Annotated[
        bool, typer.Option("--by-shape", help="Show one row per operator and input shapes.")
    ] = False,
) -> None:
    """Run `ops`; the registry has its help."""
    tables = ("by_shape",) if by_shape else None if request.table else ("by_operator",)
    run_analysis("ops", request, None if tables is None else Part(tables, "shapes"))
