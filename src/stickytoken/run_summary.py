"""A run in few numbers and words: what it examined, its worst tokens, its share of sticky tokens."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import polars as pl

from stickytoken.detection.run import Run
from stickytoken.intervals import Interval, estimate_share
from stickytoken.methods.base import Scope
from stickytoken.methods.measures import PUSH, Measure, Severity


class Examined(StrEnum):
    """Which tokens of the vocabulary a run examined."""

    WHOLE = "all available tokens"
    SAMPLE = "a random sample"
    CHOSEN = "chosen tokens"


class WorstToken(NamedTuple):
    """The token with the largest value of a measure."""

    token: str
    verdict: str | None  # the run's verdict on the token
    severity: str | None  # None if the token is not flagged
    value: float
    low: float | None  # lower end of the value's interval; None if it has no interval
    high: float | None


class RunSummary:
    """The numbers that sum up a run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        # The share of sticky tokens always has an interval. If the method computes no intervals, the
        # confidence of this interval is 90%.
        self.confidence = 0.9 if run.confidence is None else run.confidence

    @property
    def examined(self) -> Examined:
        """Which tokens of the vocabulary the run examined."""
        if len(self.run.tokens) == self.run.available:
            return Examined.WHOLE
        # In a run of a random sample, special tokens are measured in addition to the sample.
        return Examined.SAMPLE if self.run.record.scope is Scope.SAMPLE else Examined.CHOSEN

    def worst_token(self, measure: Measure) -> WorstToken | None:
        """Return the token with the largest value of a measure; None if the run has no values of the measure.

        Only the tokens measured in most texts are considered, because the largest of many values from few
        texts is large by chance. For the push, these are the tokens measured in most documents; for other
        measures, the confirmed and the flagged ones, if there are any.
        """
        tokens = self.run.tokens
        if measure.key not in tokens.columns:  # the method has no such measure
            return None
        measured = tokens.drop_nulls(measure.key)
        if measure is PUSH:
            measured = measured.filter(pl.col("documents") == pl.col("documents").max())
        elif "confirmed" in measured.columns and measured["confirmed"].any():
            # A token may be sticky by its push alone, without having been confirmed.
            measured = measured.filter(pl.col("confirmed") | (pl.col("verdict") == "sticky"))
        if measured.is_empty():
            return None
        row = measured.sort(measure.key, "token_id", descending=[True, False]).row(0, named=True)
        return WorstToken(
            token=row["token"],
            verdict=row["verdict"],
            severity=row.get("severity"),
            value=row[measure.key],
            low=row.get(measure.low.key),
            high=row.get(measure.high.key),
        )

    @property
    def sticky_share(self) -> Interval[float] | None:
        """The share of sticky tokens among the examined tokens; None if the user chose these tokens.

        The interval is exact (see `estimate_share`).
        """
        if self.examined is Examined.CHOSEN:
            return None
        # Tokens examined in addition to the sample, such as special tokens, would distort the share.
        is_drawn = ~pl.col("token_id").is_in(self.run.record.beside_sample or [])
        sticky_count = len(self.run.sticky.filter(is_drawn))
        examined = self.run.tokens.filter(is_drawn)
        if self.run.is_profile:  # the paper's method gives a verdict to candidates only
            examined = examined.drop_nulls("verdict")
        examined_count = len(examined)
        return estimate_share(sticky_count, examined_count, self.confidence)


def tone_of(sticky: pl.DataFrame) -> str:
    """Return the worst severity among sticky tokens; ``clean`` if the table is empty."""
    if sticky.is_empty():
        return "clean"
    if "severity" not in sticky.columns:  # the method grades no severity
        return "serious"
    severities = map(Severity, sticky["severity"].drop_nulls())
    return max(severities, key=lambda severity: severity.rank, default=Severity.MILD).value


def short_headline(run: Run) -> str:
    """Return the headline of a run with the short name of its model."""
    return f"{run.record.model.short_title}: {run.description.headline}"


def rule_lines(run: Run) -> list[str]:
    """Return the lines that state the rule of a run, without the lines that are already in its headline."""
    return [line for line in run.description.lines if line not in run.description.headline]
