"""The rule that decides which tokens are sticky, and how severe they are. Pure functions.

By default, a token is sticky if, compared with copies of an ordinary token, its copies leave at least 40%
less of a text's meaning (the erased share), or move texts at least 0.5 standard deviations (SD) closer to
unrelated texts (the lift). A token whose vector is unusual is sticky if it reaches half of either threshold.
A token that reaches only the threshold for the lift, and lifts few kinds of text, is topical instead of
sticky.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.methods import Verdict, wording
from stickytoken.methods.measures import ERASED, LIFT, UNUSUAL_SHARE, Severity
from stickytoken.methods.probes import Vector
from stickytoken.methods.statistics import Estimates
from stickytoken.settings.profile import ProfileSettings

# A token lifts a kind of text if its lift on that kind is at least this share of the threshold for the lift.
LIFTED_SHARE = 0.5
# A token that reaches the threshold for the lift, but not the threshold for the erased share, is sticky if it
# lifts at least this share of the kinds of text. Otherwise the token is topical.
UNIVERSAL_SHARE = 0.5
# Number of tokens with the highest values of each measure that are always measured closely, even if they
# reach no threshold, because they are shown to the user.
DISPLAYED = 10


class Measures(NamedTuple):
    """The measures of T tokens that the rule uses.

    Attributes:
        ids: token ids, shape (T,).
        lift: rise of the similarities between unrelated texts, relative to the ordinary token, in standard
            deviations of the model's similarities.
        erased: erased share: how much less of a text's meaning copies of the token leave than copies of an
            ordinary token do. It is 0.5 if copies of the token leave half as much.
        vector_deviation: how unusual the token vector is (see `stickytoken.token_vectors.vector_deviations`),
            in median absolute deviations above the median, shape (T,); NaN if the vector cannot be compared.
        confirmed: whether the token was measured closely, in the confirming carriers, shape (T,).
        kinds_lifted: number of kinds of text that the token lifts, shape (T,).
        kinds: number of kinds of text that the run measures, possibly 0.
    """

    ids: NDArray[np.int64]
    lift: Estimates
    erased: Estimates
    vector_deviation: Vector
    confirmed: NDArray[np.bool_]
    kinds_lifted: NDArray[np.int64]
    kinds: int


class Judged(NamedTuple):
    """Verdict, severity and reason of each token, in the same order as in `Measures`.

    The reason describes in words which thresholds the token reaches. Benign tokens have no severity and no
    reason.
    """

    verdicts: list[Verdict]
    severities: list[Severity | None]
    reasons: list[str | None]


def apply_rule(tokens: Measures, settings: ProfileSettings) -> Judged:
    """Judge each token by whether the lower ends of its intervals reach the thresholds.

    A token that reaches no threshold is benign. A token that reaches only the threshold for the lift is
    topical if it lifts fewer than half of the kinds of text. Any other token that reaches a threshold is
    sticky. The thresholds are halved for a token with an unusual vector.

    A token that was only screened is benign, because its measures are rough, and the largest of many rough
    values are partly due to chance.

    Args:
        tokens: the measures of the tokens.
        settings: the thresholds of the rule.

    Returns:
        The verdict of each token, and the severity and reason of each token that is not benign.
    """
    # 0.5 for a token with an unusual vector, 1 for any other token
    share_of_threshold = required_shares(tokens.vector_deviation, settings)
    reaches_lift = tokens.confirmed & (tokens.lift.low >= share_of_threshold * settings.smallest_lift)
    reaches_erased = tokens.confirmed & (tokens.erased.low >= share_of_threshold * settings.smallest_erased)
    lifts_few_kinds = tokens.kinds_lifted < UNIVERSAL_SHARE * tokens.kinds
    is_topical = reaches_lift & ~reaches_erased & lifts_few_kinds
    is_sticky = (reaches_lift | reaches_erased) & ~is_topical

    reaches_full_lift = tokens.lift.low >= settings.smallest_lift
    reaches_full_erased = tokens.erased.low >= settings.smallest_erased
    is_serious = reaches_full_lift | reaches_full_erased
    severe_lift = max(LIFT.severe, settings.smallest_lift)
    severe_erased = max(ERASED.severe, settings.smallest_erased)
    is_severe = (tokens.lift.low >= severe_lift) | (tokens.erased.low >= severe_erased)

    verdict_names = np.select([is_sticky, is_topical], [Verdict.STICKY, Verdict.TOPICAL], Verdict.BENIGN)
    severity_names = np.select([is_severe, is_serious], [Severity.SEVERE, Severity.SERIOUS], Severity.MILD)
    verdicts = [Verdict(name) for name in verdict_names]
    severities = [
        None if verdict is Verdict.BENIGN else Severity(name)
        for verdict, name in zip(verdicts, severity_names, strict=True)
    ]
    reasons: list[str | None] = []
    for row, severity in enumerate(severities):
        if severity is None:
            reasons.append(None)
            continue
        values = {}
        if reaches_erased[row]:
            values[ERASED.key] = float(tokens.erased.value[row])
        if reaches_lift[row]:
            values[LIFT.key] = float(tokens.lift.value[row])
        # A mild token reaches only the halved thresholds.
        reasons.append(wording.reason(values, unusual_vector=severity is Severity.MILD))
    return Judged(verdicts, severities, reasons)


def required_shares(vector_deviation: Vector, settings: ProfileSettings) -> Vector:
    """Return the share of the thresholds that each token must reach, shape (T,).

    The share is `UNUSUAL_SHARE` if the vector of the token is unusual, and 1 otherwise.
    """
    is_unusual = vector_deviation >= settings.unusual  # false if the deviation is NaN
    return np.where(is_unusual, UNUSUAL_SHARE, 1.0)


def order_to_confirm(screened: Measures, settings: ProfileSettings) -> NDArray[np.int64]:
    """Return the ids of all tokens in the order in which they are measured closely.

    The tokens with the highest values of each measure come first, ten for the lift and ten for the erased
    share, because they are shown to the user. All others follow in descending order of the upper end of the
    interval, relative to the threshold.

    Args:
        screened: measures of all tokens from the screening round.
        settings: the thresholds of the rule.
    """
    most_lifting = _ids_of_largest(screened.ids, screened.lift.value, DISPLAYED)
    most_erasing = _ids_of_largest(screened.ids, screened.erased.value, DISPLAYED)
    by_ratio = _ids_of_largest(screened.ids, _threshold_ratios(screened, settings), len(screened.ids))
    return np.array(list(dict.fromkeys(most_lifting + most_erasing + by_ratio)), dtype=np.int64)


def may_reach_threshold(tokens: Measures, settings: ProfileSettings) -> NDArray[np.bool_]:
    """Return whether the upper end of one of each token's intervals reaches the threshold, shape (T,)."""
    return _threshold_ratios(tokens, settings) >= 1


