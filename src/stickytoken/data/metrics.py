"""Evaluation tasks. A task holds texts, computes outcomes from their vectors, and scores the outcomes."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import require_package
from stickytoken.unit_vectors import Similarity

Values: TypeAlias = NDArray[np.float64]
Outcomes: TypeAlias = Values
"""Results that a metric is computed from, one row per pair, query or text, shape (units, columns)."""
Vectors: TypeAlias = Mapping[str, NDArray[np.float32]]
"""Vectors of a task's texts, keyed by role, each of shape (texts, D)."""
Sample: TypeAlias = NDArray[np.intp] | None
"""Indices of the units in a bootstrap sample; None for all units."""


@dataclass(frozen=True)
class Task(ABC):
    """A task for evaluating text vectors.

    Attributes:
        name: The name of the task.
        layout: The kind of task: ``sts``, ``retrieval`` and so on.
        unit: What the bootstrap resamples: pairs, queries or texts.
        metrics: The metrics, the main one first.
    """

    name: str
    layout: ClassVar[str]
    unit: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything in the task that can change a result."""
        content = []
        for field in fields(self):
            if field.name == "name":  # changes no result
                continue
            value = getattr(self, field.name)
            # Fields with a default were added later. A field with its default value is left out, so that
            # fingerprints of older results stay valid.
            if value != field.default:
                content.append(value)
        return fingerprint(self.layout, *content)

    @property
    @abstractmethod
    def units(self) -> int:
        """Number of pairs, queries or texts."""

    @property
    @abstractmethod
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """The texts, keyed by role, such as ``query`` or ``document``."""

    has_queries: ClassVar[bool] = False
    """Whether queries search documents, so that models may encode the roles ``query`` and ``document``
    differently. The sentences of pairs are encoded alike."""

    @abstractmethod
    def outcomes(self, vectors: Vectors, seed: int, similarity: Similarity = Similarity.COSINE) -> Outcomes:
        """Compute the outcomes of all units.

        Args:
            vectors: Vectors of the texts, keyed by role.
            seed: Seed for random steps, such as the division into folds.
            similarity: How the model compares vectors.

        Returns:
            One row per unit, shape (units, columns). Only retrieval has several columns: one per metric.
        """

    @abstractmethod
    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        """Compute a metric for each condition, such as each model or each way of encoding.

        Args:
            metric: One of ``metrics``.
            outcomes: What `outcomes` returned under each of C conditions, shape (C, units, columns).
            sample: Indices of the units to use, the same for every condition; None for all units.

        Returns:
            The value of the metric under each of the C conditions, shape (C,).
        """


def fingerprint(*values: Any) -> str:
    """Return the SHA-256 hash of the given values, each encoded as JSON."""
    sha256 = hashlib.sha256()
    for value in values:
        encoded = json.dumps(value, ensure_ascii=True, sort_keys=True).encode()
        sha256.update(encoded + b"\0")  # a separator that JSON never contains
    return sha256.hexdigest()


@dataclass(frozen=True)
class SimilarityTask(Task):
    """Semantic textual similarity, scored by the correlation of gold scores and similarities.

    Attributes:
        first: The first sentence of each pair.
        second: The second sentence of each pair.
        gold: The gold score of each pair.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: tuple[float, ...]

    layout = "sts"
    unit = "pairs"
    metrics = ("spearman", "pearson")

    @property
    def units(self) -> int:
        return len(self.gold)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        distinct_first = tuple(dict.fromkeys(self.first))
        distinct_second = tuple(dict.fromkeys(self.second))
        return {"query": distinct_first, "document": distinct_second}

    def outcomes(self, vectors: Vectors, seed: int, similarity: Similarity = Similarity.COSINE) -> Outcomes:
        vectors_of_first = similarity.prepared(vectors["query"])
        vectors_of_second = similarity.prepared(vectors["document"])
        # There is one vector for each distinct text, which may be in several pairs.
        first = vectors_of_first[_find_indices(self.texts["query"], self.first)]
        second = vectors_of_second[_find_indices(self.texts["document"], self.second)]
        # One outcome per pair, its similarity. The seed has no effect, because nothing is drawn at random.
        return similarity.of_pairs(first, second)[:, None]  # shape (pairs, 1)

    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        """Compute the correlation of gold scores and similarities under each of C conditions.

        Args:
            metric: "pearson" or "spearman".
            outcomes: The similarity of each pair under each condition, shape (C, pairs, 1).
            sample: Indices of the pairs to use; None for all pairs.

        Returns:
            The correlations, shape (C,); NaN if all gold scores or all similarities are equal.
        """
        from scipy.stats import rankdata

        # The first row holds the gold scores, and each further row the similarities under one condition, so
        # the shape is (1 + C, pairs).
        gold_and_similarities = np.vstack([self.gold, outcomes[:, :, 0]])
        if sample is not None:
            gold_and_similarities = gold_and_similarities[:, sample]
        if metric == "spearman":
            gold_and_similarities = rankdata(gold_and_similarities, axis=1)
        centered = gold_and_similarities - gold_and_similarities.mean(axis=1, keepdims=True)
        norms = np.linalg.norm(centered, axis=1)
        products_of_norms = norms[0] * norms[1:]  # shape (C,)
        # Rounding may leave the norm of equal values slightly above 0.
        rounding_error = np.finfo(np.float64).eps * max(1, centered.shape[1])
        is_undefined = products_of_norms <= rounding_error
        divisors = np.where(is_undefined, 1, products_of_norms)
        correlations = centered[1:] @ centered[0] / divisors
        return np.where(is_undefined, np.nan, correlations)


