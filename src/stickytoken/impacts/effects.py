"""From the outcomes of a task to rows: what each token costs, and whether sticky ones cost more."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.impacts.compute import TaskOutcomes
from stickytoken.impacts.conditions import Condition, Kind
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.impacts.statistics import (
    Interval,
    bootstrap_samples,
    combine,
    compare,
    contrast_intervals,
)
from stickytoken.impacts.tasks.protocol import Scored

_LEAST_UNITS = 2


def score_rows(
    found: TaskOutcomes, conditions: Sequence[Condition], names: Mapping[int, str]
) -> list[dict[str, Any]]:
    """One row a metric and condition: the score."""
    rows = []
    for metric in found.task.metrics:
        values = found.task.scores(metric, found.outcomes)
        for condition, value in zip(conditions, values.tolist(), strict=True):
            rows.append(
                {
                    "task": found.task.name,
                    "metric": metric,
                    **_labels(condition, names),
                    "repetition": condition.repetition,
                    "score": _present(value),
                }
            )
    return rows


def condition_rows(
    found: TaskOutcomes, conditions: Sequence[Condition], names: Mapping[int, str], settings: ImpactSettings
) -> list[dict[str, Any]]:
    """One row a condition, repetitions averaged: score, drop from clean, its interval."""
    groups = _groups(conditions)
    clean = _mean_of(groups[(Kind.CLEAN, ())], conditions)
    means = [_mean_of(group, conditions) for group in groups.values()]
    drops = _intervals(found, np.array([clean - mean for mean in means]), settings)
    scores = combine(np.array(means), found.task.scores(found.task.metrics[0], found.outcomes))
    return [
        {
            "task": found.task.name,
            "metric": found.task.metrics[0],
            **_labels(conditions[group[0]], names),
            "score": _present(float(score)),
            **(_ends("drop", drop) if kind is not Kind.CLEAN else _ends("drop", Interval(None, None, None))),
        }
        for ((kind, _), group), score, drop in zip(groups.items(), scores, drops, strict=True)
    ]


def effect_row(
    found: TaskOutcomes, conditions: Sequence[Condition], settings: ImpactSettings
) -> dict[str, Any]:
    """One row a task: mean drop of sticky and of benign tokens, their difference, the test."""
    groups = _groups(conditions)
    clean = _mean_of(groups[(Kind.CLEAN, ())], conditions)
    single = {
        kind: [
            _mean_of(group, conditions)
            for (each, tokens), group in groups.items()
            if each is kind and len(tokens) == 1
        ]
        for kind in (Kind.STICKY, Kind.BENIGN)
    }
    sticky, benign = (np.mean(single[kind], axis=0) for kind in (Kind.STICKY, Kind.BENIGN))
    contrasts = np.array([clean - sticky, clean - benign, benign - sticky])
    drop_sticky, drop_benign, difference = _intervals(found, contrasts, settings)
    metric = found.task.metrics[0]
    values = found.task.scores(metric, found.outcomes)
    scores = combine(np.array([clean, sticky, benign]), values).tolist()
    costs = {
        kind: combine(np.array([clean - mean for mean in means]), values) for kind, means in single.items()
    }
    matched = costs[Kind.BENIGN].reshape(-1, len(costs[Kind.STICKY])).mean(axis=0)
    test = compare(costs[Kind.STICKY], matched, [settings.seed, zlib.crc32(found.task.name.encode())])
    score_clean, score_sticky, score_benign = (_present(score) for score in scores)
    return {
        "task": found.task.name,
        "layout": found.task.layout,
        "metric": metric,
        "unit": found.task.unit,
        "units": found.task.units,
        "clean": score_clean,
        "sticky": score_sticky,
        "benign": score_benign,
        **_ends("drop_sticky", drop_sticky),
        **_ends("drop_benign", drop_benign),
        **_ends("difference", difference),
        "drop_sticky_relative": _share(drop_sticky.value, score_clean),
        "drop_benign_relative": _share(drop_benign.value, score_clean),
        "tokens": len(single[Kind.STICKY]),
        "benign_tokens": len(single[Kind.BENIGN]),
        "effect_size": test.effect_size,
        "p_value": test.p_value,
    }


def _intervals(
    found: TaskOutcomes, contrasts: NDArray[np.float64], settings: ImpactSettings
) -> list[Interval]:
    task, metric = found.task, found.task.metrics[0]
    if task.units < _LEAST_UNITS:
        points = combine(contrasts, task.scores(metric, found.outcomes))
        return [Interval(_present(float(point)), None, None) for point in points]
    samples = _samples(task, settings)
    return contrast_intervals(
        lambda sample: task.scores(metric, found.outcomes, sample), contrasts, samples, settings.confidence
    )


def _samples(task: Scored, settings: ImpactSettings) -> NDArray[np.intp]:
    return bootstrap_samples(task.units, settings.resamples, [settings.seed, zlib.crc32(task.name.encode())])


def _groups(conditions: Sequence[Condition]) -> dict[tuple[Kind, tuple[int, ...]], list[int]]:
    """Places of the repetitions of each condition."""
    groups: dict[tuple[Kind, tuple[int, ...]], list[int]] = {}
    for place, condition in enumerate(conditions):
        key = (condition.kind, tuple(token.id for token in condition.tokens))
        groups.setdefault(key, []).append(place)
    return groups


def _mean_of(places: Sequence[int], conditions: Sequence[Condition]) -> NDArray[np.float64]:
    weights = np.zeros(len(conditions))
    weights[list(places)] = 1 / len(places)
    return weights


def _labels(condition: Condition, names: Mapping[int, str]) -> dict[str, Any]:
    if not condition.tokens:
        return {"kind": condition.kind.value, "token_id": None, "token": None}
    if condition.mixture:
        return {"kind": f"{condition.kind.value} mixture", "token_id": None, "token": None}
    token = condition.tokens[0]
    return {"kind": condition.kind.value, "token_id": token.id, "token": names[token.id]}


def _ends(name: str, interval: Interval) -> dict[str, float | None]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _present(value: float) -> float | None:
    return None if np.isnan(value) else value


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
