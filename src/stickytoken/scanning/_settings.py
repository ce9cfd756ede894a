"""What a scan does beside finding copies."""

from __future__ import annotations

from enum import StrEnum


class Effect(StrEnum):
    """How to tell what copies do to a document."""

    MEASURED = "measured"
    """Encode each document with the copies and without."""
    PREDICTED = "predicted"
    """Encode each document as it is, and compute the rest from the pull and contraction of its tokens."""
