"""Tasks on sentence pairs: similarity scores (STS), or binary labels (pair classification)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stickytoken.insertion import Side
from stickytoken.tasks.protocol import Outcomes, distinct, fingerprint
from stickytoken.unit_vectors import exact_unit_vectors


@dataclass(frozen=True)
class _Pairs:
    """Sentence pairs with a number each."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: tuple[float, ...]

    layout: ClassVar[str]
    unit = "pairs"
    columns = ("similarity",)

    @property
    def units(self) -> int:
        """Number of pairs."""
        return len(self.gold)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the pairs."""
        return fingerprint(self.layout, self.first, self.second, self.gold)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """Distinct sentences of each side."""
        return {"query": self._queries[0], "document": self._documents[0]}

    def edited(self, side: Side) -> frozenset[str]:
        """Return the chosen side, or both."""
        return side.roles

    def outcomes(self, vectors: Mapping[str, NDArray[np.float32]], seed: int) -> Outcomes:
        """Compute the cosine of each pair."""
        del seed
        queries, documents = exact_unit_vectors(vectors["query"]), exact_unit_vectors(vectors["document"])
        left, right = queries[self._queries[1]], documents[self._documents[1]]
        cosines: Outcomes = (left * right).sum(axis=1, keepdims=True)
        return cosines

    @cached_property
    def _queries(self) -> tuple[tuple[str, ...], NDArray[np.intp]]:
        return distinct(self.first)

    @cached_property
    def _documents(self) -> tuple[tuple[str, ...], NDArray[np.intp]]:
        return distinct(self.second)

    @cached_property
    def _gold(self) -> NDArray[np.float64]:
        return np.array(self.gold, dtype=np.float64)


class SimilarityTask(_Pairs):
    """STS: correlation of cosines with human similarity scores."""

    layout = "sts"
    metrics = ("spearman", "pearson")

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Compute Spearman's or Pearson's correlation; NaN if one side is constant."""
        from scipy.stats import rankdata

        rows = np.vstack([self._gold, outcomes[:, :, 0]])
        if sample is not None:
            rows = rows[:, sample]
        if metric == "spearman":
            rows = rankdata(rows, axis=1)
        centered = rows - rows.mean(axis=1, keepdims=True)
        norms = np.linalg.norm(centered, axis=1)
        scale = norms[0] * norms[1:]
        flat = scale <= np.finfo(np.float64).eps * max(1, rows.shape[1])
        return np.where(flat, np.nan, centered[1:] @ centered[0] / np.where(flat, 1, scale))


class PairClassificationTask(_Pairs):
    """Pairs that match or not: average precision of the cosine."""

    layout = "pair-classification"
    metrics = ("average_precision",)

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Compute the average precision; NaN if no pair or every pair matches."""
        del metric
        from sklearn.metrics import average_precision_score

        gold, cosines = self._gold, outcomes[:, :, 0]
        if sample is not None:
            gold, cosines = gold[sample], cosines[:, sample]
        if not 0 < gold.sum() < len(gold):
            return np.full(len(cosines), np.nan)
        return np.array([average_precision_score(gold, row) for row in cosines])
