"""The two measures that decide whether a token is sticky, and all that outputs say about each.

Both compare copies of the token with copies of an ordinary token. In tokens.parquet, the ends of the interval
of a measure are in the columns ``<key>_low`` and ``<key>_high``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from stickytoken import words
from stickytoken.methods import Column
from stickytoken.settings.profile import ProfileSettings

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, kw_only=True)
class Measure(Column):
    """A column of tokens.parquet that makes a token sticky if its interval reaches a threshold.

    Attributes:
        noun: its name in a sentence.
        verb: what copies do.
        setting: the setting that holds the threshold.
        severe: value from which a flagged token is severe.
        threshold: format of a threshold.
        amount: format of a threshold with the name of the measure.
        largest: what the token with the largest value does.
        reason: why a token is flagged, with the value.
        meaning: what a high value means for a search.
        definition: what the measure is.
    """

    noun: str
    verb: str
    setting: str
    severe: float
    threshold: str
    amount: str
    largest: str
    reason: str
    meaning: str
    definition: str

    @property
    def low(self) -> Column:
        """The column of the lower end of the interval."""
        return Column(f"{self.key}_low", f"{self.title}, low", self.digits, self.unit)

    @property
    def high(self) -> Column:
        """The column of the upper end of the interval."""
        return Column(f"{self.key}_high", f"{self.title}, high", self.digits, self.unit)

    def interval(self, low: float, high: float) -> str:
        """Format an interval, rounded outward, such as "39% to 42%"."""
        return words.interval(low, high, self.digits or 0, self.unit)

    def is_reached(self, row: Mapping[str, Any], thresholds: Mapping[str, float]) -> bool:
        """Return whether a token reaches the threshold: whether the lower end of its interval does.

        Args:
            row: the token's row of tokens.parquet.
            thresholds: thresholds for the token, keyed by column; empty if the run has none.
        """
        low = row.get(self.low.key)
        return low is not None and self.key in thresholds and low >= thresholds[self.key]


ERASED = Measure(
    "erased",
    "erased",
    0,
    "%",
    noun="erased share",
    verb="erases",
    setting="smallest_erased",
    severe=0.7,  # a search finds hardly any of the documents with such copies
    threshold="{:.0%}",
    amount="an erased share of {:.0%}",
    largest="the largest erased share",
    reason="leaves {} less of a text's meaning than an ordinary token does",
    meaning="documents with copies are no longer found for what they say",
    definition="How much less of a text's meaning copies of the token leave than copies of an ordinary token "
    "do: 50% if they leave half as much.",
)
LIFT = Measure(
    "lift_sd",
    "lift",
    2,
    "SD",
    noun="lift",
    verb="lifts",
    setting="smallest_lift",
    severe=0.8,  # a large effect (Cohen 1988): an average unrelated text overtakes four in five of the others
    threshold="{:g} SD",
    amount="a lift of {:g} SD",
    largest="the largest lift of unrelated texts",
    reason="moves texts {} closer to unrelated texts",
    meaning="documents with copies come closer to unrelated texts, and may turn up in searches for other "
    "things",
    definition="How much closer copies of the token move texts to unrelated texts than copies of an ordinary "
    "token do, in standard deviations (SD) of the model's similarities, averaged over the kinds of text.",
)
MEASURES = (ERASED, LIFT)

# Share of each threshold that is enough for a token with an unusual vector. Tokens whose vectors were altered
# to point toward kinds of text that no run measures reach these halved thresholds: they lift texts by at
# least 0.25 SD or erase at least 20% of a text. Natural tokens with unusual vectors hardly ever reach them.
UNUSUAL_SHARE = 0.5


class Severity(StrEnum):
    """How bad a flagged token is, from mild to severe."""

    MILD = "mild"
    SERIOUS = "serious"
    SEVERE = "severe"

    @property
    def meaning(self) -> str:
        """What a token of this severity does, such as ``reaches a full threshold``."""
        full = [getattr(ProfileSettings, measure.setting) for measure in MEASURES]
        if self is Severity.MILD:
            return (
                "is flagged only because its unusual vector halves the thresholds (by default, "
                f"{_any_amount([UNUSUAL_SHARE * threshold for threshold in full])} is then enough)"
            )
        if self is Severity.SERIOUS:
            return f"reaches a full threshold (by default, {_any_amount(full)})"
        return f"reaches {_any_amount([measure.severe for measure in MEASURES])}"


def _any_amount(values: Sequence[float]) -> str:
    """Return a value of each measure in words, joined by "or"."""
    return " or ".join(measure.amount.format(value) for measure, value in zip(MEASURES, values, strict=True))


def severities_in_words() -> str:
    """Return a sentence that defines every severity, the mildest first."""
    definitions = [f"a {severity.value} token {severity.meaning}" for severity in Severity]
    return words.sentence("; ".join(definitions))


def severity_counts(tokens: pl.DataFrame) -> dict[str, int]:
    """Count the tokens of each severity. Return the counts keyed by severity, from severe to mild."""
    return {grade.value: int((tokens["severity"] == grade.value).sum()) for grade in reversed(Severity)}
