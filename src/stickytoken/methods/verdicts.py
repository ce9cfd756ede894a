"""Possible verdicts on a token, and grades of its lift."""

from __future__ import annotations

from bisect import bisect_right
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


class Verdict(StrEnum):
    """The verdict of a run on a token; a method need not use all of them."""

    STICKY = "sticky"
    TOPICAL = "topical"
    """Lifts only part of the texts, by its meaning: no defect, and no ordinary token either."""
    BENIGN = "benign"


class Severity(StrEnum):
    """Size of a lift in standard deviations of the model's own similarities.

    The bounds are the conventional small, medium and large effects (Cohen 1988).
    """

    NEGLIGIBLE = "negligible"
    MILD = "mild"
    SERIOUS = "serious"
    SEVERE = "severe"


SEVERITY_BOUNDS = {Severity.MILD: 0.2, Severity.SERIOUS: 0.5, Severity.SEVERE: 0.8}


def severity_of(effect: float) -> Severity:
    """Grade an effect in standard deviations of the model's own similarities."""
    return tuple(Severity)[bisect_right(tuple(SEVERITY_BOUNDS.values()), effect)]


def severity_counts(tokens: pl.DataFrame) -> dict[str, int]:
    """Count the flagged tokens of every severity, the worst severity first."""
    return {grade.value: int((tokens["severity"] == grade.value).sum()) for grade in reversed(Severity)}
