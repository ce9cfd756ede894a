"""Compute differences, intervals and tests from metrics under all conditions. Pure.

Two sources of variation are kept apart. Intervals show how the numbers would vary with other queries, pairs
or texts (bootstrap over units, tokens fixed). The test shows whether sticky tokens cost more than matched
benign tokens (permutations within the matched sets, units fixed).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.impacts.results import ImpactRecord, measured_kind
from stickytoken.validation import markdown as escaped
from stickytoken.validation import markdown_table

# Up to so many ways to choose one member of every set, the test counts all of them; else it draws some.
_MOST_COUNTED = 10_000
_DRAWS = 9_999
# Statistics that differ by less are equal: the order of summation changes them.
_ROUNDING = 1e-12
_LEAST_FOR_SPREAD = 2


class Interval(NamedTuple):
    """A value with an interval; None if undefined."""

    value: float | None
    low: float | None
    high: float | None


class Comparison(NamedTuple):
    """Comparison of sticky with benign tokens on one task.

    Attributes:
        p_value: one-sided p-value; None without a matched set.
        effect_size: mean difference in standard deviations of the sets' differences; None if undefined.
    """

    p_value: float | None
    effect_size: float | None


def bootstrap_samples(units: int, count: int, key: Sequence[int]) -> NDArray[np.intp]:
    """Draw indices of units with replacement, shape (count, units)."""
    return np.random.default_rng(list(key)).integers(units, size=(count, units))


def resampled(
    scores: Callable[[NDArray[np.intp] | None], NDArray[np.float64]], samples: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Compute scores on all units, then on each sample of them.

    All conditions are resampled together: each sample has the same units under every condition.
    """
    return np.array([scores(None), *(scores(sample) for sample in samples)])


def contrast_intervals(
    scores: NDArray[np.float64], contrasts: NDArray[np.float64], confidence: float
) -> list[Interval]:
    """Compute linear contrasts of scores with bootstrap percentile intervals (Efron 1979)."""
    points, *drawn = (combine(contrasts, row) for row in scores)
    columns = np.array(drawn).reshape(-1, len(contrasts)).T
    tail = (1 - confidence) / 2
    return [_interval(float(point), column, tail) for point, column in zip(points, columns, strict=True)]


def combine(contrasts: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute weighted sums; an undefined score makes only the sums that use it undefined."""
    used = contrasts != 0
    spoiled = (used & np.isnan(scores)).any(axis=1)
    return np.where(spoiled, np.nan, contrasts @ np.nan_to_num(scores))


def _interval(point: float, drawn: NDArray[np.float64], tail: float) -> Interval:
    defined = drawn[~np.isnan(drawn)]
    # Samples on which the metric is undefined are left out; if most are, there is no interval.
    if np.isnan(point) or not len(defined) or len(defined) < len(drawn) / 2:
        return Interval(None if np.isnan(point) else point, None, None)
    low, high = np.quantile(defined, [tail, 1 - tail])
    return Interval(point, float(low), float(high))


def compare(costs: NDArray[np.float64], key: Sequence[int]) -> Comparison:
    """Test whether sticky tokens cost more than the benign ones they are matched with.

    A permutation test within strata (Good 2005, "Permutation, Parametric and Bootstrap Tests of Hypotheses"):
    under the null hypothesis, any member of a matched set is as likely to be the sticky one. The statistic is
    the mean over sets of the difference between that member and the mean of the others.

    Args:
        costs: cost of each token, averaged over repetitions, because these are not independent; one row per
            matched set with the sticky token first, shape (sets, members). Rows with NaN are left out.
        key: seed of the random choices, used if there are too many to count.
    """
    costs = costs[~np.isnan(costs).any(axis=1)]
    sets, members = costs.shape
    if not sets or members < 2:
        return Comparison(None, None)
    differences = (members * costs - costs.sum(axis=1, keepdims=True)) / (members - 1)
    own = differences[:, 0]
    spread = float(own.std(ddof=1)) if sets >= _LEAST_FOR_SPREAD else 0.0
    effect_size = float(own.mean()) / spread if spread > _ROUNDING else None
    return Comparison(_p_value(differences, key), effect_size)


def _p_value(differences: NDArray[np.float64], key: Sequence[int]) -> float:
    """Return the share of choices of one member per set whose mean is at least that of the first members."""
    sets, members = differences.shape
    least = differences[:, 0].mean() - _ROUNDING
    if members**sets <= _MOST_COUNTED:
        sums = np.zeros(1)
        for row in differences:
            sums = np.add.outer(sums, row).ravel()
        return float((sums / sets >= least).mean())
    chosen = np.random.default_rng(list(key)).integers(members, size=(_DRAWS, sets))
    means = differences[np.arange(sets), chosen].mean(axis=1)
    # The choice that was observed is one of them (Phipson and Smyth 2010).
    return float((1 + (means >= least).sum()) / (1 + _DRAWS))


def corrected(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values over tasks (Benjamini and Hochberg 1995); missing ones stay missing."""
    from scipy.stats import false_discovery_control

    known = [p_value for p_value in p_values if p_value is not None]
    if not known:
        return [None] * len(p_values)
    found = iter(false_discovery_control(known).tolist())
    return [None if p_value is None else next(found) for p_value in p_values]


EFFECTS = {
    "task": "task",
    "metric": "metric",
    "units": "units",
    "clean": "clean",
    "sticky": "sticky",
    "benign": "benign",
    "difference": "sticky - benign",
    "difference_low": "low",
    "difference_high": "high",
    "effect_size": "effect size",
    "p_value": "p",
    "q_value": "q",
}
CONDITIONS = {
    "task": "task",
    "metric": "metric",
    "kind": "kind",
    "token": "token",
    "score": "score",
    "drop": "drop",
    "drop_low": "low",
    "drop_high": "high",
}
INTRUSION = {
    "copies": "copies",
    "hits_sticky": "sticky",
    "hits_benign": "benign",
    "ratio": "ratio",
    "ratio_low": "low",
    "ratio_high": "high",
    "rank_sticky": "median rank, sticky",
    "rank_benign": "median rank, benign",
}


def headed(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], measured: str = "sticky"
) -> tuple[list[str], list[list[Any]]]:
    """Return the headings and the cells of a table."""
    headings = [heading.replace("sticky", measured) for heading in columns.values()]
    return headings, [[row[key] for key in columns] for row in rows]


