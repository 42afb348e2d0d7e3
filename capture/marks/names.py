"""Range names of a capture: the phases of a step, and names that survive the profiler's JSON writer."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeAlias, get_args

from tracekit.facts.capture_names import LAYER_PREFIX, PHASE_PREFIX
from tracekit.facts.step_names import STEP_PREFIX

__all__ = [
    "PHASES",
    "ROOT_LAYER",
    "Phase",
    "PhaseRange",
    "layer_range_name",
    "no_phase",
    "phase_range_name",
    "printable",
    "step_range_name",
]

Phase = Literal["data", "h2d", "forward", "loss", "backward", "optimizer", "zero_grad", "metrics"]
PHASES: tuple[Phase, ...] = get_args(Phase)
ROOT_LAYER = "<root>"  # the profiler leaves out an argument that is an empty string
PhaseRange: TypeAlias = Callable[[Phase], AbstractContextManager[object]]

# The writer leaves `"` unescaped, which makes the whole file invalid JSON, turns `\` into `/`, and replaces a
# whole name that holds a control character by "unknown", in some locales one with a non-ASCII character too.
_UNPRINTABLE = re.compile(r'[^ -~]|["\\]')
_STAND_IN = {'"': "'", "\\": "/"}


def printable(text: str) -> str:
    r"""Return `text` with what the profiler would damage replaced: `"` by `'`, `\` by `/`, others by `?`.

    >>> printable('the "first" block')
    "the 'first' block"
    """
    return _UNPRINTABLE.sub(lambda match: _STAND_IN.get(match[0], "?"), text)


def layer_range_name(qualified_name: str) -> str:
    """Return the range name of a module; the root, whose qualified name is empty, is `<root>`."""
    return LAYER_PREFIX + printable(qualified_name or ROOT_LAYER)


def phase_range_name(phase: Phase) -> str:
    """Return the range name of a phase of a training step."""
    return PHASE_PREFIX + phase


def step_range_name(number: int) -> str:
    """Return the range name of a step, as the profiler writes it."""
    return f"{STEP_PREFIX}{number}"


def no_phase(phase: Phase) -> AbstractContextManager[object]:  # noqa: ARG001 - it stands in for a PhaseRange
    """Stand in for a `PhaseRange` and record nothing, for steps that run without the profiler."""
    return nullcontext()
