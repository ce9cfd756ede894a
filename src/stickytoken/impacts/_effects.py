"""Turn the outcomes of a task into rows: what each token costs, and whether sticky tokens cost more."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.impacts._compute import TaskOutcomes
from stickytoken.impacts._conditions import Condition, Kind
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.impacts.statistics import (
    Comparison,
    Interval,
    bootstrap_samples,
    combine,
    compare,
    contrast_intervals,
    corrected,
    resampled,
)

_LEAST_UNITS = 2
_UNKNOWN = Interval(None, None, None)


class TaskEffects:
    """Rows of one task. Every metric is resampled once, for all rows.

    Args:
        found: outcomes of the task.
        conditions: conditions of the outcomes.
        settings: settings of the measurement.
        names: vocabulary strings by token id.
        named: ids of measured tokens that no run calls sticky.
    """

    def __init__(
        self,
        found: TaskOutcomes,
        conditions: Sequence[Condition],
        settings: ImpactSettings,
        names: Mapping[int, str],
        named: Collection[int] = (),
    ) -> None:
        self._task = found.task
        self._outcomes = found.outcomes
        self._conditions = conditions
        self._settings = settings
        self._names = names
        self._named = named
        self._key = [settings.seed, zlib.crc32(found.task.name.encode())]

    def score_rows(self) -> list[dict[str, Any]]:
        """Return one row per metric, condition and repetition: the score."""
        return [
            {
                "task": self._task.name,
                "metric": metric,
                **_labels(condition, self._names, self._named),
                "repetition": condition.repetition,
                "score": _present(value),
            }
            for metric in self._task.metrics
            for condition, value in zip(self._conditions, self._scores[metric][0].tolist(), strict=True)
        ]

    def condition_rows(self) -> list[dict[str, Any]]:
        """Return one row per metric and condition, averaged over repetitions: score and drop from clean."""
        means = np.array([self._mean_of(group) for group in self._groups.values()])
        rows = []
        for metric in self._task.metrics:
            scores = combine(means, self._scores[metric][0])
            drops = self._intervals(metric, self._clean - means)
            for ((kind, _), group), score, drop in zip(self._groups.items(), scores, drops, strict=True):
                rows.append(
                    {
                        "task": self._task.name,
                        "metric": metric,
                        **_labels(self._conditions[group[0]], self._names, self._named),
                        "score": _present(float(score)),
                        **_ends("drop", _UNKNOWN if kind is Kind.CLEAN else drop),
                    }
                )
        return rows

    def effect_rows(self) -> list[dict[str, Any]]:
        """Return one row per metric, the main one first: mean drops, their difference, and its test."""
        return [self._effect_row(metric) for metric in self._task.metrics]

    def _effect_row(self, metric: str) -> dict[str, Any]:
        clean = self._clean
        sticky, benign = (self._single(kind).mean(axis=0) for kind in (Kind.STICKY, Kind.BENIGN))
        contrasts = np.array([clean - sticky, clean - benign, benign - sticky])
        drop_sticky, drop_benign, difference = self._intervals(metric, contrasts)
        scores = combine(np.array([clean, sticky, benign]), self._scores[metric][0]).tolist()
        score_clean, score_sticky, score_benign = (_present(score) for score in scores)
        test = self._test(metric)
        return {
            "task": self._task.name,
            "layout": self._task.layout,
            "metric": metric,
            "main": metric == self._task.metrics[0],
            "unit": self._task.unit,
            "units": self._task.units,
            "clean": score_clean,
            "sticky": score_sticky,
            "benign": score_benign,
            **_ends("drop_sticky", drop_sticky),
            **_ends("drop_benign", drop_benign),
            **_ends("difference", difference),
            "drop_sticky_relative": _share(drop_sticky.value, score_clean),
            "drop_benign_relative": _share(drop_benign.value, score_clean),
            "tokens": len(self._single(Kind.STICKY)),
            "benign_tokens": len(self._single(Kind.BENIGN)),
            "effect_size": test.effect_size,
            "p_value": test.p_value,
        }

    def _test(self, metric: str) -> Comparison:
        """Test each sticky token against its matches."""
        values = self._scores[metric][0]
        sticky, benign = (
            combine(self._clean - self._single(kind), values) for kind in (Kind.STICKY, Kind.BENIGN)
        )
        # The first match of every sticky token comes first, then the second.
        return compare(np.vstack([sticky, benign.reshape(-1, len(sticky))]).T, self._key)

    def _intervals(self, metric: str, contrasts: NDArray[np.float64]) -> list[Interval]:
        return contrast_intervals(self._scores[metric], contrasts, self._settings.confidence)

    @cached_property
    def _scores(self) -> dict[str, NDArray[np.float64]]:
        """Scores of all conditions by metric, on all units and then on each sample of them."""
        enough = self._task.units >= _LEAST_UNITS
        count = self._settings.resamples if enough else 0
        samples = bootstrap_samples(self._task.units, count, self._key)
        return {
            metric: resampled(
                lambda sample, metric=metric: self._task.scores(metric, self._outcomes, sample),  # type: ignore[misc]
                samples,
            )
            for metric in self._task.metrics
        }

    @cached_property
    def _groups(self) -> dict[tuple[Kind, tuple[int, ...]], list[int]]:
        """Indices of the repetitions of each condition."""
        groups: dict[tuple[Kind, tuple[int, ...]], list[int]] = {}
        for place, condition in enumerate(self._conditions):
            key = (condition.kind, tuple(token.id for token in condition.tokens))
            groups.setdefault(key, []).append(place)
        return groups

    @cached_property
    def _clean(self) -> NDArray[np.float64]:
        return self._mean_of(self._groups[(Kind.CLEAN, ())])

    def _single(self, kind: Kind) -> NDArray[np.float64]:
        """Return weights for the mean over repetitions of each single token, shape (tokens, conditions)."""
        return np.array(
            [
                self._mean_of(group)
                for (each, tokens), group in self._groups.items()
                if each is kind and len(tokens) == 1
            ]
        )

    def _mean_of(self, places: Sequence[int]) -> NDArray[np.float64]:
        weights = np.zeros(len(self._conditions))
        weights[list(places)] = 1 / len(places)
        return weights


def with_q_values(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add p-values corrected over tasks to effect rows; only main metrics count as tests."""
    main = [row["p_value"] if row["main"] else None for row in rows]
    return [row | {"q_value": q_value} for row, q_value in zip(rows, corrected(main), strict=True)]


def _labels(condition: Condition, names: Mapping[int, str], named: Collection[int]) -> dict[str, Any]:
    alone = condition.tokens[0] if len(condition.tokens) == 1 else None
    return {
        "kind": condition.label(named),
        "token_id": None if alone is None else alone.id,
        "token": None if alone is None else names[alone.id],
    }


def _ends(name: str, interval: Interval) -> dict[str, float | None]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _present(value: float) -> float | None:
    return None if np.isnan(value) else value


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
