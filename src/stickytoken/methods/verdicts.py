"""Possible verdicts on a token."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """The verdict of a run on a token; a method need not use all of them."""

    STICKY = "sticky"
    TOPICAL = "topical"
    """Lifts only part of the texts, by its meaning: no defect, and no ordinary token either."""
    BENIGN = "benign"
