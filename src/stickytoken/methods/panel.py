"""Anchors in groups, and how copies in a carrier change its similarity to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class Response(NamedTuple):
    """How copies changed the similarities of K carriers to the anchors.

    Attributes:
        lifts: mean change over the pairs below the mean similarity, shape (K,).
        sentence_lifts: the same over the anchors that are sentences, shape (K,).
        groups: the same by group of anchors, NaN if no pair of the group lies below, shape (K, G).
        rising: share of the pairs below that rise, shape (K,).
        slope: slope of the similarity after on the similarity before, over all pairs, shape (K,).
        intercept: intercept of the same line, shape (K,).
    """

    lifts: Vector
    sentence_lifts: Vector
    groups: Vector
    rising: Vector
    slope: Vector
    intercept: Vector


@dataclass(frozen=True)
class AnchorPanel:
    """Anchors; those of one group weigh the same.

    Attributes:
        vectors: unit vectors, shape (A, d).
        groups: group of each anchor, 0 to G - 1, shape (A,).
        group_weights: weights that sum to 1, shape (G,).
        sentence_groups: the first so many groups hold sentences.
    """

    vectors: NDArray[np.float32]
    groups: NDArray[np.intp]
    group_weights: Vector
    sentence_groups: int

    @cached_property
    def weights(self) -> Vector:
        """Weight of each anchor, shape (A,)."""
        sizes = np.bincount(self.groups, minlength=len(self.group_weights))
        weights: Vector = (self.group_weights / sizes)[self.groups]
        return weights

    @cached_property
    def center(self) -> Vector:
        """Weighted mean of the anchors, shape (d,)."""
        return np.asarray(self.weights @ self.vectors, dtype=np.float64)

    @cached_property
    def membership(self) -> NDArray[np.float32]:
        """1 if an anchor belongs to a group, else 0; shape (A, G)."""
        return np.eye(len(self.group_weights), dtype=np.float32)[self.groups]

    def against(self, carriers: NDArray[np.float32], mean_similarity: float) -> CarrierPanel:
        """Compare carriers, still without copies, with all anchors.

        Args:
            carriers: unit vectors, shape (K, d).
            mean_similarity: u; pairs below it count for the lift.
        """
        before = (carriers @ self.vectors.T).astype(np.float64)
        return CarrierPanel(self, before, before < mean_similarity)


@dataclass(frozen=True)
class CarrierPanel:
    """Carriers without copies against the anchors.

    Attributes:
        panel: the anchors.
        before: similarities, shape (K, A).
        below: pairs that count for the lift, shape (K, A).
    """

    panel: AnchorPanel
    before: Vector
    below: NDArray[np.bool_]

    @cached_property
    def _counts(self) -> Vector:
        return np.asarray(self.below @ self.panel.membership, dtype=np.float64)

    @cached_property
    def _pair_weights(self) -> Vector:
        """Weights of the pairs below; each carrier's row sums to 1; shape (K, A)."""
        return self._weights_of(self.panel.group_weights)

    @cached_property
    def _sentence_pair_weights(self) -> Vector:
        """The same over the sentences alone."""
        first = np.arange(len(self.panel.group_weights)) < self.panel.sentence_groups
        return self._weights_of(np.where(first, self.panel.group_weights, 0.0))

    def _weights_of(self, group_weights: Vector) -> Vector:
        present = np.where(self._counts > 0, group_weights, 0.0)
        totals = present.sum(axis=1, keepdims=True)
        present = np.divide(present, totals, out=np.zeros_like(present), where=totals > 0)
        shares = np.divide(present, self._counts, out=np.zeros_like(present), where=self._counts > 0)
        return np.where(self.below, shares[:, self.panel.groups], 0.0)

    @cached_property
    def _deviations(self) -> tuple[Vector, Vector]:
        """Similarities before as deviations from their mean, and the weighted variance."""
        weights = self.panel.weights
        deviations = self.before - (self.before @ weights)[:, None]
        return deviations, deviations**2 @ weights

    def first(self, count: int) -> CarrierPanel:
        """Keep the first carriers only."""
        return CarrierPanel(self.panel, self.before[:count], self.below[:count])

    def response(self, vectors: NDArray[np.float32]) -> Response:
        """Measure the carriers with copies in them.

        Args:
            vectors: unit vectors, shape (K, d), in the order of the carriers.
        """
        after = (vectors @ self.panel.vectors.T).astype(np.float64)
        change = after - self.before
        sums = np.where(self.below, change, 0.0) @ self.panel.membership
        groups = np.divide(sums, self._counts, out=np.full_like(sums, np.nan), where=self._counts > 0)
        deviations, variance = self._deviations
        covariance = (after * deviations) @ self.panel.weights
        slope = np.divide(covariance, variance, out=np.full_like(variance, np.nan), where=variance > 0)
        weights = self.panel.weights
        return Response(
            lifts=(change * self._pair_weights).sum(axis=1),
            sentence_lifts=(change * self._sentence_pair_weights).sum(axis=1),
            groups=groups,
            rising=((change > 0) * self._pair_weights).sum(axis=1),
            slope=slope,
            intercept=after @ weights - slope * (self.before @ weights),
        )


def unit_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale vectors to length 1.

    Args:
        vectors: shape (n, d), none of them zero.
    """
    units: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units


def group_weights(sentence_groups: int, vocabulary_groups: int, vocabulary_share: float) -> Vector:
    """Weigh groups: those of sentences share one part equally, those of the vocabulary the other."""
    share = vocabulary_share if vocabulary_groups else 0.0
    return np.concatenate(
        [
            np.full(sentence_groups, (1 - share) / sentence_groups),
            np.full(vocabulary_groups, share / max(1, vocabulary_groups)),
        ]
    )


def balanced(groups: Sequence[str], count: int, seed: int) -> list[int]:
    """Draw indices from all groups in turn, so that the groups stay level until they run out.

    Args:
        groups: the group of each item.
        count: number of items to draw; all if there are fewer.
        seed: seed of the order within and between groups.
    """
    generator = np.random.default_rng(seed)
    queues: dict[str, list[int]] = {}
    for index in generator.permutation(len(groups)):
        queues.setdefault(groups[index], []).append(int(index))
    rounds = max(map(len, queues.values()), default=0)
    drawn = [queue[turn] for turn in range(rounds) for queue in queues.values() if turn < len(queue)]
    return drawn[:count]
