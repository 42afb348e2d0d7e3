"""The report as one HTML file that needs nothing else: no server, no network, no other file."""

from tracekit.report.html.folds import MAX_ROWS, Cell, Grid
from tracekit.report.html.render import render, render_alone, render_reports

__all__ = ["MAX_ROWS", "Cell", "Grid", "render", "render_alone", "render_reports"]
