"""What a run may say of a token."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What a run says of a token; a method need not know all of them."""

    STICKY = "sticky"
    TOPICAL = "topical"
    """Lifts only part of the texts, by its meaning: no defect, and no ordinary token either."""
    BENIGN = "benign"
