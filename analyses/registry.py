"""The registry that makes an analysis show up in the report, on the command line, in the docs and in the JSON.

It imports nothing heavy, so that `tracekit --help` can list the analyses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tracekit.classes import dataclass
from tracekit.errors import UsageError, nearest
from tracekit.extensions import entry_points_of

if TYPE_CHECKING:
    from tracekit.analyses.result import Result, TableView

__all__ = [
    "BUILT_IN",
    "ENTRY_POINT_GROUP",
    "ON_REQUEST",
    "Analysis",
    "AnalysisFunction",
    "analyses",
    "get_analysis",
    "no_analysis",
]


AnalysisFunction = Callable[[Any], "Result"]
"""A pure function of a scope (the built-in ones take a trace as well, for its default scope)."""


@dataclass(frozen=True, slots=True)  # no import of msgspec for `tracekit --help`
class Analysis:
    """A registry entry: its name, the question it answers, and where the function lives (`module:function`).

    An `optional` one is left out of a report whose trace holds nothing for it, unless it is asked for.
    """

    name: str
    question: str
    target: str
    optional: bool = False
    on_processors: str = ""
    """The question where no device was captured; empty: the same."""
    of_jobs: bool = False
    """Whether the function also takes several scopes, those of the ranks of a job."""

    def load(self) -> AnalysisFunction:
        """Import the function."""
        module, _, attribute = self.target.partition(":")
        function: Any = getattr(import_module(module), attribute)
        loaded: AnalysisFunction = function
        return loaded

    def tables(self) -> Mapping[str, TableView]:
        """How its tables are presented, by name, so far as its module declares it."""
        declared: Mapping[str, TableView] = getattr(
            import_module(self.target.partition(":")[0]), "TABLES", {}
        )
        return declared


BUILT_IN: Final = (
    Analysis(
        "workload",
        "How fast is the run, and which phase takes the time?",
        "tracekit.analyses.workload:workload",
        optional=True,
    ),
    Analysis(
        "breakdown",
        "Where did the device's time go?",
        "tracekit.analyses.breakdown:breakdown",
        on_processors="Where did the processors' time go?",
    ),
    Analysis("steps", "How long are the steps, and how much do they vary?", "tracekit.analyses.steps:steps"),
    Analysis(
        "idle",
        "Why was the device idle?",
        "tracekit.analyses.idle:idle",
        on_processors="What ran while no operator ran?",
    ),
    Analysis("layers", "Which layer takes the time?", "tracekit.analyses.layers:layers"),
    Analysis(
        "kernels",
        "Which kernels take the time?",
        "tracekit.analyses.kernels:kernels",
        on_processors="Which operators take the time?",
    ),
    Analysis(
        "ops",
        "Which operators take the time, on host and device?",
        "tracekit.analyses.ops:ops",
        on_processors="Which operators take the time, and how often are they called?",
    ),
    Analysis(
        "roofline",
        "How close does the work come to what the device can do?",
        "tracekit.analyses.roofline.analysis:roofline",
        optional=True,
        on_processors="How close does the work come to what the processors can do?",
    ),
    Analysis("launches", "Does the host launch work fast enough?", "tracekit.analyses.launches:launches"),
    Analysis("overlap", "Is communication hidden behind computation?", "tracekit.analyses.overlap:overlap"),
    Analysis(
        "collectives",
        "What does communication move, and how fast?",
        "tracekit.analyses.collectives:collectives",
        optional=True,
    ),
    Analysis("memory", "What is copied, and how full is the memory?", "tracekit.analyses.memory:memory"),
    Analysis("counters", "What did the hardware counters measure?", "tracekit.analyses.counters:counters"),
)
"""The analyses that come with tracekit, in the order of the report."""

ON_REQUEST: Final = (
    Analysis(
        "critical-path",
        "What determines how long a step takes, and what has slack?",
        "tracekit.analyses.critical_path:critical_path",
        of_jobs=True,
    ),
)
"""Those that take too long for every report, or answer what only some ask: they run if they are asked for by name."""

ENTRY_POINT_GROUP: Final = "tracekit.analyses"


def analyses() -> tuple[Analysis, ...]:
    """The built-in analyses, then those of installed packages (entry points of the group `tracekit.analyses`).

    An entry point's value is the function; the question is the first line of the function's docstring.
    """
    return (*BUILT_IN, *_installed(tuple(sys.path)))


@cache
def _installed(_path: tuple[str, ...]) -> tuple[Analysis, ...]:
    """Of the packages on this path."""
    points = sorted(entry_points_of(ENTRY_POINT_GROUP), key=lambda point: point.name)
    return tuple(Analysis(point.name, _question(point), point.value) for point in points)


def _question(point: Any) -> str:
    """The first line of the function's docstring; of a package that cannot be imported, why."""
    try:
        function = point.load()
    except Exception as error:  # noqa: BLE001 - another package's fault must not take the others down
        return f"{point.name} cannot be imported ({type(error).__name__}: {error})"
    return str(function.__doc__ or point.name).strip().splitlines()[0]


def get_analysis(name: str) -> Analysis:
    """The analysis of this name.

    Raises UsageError when there is none.
    """
    by_name = {analysis.name: analysis for analysis in (*analyses(), *ON_REQUEST)}
    if name not in by_name:
        raise no_analysis(name, by_name)
    return by_name[name]


def no_analysis(name: str, names: Collection[str]) -> UsageError:
    """The error for a name that is not among these names of analyses."""
    remedy = nearest(name, names, f"choose one of {', '.join(names)}")
    return UsageError(f"there is no analysis {name!r}", remedy=remedy)
