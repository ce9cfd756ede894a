"""The paper's method: score every token on five pairs, validate the best, find outliers."""

from stickytoken.methods.std._entry import ENTRY

__all__ = ["ENTRY"]
