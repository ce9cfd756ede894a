"""Texts with labels: do they cluster by label, does a classifier learn the label?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stickytoken.impacts.settings import Side
from stickytoken.impacts.tasks.protocol import Outcomes, fingerprint, unit_vectors

_STARTS = 10
_ITERATIONS = 1000


@dataclass(frozen=True)
class ClusteringTask:
    """Texts that should fall into groups.

    Attributes:
        name: of the task.
        sentences: the texts.
        labels: the group of each.
    """

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
        """sha256 over texts and labels."""
        return fingerprint(self.layout, self.sentences, self.labels)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """The texts."""
        return {"text": self.sentences}

    def edited(self, side: Side) -> frozenset[str]:
        """All texts: a clustering has no sides."""
        del side
        return frozenset({"text"})

    def outcomes(self, vectors: Mapping[str, NDArray[np.float32]], seed: int) -> Outcomes:
        """The k-means cluster of each text, with as many clusters as labels."""
        from sklearn.cluster import KMeans

        model = KMeans(len(set(self.labels)), n_init=_STARTS, random_state=seed)
        clusters: Outcomes = model.fit_predict(unit_vectors(vectors["text"])).astype(np.float64)
        return clusters[:, None]

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """V-measure or normalised mutual information (the same number, by its arithmetic mean)."""
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
    """V-measure of several clusterings of the same texts.

    2 I / (H(gold) + H(cluster)) with I = H(gold) + H(cluster) - H(both), the form of Rosenberg and
    Hirschberg 2007 (equation 3, beta 1) that needs entropies alone. 1 where both are one group.

    Args:
        gold: code of the label of each text, shape (n,).
        clusters: cluster of each text, shape (conditions, n).
        kinds: codes and clusters lie below this.
    """
    from scipy.stats import entropy

    rows = np.arange(len(clusters))[:, None]
    both = np.bincount(((rows * kinds + clusters) * kinds + gold).ravel(), minlength=len(clusters) * kinds**2)
    table = both.reshape(len(clusters), kinds, kinds).astype(np.float64)
    joint = entropy(table.reshape(len(clusters), -1), axis=1)
    apart = entropy(table.sum(axis=1), axis=1) + entropy(table.sum(axis=2), axis=1)
    one_group = apart < 1e-12
    return np.where(one_group, 1.0, 2 * (apart - joint) / np.where(one_group, 1.0, apart))


@dataclass(frozen=True)
class ClassificationTask:
    """Texts whose label a classifier on their vectors must tell.

    Attributes:
        name: of the task.
        train: texts that it learns from.
        train_labels: their labels.
        test: texts that it is judged by.
        test_labels: their labels.
    """

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
        """Number of texts that are judged."""
        return len(self.test)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over texts and labels."""
        return fingerprint(self.layout, self.train, self.train_labels, self.test, self.test_labels)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """Texts of both splits."""
        return {"train": self.train, "test": self.test}

    def edited(self, side: Side) -> frozenset[str]:
        """Texts of the test split; those of both for both sides."""
        return frozenset({"train", "test"} if side is Side.BOTH else {"test"})

    def outcomes(self, vectors: Mapping[str, NDArray[np.float32]], seed: int) -> Outcomes:
        """The label that logistic regression predicts for each test text, as a code."""
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(max_iter=_ITERATIONS, random_state=seed)
        model.fit(unit_vectors(vectors["train"]), self._coded(self.train_labels))
        predicted: Outcomes = model.predict(unit_vectors(vectors["test"])).astype(np.float64)
        return predicted[:, None]

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Accuracy, or F1 averaged over the labels."""
        from sklearn.metrics import f1_score

        gold, predicted = self._gold, outcomes[:, :, 0]
        if sample is not None:
            gold, predicted = gold[sample], predicted[:, sample]
        if metric == "accuracy":
            accuracy: NDArray[np.float64] = (predicted == gold).mean(axis=1)
            return accuracy
        return np.array([f1_score(gold, row, average="macro", zero_division=0.0) for row in predicted])

    @cached_property
    def _gold(self) -> NDArray[np.float64]:
        return self._coded(self.test_labels)

    def _coded(self, labels: tuple[str, ...]) -> NDArray[np.float64]:
        codes = {label: code for code, label in enumerate(sorted({*self.train_labels, *self.test_labels}))}
        return np.array([codes[label] for label in labels], dtype=np.float64)
