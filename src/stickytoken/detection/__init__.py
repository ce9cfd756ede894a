"""Runs: what was planned, what has been computed, what it says. Resumable, verifiable."""

from stickytoken.detection.detect import detect
from stickytoken.detection.probe import probe
from stickytoken.detection.run import Run, open_run
from stickytoken.methods.profile.probe import ProfileEvidence
from stickytoken.methods.std.probe import Evidence

__all__ = ["Evidence", "ProfileEvidence", "Run", "detect", "open_run", "probe"]
