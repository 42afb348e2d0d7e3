"""`tracekit idle`: why the device was idle."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from tracekit.cli.commands.analysis import Part, run_analysis
from tracekit.cli.options import Request, with_flags

__all__ = ["idle"]

_CAUSES: Final = (
    "by_cause",
    "by_layer",
    "by_operator",
    "by_frame",
    "by_range",
    "by_os_call",
    "by_function",
    "device_gaps",
)


@with_flags
def idle(
    request: Request,
    causes: Annotated[
        bool,
        typer.Option(
            "--causes",
            help="Show only the time in which a whole device was idle: by cause, layer, operator, line of code and "
            "range, and by what the host did meanwhile.",
        ),
    ] = False,
) -> None:
    """Run `idle`; the registry has its help."""
    run_analysis("idle", request, Part(_CAUSES) if causes else None)
