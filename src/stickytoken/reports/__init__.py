"""Reports of runs: one HTML file, Markdown, JSON, and figures for a paper."""

from stickytoken.reports.report import Format, report

__all__ = ["Format", "report"]
