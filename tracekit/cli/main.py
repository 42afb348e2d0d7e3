"""The program `tracekit`: its commands, and how every failure becomes one line and an exit code."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

import tracekit
from tracekit.cli.commands import COMMANDS, QUESTIONS, function_of
from tracekit.cli.completion import whole_words
from tracekit.cli.ending import EndedBySignalError, ended_by_signals
from tracekit.cli.plain import PlainCommand, plainly_converted
from tracekit.errors import TracekitError, UnreadableTraceError, WorkloadError, nearest, reason_of
from tracekit.facts.distribution import EXTRAS, how_to_install
from tracekit.facts.terminal_text import printable

__all__ = ["app", "declared", "main"]

_INTERRUPTED: Final = 130
_LONGEST_LINE: Final = 1_000
"""A path may have thousands of characters; its ends say enough."""
_REMOTE: Final = "tracekit.readers.remote"
_NO_ROOM: Final = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""The disk is full, or the user may not fill more of it."""
_BARRED: Final = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.ESTALE)
"""Of a path that the user gave, and that a command meets before a reader looks at it."""
_INTERNAL: Final = 70
"""The exit code of a fault in tracekit itself, as sysexits.h has it."""

_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    # What stands behind the script is the script's.
    "run": {"allow_interspersed_args": False},
}


