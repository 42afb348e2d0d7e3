"""`sweep`: run a grid of settings, each in a fresh process, into one index that can be taken up again."""

from tracekit.capture.sweep.run import Grid, Progress, sweep

__all__ = ["Grid", "Progress", "sweep"]
