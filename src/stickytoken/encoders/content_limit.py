"""How much of a text a model reads."""

from __future__ import annotations

from stickytoken.encoders.protocol import Encoder


def content_limit(encoder: Encoder) -> int | None:
    """Return how many content ids the model reads, without special tokens; None if there is no limit."""
    limit = encoder.max_length
    if limit is None:
        return None
    while limit > 0 and not encoder.fits((0,) * limit):
        limit -= 1
    return limit
