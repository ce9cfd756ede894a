"""The two stages of the paper's method: score all tokens, validate the candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stickytoken.insertion import Placement, Probe, Token
from stickytoken.methods.probes import ProbeGrid
from stickytoken.methods.std._distances import Metric, distances
from stickytoken.methods.std.formulas import falls_on_average, sticky_score
from stickytoken.methods.std.settings import PlacementWeights, StdSettings
from stickytoken.precision import Precision

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
        """Compute the distances to the anchor for 0, 1, ..., n copies.

        Args:
            vectors: shape (pairs * placements * n, d), in the order of the grid.

        Returns:
            By metric, shape (pairs, placements, n + 1).
        """
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
    """Average over pairs, weighted over placements.

    Args:
        values: shape (pairs, placements).
        weights: weights of the placements.
    """
    by_placement = values.mean(axis=0)
    return float(
        sum(weights.of(placement) * by_placement[place] for place, placement in enumerate(PLACEMENTS))
    )
