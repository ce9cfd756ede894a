"""Anchors in groups, and how copies in a carrier change its similarity to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


# Similarities are float32 numbers: a smaller rise is none.
_ROUNDING = 1e-6


class Response(NamedTuple):
    """How copies of T tokens changed the similarities of K carriers to the anchors.

    Attributes:
        lifts: mean change over the pairs below the mean similarity, shape (T, K).
        groups: the same by group of anchors, NaN if no pair of the group lies below, shape (T, K, G).
        rising: share of the pairs below that rise, shape (T, K).
    """

    lifts: Vector
    groups: Vector
    rising: Vector


@dataclass(frozen=True)
class AnchorPanel:
    """Anchors; those of one group weigh the same.

    Attributes:
        vectors: unit vectors, shape (A, d).
        groups: group of each anchor, 0 to G - 1, shape (A,).
        group_weights: weights in the lift, which sum to 1; a group of weight 0 is measured beside it,
            shape (G,).
    """

    vectors: NDArray[np.float32]
    groups: NDArray[np.intp]
    group_weights: Vector

    @cached_property
    def weights(self) -> Vector:
        """Weight of each anchor, shape (A,)."""
        sizes = np.bincount(self.groups, minlength=len(self.group_weights))
        weights: Vector = (self.group_weights / sizes)[self.groups]
        return weights

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
        return CarrierPanel(self, carriers, before, before < mean_similarity)


@dataclass(frozen=True)
class CarrierPanel:
    """Carriers without copies against the anchors.

    Attributes:
        panel: the anchors.
        vectors: unit vectors of the carriers, shape (K, d).
        before: similarities, shape (K, A).
        below: pairs that count for the lift, shape (K, A).
    """

    panel: AnchorPanel
    vectors: NDArray[np.float32]
    before: Vector
    below: NDArray[np.bool_]

    @cached_property
    def _counts(self) -> Vector:
        return np.asarray(self.below @ self.panel.membership, dtype=np.float64)

    @cached_property
    def pair_weights(self) -> Vector:
        """Weights of the pairs below; each carrier's row sums to 1, or to 0 without pairs; shape (K, A)."""
        shares = np.divide(
            self._group_shares, self._counts, out=np.zeros_like(self._counts), where=self._counts > 0
        )
        return np.where(self.below, shares[:, self.panel.groups], 0.0)

    @cached_property
    def _group_shares(self) -> Vector:
        """Weights of the groups that have a pair below; each carrier's row sums to 1, or to 0; (K, G)."""
        present = np.where(self._counts > 0, self.panel.group_weights, 0.0)
        totals = present.sum(axis=1, keepdims=True)
        shares: Vector = np.divide(present, totals, out=np.zeros_like(present), where=totals > 0)
        return shares

    @cached_property
    def _group_means(self) -> Vector:
        """Mean anchor of each group over the pairs below, zero without one, shape (K, G, d)."""
        shares = self.below[:, None, :] * self.panel.membership.T[None]
        sums = shares.astype(np.float64) @ self.panel.vectors.astype(np.float64)
        return np.asarray(sums / np.maximum(self._counts, 1)[..., None], dtype=np.float64)

    def chosen(self, places: Sequence[int]) -> CarrierPanel:
        """Keep some of the carriers."""
        kept = np.array(places, dtype=np.intp)
        return CarrierPanel(self.panel, self.vectors[kept], self.before[kept], self.below[kept])

    def response(self, vectors: NDArray[np.float32]) -> Response:
        """Measure the carriers with copies of many tokens in them.

        A mean of similarities is the similarity to the mean anchor, so only the shares of rising pairs need
        every similarity.

        Args:
            vectors: unit vectors, shape (T, K, d), carriers in their order.
        """
        groups = np.empty((len(vectors), *self._counts.shape))
        rising = np.empty(groups.shape[:2])
        for place, means in enumerate(self._group_means):
            after, before = vectors[:, place], self.vectors[place].astype(np.float64)
            groups[:, place] = after.astype(np.float64) @ means.T - means @ before
            bounds = (self.before[place] + _ROUNDING).astype(np.float32)
            rises = (after @ self.panel.vectors.T > bounds).astype(np.float32)
            rising[:, place] = rises @ self.pair_weights[place].astype(np.float32)
        lifts = (groups * self._group_shares).sum(axis=2)
        return Response(lifts, np.where(self._counts > 0, groups, np.nan), rising)


def balanced(groups: Sequence[str], count: int, seed: int | Sequence[int]) -> list[int]:
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
