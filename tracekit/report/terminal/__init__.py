"""The report for a terminal: the verdict in the first lines, then a section for each question, on two screens."""

from tracekit.report.terminal.render import (
    render,
    render_reports,
    render_section,
    render_sections,
    sort_table,
)

__all__ = ["render", "render_reports", "render_section", "render_sections", "sort_table"]
