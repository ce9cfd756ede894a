"""Runs of several models side by side: what they found, what can be compared, and what was published."""

from stickytoken.comparisons.result import Comparison, compare

__all__ = ["Comparison", "compare"]
