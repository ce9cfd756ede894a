"""Compute differences, intervals and tests from the outcomes of tasks. Pure functions.

Two sources of variation are kept apart. Intervals show how the numbers would vary with other queries, pairs
or texts: the bootstrap resamples these units and keeps the tokens fixed. The test shows whether sticky tokens
cost more than matched benign tokens: the test permutes the tokens within each matched set and keeps the units
fixed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.data.tasks import AnyTask
from stickytoken.impacts._editing import Condition, Kind, group_by_tokens
from stickytoken.impacts.results import NAMED, PairedTestRecord, TokenRecord
from stickytoken.intervals import Interval, bootstrap_samples, combine, contrast_intervals, present, resampled
from stickytoken.settings.impact import ImpactSettings

# If there are at most this many ways to choose one member from every set, the test enumerates all of them.
# Otherwise, it draws `_RANDOM_CHOICES` of them at random.
_MOST_ENUMERATED = 10_000
_RANDOM_CHOICES = 9_999
# Statistics that differ by less than this count as equal, because their last digits depend on the order of
# summation.
_ROUNDING = 1e-12

Rows: TypeAlias = list[dict[str, Any]]


def permutation_test(costs: NDArray[np.float64], key: Sequence[int]) -> tuple[float | None, float | None]:
    """Test whether sticky tokens cost more than their matched benign tokens.

    The test is a permutation test within strata (Good 2005, "Permutation, Parametric and Bootstrap Tests of
    Hypotheses"): under the null hypothesis, every member of a matched set is equally likely to be the sticky
    token. For each matched set, the mean cost of all other members is subtracted from the cost of the sticky
    token. The test statistic is the mean of the differences over all matched sets.

    Args:
        costs: the drop in score that each token causes, shape (sets, members). Each row is a matched set,
            with the sticky token first. Each drop is the average over the repetitions of a condition, because
            repetitions are not independent. Rows with NaN are left out.
        key: seed of the random choices, used if there are too many choices to enumerate.

    Returns:
        The one-sided p-value, and the effect size (the mean difference in standard deviations). The p-value
        and the effect size are None if no row is left, or if the sets have no benign tokens. The effect size
        is also None if there is only one matched set, or if the differences of all matched sets are equal.
    """
    costs = costs[~np.isnan(costs).any(axis=1)]
    sets, members = costs.shape
    if not sets or members < 2:
        return None, None
    # Subtract from the cost of each token the mean cost of all other tokens in the same matched set. With m
    # members, c - (sum - c) / (m - 1) is (m c - sum) / (m - 1).
    differences = (members * costs - costs.sum(axis=1, keepdims=True)) / (members - 1)
    sticky_differences = differences[:, 0]
    deviation = float(sticky_differences.std(ddof=1)) if sets > 1 else 0.0
    effect_size = float(sticky_differences.mean()) / deviation if deviation > _ROUNDING else None
    # The p-value is the share of all ways to choose one member from each set whose mean is at least
    # `observed`.
    observed = sticky_differences.mean() - _ROUNDING
    if members**sets <= _MOST_ENUMERATED:
        # The sum of differences for every way to choose.
        sums = np.zeros(1)
        for differences_of_set in differences:
            sums = np.add.outer(sums, differences_of_set).ravel()
        return float((sums / sets >= observed).mean()), effect_size
    # For every random choice, the member of each set; shape (choices, sets).
    chosen = np.random.default_rng(list(key)).integers(members, size=(_RANDOM_CHOICES, sets))
    means = differences[np.arange(sets), chosen].mean(axis=1)
    # The observed choice counts as one of the drawn choices (Phipson and Smyth 2010).
    return float((1 + (means >= observed).sum()) / (1 + _RANDOM_CHOICES)), effect_size


def paired_test(effects: Sequence[Mapping[str, Any]], seed: int) -> PairedTestRecord | None:
    """Test over tasks whether sticky tokens lower the main scores more than benign tokens do.

    Chen et al. (2025) use a one-sided paired t-test, and Cohen's d of the differences. The permutation test
    is added because it doesn't assume that the differences have a normal distribution.

    Args:
        effects: rows of the table of effects.
        seed: seed of the permutation test, used if there are too many tasks to enumerate.

    Returns:
        The results; None with fewer than two tasks with a defined score, or if all differences are equal.
    """
    from scipy.stats import ttest_rel

    drops = [
        (row["drop_sticky"], row["drop_benign"])
        for row in effects
        if row["main"] and row["drop_sticky"] is not None and row["drop_benign"] is not None
    ]
    sticky_and_benign = np.array(drops, np.float64).reshape(-1, 2)  # shape (tasks, 2)
    # Each task is a matched set of two, so that the effect size is Cohen's d.
    permutation_p, cohens_d = permutation_test(sticky_and_benign, [seed])
    if permutation_p is None or cohens_d is None:
        return None
    sticky, benign = sticky_and_benign.T
    t_test = ttest_rel(sticky, benign, alternative="greater")
    return PairedTestRecord(
        tasks=len(drops),
        difference=float((sticky - benign).mean()),
        t=float(t_test.statistic),
        p_value=float(t_test.pvalue),
        cohens_d=cohens_d,
        permutation_p=permutation_p,
    )


def correct_p_values(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for testing several tasks (Benjamini and Hochberg 1995). None stays None."""
    from scipy.stats import false_discovery_control

    defined = [p_value for p_value in p_values if p_value is not None]
    if not defined:
        return list(p_values)
    corrected = iter(false_discovery_control(defined).tolist())  # in the order of `defined`
    return [None if p_value is None else next(corrected) for p_value in p_values]


@dataclass(frozen=True)
class _Groups:
    """Conditions grouped by tokens, and the weights for averaging over repetitions and tokens."""

    conditions: Sequence[Condition]

    @cached_property
    def groups(self) -> list[tuple[Condition, ...]]:
        return group_by_tokens(self.conditions)  # a group has all repetitions of the same tokens

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        # Shape (groups, conditions): the product of a row and the scores of all conditions is the mean score
        # over the repetitions of a group.
        weights = np.zeros((len(self.groups), len(self.conditions)))
        first_of_group = 0
        for row, group in enumerate(self.groups):  # the conditions of a group are consecutive
            weights[row, first_of_group : first_of_group + len(group)] = 1 / len(group)
            first_of_group += len(group)
        return weights

    def weights_of(self, kind: Kind) -> NDArray[np.float64]:
        # Returns the rows of `weights` for single tokens of this kind, shape (tokens, conditions); one row
        # for clean texts.
        selected_groups = []
        for index, group in enumerate(self.groups):
            condition = group[0]  # all conditions of a group have the same kind and the same tokens
            # If each text draws its token, as in the edits of the paper, no text has several tokens.
            is_mixture = len(condition.tokens) > 1 and not condition.draws_token
            if condition.kind is kind and not is_mixture:
                selected_groups.append(index)
        return self.weights[selected_groups]


def make_task_rows(
    task: AnyTask,
    outcomes: NDArray[np.float64],
    conditions: Sequence[Condition],
    settings: ImpactSettings,
    tokens_by_id: Mapping[int, TokenRecord],
) -> dict[str, Rows]:
    """Return the rows of the tables effects, conditions and scores for a task.

    Args:
        task: the task.
        outcomes: outcomes of the task, shape (conditions, units, columns).
        conditions: the conditions.
        settings: settings of the measurement.
        tokens_by_id: the tokens, keyed by id.

    Returns:
        The rows, keyed by name of the table. For each metric, ``effects`` has one row, ``conditions`` one row
        per group of repetitions, and ``scores`` one row per condition.
    """
    key = [settings.seed, zlib.crc32(task.name.encode())]  # tasks are resampled independently
    sample_count = settings.resamples if task.units > 1 else 0  # a single unit has no interval
    samples = bootstrap_samples(task.units, sample_count, key)
    groups = _Groups(conditions)
    rows: dict[str, Rows] = {"effects": [], "conditions": [], "scores": []}
    for metric in task.metrics:
        # Shape (1 + samples, conditions). The first row has the scores on all units.
        resampled_scores = resampled(partial(task.scores, metric, outcomes), samples)
        scores_on_all_units = resampled_scores[0].tolist()
        for condition, score in zip(conditions, scores_on_all_units, strict=True):
            row = {"task": task.name, "metric": metric, **label_condition(condition, tokens_by_id)}
            row["repetition"] = condition.repetition
            row["score"] = present(score)  # None if the score is not finite
            rows["scores"].append(row)
        for row in _make_condition_rows(resampled_scores, groups, settings.confidence, tokens_by_id):
            rows["conditions"].append({"task": task.name, "metric": metric, **row})
        effect = {
            "task": task.name,
            "metric": metric,
            "layout": task.layout,
            "main": metric == task.metrics[0],
            "unit": task.unit,
            "units": task.units,
        }
        rows["effects"].append(effect | _compute_effect(resampled_scores, groups, settings.confidence, key))
    return rows


def _make_condition_rows(
    resampled_scores: NDArray[np.float64],
    groups: _Groups,
    confidence: float,
    tokens_by_id: Mapping[int, TokenRecord],
) -> Rows:
    scores_on_all_units = resampled_scores[0]  # all further rows have scores on samples of the units
    (clean_weights,) = groups.weights_of(Kind.CLEAN)
    scores = combine(groups.weights, scores_on_all_units).tolist()
    drops = contrast_intervals(resampled_scores, clean_weights - groups.weights, confidence)
    rows = []
    for group, score, drop in zip(groups.groups, scores, drops, strict=True):
        is_clean = group[0].kind is Kind.CLEAN  # clean texts have no drop from themselves
        shown_drop = Interval(value=None, low=None, high=None) if is_clean else drop
        row = {**label_condition(group[0], tokens_by_id), "score": present(score)}
        rows.append(row | shown_drop.as_columns("drop"))
    return rows


def _compute_effect(
    resampled_scores: NDArray[np.float64], groups: _Groups, confidence: float, key: Sequence[int]
) -> dict[str, Any]:
    """Return columns of the table effects: mean scores, drops from the clean score, and a test of the drops.

    ``resampled_scores`` has the scores on all units in its first row; see `stickytoken.intervals.resampled`.
    """
    scores_on_all_units = resampled_scores[0]
    # Weights that turn the scores of all conditions into the mean score over all tokens of a kind.
    clean_weights = groups.weights_of(Kind.CLEAN).mean(axis=0)
    sticky_weights = groups.weights_of(Kind.STICKY).mean(axis=0)
    benign_weights = groups.weights_of(Kind.BENIGN).mean(axis=0)
    effect: dict[str, Any] = {}
    mean_weights = np.vstack([clean_weights, sticky_weights, benign_weights])
    mean_scores = combine(mean_weights, scores_on_all_units).tolist()
    for name, mean_score in zip(("clean", "sticky", "benign"), mean_scores, strict=True):
        effect[name] = present(mean_score)
    contrasts = {
        "drop_sticky": clean_weights - sticky_weights,
        "drop_benign": clean_weights - benign_weights,
        "difference": benign_weights - sticky_weights,
    }
    intervals = contrast_intervals(resampled_scores, np.vstack(list(contrasts.values())), confidence)
    for name, interval in zip(contrasts, intervals, strict=True):
        effect |= interval.as_columns(name)
    for name in ("drop_sticky", "drop_benign"):
        can_be_divided = effect[name] is not None and effect["clean"]  # by a score that is neither None nor 0
        effect[f"{name}_relative"] = effect[name] / effect["clean"] if can_be_divided else None
    return effect | _test_drops(groups, scores_on_all_units, key)


def _test_drops(groups: _Groups, scores: NDArray[np.float64], key: Sequence[int]) -> dict[str, Any]:
    # With the edits of the paper, each text draws its token. So no token is measured alone, and a single task
    # cannot be tested.
    if any(condition.draws_token for condition in groups.conditions):
        return {"tokens": 0, "benign_tokens": 0, "effect_size": None, "p_value": None}
    p_value, effect_size = permutation_test(_arrange_by_matched_set(groups, scores), key)
    return {
        "tokens": len(groups.weights_of(Kind.STICKY)),
        "benign_tokens": len(groups.weights_of(Kind.BENIGN)),
        "effect_size": effect_size,
        "p_value": p_value,
    }


def _arrange_by_matched_set(groups: _Groups, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    # Returns the drops in score as `permutation_test` takes them: each row has a sticky token, followed by
    # its benign matches. The comments below have the example of the sticky tokens S and T, with the benign
    # matches S1, T1, S2 and T2, in this order. `combine` averages the scores of a token's conditions.
    clean_weights = groups.weights_of(Kind.CLEAN)
    sticky_drops = combine(clean_weights - groups.weights_of(Kind.STICKY), scores)
    benign_drops = combine(clean_weights - groups.weights_of(Kind.BENIGN), scores)
    # Each row has one match of each sticky token: S1 and T1, then S2 and T2.
    drops_by_match = benign_drops.reshape(-1, len(sticky_drops))
    # The columns S, S1, S2 and T, T1, T2 become the rows.
    return np.vstack([sticky_drops, drops_by_match]).T


def label_condition(condition: Condition, tokens_by_id: Mapping[int, TokenRecord]) -> dict[str, Any]:
    """Return the columns that name the tokens of a condition."""
    tokens = [tokens_by_id[token.id] for token in condition.tokens]
    kind = NAMED if any(token.kind == NAMED for token in tokens) else condition.kind.value
    if len(tokens) == 1 and not condition.draws_token:
        return {"kind": kind, "token_id": tokens[0].token_id, "token": tokens[0].token}
    if condition.draws_token:  # the edits of the paper
        return {"kind": kind, "token_id": None, "token": f"one of {len(tokens)} in each text"}
    return {"kind": f"{kind} mixture" if tokens else kind, "token_id": None, "token": None}
