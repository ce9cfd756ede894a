"""Runs: what was planned, what has been computed, what it says. Resumable, verifiable."""

from stickytoken.runs.detect import detect
from stickytoken.runs.probe import Evidence, probe
from stickytoken.runs.run import Run, open_run

__all__ = ["Evidence", "Run", "detect", "open_run", "probe"]
