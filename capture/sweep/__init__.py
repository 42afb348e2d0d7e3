"""`sweep`: run a grid of settings, each in a fresh process, into one index from which an interrupted sweep can resume."""

from tracekit.capture.sweep.run import Grid, Progress, sweep

__all__ = ["Grid", "Progress", "sweep"]