# Largest p-value, corrected over tasks, that is called a difference.
SIGNIFICANCE = 0.05
# So many equally likely choices are needed for a p-value of 0.05.
_LEAST_CHOICES = 20
_SMALLEST_SHOWN = 0.001


def cost_sentence(effect: Mapping[str, Any], kind: str) -> str:
    """Put the effect on one task into words.

    Only the test over tokens decides whether the tokens cost more. Intervals over queries, pairs or texts are
    about the tokens that were measured, and say nothing about other tokens of their kind. Metrics other than
    the main one restate its result, so their sentences have no conclusion.
    """
    name, metric = effect["task"], effect["metric"]
    if effect["difference"] is None:
        return f"{name}: {metric} is not defined."
    costs = (
        f"{name}: {kind} tokens lower {metric} by {effect['drop_sticky']:.4f}, benign ones by "
        f"{effect['drop_benign']:.4f}, from {effect['clean']:.4f}"
    )
    return f"{costs}: {conclusion(effect, kind)}." if effect["main"] else f"{costs}."


def conclusion(effect: Mapping[str, Any], kind: str) -> str:
    """Conclude from the test over tokens, or say how many benign tokens are missing.

    The test is one-sided: it never shows that tokens cost less.
    """
    tokens, benign = effect["tokens"], effect["benign_tokens"] // max(1, effect["tokens"])
    p_value, q_value = effect["p_value"], effect["q_value"]
    needed = benign_needed(tokens)
    if p_value is None or benign < needed:
        return f"too few tokens to conclude ({_lacking(tokens, benign, needed, kind)})"
    shown = f"p {_shown(p_value)}"
    if q_value is not None and q_value != p_value:
        shown += f", corrected over tasks q {_shown(q_value)}"
    decisive = p_value if q_value is None else q_value
    if decisive <= SIGNIFICANCE and effect["difference"] > 0:
        return f"{kind} tokens cost more ({shown})"
    if effect["difference"] > 0:
        return f"no difference shown ({shown})"
    return f"{kind} tokens are not shown to cost more ({shown})"


def settings_line(settings: Mapping[str, Any]) -> str:
    """Say how the texts were edited, and what the intervals are about."""
    return (
        f"{settings['copies']} copies, placement {settings['placement']}, insertion {settings['insertion']}, "
        f"side {settings['side']}, repetitions: {settings['seeds']}; {settings['confidence']:.0%} intervals "
        "over queries, pairs or texts, for these tokens"
    )


def benign_needed(tokens: int) -> int:
    """Return how many benign tokens each measured token needs for a p-value of 0.05.

    The smallest p-value of the test is (1 / (1 + benign)) ** tokens.
    """
    benign = 1
    while (1 + benign) ** max(1, tokens) < _LEAST_CHOICES:
        benign += 1
    return benign


def _lacking(tokens: int, benign: int, needed: int, kind: str) -> str:
    if benign >= needed:
        return "the metric is not defined for all of them"
    each, more = ("", "would do") if tokens == 1 else (" each", "for each would do")
    measured = f"{tokens} {kind} {'token' if tokens == 1 else 'tokens'} with {benign} benign"
    return f"{measured} {'one' if benign == 1 else 'ones'}{each}; {needed - benign} more {more}"


def _shown(value: float) -> str:
    return f"< {_SMALLEST_SHOWN}" if value < _SMALLEST_SHOWN else f"= {value:.2g}"


_CURVES = {
    "kind": "kind",
    "token": "token",
    "copies": "copies",
    "hits": "hits",
    "median_rank": "median rank",
    "copies_needed": "copies needed",
}
_SHOWN = {
    "effects": ("Tasks", EFFECTS),
    "conditions": ("Tokens", CONDITIONS),
    "intrusion": ("Intrusion", {"corpus": "corpus", **INTRUSION}),
    "intrusion_curves": ("Intrusion by token", _CURVES),
}


def impact_markdown(record: ImpactRecord, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the tables as Markdown."""
    kind = measured_kind(record)
    parts = [f"# What {kind} tokens cost {_cell(record.model)}", f"{settings_line(record.settings)}."]
    main = [effect for effect in rows["effects"] if effect["main"]]
    if main:
        parts.append("\n".join(f"- {_cell(cost_sentence(effect, kind))}" for effect in main))
    for name, (title, columns) in _SHOWN.items():
        if rows[name]:
            headings, cells = headed(columns, rows[name], kind)
            parts += [f"## {title}", markdown_table(headings, (map(_cell, row) for row in cells))]
    parts += [f"- {_cell(note)}" for note in record.notes]
    failed = record.result.failed if record.result is not None else {}
    parts += [f"- not run: {_cell(task)}: {_cell(reason)}" for task, reason in failed.items()]
    return "\n\n".join(parts) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else escaped(str(value))
