"""The rule: which tokens are sticky, and how severe they are. Pure.

A token is sticky if its copies move unrelated texts closer by at least 0.5 standard deviations (SD) more than
copies of an ordinary token do, or if they erase at least 40% of what copies of an ordinary token leave of a
text. For a token whose own vector is unusual, half of either threshold is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.methods import Severity, Verdict, wording
from stickytoken.methods.probes import Vector
from stickytoken.methods.statistics import Estimates
from stickytoken.settings.profile import ProfileSettings

# A token with an unusual vector needs to reach only this share of each threshold. Vectors that were planted
# toward kinds of text that no run measures lift by at least 0.25 SD or erase at least 20% of a text. Natural
# tokens with unusual vectors hardly do either.
UNUSUAL_SHARE = 0.5
# A token lifts a kind of text if its lift there is at least this share of the threshold of the lift.
LIFTED_SHARE = 0.5
# A token that reaches only the threshold of the lift is sticky if it lifts at least this share of the kinds
# of text. Otherwise it is topical.
UNIVERSAL_SHARE = 0.5
# This many of the strongest tokens of each measure are measured closely even if none reaches a threshold,
# because they are shown to the user.
DISPLAYED = 10


@dataclass(frozen=True)
class Thresholds:
    """What a token must reach to be flagged.

    Attributes:
        lift: in standard deviations of the model's similarities.
        erased: share of what copies of an ordinary token leave of a text.
        unusual: from this many median absolute deviations above the median on, a token vector is unusual.
    """

    lift: float
    erased: float
    unusual: float

    @classmethod
    def of(cls, settings: ProfileSettings) -> Thresholds:
        """Return the thresholds that the settings name."""
        return cls(settings.smallest_lift, settings.smallest_erased, settings.unusual)


class Measures(NamedTuple):
    """The measures of T tokens that the rule looks at.

    Attributes:
        ids: token ids, shape (T,).
        lift: rise of the similarities of unrelated texts beyond the ordinary token's, in SD.
        erased: share of what copies of an ordinary token leave of a text that copies of the token erase.
        vector_deviation: median absolute deviations of the token vector above the median; NaN where token
            vectors cannot be compared, shape (T,).
        confirmed: whether the token was measured closely, shape (T,).
        kinds_lifted: number of kinds of text that the token lifts, shape (T,).
        kinds: number of kinds of text in the run; 0 if it has none.
    """

    ids: NDArray[np.int64]
    lift: Estimates
    erased: Estimates
    vector_deviation: Vector
    confirmed: NDArray[np.bool_]
    kinds_lifted: NDArray[np.int64]
    kinds: int


class Judged(NamedTuple):
    """Verdict and severity of each token, in the order of the measures. A benign token has no severity."""

    verdicts: list[Verdict]
    severities: list[Severity | None]


def apply_rule(tokens: Measures, thresholds: Thresholds) -> Judged:
    """Judge tokens by the low ends of their intervals.

    A token that was only screened is benign: its measures are rough, and the largest of many rough values are
    partly chance.

    Returns:
        The verdict of each token: sticky, topical or benign; and the severity of those that are not benign.
    """
    required_share = required_shares(tokens.vector_deviation, thresholds)
    reaches_lift = tokens.confirmed & (tokens.lift.low >= required_share * thresholds.lift)
    reaches_erased = tokens.confirmed & (tokens.erased.low >= required_share * thresholds.erased)
    lifts_few_kinds = tokens.kinds_lifted < UNIVERSAL_SHARE * tokens.kinds
    is_topical = reaches_lift & ~reaches_erased & lifts_few_kinds
    is_sticky = (reaches_lift | reaches_erased) & ~is_topical

    is_serious = (tokens.lift.low >= thresholds.lift) | (tokens.erased.low >= thresholds.erased)
    severe_lift = max(wording.SEVERE_LIFT, thresholds.lift)
    severe_erased = max(wording.SEVERE_ERASED, thresholds.erased)
    is_severe = (tokens.lift.low >= severe_lift) | (tokens.erased.low >= severe_erased)

    verdict_names = np.select([is_sticky, is_topical], [Verdict.STICKY, Verdict.TOPICAL], Verdict.BENIGN)
    severity_names = np.select([is_severe, is_serious], [Severity.SEVERE, Severity.SERIOUS], Severity.MILD)
    verdicts = [Verdict(name) for name in verdict_names]
    severities = [
        None if verdict is Verdict.BENIGN else Severity(name)
        for verdict, name in zip(verdicts, severity_names, strict=True)
    ]
    return Judged(verdicts, severities)


def required_shares(vector_deviation: Vector, thresholds: Thresholds) -> Vector:
    """Return the share of each threshold that a token must reach, shape (T,).

    It is `UNUSUAL_SHARE` for a token whose vector is unusual, and 1 for all others.
    """
    is_unusual = vector_deviation >= thresholds.unusual  # false for NaN
    return np.where(is_unusual, UNUSUAL_SHARE, 1.0)


def reasons(tokens: Measures, judged: Judged, thresholds: Thresholds) -> list[str | None]:
    """Say in words which thresholds each flagged token reaches; None for a benign token.

    Args:
        tokens: the measures of the tokens.
        judged: their verdicts and severities.
        thresholds: what a token must reach.
    """
    required_share = required_shares(tokens.vector_deviation, thresholds)
    reaches_lift = tokens.lift.low >= required_share * thresholds.lift
    reaches_erased = tokens.erased.low >= required_share * thresholds.erased
    sentences: list[str | None] = []
    for row, severity in enumerate(judged.severities):
        if severity is None:
            sentences.append(None)
            continue
        sentence = wording.reason(
            erased=float(tokens.erased.value[row]) if reaches_erased[row] else None,
            lift_sd=float(tokens.lift.value[row]) if reaches_lift[row] else None,
            unusual_vector=severity is Severity.MILD,  # mild: only the halved thresholds are reached
        )
        sentences.append(sentence)
    return sentences


class Selection(NamedTuple):
    """The tokens to measure closely.

    Attributes:
        ids: ids of the selected tokens, ascending.
        left_out: number of further tokens that may reach a threshold, for which the budget does not suffice.
    """

    ids: NDArray[np.int64]
    left_out: int


def select_to_confirm(screened: Measures, thresholds: Thresholds, budgeted_tokens: int) -> Selection:
    """Select the tokens to measure closely.

    They are the strongest ten of each measure, and all tokens that may reach a threshold. A token may reach a
    threshold if the high end of its interval does. If the budget allows fewer tokens, those whose high end is
    largest, relative to the threshold, come first.

    Args:
        screened: measures of all tokens from the screen.
        thresholds: what a token must reach.
        budgeted_tokens: number of tokens that the budget allows. The strongest ten of each measure are
            selected even if they are more.
    """
    required_share = required_shares(screened.vector_deviation, thresholds)
    lift_ratio = screened.lift.high / (required_share * thresholds.lift)
    erased_ratio = screened.erased.high / (required_share * thresholds.erased)
    larger_ratio = np.maximum(lift_ratio, erased_ratio)
    candidate_count = int((larger_ratio >= 1).sum())

    most_lifting = _ids_of_largest(screened.ids, screened.lift.value, DISPLAYED)
    most_erasing = _ids_of_largest(screened.ids, screened.erased.value, DISPLAYED)
    candidates = _ids_of_largest(screened.ids, larger_ratio, candidate_count)
    strongest = most_lifting + most_erasing
    ranked_ids = list(dict.fromkeys(strongest + candidates))
    selected_ids = ranked_ids[: max(budgeted_tokens, len(set(strongest)))]
    return Selection(np.array(sorted(selected_ids), dtype=np.int64), len(ranked_ids) - len(selected_ids))


def _ids_of_largest(ids: NDArray[np.int64], values: Vector, count: int) -> list[int]:
    """Return the ids of the ``count`` largest values, largest first; ties in ascending order of id."""
    order = np.lexsort((ids, -values))
    largest_ids: list[int] = ids[order[:count]].tolist()
    return largest_ids
