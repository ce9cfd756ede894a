"""The rule: which tokens are sticky, and how severe they are. Pure.

A token is sticky if its copies move unrelated texts closer by at least 0.5 standard deviations (SD) more than
an ordinary token's copies do, or erase at least 40% of what an ordinary token's copies leave of a text. For a
token whose own vector is unusual, half as much is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.methods import Severity, Verdict, wording
from stickytoken.methods.probes import Vector
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.statistics import Estimates

# Share of the thresholds that is enough for a token with an unusual vector. Of rows planted toward kinds of
# text that no run measures, the weakest lift by 0.25 SD or erase 20% of a text; natural rows that are unusual
# hardly do.
UNUSUAL_SHARE = 0.5
# A token lifts a kind of text if it lifts it by this share of the smallest lift.
LIFTED_SHARE = 0.5
# A token that is flagged for its lift alone is sticky if it lifts at least this share of the kinds of text.
UNIVERSAL_SHARE = 0.5
# Tokens of each measure that are measured closely even if none reaches a threshold, to be shown to the user.
DISPLAYED = 10


@dataclass(frozen=True)
class Thresholds:
    """What a token must reach to be flagged."""

    lift: float  # in standard deviations of the model's similarities
    erased: float  # share of what an ordinary token leaves of a text
    unusual: float  # deviation of a token vector, in median absolute deviations

    @classmethod
    def of(cls, settings: ProfileSettings) -> Thresholds:
        return cls(settings.smallest_lift, settings.smallest_erased, settings.unusual)


class Measures(NamedTuple):
    """The numbers of T tokens that the rule looks at."""

    ids: NDArray[np.int64]  # shape (T,)
    lift: Estimates  # beyond the ordinary token, in SD
    erased: Estimates  # share of what the ordinary token leaves of a text
    vector_deviation: Vector  # NaN where token vectors cannot be compared, shape (T,)
    confirmed: NDArray[np.bool_]  # whether the token was measured closely, shape (T,)
    kinds_lifted: NDArray[np.int64]  # shape (T,)
    kinds: int  # number of kinds of text that were measured; 0 if the run has none


class Judged(NamedTuple):
    """Verdict and severity of each token; a benign token has no severity."""

    verdicts: list[Verdict]
    severities: list[Severity | None]


def apply_rule(tokens: Measures, thresholds: Thresholds) -> Judged:
    """Judge tokens by the low ends of their intervals.

    A token that was only screened is benign: it had no measurement that its selection did not influence.
    """
    needed_share = threshold_shares(tokens.vector_deviation, thresholds)
    lifts = tokens.confirmed & (tokens.lift.low >= needed_share * thresholds.lift)
    erases = tokens.confirmed & (tokens.erased.low >= needed_share * thresholds.erased)
    lifts_few_kinds = tokens.kinds_lifted < UNIVERSAL_SHARE * tokens.kinds
    topical = lifts & ~erases & lifts_few_kinds
    sticky = (lifts | erases) & ~topical

    serious = (tokens.lift.low >= thresholds.lift) | (tokens.erased.low >= thresholds.erased)
    severe_lift = max(wording.SEVERE_LIFT, thresholds.lift)
    severe_erased = max(wording.SEVERE_ERASED, thresholds.erased)
    severe = (tokens.lift.low >= severe_lift) | (tokens.erased.low >= severe_erased)

    verdict_names = np.select([sticky, topical], [Verdict.STICKY, Verdict.TOPICAL], Verdict.BENIGN)
    grades = np.select([severe, serious], [Severity.SEVERE, Severity.SERIOUS], Severity.MILD)
    verdicts = [Verdict(name) for name in verdict_names]
    severities = [
        None if verdict is Verdict.BENIGN else Severity(grade)
        for verdict, grade in zip(verdicts, grades, strict=True)
    ]
    return Judged(verdicts, severities)


def threshold_shares(vector_deviation: Vector, thresholds: Thresholds) -> Vector:
    """Return the share of the thresholds that each token must reach: half of them for an unusual vector."""
    is_unusual = vector_deviation >= thresholds.unusual  # false for NaN
    return np.where(is_unusual, UNUSUAL_SHARE, 1.0)


def reasons(tokens: Measures, judged: Judged, thresholds: Thresholds) -> list[str | None]:
    """Say why each flagged token is flagged; None for the others."""
    needed_share = threshold_shares(tokens.vector_deviation, thresholds)
    lifts = tokens.lift.low >= needed_share * thresholds.lift
    erases = tokens.erased.low >= needed_share * thresholds.erased
    texts: list[str | None] = []
    for row, severity in enumerate(judged.severities):
        if severity is None:
            texts.append(None)
            continue
        text = wording.reason(
            erased=float(tokens.erased.value[row]) if erases[row] else None,
            lift_sd=float(tokens.lift.value[row]) if lifts[row] else None,
            unusual_vector=severity is Severity.MILD,  # no full threshold is reached
        )
        texts.append(text)
    return texts


class Selection(NamedTuple):
    """The tokens to measure closely, and how many more might reach a threshold."""

    ids: NDArray[np.int64]  # ascending
    left_out: int


def select_to_confirm(screened: Measures, thresholds: Thresholds, largest_count: int) -> Selection:
    """Choose the tokens whose screening interval reaches a threshold, farthest first, and the strongest ten.

    Args:
        screened: measures of all tokens from the screen.
        thresholds: what a token must reach.
        most: how many tokens the budget allows; the strongest ten of each measure come first.
    """
    needed_share = threshold_shares(screened.vector_deviation, thresholds)
    lift_ratio = screened.lift.high / (needed_share * thresholds.lift)
    erased_ratio = screened.erased.high / (needed_share * thresholds.erased)
    reach = np.maximum(lift_ratio, erased_ratio)
    strongest = [
        *_first(screened.ids, screened.lift.value, DISPLAYED),
        *_first(screened.ids, screened.erased.value, DISPLAYED),
    ]
    reaching = _first(screened.ids, reach, int((reach >= 1).sum()))
    wanted_rows = list(dict.fromkeys([*strongest, *reaching]))
    chosen = wanted_rows[: max(largest_count, len(set(strongest)))]
    return Selection(np.array(sorted(chosen), dtype=np.int64), len(wanted_rows) - len(chosen))


def _first(ids: NDArray[np.int64], values: Vector, count: int) -> list[int]:
    """Return the ids of the largest values, the largest first; equal values in order of id."""
    order = np.lexsort((ids, -values))
    first: list[int] = ids[order[:count]].tolist()
    return first
