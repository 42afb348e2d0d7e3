"""What the ranks of one job show together: equal calls, clocks, waits, and the rank that the others wait for (DEFINITIONS §8)."""

from tracekit.analyses.ranks.align import Alignment, align
from tracekit.analyses.ranks.beside import Beside, beside, worst_beside
from tracekit.analyses.ranks.heat import Heat, heat_of
from tracekit.analyses.ranks.stragglers import stragglers_of
from tracekit.analyses.ranks.summary import Summary, summary_of
from tracekit.analyses.ranks.waits import Waits, waits_of

__all__ = [
    "Alignment",
    "Beside",
    "Heat",
    "Summary",
    "Waits",
    "align",
    "beside",
    "heat_of",
    "stragglers_of",
    "summary_of",
    "waits_of",
    "worst_beside",
]
