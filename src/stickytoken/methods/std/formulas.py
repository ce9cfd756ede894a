"""Score, validation rate and verdict of the paper's method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import EncodingError, InputError
from stickytoken.insertion import Placement, Probe, Token
from stickytoken.machine import Precision
from stickytoken.methods.probes import ProbeGrid
from stickytoken.methods.std.settings import PlacementWeights, ScoreConstants, StdSettings


def sticky_score(
    distances: NDArray[np.float64], alone: NDArray[np.float64], constants: ScoreConstants
) -> NDArray[np.float64]:
    """Reward falls of the distance as copies are added, and penalise rises.

    score = (sum of falls + alpha * number of falls + 0.1 t)
            / (sum of rises + beta * number of rises + gamma)

    (Chen et al. 2025, step 3 of the Sticky Token Detector.)
    """
    changes = np.diff(distances, axis=-1)
    falls, rises = np.clip(-changes, 0, None), np.clip(changes, 0, None)
    reward = falls.sum(-1) + constants.alpha * (changes < 0).sum(-1) + 0.1 * alone
    penalty = rises.sum(-1) + constants.beta * (changes > 0).sum(-1) + constants.gamma
    scores: NDArray[np.float64] = reward / penalty
    return scores


def falls_on_average(distances: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Check whether the mean distance over 1, ..., n copies is below the distance without copies."""
    below: NDArray[np.bool_] = distances[..., 1:].mean(-1) < distances[..., 0]
    return below


def candidate_threshold(scores: Sequence[float], share: float) -> float:
    """Find the score that the best ``share`` of the tokens reach (linear quantile)."""
    if not len(scores):
        raise InputError("no token was scored")
    return float(np.quantile(np.asarray(scores, dtype=np.float64), 1 - share))


def outlier_threshold(rates: Sequence[float], outlier_range: float) -> float:
    """Compute Q3 + outlier_range x IQR of the validation rates (linear quantiles).

    A candidate with a higher rate is sticky (Chen et al. 2025, step 4 of the Sticky Token
    Detector).
    """
    if not len(rates):
        raise InputError("no candidate was validated")
    first, third = np.quantile(np.asarray(rates, dtype=np.float64), [0.25, 0.75])
    return float(third + outlier_range * (third - first))


class Metric(StrEnum):
    """A distance between two vectors."""

    COSINE = "cosine"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"


def distances(
    vectors: NDArray[np.floating], others: NDArray[np.floating]
) -> dict[Metric, NDArray[np.float64]]:
    """Distances between vectors along the last axis, the other axes broadcast."""
    left = np.asarray(vectors, dtype=np.float64)
    right = np.asarray(others, dtype=np.float64)
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    if not norms.all():
        raise EncodingError("a zero vector has no cosine distance to anything")
    difference = left - right
    return {
        Metric.COSINE: 1.0 - np.einsum("...d,...d->...", left, right) / norms,
        Metric.EUCLIDEAN: np.linalg.norm(difference, axis=-1),
        Metric.MANHATTAN: np.abs(difference).sum(axis=-1),
    }


PLACEMENTS = (Placement.PREFIX, Placement.SUFFIX, Placement.RANDOM)


@dataclass(frozen=True)
class PairProbes:
    """Carriers with copies, and the anchors to compare them with.

    Attributes:
        grid: carriers x placements x counts.
        anchors: vectors of sentence1, shape (pairs, d).
        carriers: vectors of sentence2 without copies, shape (pairs, d).
    """

    grid: ProbeGrid
    anchors: NDArray[np.float32]
    carriers: NDArray[np.float32]

    def distances(self, vectors: NDArray[np.float32]) -> dict[Metric, NDArray[np.float64]]:
        """Compute the distances to the anchor for 0, 1, ..., n copies."""
        shape = self.grid.shape
        probed = distances(vectors.reshape(*shape, -1), self.anchors[:, None, None, :])
        clean = distances(self.carriers, self.anchors)
        return {
            metric: np.concatenate(
                [np.broadcast_to(clean[metric][:, None, None], (*shape[:2], 1)), probed[metric]], axis=-1
            )
            for metric in Metric
        }


@dataclass(frozen=True)
class ScoringStage:
    """Compute the sticky score of every token."""

    pairs: PairProbes
    settings: StdSettings
    name: str = "score"
    precision: Precision | None = None

    @property
    def probes_per_token(self) -> int:
        """Pairs times placements times copies, and the token alone."""
        return int(np.prod(self.pairs.grid.shape)) + 1

    def probes(self, token: Token) -> Sequence[Probe]:
        """Return the token alone, then the grid."""
        return [self.pairs.grid.alone(token), *self.pairs.grid.probes(token)]

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, float | list[float]]:
        """Compute scores by metric, averaged over pairs and weighted over placements."""
        alone = distances(vectors[:1], self.pairs.anchors)
        found = self.pairs.distances(vectors[1:])
        row: dict[str, float | list[float]] = {}
        for metric in Metric:
            constants = self.settings.manhattan if metric is Metric.MANHATTAN else self.settings.angular
            scores = sticky_score(found[metric], alone[metric][:, None], constants)
            row[f"score_{metric}"] = weighted(scores, self.settings.scoring_weights)
        return row


@dataclass(frozen=True)
class ValidationStage:
    """Compute the validation rate of every candidate."""

    pairs: PairProbes
    settings: StdSettings
    name: str = "validate"
    precision: Precision | None = None

    @property
    def probes_per_token(self) -> int:
        """Pairs times placements times copies."""
        return int(np.prod(self.pairs.grid.shape))

    def probes(self, token: Token) -> Sequence[Probe]:
        """Return the grid."""
        return self.pairs.grid.probes(token)

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, float | list[float]]:
        """Compute rates by metric and placement, and the mean change of the cosine by copies."""
        found = self.pairs.distances(vectors)
        row: dict[str, float | list[float]] = {}
        for metric in Metric:
            falls = falls_on_average(found[metric]).astype(np.float64)
            row[f"rate_{metric}"] = weighted(falls, self.settings.validation_weights)
            for place, placement in enumerate(PLACEMENTS):
                row[f"rate_{metric}_{placement}"] = float(falls[:, place].mean())
        cosine = found[Metric.COSINE]
        change = cosine[..., :1] - cosine[..., 1:]
        row["lift"] = float(change.mean())
        row["lift_by_copies"] = change.mean(axis=(0, 1)).tolist()
        return row


def weighted(values: NDArray[np.float64], weights: PlacementWeights) -> float:
    """Average over pairs, weighted over placements."""
    by_placement = values.mean(axis=0)
    return float(
        sum(weights.of(placement) * by_placement[place] for place, placement in enumerate(PLACEMENTS))
    )
