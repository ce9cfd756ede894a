"""The report that a detection leaves in its run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.output import status, tell

if TYPE_CHECKING:
    from stickytoken.runs import Run


def write_run_report(run: Run) -> None:
    """Write report.html beside the results, and say where.

    Raises:
        RunError: it cannot be written; the results are in place all the same.
    """
    from stickytoken.reports import report
    from stickytoken.reports.report import REPORT_FILE

    path = run.path / REPORT_FILE
    with status("writing the report"):
        report(run, out=path)
    tell(f"report: {path}")
