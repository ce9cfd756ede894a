"""Detect sticky tokens, probe named ones, open finished runs."""

from stickytoken.detection.detect import detect
from stickytoken.detection.probe import probe
from stickytoken.detection.run import Run, open_run

__all__ = ["Run", "detect", "open_run", "probe"]
