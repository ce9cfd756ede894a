"""The two measures that decide whether a token is sticky, their thresholds, and what outputs say about each.

In tokens.parquet, the ends of the interval of a measure are in the columns ``<key>_low`` and ``<key>_high``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stickytoken import words
from stickytoken.methods import Column
from stickytoken.settings.profile import RuleSettings


@dataclass(frozen=True, kw_only=True)
class Measure(Column):
    """A column of tokens.parquet that makes a token sticky if its interval reaches a threshold.

    Attributes:
        noun: name of the measure in a sentence.
        verb: what copies do, such as ``erases``.
        compared_with: what the value is compared with.
        setting: the setting that holds the threshold.
        without_effect: value of a token whose copies have no effect.
        severe: value from which a flagged token is severe.
        threshold_format: format of a threshold.
        amount_format: format of a threshold with the name of the measure.
        largest: phrase for the largest value of a run, such as ``the largest push``.
        reason_format: format of the reason why a token is flagged, with the value.
        meaning: what a high value means for a search.
        definition: what the measure is.
    """

    noun: str
    verb: str
    compared_with: str
    setting: str
    without_effect: float
    severe: float
    threshold_format: str
    amount_format: str
    largest: str
    reason_format: str
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
    compared_with="an ordinary token",
    setting="smallest_erased",
    without_effect=0.0,
    severe=0.7,  # a search finds hardly any of the short texts with such copies
    threshold_format="{:.0%}",
    amount_format="an erased share of {:.0%}",
    largest="the largest erased share",
    reason_format="leaves {} less of a text's meaning than an ordinary token does",
    meaning="short texts with copies are no longer found for what they say, and most such tokens hide long "
    "ones, too",
    definition="How much less of a text's meaning copies of the token leave than copies of an ordinary token "
    "do: 50% if they leave half as much.",
)
PUSH = Measure(
    "push",
    "push",
    1,
    "×",
    noun="push",
    verb="pushes",
    compared_with="no copies",
    setting="smallest_push",
    without_effect=1.0,
    severe=2.0,  # whoever adds the copies doubles the wrong results
    threshold_format="{:g} times",
    amount_format="a push of {:g} times",
    largest="the largest push",
    reason_format="pushes documents into {} as many wrong results",
    meaning="documents with copies turn up in results where they don't belong",
    definition="In how many times as many results a document with eight copies of the token is, among "
    "queries that it does not answer, compared with the same document without copies.",
)
MEASURES = (ERASED, PUSH)

# For a token with an unusual vector, this share of the way from no effect to a threshold is enough. Tokens
# whose vectors were altered erase at least 20% of a text, even if they were altered to point toward texts
# that no run measures. Natural tokens with unusual vectors hardly ever do.
UNUSUAL_SHARE = 0.5


def thresholds(vector_deviation: ArrayLike | None, rule: RuleSettings) -> dict[str, NDArray[np.float64]]:
    """Return the thresholds of tokens, keyed by column; each has the shape of ``vector_deviation``.

    Args:
        vector_deviation: how unusual the vector of each token is; NaN or None if it cannot be compared. Pass
            ``math.inf`` for the thresholds of a token with an unusual vector.
        rule: the thresholds of tokens whose vectors are not unusual, and from which deviation on a vector is
            unusual.
    """
    deviations = np.asarray(vector_deviation, dtype=np.float64)  # None becomes NaN
    is_unusual = deviations >= rule.unusual  # false if the deviation is NaN
    # The thresholds of a token are this share of the way from the value without an effect to the full
    # threshold.
    share_of_way = np.where(is_unusual, UNUSUAL_SHARE, 1.0)
    threshold_by_column: dict[str, NDArray[np.float64]] = {}
    for measure in MEASURES:
        whole_way = getattr(rule, measure.setting) - measure.without_effect
        threshold_by_column[measure.key] = measure.without_effect + share_of_way * whole_way
    return threshold_by_column


def hidden_share(found: Any, found_otherwise: float) -> Any:
    """Return the share of queries that no longer find the document that answers them, because of copies of a
    token.

    This is a share of the queries that find their document without these copies. It is negative if more
    queries find their document with them.

    Args:
        found: share of all queries that find their document if it has copies of the token: a number or an
            array.
        found_otherwise: share of all queries that find their document if it has copies of an ordinary token,
            or no copies; not 0.
    """
    return 1 - found / found_otherwise


class Severity(StrEnum):
    """How bad a flagged token is, from mild to severe."""

    MILD = "mild"
    SERIOUS = "serious"
    SEVERE = "severe"

    @property
    def rank(self) -> int:
        """A number from 0 that is larger for a worse severity."""
        return list(Severity).index(self)

    @property
    def meaning(self) -> str:
        """What a token of this severity does, such as ``reaches a full threshold``."""
        if self is Severity.MILD:
            return (
                "is flagged only because its unusual vector lowers the thresholds (by default, "
                f"{_name_amounts(thresholds(np.inf, RuleSettings()))} is then enough)"
            )
        if self is Severity.SERIOUS:
            return f"reaches a full threshold (by default, {_name_amounts(thresholds(None, RuleSettings()))})"
        return f"reaches {_name_amounts({measure.key: measure.severe for measure in MEASURES})}"


def _name_amounts(value_by_column: Mapping[str, Any]) -> str:
    return " or ".join(
        measure.amount_format.format(float(value_by_column[measure.key])) for measure in MEASURES
    )


def severities_in_words() -> str:
    """Return a sentence that defines every severity, the mildest first."""
    definitions = [f"a {severity.value} token {severity.meaning}" for severity in Severity]
    return words.sentence("; ".join(definitions))
