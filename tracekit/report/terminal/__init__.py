"""The report for a terminal: the verdict in the first lines, then a section for each question, on two screens."""

from tracekit.report.terminal.render import head, render, render_section, section_text, sort_table, summary

__all__ = ["head", "render", "render_section", "section_text", "sort_table", "summary"]