class Program(TyperGroup):
    """All commands. Lists of them, in the help and for completion, show their first lines; their flags are declared on demand."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        for name, line in COMMANDS.items():
            self.add_command(TyperCommand(name, help=line))

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters of the program itself."""
        return plainly_converted(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names, with its flags, and the words behind it."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if command is None else declared(str(command.name)), rest


@cache
def declared(name: str) -> Any:
    """A command with its flags, or with those of its own commands. Raises KeyError for a name that is not in COMMANDS."""
    function = function_of(name)
    if isinstance(function, typer.Typer):
        return typer.main.get_command(function)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(name, cls=PlainCommand, help=QUESTIONS.get(name), context_settings=_SETTINGS.get(name))(
        function
    )
    return typer.main.get_command(alone)


app = typer.Typer(
    name="tracekit",
    cls=Program,
    help="Show where the time of a training or inference run went, why, and what would change it.",
    epilog="Exit codes: 0 fine, 1 errors in the file or a gate failed, 2 wrong usage, 3 unreadable input, 4 inconclusive.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo("\n".join(_version_lines()))
        raise typer.Exit


def _version_lines() -> Iterator[str]:
    """The version, and for each optional part the packages that are installed, or how to install it."""
    from importlib.metadata import PackageNotFoundError, version

    from tracekit._native import SWITCH, decoder

    yield f"tracekit {tracekit.__version__}"
    off = (
        f"off ({SWITCH}=0)"
        if os.environ.get(SWITCH) == "0"
        else "not built (a C compiler is needed when tracekit is installed)"
    )
    yield f"  {'decoder':<8} {off if decoder is None else 'native'}"
    for extra, packages in EXTRAS.items():
        versions = {}
        for package in packages:
            with suppress(PackageNotFoundError):
                versions[package] = version(package)
        parts = [f"{package} {number}" for package, number in versions.items()]
        if lacking := [package for package in packages if package not in versions]:
            parts.append(f"no {' and no '.join(lacking)} ({how_to_install(extra)})")
        yield f"  {extra:<8} {', '.join(parts)}"


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of tracekit and its optional parts.",
        ),
    ] = False,
) -> None:
    del version


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program and exit; every failure is one line on stderr, a traceback only with `--debug`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _make_streams_usable()
    # Accepted anywhere, since it is added when a command has already failed; but a script may have a flag of that name.
    own = 2 if "run" in words[:2] else len(words)
    debug = "--debug" in words[:own]
    words = [word for word in words[:own] if word != "--debug"] + words[own:]
    try:
        # An empty path would stand for the current folder.
        empty = "" in words[1:2]
        code = _complain("an argument is empty; is a variable unset?", 2) if empty else _run(words)
    except TracekitError as error:
        if debug:
            raise
        if isinstance(error, WorkloadError):
            # It is the user's own code: where it failed is what he needs to see, before our one line.
            sys.stderr.write("".join(f"{printable(line)}\n" for line in error.traceback.split("\n")[:-1]))
        if isinstance(error, EndedBySignalError) and arguments is None:
            error.leave_further_ones_alone()  # not in a process that goes on, as that of a caller who gave arguments
        code = _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = _complain("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe went away (`| head`); what was written is what it wanted.
        _give_stdout_up()
        code = 0
    except Exception as error:  # the last resort: no traceback reaches the user
        if debug:
            raise
        code = _ended_by(error)
    finally:
        if _REMOTE in sys.modules:
            sys.modules[_REMOTE].forget()
    sys.exit(code)


def _ended_by(error: Exception) -> int:
    """Tell in one line what ended a command that did not expect it; the exit code."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        _give_stdout_up()
        return _complain("the disk is full; make room, or write elsewhere", 2)
    if isinstance(error, OSError) and error.errno in _BARRED and error.filename is not None:
        fault, path = f"it cannot be used ({reason_of(error)})", os.fsdecode(error.filename)
        barred = UnreadableTraceError(fault, path=path, remedy="check the path")
        return _complain(str(barred), barred.exit_code)
    if isinstance(error, MemoryError):
        return _complain("there is not enough memory for it; read less with --max-events", 2)
    text = " ".join(str(error).split())[:200]
    return _complain(
        f"a fault in tracekit ({type(error).__name__}: {text}); run again with --debug and report it",
        _INTERNAL,
    )


def _make_streams_usable() -> None:
    """Give closed streams a place to go, and let an encoding that lacks a character show another one for it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - lives as long as we do
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    with suppress(OSError, ValueError, AttributeError):  # no file stands behind it
        os.set_blocking(sys.stdout.fileno(), True)  # else a pipe that another program made so takes a part
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        # Without a buffer (PYTHONUNBUFFERED) a text is cut in silence where the disk has room for a part of it only.
        buffered = open(sys.stdout.fileno(), "wb", closefd=False)  # noqa: SIM115 - lives as long as we do
        sys.stdout = io.TextIOWrapper(buffered, sys.stdout.encoding, "replace", line_buffering=True)


def _give_stdout_up() -> None:
    """What is still buffered would fail again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@cache
def _program() -> Any:
    return typer.main.get_command(app)


def _run(arguments: list[str]) -> int:
    try:
        with ended_by_signals(), whole_words():
            result = _program().main(args=arguments, prog_name="tracekit", standalone_mode=False)
            if (
                result == _INTERRUPTED
            ):  # releases of typer differ in how an interrupt arrives: as Abort, or so
                raise KeyboardInterrupt
    except typer.Exit as leave:
        return int(leave.exit_code)
    except SystemExit as leave:
        raise BrokenPipeError from leave  # how click tells that the reader of a pipe went away
    except typer.Abort:
        return _complain("interrupted", _INTERRUPTED)
    except Exception as error:
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":  # the help itself, which is no error's one line
            sys.stderr.write(f"{message()}\n")
            return 2
        where = getattr(getattr(error, "ctx", None), "command_path", "tracekit")
        return _complain(f"{_sentence(message().strip())} See '{where} --help'.", 2)
    return result if isinstance(result, int) else 0  # that of a typer.Exit, after a failure that was reported


def _sentence(text: str) -> str:
    """A message of the parser as a sentence; of a value that is none of those that there are, with the nearest."""
    text = text.replace("Value error, ", "")  # pydantic's own words
    if match := re.fullmatch(r"No such command '(.*)'\.", text, re.DOTALL):
        word = match[1]
        if word in ("help", "version"):
            return f"No such command '{word}'. Did you mean 'tracekit --{word}'?"
        if "://" in word or Path(word).exists():
            import shlex

            fit = "run" if word.endswith(".py") else "report"
            return f"No such command '{word}'. Did you mean 'tracekit {fit} {shlex.quote(word)}'?"
    if match := re.search(r"'([^']*)' is not one of (.*?)\.?$", text):
        close = nearest(match[1], re.findall(r"[^\s',]+", match[2]))
        text = f"{text.removesuffix('.')}; {close}" if close else text
    return text if not text or text.endswith("?") else f"{text.removesuffix('.')}."


def _complain(text: str, code: int) -> int:
    if _REMOTE in sys.modules:
        text = sys.modules[_REMOTE].with_addresses(text)
    line = f"tracekit: error: {' '.join(printable(text).split())}"
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2 - 3]} … {line[-_LONGEST_LINE // 2 :]}"
    sys.stderr.write(f"{line}\n")
    return code
