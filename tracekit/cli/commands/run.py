"""`tracekit run`: run a script and record a few of its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli.capture_options import Length, Profile
from tracekit.cli.commands.capture import default_folder, tell
from tracekit.cli.ending import ended_by_signals
from tracekit.cli.options import with_flags

__all__ = ["run"]


@with_flags
def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python script; with -m a module.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS...", help="The script's own arguments.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="The folder to write. The default is runs/SCRIPT-TIME."
        ),
    ] = None,
    *,
    module: Annotated[bool, typer.Option("-m", help="Run a module, as python -m does.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the script after the recorded steps.")] = False,
    length: Length,
    profile: Profile,
) -> None:
    """Run a training or inference script and record it.

    The script stays as it is, and runs to its end; a few of its steps are recorded after the first ones. Its exit code is that of the command. Flags of tracekit stand before the script.
    """
    from tracekit.capture.script import run_script

    with ended_by_signals():
        code = run_script(
            script,
            arguments or [],
            output or default_folder(script),
            options=profile.of(length),
            tell=lambda line: tell(f"tracekit: {line}"),
            is_module=module,
            stop=stop,
        )
    raise typer.Exit(code)
