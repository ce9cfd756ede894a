"""Evaluation tasks: texts, outcomes computed from their vectors, and metrics of the outcomes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import require_package
from stickytoken.insertion import Side
from stickytoken.unit_vectors import Similarity

Values: TypeAlias = NDArray[np.float64]
Outcomes: TypeAlias = Values
"""Numbers that the metrics of a task are computed from, shape (units, columns)."""
Vectors: TypeAlias = Mapping[str, NDArray[np.float32]]
"""Vectors of a task's texts by role, shape (texts, d)."""
Sample: TypeAlias = NDArray[np.intp] | None


@dataclass(frozen=True)
class Task:
    """An evaluation of text vectors."""

    name: str
    layout: ClassVar[str]  # kind of the task: sts, retrieval, ...
    unit: ClassVar[str]  # what is resampled: pairs, queries or texts
    metrics: ClassVar[tuple[str, ...]]  # the main one first
    columns: ClassVar[tuple[str, ...]]  # of the outcomes

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything in the task that can change a number."""
        content = []
        for field in fields(self):
            value = getattr(self, field.name)
            # A field with a default was added later: at its default, the task is what it was.
            if field.name != "name" and value != field.default:
                content.append(value)
        return fingerprint(self.layout, *content)

    @property
    def units(self) -> int:
        """Number of pairs, queries or texts."""
        raise NotImplementedError

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """Texts by role."""
        raise NotImplementedError

    def edited(self, side: Side) -> frozenset[str]:
        """Return the roles whose texts get copies: the chosen side, or both."""
        return side.roles

    def outcomes(self, vectors: Vectors, seed: int, similarity: Similarity = Similarity.COSINE) -> Outcomes:
        """Compute the outcomes of all units.

        Args:
            vectors: vectors of the texts by role.
            seed: of random steps, such as those of a clustering.
            similarity: how the model compares vectors.
        """
        raise NotImplementedError

    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        """Compute a metric of several outcomes, shape (outcomes, units, columns), on the same units."""
        raise NotImplementedError


def fingerprint(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part, ensure_ascii=True, sort_keys=True).encode() + b"\0")
    return digest.hexdigest()


@dataclass(frozen=True)
class _PairTask(Task):
    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: tuple[float, ...]

    unit = "pairs"
    columns = ("similarity",)

    @property
    def units(self) -> int:
        return len(self.gold)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        return {"query": tuple(dict.fromkeys(self.first)), "document": tuple(dict.fromkeys(self.second))}

    def outcomes(self, vectors: Vectors, seed: int, similarity: Similarity = Similarity.COSINE) -> Outcomes:
        left, right = (
            similarity.prepared(vectors[role])[_codes(sentences, self.texts[role])]
            for role, sentences in (("query", self.first), ("document", self.second))
        )
        return similarity.of_pairs(left, right)[:, None]

    @cached_property
    def _gold(self) -> NDArray[np.float64]:
        return np.array(self.gold, dtype=np.float64)


def _codes(values: Sequence[str], distinct: Sequence[str]) -> NDArray[np.intp]:
    places = {value: place for place, value in enumerate(distinct)}
    return np.array([places[value] for value in values], dtype=np.intp)


def _drawn(gold: NDArray[Any], rows: NDArray[Any], sample: Sample) -> tuple[NDArray[Any], NDArray[Any]]:
    return (gold, rows) if sample is None else (gold[sample], rows[:, sample])


class SimilarityTask(_PairTask):
    layout = "sts"
    metrics = ("spearman", "pearson")

    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
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


class PairClassificationTask(_PairTask):
    layout = "pair-classification"
    metrics = ("average_precision",)

    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        from sklearn.metrics import average_precision_score

        gold, cosines = _drawn(self._gold, outcomes[:, :, 0], sample)
        if not 0 < gold.sum() < len(gold):
            return np.full(len(cosines), np.nan)
        return np.array([average_precision_score(gold, row) for row in cosines])


@dataclass(frozen=True)
class ClusteringTask(Task):
    sentences: tuple[str, ...]
    labels: tuple[str, ...]

    layout = "clustering"
    unit = "texts"
    metrics = ("v_measure", "nmi")
    columns = ("cluster",)

    @property
    def units(self) -> int:
        return len(self.labels)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        return {"text": self.sentences}

    def edited(self, side: Side) -> frozenset[str]:
        return frozenset({"text"})

    def outcomes(self, vectors: Vectors, seed: int, similarity: Similarity = Similarity.COSINE) -> Outcomes:
        from sklearn.cluster import KMeans

        model = KMeans(len(self._names), n_init=10, random_state=seed)
        return np.asarray(model.fit_predict(similarity.prepared(vectors["text"])), np.float64)[:, None]

    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        """V-measure equals normalised mutual information (arithmetic mean)."""
        gold, clusters = _drawn(self._gold, outcomes[:, :, 0].astype(np.intp), sample)
        return v_measures(gold, clusters, len(self._names))

    @cached_property
    def _names(self) -> list[str]:
        return sorted(set(self.labels))

    @cached_property
    def _gold(self) -> NDArray[np.intp]:
        return _codes(self.labels, self._names)


def v_measures(gold: NDArray[np.intp], clusters: NDArray[np.intp], kinds: int) -> NDArray[np.float64]:
    # This is 2 I / (H(gold) + H(cluster)) with I = H(gold) + H(cluster) - H(both), the form of Rosenberg and
    # Hirschberg 2007 (equation 3, beta 1) that needs only entropies. It is 1 if both have a single group.
    from scipy.stats import entropy

    table = _contingency(gold, clusters, kinds)
    joint = entropy(table.reshape(len(table), -1), axis=1)
    apart = entropy(table.sum(axis=1), axis=1) + entropy(table.sum(axis=2), axis=1)
    one_group = apart < 1e-12
    return np.where(one_group, 1.0, 2 * (apart - joint) / np.where(one_group, 1.0, apart))


def macro_f1(gold: NDArray[np.intp], predicted: NDArray[np.intp], kinds: int) -> NDArray[np.float64]:
    """Compute the F1 of several predictions, averaged over labels that occur or are predicted."""
    table = _contingency(gold, predicted, kinds)
    right = np.diagonal(table, axis1=1, axis2=2)
    total = table.sum(axis=1) + table.sum(axis=2)  # twice the correct ones, plus both kinds of errors
    f1 = 2 * right / np.where(total, total, 1)
    return np.asarray(f1.sum(axis=1) / (total > 0).sum(axis=1))


def _contingency(gold: NDArray[np.intp], other: NDArray[np.intp], kinds: int) -> NDArray[np.float64]:
    rows = np.arange(len(other))[:, None]
    both = np.bincount(((rows * kinds + other) * kinds + gold).ravel(), minlength=len(other) * kinds**2)
    return both.reshape(len(other), kinds, kinds).astype(np.float64)


@dataclass(frozen=True)
class ClassificationTask(Task):
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
        return len(self.test)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        return {"train": self.train, "test": self.test}

    def edited(self, side: Side) -> frozenset[str]:
        return frozenset({"train", "test"} if side is Side.BOTH else {"test"})

    def outcomes(self, vectors: Vectors, seed: int, similarity: Similarity = Similarity.COSINE) -> Outcomes:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(max_iter=1000, random_state=seed)
        model.fit(similarity.prepared(vectors["train"]), _codes(self.train_labels, self._names))
        return np.asarray(model.predict(similarity.prepared(vectors["test"])), np.float64)[:, None]

    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        gold, predicted = _drawn(self._gold, outcomes[:, :, 0].astype(np.intp), sample)
        if metric == "accuracy":
            return np.asarray((predicted == gold).mean(axis=1))
        return macro_f1(gold, predicted, len(self._names))

    @cached_property
    def _names(self) -> list[str]:
        return sorted({*self.train_labels, *self.test_labels})

    @cached_property
    def _gold(self) -> NDArray[np.intp]:
        return _codes(self.test_labels, self._names)


_QUERIES_AT_ONCE = 256
# Documents that are ranked for each query, as in trec_eval and MTEB.
_RANKED = 1000
_TREC_NAMES = {"ndcg_at_10": "ndcg_cut_10", "recall_at_100": "recall_100", "map": "map", "mrr": "recip_rank"}


@dataclass(frozen=True)
class _RankingTask(Task):
    queries: dict[str, str]
    documents: dict[str, str]
    relevant: dict[str, dict[str, int]]

    unit = "queries"

    def __post_init__(self) -> None:
        """Fail before anything is encoded, not once metrics are computed."""
        require_package("pytrec_eval", f"the {self.layout} task {self.name!r}", "impact")

    @property
    def units(self) -> int:
        return len(self.queries)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        return {"query": tuple(self.queries.values()), "document": tuple(self.documents.values())}

    def outcomes(self, vectors: Vectors, seed: int, similarity: Similarity = Similarity.COSINE) -> Outcomes:
        import pytrec_eval

        queries = similarity.prepared(vectors["query"])
        documents = similarity.prepared(vectors["document"])
        evaluator = pytrec_eval.RelevanceEvaluator(self.relevant, set(_TREC_NAMES.values()))
        found = evaluator.evaluate(self._ranking(queries, documents, similarity))
        names = [_TREC_NAMES[metric] for metric in self.metrics]
        return np.array([[found[query][name] for name in names] for query in self.queries])

    def _ranking(
        self, queries: Values, documents: Values, similarity: Similarity
    ) -> dict[str, dict[str, float]]:
        raise NotImplementedError

    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        values = outcomes[:, :, self.metrics.index(metric)]
        return np.asarray((values if sample is None else values[:, sample]).mean(axis=1))


@dataclass(frozen=True)
class RetrievalTask(_RankingTask):
    """A corpus that every query searches, as in BEIR; its best 1,000 documents are ranked.

    Attributes:
        unranked: ids of queries that are documents of the corpus, too; each is not ranked for itself.
    """

    unranked: tuple[str, ...] = ()

    layout = "retrieval"
    metrics = ("ndcg_at_10", "recall_at_100", "map", "mrr")
    columns = metrics

    def _ranking(
        self, queries: Values, documents: Values, similarity: Similarity
    ) -> dict[str, dict[str, float]]:
        ids = list(self.documents)
        names = list(self.queries)
        place_of = {document: place for place, document in enumerate(ids)}
        own_places = {query: place_of[query] for query in self.unranked}
        depth = min(_RANKED, len(ids))
        run: dict[str, dict[str, float]] = {}
        for start in range(0, len(names), _QUERIES_AT_ONCE):
            batch = names[start : start + _QUERIES_AT_ONCE]
            scores = similarity.of_all(queries[start : start + _QUERIES_AT_ONCE], documents)
            for row, query in enumerate(batch):
                if query in own_places:
                    scores[row, own_places[query]] = -np.inf
            best = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
            for query, row_of_scores, places in zip(batch, scores, best, strict=True):
                ranked = [place for place in places.tolist() if place != own_places.get(query)]
                run[query] = {ids[place]: float(row_of_scores[place]) for place in ranked}
        return run


@dataclass(frozen=True)
class RerankingTask(_RankingTask):
    candidates: dict[str, tuple[str, ...]]  # document ids by query id

    layout = "reranking"
    metrics = ("map",)
    columns = metrics

    def _ranking(
        self, queries: Values, documents: Values, similarity: Similarity
    ) -> dict[str, dict[str, float]]:
        places = {document: place for place, document in enumerate(self.documents)}
        run = {}
        for vector, (query, ids) in zip(queries, self.candidates.items(), strict=True):
            candidates = documents[[places[document] for document in ids]]
            scores = similarity.of_all(vector[None], candidates)[0]
            run[query] = dict(zip(ids, scores.tolist(), strict=True))
        return run
