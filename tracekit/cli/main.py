"""The program `tracekit`: its commands, and how every failure becomes one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

import tracekit
from tracekit.cli import commands
from tracekit.errors import TracekitError

__all__ = ["app", "main"]

_INTERRUPTED: Final = 130
_INTERNAL: Final = 70
"""The exit code of a fault in tracekit itself, as sysexits.h has it."""

app = typer.Typer(
    name="tracekit",
    help="Where the time of a training or inference run went, why, and what would change it.",
    epilog="Exit codes: 0 fine, 1 a gate failed, 2 wrong usage, 3 unreadable input, 4 inconclusive.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
commands.register(app)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"tracekit {tracekit.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    del version


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit; every failure is one line on stderr, a traceback only with `--debug`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    # Accepted anywhere, since it is added when a command has already failed.
    given = [argument for argument in given if argument != "--debug"]
    try:
        code = _run(given)
    except TracekitError as error:
        if debug:
            raise
        code = _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = _complain("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe went away (`| head`); what was written is what it wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:  # the last resort: no traceback reaches the user
        if debug:
            raise
        text = " ".join(str(error).split())[:200]
        code = _complain(
            f"a fault in tracekit ({type(error).__name__}: {text}); run again with --debug and report it",
            _INTERNAL,
        )
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    command: Any = typer.main.get_command(app)
    try:
        result = command.main(args=arguments, prog_name="tracekit", standalone_mode=False)
    except typer.Exit as leave:
        return int(leave.exit_code)
    except typer.Abort:
        return _complain("interrupted", _INTERRUPTED)
    except Exception as error:
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        where = getattr(getattr(error, "ctx", None), "command_path", "tracekit")
        text = message().strip()
        return _complain(f"{text} See '{where} --help'." if text else f"See '{where} --help'.", 2)
    # Releases of typer differ in how a Ctrl-C inside a command arrives: as Abort above, or as this result.
    return _complain("interrupted", _INTERRUPTED) if result == _INTERRUPTED else 0


def _complain(text: str, code: int) -> int:
    sys.stderr.write(f"tracekit: error: {' '.join(text.split())}\n")
    return code