def _find_indices(distinct: Sequence[str], names: Sequence[str]) -> NDArray[np.intp]:
    index_of = {name: index for index, name in enumerate(distinct)}
    return np.array([index_of[name] for name in names], dtype=np.intp)


@dataclass(frozen=True)
class ClassificationTask(Task):
    """Labelled texts. A logistic regression on the training texts predicts the labels of the test texts."""

    train: tuple[str, ...]
    train_labels: tuple[str, ...]
    test: tuple[str, ...]
    test_labels: tuple[str, ...]

    layout = "classification"
    unit = "texts"
    metrics = ("accuracy", "macro_f1")

    @property
    def units(self) -> int:
        return len(self.test)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        return {"train": self.train, "test": self.test}

    def outcomes(self, vectors: Vectors, seed: int, similarity: Similarity = Similarity.COSINE) -> Outcomes:
        """Predict the label of each test text, and return its number, shape (texts, 1)."""
        from sklearn.linear_model import LogisticRegression

        train_labels = _find_indices(self._label_names, self.train_labels)
        model = LogisticRegression(max_iter=1000, random_state=seed)
        model.fit(similarity.prepared(vectors["train"]), train_labels)
        predicted = model.predict(similarity.prepared(vectors["test"]))
        return np.asarray(predicted, np.float64)[:, None]

    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        from sklearn.metrics import f1_score

        gold = self._gold_labels
        # The outcomes, shape (C, texts, 1), are the predicted labels under each of C conditions.
        predicted = outcomes[:, :, 0].astype(np.intp)
        if sample is not None:
            gold, predicted = gold[sample], predicted[:, sample]
        if metric == "accuracy":
            return np.asarray((predicted == gold).mean(axis=1))
        return np.array([f1_score(gold, labels, average="macro", zero_division=0.0) for labels in predicted])

    @cached_property
    def _label_names(self) -> list[str]:
        return sorted({*self.train_labels, *self.test_labels})

    @cached_property
    def _gold_labels(self) -> NDArray[np.intp]:
        return _find_indices(self._label_names, self.test_labels)


# Number of folds, as in the transfer tasks of SentEval (Conneau and Kiela 2018).
FOLDS = 10