def _threshold_ratios(tokens: Measures, settings: ProfileSettings) -> Vector:
    """Return the upper end of each token's interval divided by the threshold, shape (T,).

    A token is sticky if one measure reaches its threshold, so the larger of the two ratios counts.
    """
    # 0.5 for a token with an unusual vector, 1 for any other token
    share_of_threshold = required_shares(tokens.vector_deviation, settings)
    lift_ratio = tokens.lift.high / (share_of_threshold * settings.smallest_lift)
    erased_ratio = tokens.erased.high / (share_of_threshold * settings.smallest_erased)
    return np.maximum(lift_ratio, erased_ratio)


class Selection(NamedTuple):
    """The tokens to measure on another corpus.

    Attributes:
        ids: ids of the selected tokens, ascending.
        left_out: number of tokens that would have been selected too if more tokens could be measured.
    """

    ids: NDArray[np.int64]
    left_out: int


def select_to_judge(
    ids: NDArray[np.int64], lift_ratios: Vector, flagged_ids: list[int], count: int, *, measure_all: bool
) -> Selection:
    """Select the tokens to measure on another corpus.

    The tokens that the run flags come first, followed by all others in descending order of predicted lift.

    Args:
        ids: ids of the T tokens to which the run gave a verdict, shape (T,).
        lift_ratios: predicted lift of each token on the corpus, divided by the threshold of the token, shape
            (T,).
        flagged_ids: ids of the tokens that the run flags.
        count: number of tokens to select.
        measure_all: whether to select all tokens that are flagged or may reach the threshold, even if they
            are more than ``count``.

    Returns:
        The selected tokens, and the number of tokens that are flagged or whose predicted lift reaches the
        threshold, but that were not selected.
    """
    reaching_ids = set(ids[lift_ratios >= 1].tolist())
    if measure_all:
        count = max(count, len(reaching_ids.union(flagged_ids)))
    ranked_ids = list(dict.fromkeys(flagged_ids + _ids_of_largest(ids, lift_ratios, len(ids))))
    selected_ids = ranked_ids[:count]
    left_out = reaching_ids.union(flagged_ids).difference(selected_ids)
    return Selection(np.array(sorted(selected_ids), dtype=np.int64), len(left_out))


def _ids_of_largest(ids: NDArray[np.int64], values: Vector, count: int) -> list[int]:
    """Return the ids of the ``count`` largest values, largest first. Ties are in ascending order of id."""
    order = np.lexsort((ids, -values))
    largest_ids: list[int] = ids[order[:count]].tolist()
    return largest_ids
