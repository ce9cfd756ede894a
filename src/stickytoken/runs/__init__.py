"""Runs: what was planned, what has been computed, what it says. Resumable, verifiable."""

from stickytoken.runs.detect import detect
from stickytoken.runs.probe import probe
from stickytoken.runs.profile_probe import ProfileEvidence
from stickytoken.runs.run import Run, open_run
from stickytoken.runs.std_probe import Evidence

__all__ = ["Evidence", "ProfileEvidence", "Run", "detect", "open_run", "probe"]
