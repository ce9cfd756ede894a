"""Detect sticky tokens, judge a corpus by them, probe named ones, open finished runs."""

from stickytoken.detection.detect import detect, probe
from stickytoken.detection.run import Run, judge, open_run

__all__ = ["Run", "detect", "judge", "open_run", "probe"]
