"""Tasks on labelled texts: clustering and classification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stickytoken.insertion import Side
from stickytoken.tasks.protocol import Outcomes, fingerprint
from stickytoken.unit_vectors import exact_unit_vectors

_STARTS = 10
_ITERATIONS = 1000


@dataclass(frozen=True)
class ClusteringTask:
    """Texts that should cluster by label."""

    name: str
    sentences: tuple[str, ...]
    labels: tuple[str, ...]

    layout = "clustering"
    unit = "texts"
    metrics = ("v_measure", "nmi")
    columns = ("cluster",)

    @property
    def units(self) -> int:
        """Number of texts."""
        return len(self.labels)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of texts and labels."""
        return fingerprint(self.layout, self.sentences, self.labels)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """The texts."""
        return {"text": self.sentences}

    def edited(self, side: Side) -> frozenset[str]:
        """Return the role of all texts: a clustering has no sides."""
        del side
        return frozenset({"text"})

    def outcomes(self, vectors: Mapping[str, NDArray[np.float32]], seed: int) -> Outcomes:
        """Cluster the texts with k-means into as many clusters as labels."""
        from sklearn.cluster import KMeans

        model = KMeans(len(set(self.labels)), n_init=_STARTS, random_state=seed)
        clusters: Outcomes = model.fit_predict(exact_unit_vectors(vectors["text"])).astype(np.float64)
        return clusters[:, None]

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Compute the V-measure, which equals normalised mutual information (arithmetic mean)."""
        del metric
        gold = self._codes if sample is None else self._codes[sample]
        clusters = outcomes[:, :, 0].astype(np.intp)
        if sample is not None:
            clusters = clusters[:, sample]
        return v_measures(gold, clusters, len(self._codes_of))

    @cached_property
    def _codes_of(self) -> dict[str, int]:
        return {label: code for code, label in enumerate(sorted(set(self.labels)))}

    @cached_property
    def _codes(self) -> NDArray[np.intp]:
        return np.array([self._codes_of[label] for label in self.labels], dtype=np.intp)


def v_measures(gold: NDArray[np.intp], clusters: NDArray[np.intp], kinds: int) -> NDArray[np.float64]:
    """Compute the V-measure of several clusterings of the same texts.

    This is 2 I / (H(gold) + H(cluster)) with I = H(gold) + H(cluster) - H(both), the form of Rosenberg and
    Hirschberg 2007 (equation 3, beta 1) that needs only entropies. It is 1 if both have a single group.

    Args:
        gold: code of the label of each text, shape (n,).
        clusters: cluster of each text, shape (conditions, n).
        kinds: number of codes; codes and clusters are below it.
    """
    from scipy.stats import entropy

    table = contingency(gold, clusters, kinds)
    joint = entropy(table.reshape(len(table), -1), axis=1)
    apart = entropy(table.sum(axis=1), axis=1) + entropy(table.sum(axis=2), axis=1)
    one_group = apart < 1e-12
    return np.where(one_group, 1.0, 2 * (apart - joint) / np.where(one_group, 1.0, apart))


def macro_f1(gold: NDArray[np.intp], predicted: NDArray[np.intp], kinds: int) -> NDArray[np.float64]:
    """Compute the F1 of several predictions, averaged over labels that occur or are predicted.

    Args:
        gold: code of the label of each text, shape (n,).
        predicted: predicted code of each text, shape (conditions, n).
        kinds: number of codes.
    """
    table = contingency(gold, predicted, kinds)
    right = np.diagonal(table, axis1=1, axis2=2)
    total = table.sum(axis=1) + table.sum(axis=2)  # twice the correct ones, plus both kinds of errors
    f1 = 2 * right / np.where(total, total, 1)
    mean: NDArray[np.float64] = f1.sum(axis=1) / (total > 0).sum(axis=1)
    return mean


def contingency(gold: NDArray[np.intp], other: NDArray[np.intp], kinds: int) -> NDArray[np.float64]:
    """Count texts by pair of codes, shape (conditions, kinds of other, kinds of gold)."""
    rows = np.arange(len(other))[:, None]
    both = np.bincount(((rows * kinds + other) * kinds + gold).ravel(), minlength=len(other) * kinds**2)
    return both.reshape(len(other), kinds, kinds).astype(np.float64)


@dataclass(frozen=True)
class ClassificationTask:
    """Texts whose label a classifier predicts from their vectors."""

    name: str
    train: tuple[str, ...]
    train_labels: tuple[str, ...]
    test: tuple[str, ...]
    test_labels: tuple[str, ...]

    layout = "classification"
    unit = "texts"
    metrics = ("accuracy", "macro_f1")
    columns = ("predicted",)

    @property
    def units(self) -> int:
        """Number of test texts."""
        return len(self.test)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of texts and labels."""
        return fingerprint(self.layout, self.train, self.train_labels, self.test, self.test_labels)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """Texts of both splits."""
        return {"train": self.train, "test": self.test}

    def edited(self, side: Side) -> frozenset[str]:
        """Return the test split, or both splits for both sides."""
        return frozenset({"train", "test"} if side is Side.BOTH else {"test"})

    def outcomes(self, vectors: Mapping[str, NDArray[np.float32]], seed: int) -> Outcomes:
        """Predict the label of each test text with logistic regression, as a code."""
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(max_iter=_ITERATIONS, random_state=seed)
        model.fit(exact_unit_vectors(vectors["train"]), self._coded(self.train_labels))
        predicted: Outcomes = model.predict(exact_unit_vectors(vectors["test"])).astype(np.float64)
        return predicted[:, None]

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Compute accuracy, or F1 averaged over labels."""
        gold, predicted = self._gold, outcomes[:, :, 0].astype(np.intp)
        if sample is not None:
            gold, predicted = gold[sample], predicted[:, sample]
        if metric == "accuracy":
            accuracy: NDArray[np.float64] = (predicted == gold).mean(axis=1)
            return accuracy
        return macro_f1(gold, predicted, len(self._codes))

    @cached_property
    def _codes(self) -> dict[str, int]:
        return {label: code for code, label in enumerate(sorted({*self.train_labels, *self.test_labels}))}

    @cached_property
    def _gold(self) -> NDArray[np.intp]:
        return self._coded(self.test_labels)

    def _coded(self, labels: tuple[str, ...]) -> NDArray[np.intp]:
        return np.array([self._codes[label] for label in labels], dtype=np.intp)
