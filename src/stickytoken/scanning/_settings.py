"""What a scan does besides finding copies."""

from __future__ import annotations

from enum import StrEnum


class Effect(StrEnum):
    """How to determine what copies do to a document."""

    MEASURED = "measured"
    """Encode each document with the copies and without."""
    PREDICTED = "predicted"
    """Encode each document as it is, and compute the rest from the pull and contraction of its tokens."""
