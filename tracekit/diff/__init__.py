"""What changed between two sides, each one or several runs of a program, and whether the change is more than noise."""

from tracekit.diff.compare import diff_of
from tracekit.diff.model import Contribution, Diff, Side

__all__ = ["Contribution", "Diff", "Side", "diff_of"]
