"""The rule that decides which tokens are sticky, and how severe they are. Pure functions.

A token is sticky if its copies hide documents (by default, they leave at least 40% less of a text than an
ordinary token's copies do) or push them (into at least 1.5 times as many wrong results as without copies).
For a token with an unusual vector, 20% or 1.25 times is enough. "At least" means the whole interval.

Whether a token hides documents is decided by one of three shares, by the threshold for the first:

- in a run, by the erased share (`apply_rule`)
- in an audit, which has documents of its own, also by the share of queries lost, compared with ordinary
  copies (`judge_against_ordinary_copies`)
- in a repair, by the share of queries lost, compared with no copies, for a token that the tokenizer now reads
  as several pieces (`judge_against_no_copies`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.intervals import Intervals, estimate_share
from stickytoken.methods import Verdict, wording
from stickytoken.methods.measures import ERASED, PUSH, Severity, hidden_share, thresholds
from stickytoken.methods.probes import Floats
from stickytoken.settings.profile import RuleSettings
from stickytoken.words import percent

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


def compute_lost_shares(found: Intervals | None, is_ordinary: NDArray[np.bool_]) -> Intervals | None:
    """Return the lost share of each token: of the queries that its copies keep from finding their documents.

    It is relative to the queries that find their documents with copies of an ordinary token, so that it can
    be compared with an erased share: 0.4 if only 60% of these queries still find them, and negative if more
    queries do.

    Args:
        found: for T tokens, the share of the queries that find a document that answers them; None if it is
            not known which documents answer a query.
        is_ordinary: whether each token is a random one, shape (T,).

    Returns:
        The shares; None if there is nothing to compare with, because there is no random token, or no query
        that finds its document with copies of one and so could be lost.
    """
    if found is None or not is_ordinary.any():
        return None
    ordinary_found = found.value[is_ordinary].mean()
    if ordinary_found == 0:
        return None
    # The more queries find documents, the fewer are lost, so the ends of the interval change places.
    return Intervals(
        value=hidden_share(found.value, ordinary_found),
        low=hidden_share(found.high, ordinary_found),
        high=hidden_share(found.low, ordinary_found),
    )


def judge_against_ordinary_copies(measures: RuleInputs, lost: Intervals | None, rule: RuleSettings) -> Judged:
    """Judge tokens by what their copies do to the documents of an audit, compared with ordinary copies.

    A token hides documents in one of two ways. The run says that it erases enough, and queries are lost in
    these documents, too; or whatever the run says, its lost share reaches the threshold for the erased share.
    Its severity is the worse of the two.

    Args:
        measures: the measures of T tokens. ``confirmed`` says which erased shares the run measured closely.
        lost: the lost shares (see `compute_lost_shares`). Without them, nothing contradicts the run.
        rule: provides the thresholds.
    """
    if lost is None:
        return apply_rule(measures, rule)
    surely_loses = lost.low > 0
    # The rule ignores erased shares that are not confirmed.
    by_run = apply_rule(measures._replace(confirmed=measures.confirmed & surely_loses), rule)
    # Lost shares take the place of erased shares. All of them were measured closely, in these documents.
    all_confirmed = np.ones(len(measures.ids), dtype=np.bool_)
    by_documents = apply_rule(measures._replace(erased=lost, confirmed=all_confirmed), rule)
    verdicts = list(by_run.verdicts)
    severities = list(by_run.severities)
    reasons = list(by_run.reasons)
    for index, reason in enumerate(by_run.reasons):
        if severity_rank(by_documents.severities[index]) > severity_rank(by_run.severities[index]):
            verdicts[index] = by_documents.verdicts[index]
            severities[index] = by_documents.severities[index]
            share = percent(float(lost.value[index]))
            lost_here = f"{share} fewer queries find documents than with copies of an ordinary token"
            reasons[index] = lost_here if reason is None else f"{reason}; {lost_here}"
    return Judged(verdicts, severities, reasons)


def bound_hidden_share(found: int, queries: int, found_without: float, confidence: float) -> float:
    """Return the share of queries that surely lose their document to copies of a token.

    The share is 0.4 if, by the upper end of the interval, at most 60% of the queries that find their document
    without copies still find it. It is compared with the threshold for the erased share: such copies act like
    copies that erase 40%.

    An erased share is relative to copies of the ordinary token, which hide documents a little, too. The share
    of hidden queries is relative to documents without copies, because where it is used there are no ordinary
    copies to compare with: special tokens are announced before any other token is measured, and copies that a
    repaired tokenizer splits are longer than ordinary copies.

    Args:
        found: number of queries that find the document that answers them.
        queries: number of queries that the documents with copies answer.
        found_without: share of the queries that find the document that answers them without copies.
        confidence: coverage of the two-sided interval.
    """
    if not queries or not found_without:
        return 0.0
    share = estimate_share(found, queries, confidence)
    return max(0.0, float(hidden_share(share.high, found_without)))


def judge_against_no_copies(
    measures: RuleInputs, hidden_by_id: Mapping[int, float], rule: RuleSettings
) -> list[Verdict]:
    """Judge tokens of which some have no erased share, because the tokenizer reads them as several pieces.

    Such a token hides documents if the share of queries that its copies surely hide reaches the threshold for
    the erased share. An unusual vector lowers it for other tokens only: copies of this one don't have it.

    Args:
        measures: the measures of T tokens.
        hidden_by_id: what `bound_hidden_share` returns for each token without an erased share.
        rule: provides the thresholds.
    """
    verdicts = apply_rule(measures, rule).verdicts
    for row, token_id in enumerate(measures.ids.tolist()):
        if token_id in hidden_by_id and hidden_by_id[token_id] >= rule.smallest_erased:
            verdicts[row] = Verdict.STICKY
    return verdicts


def severity_rank(severity: Severity | None) -> int:
    """Return a number that is larger for a worse severity, and smallest for None, that of a benign token."""
    return -1 if severity is None else severity.rank


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
