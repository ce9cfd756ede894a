"""The report that a detection leaves in its run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stickytoken.cli.options import Format
from stickytoken.cli.output import status, tell
from stickytoken.cli.results import show_run
from stickytoken.errors import MissingExtraError

if TYPE_CHECKING:
    from stickytoken.detection import Run


def finish_run(run: Run, output_format: Format, write_report: bool) -> None:
    """Print the results; then, if asked, write report.html beside them and say where.

    Raises:
        RunError: the report cannot be written; the results are in place and printed all the same.
    """
    show_run(run, output_format)
    if write_report:
        _write_run_report(run)


def _write_run_report(run: Run) -> None:
    """Write the report; without the extra for it, say so and leave the run as it is."""
    try:
        from stickytoken.reports import report
        from stickytoken.reports.report import REPORT_FILE
    except MissingExtraError as error:
        tell(f"{error}; then: stickytoken report {run.path}")
        return
    path = run.path / REPORT_FILE
    with status("writing the report"):
        report(run, out=path)
    tell(f"report: {path}")
