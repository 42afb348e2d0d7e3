"""All commands: the fixed ones and one per analysis that comes with tracekit, in the order of the help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import typer

from tracekit.analyses.registry import BUILT_IN
from tracekit.cli.commands.analysis import analysis, command_of, counters, idle, kernels, ops
from tracekit.cli.commands.capture import capture
from tracekit.cli.commands.characterize import characterize
from tracekit.cli.commands.doctor import doctor
from tracekit.cli.commands.export import export
from tracekit.cli.commands.info import info
from tracekit.cli.commands.layers import layers
from tracekit.cli.commands.nsys_stats import nsys_stats
from tracekit.cli.commands.report import report
from tracekit.cli.commands.scrub import scrub
from tracekit.cli.commands.sweep import sweep
from tracekit.cli.commands.view import view
from tracekit.cli.commands.xsp import xsp

__all__ = ["register"]

_WITH_OWN_FLAGS: Final[dict[str, Callable[..., None]]] = {
    "idle": idle,
    "layers": layers,
    "kernels": kernels,
    "ops": ops,
    "counters": counters,
}


def register(app: typer.Typer) -> None:
    """Add every command to the program."""
    for command in (report, info, doctor):
        app.command()(command)
    for built_in in BUILT_IN:
        command = _WITH_OWN_FLAGS.get(built_in.name) or command_of(built_in.name)
        app.command(name=built_in.name, help=built_in.question)(command)
    for command in (analysis, view, export, scrub, capture, sweep, characterize, xsp, nsys_stats):
        app.command()(command)
