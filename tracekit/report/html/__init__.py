"""The report as one HTML file that needs nothing else: no server, no network, no other file."""

from tracekit.report.html.folds import MAX_ROWS, Cell, Grid
from tracekit.report.html.render import Part, join_parts, part_of, render, render_alone, render_reports

__all__ = [
    "MAX_ROWS",
    "Cell",
    "Grid",
    "Part",
    "join_parts",
    "part_of",
    "render",
    "render_alone",
    "render_reports",
]
