"""Protocols of tasks: texts, outcomes computed from their vectors, and metrics of the outcomes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import require_package
from stickytoken.insertion import Side
from stickytoken.unit_vectors import exact_unit_vectors

Outcomes: TypeAlias = NDArray[np.float64]
"""Values that the metrics of a task are computed from, shape (units, columns)."""


class Scored(Protocol):
    """Anything with metrics, all of them better when higher."""

    @property
    def name(self) -> str:
        """Name of the task."""

    @property
    def layout(self) -> str:
        """Kind of the task: sts, retrieval, ..."""

    @property
    def unit(self) -> str:
        """What is resampled: pairs, queries or texts."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, the main one first."""

    @property
    def units(self) -> int:
        """Number of units."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything in the task that can change a number."""

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Compute a metric of several outcomes on the same units."""


class Task(Scored, Protocol):
    """An evaluation of text vectors."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the outcomes."""

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """Texts by role."""

    def edited(self, side: Side) -> frozenset[str]:
        """Return the roles whose texts get copies."""

    def outcomes(self, vectors: Mapping[str, NDArray[np.float32]], seed: int) -> Outcomes:
        """Compute the outcomes of all units from the vectors of all texts.

        Args:
            vectors: vectors by role, shape (texts, d).
            seed: seed of random steps, such as the start of a clustering.
        """


def fingerprint(*parts: Any) -> str:
    """Return the SHA-256 of JSON values in order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part, ensure_ascii=True, sort_keys=True).encode() + b"\0")
    return digest.hexdigest()


def distinct(texts: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """Return the distinct texts, and the index of each given text among them."""
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return tuple(places), np.array([places[text] for text in texts], dtype=np.intp)


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
    """
    from scipy.stats import entropy

    table = contingency(gold, clusters, kinds)
    joint = entropy(table.reshape(len(table), -1), axis=1)
    apart = entropy(table.sum(axis=1), axis=1) + entropy(table.sum(axis=2), axis=1)
    one_group = apart < 1e-12
    return np.where(one_group, 1.0, 2 * (apart - joint) / np.where(one_group, 1.0, apart))


def macro_f1(gold: NDArray[np.intp], predicted: NDArray[np.intp], kinds: int) -> NDArray[np.float64]:
    """Compute the F1 of several predictions, averaged over labels that occur or are predicted."""
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


# Depth of a ranking, as in trec_eval and MTEB.
_DEPTH = 1000
_QUERIES_AT_ONCE = 256
_MEASURES = {"ndcg_cut.10", "recall.100", "map", "recip_rank"}


@dataclass(frozen=True)
class _Ranking:
    """Queries, documents and relevance judgements."""

    name: str
    queries: Mapping[str, str]
    documents: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, int]]

    layout: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    unit = "queries"

    def __post_init__(self) -> None:
        """Fail before anything is encoded, not once metrics are computed."""
        require_package("pytrec_eval", f"the {self.layout} task {self.name!r}", "impact")

    @property
    def units(self) -> int:
        """Number of queries."""
        return len(self.queries)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """Texts of queries and documents."""
        return {"query": tuple(self.queries.values()), "document": tuple(self.documents.values())}

    def edited(self, side: Side) -> frozenset[str]:
        """Return the chosen side, or both."""
        return side.roles

    def scores(
        self, metric: str, outcomes: NDArray[np.float64], sample: NDArray[np.intp] | None = None
    ) -> NDArray[np.float64]:
        """Average a metric over queries."""
        values = outcomes[:, :, self.metrics.index(metric)]
        mean: NDArray[np.float64] = (values if sample is None else values[:, sample]).mean(axis=1)
        return mean


class RetrievalTask(_Ranking):
    """A corpus that every query searches, as in BEIR."""

    layout = "retrieval"
    metrics = ("ndcg_at_10", "recall_at_100", "map", "mrr")
    columns = metrics

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of queries, documents and relevance."""
        relevant = {query: dict(found) for query, found in self.relevant.items()}
        return fingerprint(self.layout, dict(self.queries), dict(self.documents), relevant)

    def outcomes(self, vectors: Mapping[str, NDArray[np.float32]], seed: int) -> Outcomes:
        """Compute the four metrics of each query with pytrec_eval, over its best 1,000 documents."""
        del seed
        measures = ("ndcg_cut_10", "recall_100", "map", "recip_rank")
        found = evaluate_ranking(self.relevant, self._run(vectors), measures)
        return np.array([[found[query][measure] for measure in measures] for query in self.queries])

    def _run(self, vectors: Mapping[str, NDArray[np.float32]]) -> dict[str, dict[str, float]]:
        queries, documents = exact_unit_vectors(vectors["query"]), exact_unit_vectors(vectors["document"])
        ids, names = list(self.documents), list(self.queries)
        depth = min(_DEPTH, len(ids))
        run: dict[str, dict[str, float]] = {}
        for start in range(0, len(names), _QUERIES_AT_ONCE):
            cosines = queries[start : start + _QUERIES_AT_ONCE] @ documents.T
            best = np.argpartition(-cosines, depth - 1, axis=1)[:, :depth]
            for query, row, places in zip(names[start:], cosines, best, strict=False):
                run[query] = {ids[place]: float(row[place]) for place in places}
        return run


@dataclass(frozen=True)
class RerankingTask(_Ranking):
    """Candidates of each query, to be ranked.

    Attributes:
        candidates: document ids by query id.
    """

    candidates: Mapping[str, tuple[str, ...]]

    layout = "reranking"
    metrics = ("map",)
    columns = metrics

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of queries, candidates and relevance."""
        relevant = {query: dict(found) for query, found in self.relevant.items()}
        candidates = {query: list(ids) for query, ids in self.candidates.items()}
        return fingerprint(self.layout, dict(self.queries), dict(self.documents), relevant, candidates)

    def outcomes(self, vectors: Mapping[str, NDArray[np.float32]], seed: int) -> Outcomes:
        """Compute the average precision of each query over its candidates with pytrec_eval."""
        del seed
        queries, documents = exact_unit_vectors(vectors["query"]), exact_unit_vectors(vectors["document"])
        places = {document: place for place, document in enumerate(self.documents)}
        run = {}
        for vector, (query, ids) in zip(queries, self.candidates.items(), strict=True):
            cosines = documents[[places[document] for document in ids]] @ vector
            run[query] = dict(zip(ids, cosines.tolist(), strict=True))
        found = evaluate_ranking(self.relevant, run, ("map",))
        return np.array([[found[query]["map"]] for query in self.queries])


def evaluate_ranking(
    relevant: Mapping[str, Mapping[str, int]],
    run: Mapping[str, Mapping[str, float]],
    measures: tuple[str, ...],
) -> dict[str, dict[str, float]]:
    """Compute trec_eval measures by query."""
    import pytrec_eval

    judged = {query: dict(found) for query, found in relevant.items()}
    evaluator = pytrec_eval.RelevanceEvaluator(judged, _MEASURES)
    found: dict[str, dict[str, float]] = evaluator.evaluate({query: dict(row) for query, row in run.items()})
    return {query: {measure: row[measure] for measure in measures} for query, row in found.items()}
