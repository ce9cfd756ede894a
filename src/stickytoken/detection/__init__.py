"""Detect sticky tokens, judge a corpus by them, probe named ones, open finished runs."""

from stickytoken.detection.detect import detect, judge, probe
from stickytoken.detection.run import Run, open_run

__all__ = ["Run", "detect", "judge", "open_run", "probe"]
