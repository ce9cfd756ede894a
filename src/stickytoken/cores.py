"""Count the processor cores that this process may use."""

from __future__ import annotations


def available_cores() -> int:
    """Return the number of cores by affinity and by the quota of the container, at least 1."""
    from joblib import cpu_count

    return int(cpu_count())
