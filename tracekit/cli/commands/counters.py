"""`tracekit counters`: what the hardware counters measured."""

from __future__ import annotations

from tracekit.cli import options as flags
from tracekit.cli.commands.analysis import run_analysis
from tracekit.cli.options import Request, with_flags

__all__ = ["counters"]


@with_flags
def counters(request: Request, ncu: flags.Ncu = None) -> None:
    """Run `counters`; the registry has its help."""
    run_analysis("counters", request, ncu=ncu)