@dataclass(frozen=True)
class CrossValidatedTask(ClassificationTask):
    """Labelled texts without a split: a text is predicted by a logistic regression on the other folds.

    All texts are both training and test texts: ``train`` and ``test`` are the same. The ten folds have nearly
    equal shares of the labels.
    """

    layout = "classification-by-folds"

    def outcomes(self, vectors: Vectors, seed: int, similarity: Similarity = Similarity.COSINE) -> Outcomes:
        """Predict the label of each test text from the training texts of other folds, shape (texts, 1)."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold

        # Both arrays have the same texts in the same order: row i of each is text i.
        as_training = similarity.prepared(vectors["train"])
        as_test = similarity.prepared(vectors["test"])
        predicted = np.empty(self.units)
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
        for other_folds, fold in folds.split(as_test, self._gold_labels):
            model = LogisticRegression(max_iter=1000, random_state=seed)
            model.fit(as_training[other_folds], self._gold_labels[other_folds])
            predicted[fold] = model.predict(as_test[fold])
        return predicted[:, None]


@dataclass(frozen=True)
class PairTransferTask(ClassificationTask):
    """Labelled pairs of texts. A logistic regression on features of the training pairs predicts the labels.

    The features of a pair are those of SentEval (Conneau and Kiela 2018): the absolute difference and the
    product of the two vectors, component by component. ``train`` and ``test`` hold the first texts of the
    pairs.

    Attributes:
        train_second: The second texts of the training pairs.
        test_second: The second texts of the test pairs.
    """

    train_second: tuple[str, ...]
    test_second: tuple[str, ...]

    layout = "pair-transfer"
    unit = "pairs"

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        return {
            "train": self.train,
            "train_second": self.train_second,
            "query": self.test,
            "document": self.test_second,
        }

    def outcomes(self, vectors: Vectors, seed: int, similarity: Similarity = Similarity.COSINE) -> Outcomes:
        """Predict the label of each test pair, and return its number, shape (pairs, 1)."""
        from sklearn.linear_model import LogisticRegression

        prepared = {role: similarity.prepared(role_vectors) for role, role_vectors in vectors.items()}
        train_features = _make_pair_features(prepared["train"], prepared["train_second"])
        test_features = _make_pair_features(prepared["query"], prepared["document"])
        model = LogisticRegression(max_iter=1000, random_state=seed)
        model.fit(train_features, _find_indices(self._label_names, self.train_labels))
        return np.asarray(model.predict(test_features), np.float64)[:, None]


def _make_pair_features(first: Values, second: Values) -> Values:
    # The vectors have the shape (pairs, D), and the features the shape (pairs, 2 D).
    return np.hstack([np.abs(first - second), first * second])


# Maximum number of queries whose similarities to all documents are in memory at the same time.
_QUERIES_AT_ONCE = 256
# Maximum number of documents that are ranked for a query, as in trec_eval and MTEB.
_RANKED = 1000
# The metrics, with their names in trec_eval.
_TREC_NAMES = {"ndcg_at_10": "ndcg_cut_10", "recall_at_100": "recall_100", "map": "map", "mrr": "recip_rank"}


@dataclass(frozen=True)
class RetrievalTask(Task):
    """A retrieval task, as in BEIR: for every query, the 1,000 most similar documents of a corpus are ranked.

    Attributes:
        queries: The texts of the queries, keyed by id.
        documents: The texts of the documents, keyed by id.
        relevant: For each query id, the relevance scores of the judged documents, keyed by document id.
        unranked: Ids of the queries that are also documents of the corpus. A query is not ranked among its
            own results.
    """

    queries: dict[str, str]
    documents: dict[str, str]
    relevant: dict[str, dict[str, int]]
    unranked: tuple[str, ...] = ()

    layout = "retrieval"
    unit = "queries"
    metrics = ("ndcg_at_10", "recall_at_100", "map", "mrr")
    has_queries = True

    def __post_init__(self) -> None:
        # Raise an error now, before any texts are encoded.
        require_package("pytrec_eval", f"the {self.layout} task {self.name!r}", "ranking")

    @property
    def units(self) -> int:
        return len(self.queries)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        return {"query": tuple(self.queries.values()), "document": tuple(self.documents.values())}

    def outcomes(self, vectors: Vectors, seed: int, similarity: Similarity = Similarity.COSINE) -> Outcomes:
        """Rank documents for each query, and return the metrics of each ranking, shape (queries, metrics).

        ``seed`` has no effect, because nothing is drawn at random.
        """
        import pytrec_eval

        queries = similarity.prepared(vectors["query"])
        documents = similarity.prepared(vectors["document"])
        ranking = self._rank(queries, documents, similarity)
        evaluator = pytrec_eval.RelevanceEvaluator(self.relevant, set(_TREC_NAMES.values()))
        values_by_query = evaluator.evaluate(ranking)
        outcomes = []
        for query_id in self.queries:
            value_of_metric = values_by_query[query_id]  # keyed by the name of the metric in trec_eval
            outcomes.append([value_of_metric[_TREC_NAMES[metric]] for metric in self.metrics])
        return np.array(outcomes)

    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        value_of_query = outcomes[:, :, self.metrics.index(metric)]  # shape (C, queries), for C conditions
        if sample is not None:
            value_of_query = value_of_query[:, sample]
        return np.asarray(value_of_query.mean(axis=1))  # shape (C,)

    def _rank(
        self, queries: Values, documents: Values, similarity: Similarity
    ) -> dict[str, dict[str, float]]:
        """Return the similarities of the best documents, keyed by query id and then by document id."""
        document_ids = list(self.documents)
        query_ids = list(self.queries)
        index_of_document = {document_id: index for index, document_id in enumerate(document_ids)}
        # Some queries are documents of the corpus too, with the same id. Such a document is no result of its
        # own query. Its index is keyed by query id.
        own_index = {query_id: index_of_document[query_id] for query_id in self.unranked}
        depth = min(_RANKED, len(document_ids))  # number of documents in each ranking
        ranking: dict[str, dict[str, float]] = {}
        for start in range(0, len(query_ids), _QUERIES_AT_ONCE):
            batch = query_ids[start : start + _QUERIES_AT_ONCE]
            # One row for each query of the batch, one column for each document.
            scores = similarity.of_all(queries[start : start + _QUERIES_AT_ONCE], documents)
            for row, query_id in enumerate(batch):
                if query_id in own_index:
                    scores[row, own_index[query_id]] = -np.inf
            # The indices of the best documents of each query, shape (queries, depth), in any order, because
            # pytrec_eval sorts documents itself.
            best = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
            for query_id, query_scores, indices in zip(batch, scores, best, strict=True):
                # In a small corpus, all documents are ranked, among them the query's own, with -inf.
                ranked = [index for index in indices.tolist() if index != own_index.get(query_id)]
                ranking[query_id] = {document_ids[index]: float(query_scores[index]) for index in ranked}
        return ranking
