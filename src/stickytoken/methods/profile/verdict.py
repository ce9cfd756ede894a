"""The rule that decides which tokens are sticky, and how severe they are. Pure functions.

A token is sticky if its copies hide documents (by default, they leave at least 40% less of a text than an
ordinary token's copies do) or push them (into at least 1.5 times as many wrong results as without copies).
For a token with an unusual vector, 20% or 1.25 times is enough. "At least" means the whole interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.intervals import Intervals
from stickytoken.methods import Verdict, wording
from stickytoken.methods.measures import ERASED, PUSH, Severity, thresholds
from stickytoken.methods.probes import Floats
from stickytoken.settings.profile import RuleSettings

# Number of tokens with the largest erased shares that are always measured closely, even if they reach no
# threshold, because they are shown to the user.
DISPLAYED = 10


class RuleInputs(NamedTuple):
    """The measures of T tokens that the rule uses.

    Attributes:
        ids: token ids, shape (T,).
        erased: how much less of a text's meaning copies of the token leave than copies of an ordinary token
            do. It is 0.5 if copies of the token leave half as much.
        push: number of wrong results that documents with copies are, divided by that without copies; NaN for
            a token that was not measured in documents.
        vector_deviation: how unusual the token vector is (see `stickytoken.token_vectors.vector_deviations`),
            in median absolute deviations above the median, shape (T,); NaN if the vector cannot be compared.
        confirmed: whether the erased share was measured closely, in the confirming carriers, shape (T,).
    """

    ids: NDArray[np.int64]
    erased: Intervals
    push: Intervals
    vector_deviation: Floats
    confirmed: NDArray[np.bool_]


class Judged(NamedTuple):
    """Verdict, severity and reason of each token, in the same order as in `RuleInputs`.

    The reason describes in words which thresholds the token reaches. Benign tokens have no severity and no
    reason.
    """

    verdicts: list[Verdict]
    severities: list[Severity | None]
    reasons: list[str | None]


def apply_rule(tokens: RuleInputs, rule: RuleSettings) -> Judged:
    """Judge each token by whether the lower end of one of its intervals reaches the threshold.

    An erased share counts only if it was measured closely: that of a token that was only screened is rough,
    and the largest of many rough values are partly due to chance.
    """
    needed = thresholds(tokens.vector_deviation, rule)
    # Where it was not measured closely, an erased share counts for nothing.
    erased_low = np.where(tokens.confirmed, tokens.erased.low, -np.inf)
    push_low = tokens.push.low  # NaN without documents, which reaches nothing
    reaches_erased = erased_low >= needed[ERASED.key]
    reaches_push = push_low >= needed[PUSH.key]
    is_sticky = reaches_erased | reaches_push

    # The severity depends on the full thresholds, also for a token that is sticky by the lower thresholds.
    is_serious = (erased_low >= rule.smallest_erased) | (push_low >= rule.smallest_push)
    # A user may set thresholds above the usual values of a severe token.
    severe_erased = max(ERASED.severe, rule.smallest_erased)
    severe_push = max(PUSH.severe, rule.smallest_push)
    is_severe = (erased_low >= severe_erased) | (push_low >= severe_push)
    # The first that is true counts.
    severity_names = np.select([is_severe, is_serious], [Severity.SEVERE, Severity.SERIOUS], Severity.MILD)

    verdicts: list[Verdict] = []
    severities: list[Severity | None] = []
    reasons: list[str | None] = []
    for row, is_flagged in enumerate(is_sticky.tolist()):
        if not is_flagged:
            verdicts.append(Verdict.BENIGN)
            severities.append(None)
            reasons.append(None)
            continue
        severity = Severity(severity_names[row])
        values = {}
        if reaches_erased[row]:
            values[ERASED.key] = float(tokens.erased.value[row])
        if reaches_push[row]:
            values[PUSH.key] = float(tokens.push.value[row])
        verdicts.append(Verdict.STICKY)
        severities.append(severity)
        # A mild token reaches only the halved thresholds.
        reasons.append(wording.reason(values, unusual_vector=severity is Severity.MILD))
    return Judged(verdicts, severities, reasons)


def order_to_confirm(screened: RuleInputs, rule: RuleSettings, first_ids: Sequence[int]) -> NDArray[np.int64]:
    """Return the ids of all tokens in the order in which their erased shares are measured closely.

    ``first_ids`` and the tokens with the largest erased shares come first, because they are shown to the
    user. All other tokens follow in descending order of the upper end of the interval, divided by the
    threshold.
    """
    first = [token_id for token_id in first_ids if token_id in screened.ids]
    most_erasing = ids_of_largest(screened.ids, screened.erased.value, DISPLAYED)
    all_by_ratio = ids_of_largest(screened.ids, _threshold_ratios(screened, rule), len(screened.ids))
    without_repeats = dict.fromkeys(first + most_erasing + all_by_ratio)
    return np.array(list(without_repeats), dtype=np.int64)


def may_erase_enough(tokens: RuleInputs, rule: RuleSettings) -> NDArray[np.bool_]:
    """Return whether the upper end of each token's erased share reaches the threshold, shape (T,)."""
    return _threshold_ratios(tokens, rule) >= 1


def _threshold_ratios(tokens: RuleInputs, rule: RuleSettings) -> Floats:
    return tokens.erased.high / thresholds(tokens.vector_deviation, rule)[ERASED.key]


def ids_of_largest(ids: NDArray[np.int64], values: Floats, count: int) -> list[int]:
    """Return the ids of the ``count`` largest values, largest first. Ties are in ascending order of id."""
    order = np.lexsort((ids, -values))
    largest_ids: list[int] = ids[order[:count]].tolist()
    return largest_ids
