"""What recording adds to the steps of a capture on a device, which measured them without it, too."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracekit.analyses.scope import Scope

__all__ = ["is_slowed", "unrecorded_ns"]

_FELT: Final = 1.05
"""Steps on a device that recording makes longer by less may do so by chance."""


def unrecorded_ns(scope: Scope) -> int | None:
    """How long the window of a capture's steps on a device is without recording, in ns, at most as long as it is.

    None where steps were not measured without recording. A recording slows the host; so what it adds is a wait for the host.
    """
    manifest, steps = scope.trace.manifest, scope.steps.height
    if scope.on_cpu or manifest is None or scope.window != "steps" or not steps:
        return None
    times = manifest.step_times_ns("M")
    return min(round(float(np.median(times)) * steps), scope.duration) if times else None


def is_slowed(scope: Scope) -> bool:
    """Whether the recording of a capture made its steps on a device longer than chance would."""
    plain = unrecorded_ns(scope)
    return plain is not None and scope.duration >= _FELT * plain
