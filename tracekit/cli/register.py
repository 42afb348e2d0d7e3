"""All commands: the fixed ones and one per registered analysis."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Final

import typer

from tracekit.analyses.registry import BUILT_IN, Analysis, View
from tracekit.cli import options as flags
from tracekit.cli.asked import Asked, Which, with_flags
from tracekit.cli.commands import stack as stack_commands
from tracekit.cli.commands.analysis import run_analysis
from tracekit.cli.commands.capture import capture
from tracekit.cli.commands.export import export
from tracekit.cli.commands.inspect import doctor, info
from tracekit.cli.commands.nsys_stats import nsys_stats
from tracekit.cli.commands.report import report
from tracekit.cli.commands.scrub import scrub
from tracekit.cli.commands.sweep import characterize, sweep
from tracekit.cli.commands.view import view
from tracekit.cli.commands.xsp import xsp
from tracekit.cli.refine import Refine
from tracekit.errors import UsageError

__all__ = ["register"]


_WITH_OWN_FLAGS: Final[dict[str, Callable[..., None]]] = {
    "layers": stack_commands.layers,
    "kernels": stack_commands.kernels,
    "ops": stack_commands.ops,
    "counters": stack_commands.counters,
}


def register(app: typer.Typer) -> None:
    """Add every command to the program, in the order of its help."""
    app.command()(report)
    app.command()(info)
    app.command()(doctor)
    for analysis in BUILT_IN:
        made = _WITH_OWN_FLAGS.get(analysis.name) or _command(analysis)
        app.command(name=analysis.name, help=_help(analysis))(made)
    app.command(name="analysis")(third_party)
    app.command()(view)
    app.command()(export)
    app.command()(scrub)
    app.command()(capture)
    app.command()(sweep)
    app.command()(characterize)
    app.command()(xsp)
    app.command()(nsys_stats)


def third_party(
    name: str = typer.Argument(metavar="NAME", help="An analysis of an installed package."),
    traces: flags.TraceFiles = [],  # noqa: B006 - typer copies it
    step: flags.Step = None,
    window: flags.WindowFlag = flags.WindowKind.steps,
    format_: flags.FormatFlag = None,
    output: flags.Output = None,
) -> None:
    """Run an analysis that another package registered (entry-point group tracekit.analyses)."""
    if not traces:
        raise UsageError("no trace is given", remedy="give a trace file behind the name of the analysis")
    run_analysis(name, Asked(traces, Which(step=step, window=window), format_=format_, output=output))


def _help(analysis: Analysis) -> str:
    return analysis.question


def _command(analysis: Analysis) -> Callable[..., None]:
    def command(asked: Asked, **views: bool) -> None:
        shown = [name for view in analysis.views if views[view.name] for name in view.tables]
        run_analysis(analysis.name, asked, Refine(tuple(shown)) if shown else None)

    command.__name__ = analysis.name
    first = inspect.Parameter("asked", inspect.Parameter.KEYWORD_ONLY, annotation=Asked)
    own = inspect.Signature([first, *map(_view_flag, analysis.views)])
    command.__signature__ = own  # type: ignore[attr-defined]
    return with_flags(command)


def _view_flag(view: View) -> inspect.Parameter:
    option = typer.Option(f"--{view.name}", help=view.help, rich_help_panel="Selection")
    return inspect.Parameter(
        view.name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option]
    )
