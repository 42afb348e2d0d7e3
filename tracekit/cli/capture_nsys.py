"""`tracekit capture --nsys`: the same command once more, below nsys."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from tracekit.manifest import MANIFEST_FILE, Level

__all__ = ["capture_under_nsys", "words_of"]

_REPLACED = ("nsys", "output", "levels")


def capture_under_nsys(context: typer.Context, folder: Path, levels: tuple[Level, ...], device: str) -> None:
    """Run this command below nsys, writing into `folder`, and print what was written.

    Raises `typer.Exit` with the capture's exit code when it failed; it has said why. Raises UsageError when no level
    has ranges, MissingDependencyError without nsys, TracekitError when nsys failed.
    """
    from tracekit.capture.nsys import PROFILE_FILE, levels_under_nsys, profile
    from tracekit.manifest import read_manifest

    words = [
        *(sys.executable, "-m", "tracekit", "capture"),
        *words_of(context, without=_REPLACED),
        *("--output", str(folder), "--levels", ",".join(levels_under_nsys(levels))),
    ]
    code = profile(words, folder, on_gpu=device.startswith("cuda"))
    if code:
        raise typer.Exit(code)
    traces = [run.trace for run in read_manifest(folder / MANIFEST_FILE).runs if run.trace]
    for name in (*traces, MANIFEST_FILE, PROFILE_FILE):
        typer.echo(folder / name)


def words_of(context: typer.Context, *, without: Iterable[str] = ()) -> list[str]:
    """The arguments that this command was given, as it would take them again, those of some names left out."""
    left_out = set(without)
    words: list[str] = []
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is None or source.name != "COMMANDLINE" or parameter.name in left_out:
            continue
        words += _words(parameter, context.params[str(parameter.name)])
    return words


def _words(parameter: Any, value: object) -> list[str]:
    if parameter.param_type_name == "argument":
        return [str(value)]
    if isinstance(value, bool):
        return [parameter.opts[0] if value else parameter.secondary_opts[0]]
    return [parameter.opts[0], str(value.value if isinstance(value, Enum) else value)]
