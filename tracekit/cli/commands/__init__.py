"""The commands: a file for each, and one for those of single analyses.

A command is a line of `COMMANDS` and the function of its name in the module of its name. The module is imported when its command is
asked for; the list of commands needs the lines only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from tracekit.analyses.registry import BUILT_IN, ON_REQUEST

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["COMMANDS", "QUESTIONS", "function_of"]

QUESTIONS: Final[Mapping[str, str]] = {one.name: one.question for one in (*BUILT_IN, *ON_REQUEST)}
"""The help of the commands of single analyses."""

COMMANDS: Final[Mapping[str, str]] = {
    "report": "Report what bounds a run, what costs most, and what to try.",
    "info": "Show what a file holds.",
    "doctor": "Show the defects of a file.",
    **QUESTIONS,
    "what-if": "Predict how long a step would take after a change.",
    "analysis": "Run an analysis that an installed package adds.",
    "diff": "Compare two runs: what changed, and whether it is noise.",
    "view": "Open a trace in Perfetto, or its report in a browser.",
    "export": "Write the frames of a trace as files.",
    "merge": "Merge the traces of a job into one file, on one clock.",
    "scrub": "Copy what tracekit reads of an Nsight Systems export.",
    "run": "Run a training or inference script and record it.",
    "capture": "Train a model for a few steps and record it.",
    "sweep": "Capture every combination of some settings.",
    "characterize": "Compare the models of a sweep.",
    "trajectory": "Show how performance moves along a setting of a sweep.",
    "compare": "Compare devices across models.",
    "scaling": "Show how a program scales over its runs on 1, 2, 4 … ranks.",
    "dataset": "Make a table of captured runs.",
    "predict": "Predict the time of a run that was not measured.",
    "trend": "Show how step times moved over many runs.",
    "machine": "Measure how fast this machine computes and moves data.",
    "xsp": "Show XSP's analyses of a model, its layers and kernels.",
    "nsys-stats": "Show reports of `nsys stats` and rules of `nsys analyze`.",
    "baseline": "Keep runs under a name, to compare later runs with.",
}
"""Every command with the first line of its help, in the order of `tracekit --help`."""


def function_of(name: str) -> Callable[..., None] | Typer:
    """The function of a command, whose parameters are its flags, or the program of its own commands; an analysis without a module of its own is one of `analysis`.

    >>> function_of("nsys-stats").__name__
    'nsys_stats'
    """
    own = name.replace("-", "_")
    if find_spec(f"{__name__}.{own}") is None:
        made: Callable[..., None] = import_module(f"{__name__}.analysis").command_of(name)
        return made
    function: Callable[..., None] | Typer = getattr(import_module(f"{__name__}.{own}"), own)
    return function
