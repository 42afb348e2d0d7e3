"""Recording: from a training loop to a trace whose device time can be attributed to layers.

`tracekit capture` and `tracekit.capture.run.run` record a workload of the registry. For a loop of your own:

    with tracekit.capture.session("runs/mine", model=model) as s:
        for batch in loader:
            train_step(batch)
            s.step()

This is the only part of tracekit that uses torch, and importing this package does not import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit.capture.recipe import Recipe
    from tracekit.capture.sessions import Session, session
    from tracekit.manifest import CaptureOptions, Settings

__all__ = ["CaptureOptions", "Recipe", "Session", "Settings", "session"]

_HOMES = {
    "CaptureOptions": "tracekit.manifest",
    "Recipe": "tracekit.capture.recipe",
    "Session": "tracekit.capture.sessions",
    "Settings": "tracekit.manifest",
    "session": "tracekit.capture.sessions",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: its module imports torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(_HOMES[name]), name)
