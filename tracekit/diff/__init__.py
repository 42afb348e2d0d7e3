"""What changed between two sides, each one or several runs of a program, and whether the change is more than noise."""

from tracekit.diff.compare import diff_of
from tracekit.diff.model import Change, Diff, Side

__all__ = ["Change", "Diff", "Side", "diff_of"]
