"""Exact intervals of shares. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Share(NamedTuple):
    """A share with its interval."""

    value: float
    low: float
    high: float


def exact_share(count: int, total: int, confidence: float) -> Share:
    """Compute a share and its exact interval (Clopper and Pearson 1934, Biometrika 26:404).

    The interval covers the true share at least as often as it claims, also for no or few cases, where
    normal approximations fail.

    Args:
        count: of the cases.
        total: of what was looked at; at least 1.
        confidence: coverage of the interval.
    """
    from scipy.stats import beta

    outside = (1 - confidence) / 2
    low = 0.0 if count == 0 else float(beta.ppf(outside, count, total - count + 1))
    high = 1.0 if count == total else float(beta.ppf(1 - outside, count + 1, total - count))
    return Share(count / total, low, high)
