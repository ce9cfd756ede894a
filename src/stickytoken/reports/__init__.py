"""Reports of runs: one HTML file, Markdown, JSON, and figures for a paper."""

from stickytoken.errors import require_package

require_package("plotly", "a report", "report")
require_package("jinja2", "a report", "report")

from stickytoken.reports.report import Format, report  # noqa: E402 (not before the check)

__all__ = ["Format", "report"]
