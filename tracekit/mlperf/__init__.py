"""Results of MLPerf training: logs, scores, and how training scales over systems of several sizes."""

from tracekit.mlperf.cells import (
    Cell,
    cells_of,
    cells_table,
    ends_of,
    score_of,
    series_of,
    sizes_of,
)
from tracekit.mlperf.forecast import Forecast, Question, compared, enough_chips, forecast, question_of
from tracekit.mlperf.laws import efficiency_parts, laws_table, techniques_table
from tracekit.mlperf.limits import steps_table
from tracekit.mlperf.results import Results, holds_results, read_results
from tracekit.mlperf.runs import LoggedRun

__all__ = [
    "Cell",
    "Forecast",
    "LoggedRun",
    "Question",
    "Results",
    "cells_of",
    "cells_table",
    "compared",
    "efficiency_parts",
    "ends_of",
    "enough_chips",
    "forecast",
    "holds_results",
    "laws_table",
    "question_of",
    "read_results",
    "score_of",
    "series_of",
    "sizes_of",
    "steps_table",
    "techniques_table",
]
