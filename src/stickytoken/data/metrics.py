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
            seed: Seed for random steps, such as the start of a clustering.
            similarity: How the model compares vectors.

        Returns:
            One row per unit, shape (units, columns). Only retrieval has several columns: one per metric.
        """

    @abstractmethod
    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        """Compute a metric for each condition, such as each model or each way of encoding.

        Args:
            metric: One of ``metrics``.
            outcomes: The outcomes under C conditions, shape (C, units, columns).
            sample: Indices of the units to use, the same for every condition.

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
class _PairTask(Task):
    """Pairs of sentences, each with a gold score or label."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: tuple[float, ...]

    unit = "pairs"

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
        return similarity.of_pairs(first, second)[:, None]  # shape (pairs, 1)

    @cached_property
    def _gold_values(self) -> NDArray[np.float64]:
        return np.array(self.gold, dtype=np.float64)


def _find_indices(distinct: Sequence[str], names: Sequence[str]) -> NDArray[np.intp]:
    """Return the index in ``distinct`` of each name, shape (names,)."""
    index_of = {name: index for index, name in enumerate(distinct)}
    return np.array([index_of[name] for name in names], dtype=np.intp)


def _take_sample(
    gold: NDArray[Any], predictions: NDArray[Any], sample: Sample
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the gold values, shape (units,), and the predictions, shape (C, units), of a bootstrap sample.

    The same units are taken for each of the C conditions.
    """
    if sample is None:
        return gold, predictions
    return gold[sample], predictions[:, sample]


class SimilarityTask(_PairTask):
    """Semantic textual similarity, scored by the correlation of gold scores and similarities."""

    layout = "sts"
    metrics = ("spearman", "pearson")

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
        gold_and_similarities = np.vstack([self._gold_values, outcomes[:, :, 0]])
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


class PairClassificationTask(_PairTask):
    """Pairs with the label 0 or 1. The pairs with label 1 should be the most similar."""

    layout = "pair-classification"
    metrics = ("average_precision",)

    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        """Compute the average precision under each of C conditions, shape (C,); NaN with only one label."""
        from sklearn.metrics import average_precision_score

        gold, similarities = _take_sample(self._gold_values, outcomes[:, :, 0], sample)
        has_both_labels = 0 < gold.sum() < len(gold)  # the labels are 0 and 1
        if not has_both_labels:
            return np.full(len(similarities), np.nan)
        return np.array([average_precision_score(gold, of_condition) for of_condition in similarities])


@dataclass(frozen=True)
class ClusteringTask(Task):
    """Texts that k-means should group by their labels."""

    sentences: tuple[str, ...]
    labels: tuple[str, ...]

    layout = "clustering"
    unit = "texts"
    metrics = ("v_measure", "nmi")

    @property
    def units(self) -> int:
        return len(self.labels)

    @property
    def texts(self) -> Mapping[str, tuple[str, ...]]:
        return {"text": self.sentences}

    def outcomes(self, vectors: Vectors, seed: int, similarity: Similarity = Similarity.COSINE) -> Outcomes:
        """Cluster the texts, and return the cluster number of each text, shape (texts, 1)."""
        from sklearn.cluster import KMeans

        k_means = KMeans(len(self._label_names), n_init=10, random_state=seed)
        clusters = k_means.fit_predict(similarity.prepared(vectors["text"]))
        return np.asarray(clusters, np.float64)[:, None]

    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        """Compute the V-measure under each of C conditions, shape (C,).

        The other metric, ``nmi``, is the mutual information divided by the arithmetic mean of the two
        entropies, which is equal to the V-measure. So both have the same values.
        """
        gold, clusters = _take_sample(self._gold_labels, outcomes[:, :, 0].astype(np.intp), sample)
        return v_measures(gold, clusters, len(self._label_names))

    @cached_property
    def _label_names(self) -> list[str]:
        return sorted(set(self.labels))

    @cached_property
    def _gold_labels(self) -> NDArray[np.intp]:
        return _find_indices(self._label_names, self.labels)


def v_measures(gold: NDArray[np.intp], clusters: NDArray[np.intp], label_count: int) -> NDArray[np.float64]:
    """Compute the V-measure of C clusterings.

    The V-measure (Rosenberg and Hirschberg 2007, equation 3 with beta 1) is 2 I / (H(gold) + H(clusters)),
    with I = H(gold) + H(clusters) - H(gold, clusters). By convention, it is 1 if all texts have the same
    label and are in the same cluster.

    Args:
        gold: The label of each text as a number below ``label_count``, shape (texts,).
        clusters: The cluster of each text, also a number below ``label_count``, shape (C, texts).
        label_count: The number of labels.

    Returns:
        The V-measure of each clustering, shape (C,).
    """
    from scipy.stats import entropy

    counts = _count_predictions(gold, clusters, label_count)  # shape (C, clusters, labels)
    counts_of_labels = counts.sum(axis=1)
    counts_of_clusters = counts.sum(axis=2)
    # Counts are divided by their sum in `entropy`. All shapes from here on are (C,).
    entropy_of_labels = entropy(counts_of_labels, axis=1)
    entropy_of_clusters = entropy(counts_of_clusters, axis=1)
    joint_entropy = entropy(counts.reshape(len(counts), -1), axis=1)
    sum_of_entropies = entropy_of_labels + entropy_of_clusters
    information = sum_of_entropies - joint_entropy
    has_one_group = sum_of_entropies < 1e-12  # 0, but for rounding: one label and one cluster
    divisors = np.where(has_one_group, 1.0, sum_of_entropies)
    return np.where(has_one_group, 1.0, 2 * information / divisors)


def macro_f1(gold: NDArray[np.intp], predicted: NDArray[np.intp], label_count: int) -> NDArray[np.float64]:
    """Compute the macro F1 of C predictions.

    The macro F1 of a prediction is the mean F1 over all labels in ``gold`` or in the prediction.

    Args:
        gold: The label of each text as a number below ``label_count``, shape (texts,).
        predicted: The predicted labels, also numbers below ``label_count``, shape (C, texts).
        label_count: The number of labels.

    Returns:
        The macro F1 of each prediction, shape (C,).
    """
    counts = _count_predictions(gold, predicted, label_count)  # shape (C, predicted labels, gold labels)
    true_positives = np.diagonal(counts, axis1=1, axis2=2)  # shape (C, labels), as all below
    # 2 TP + FP + FN: how often a label occurs plus how often it is predicted.
    denominators = counts.sum(axis=1) + counts.sum(axis=2)
    occurs = denominators > 0
    # A label that neither occurs nor is predicted adds 0 to the sum, and isn't counted.
    f1 = 2 * true_positives / np.where(occurs, denominators, 1)
    return np.asarray(f1.sum(axis=1) / occurs.sum(axis=1))


def _count_predictions(
    gold: NDArray[np.intp], predicted: NDArray[np.intp], label_count: int
) -> NDArray[np.float64]:
    """Return how often each label is predicted for each gold label, shape (C, predicted labels, gold labels).

    Labels are numbers; ``gold`` has the shape (texts,) and ``predicted`` the shape (C, texts).
    """
    # Each of the C x label_count x label_count cells of the result has a number. `bincount` counts how often
    # each number occurs.
    prediction_numbers = np.arange(len(predicted))[:, None]  # shape (C, 1)
    cells = (prediction_numbers * label_count + predicted) * label_count + gold  # shape (C, texts)
    counts = np.bincount(cells.ravel(), minlength=len(predicted) * label_count**2)
    return counts.reshape(len(predicted), label_count, label_count).astype(np.float64)


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
        # The outcomes, shape (C, texts, 1), are the predicted labels under each of C conditions.
        labels = outcomes[:, :, 0].astype(np.intp)
        gold, predicted = _take_sample(self._gold_labels, labels, sample)
        if metric == "accuracy":
            return np.asarray((predicted == gold).mean(axis=1))
        return macro_f1(gold, predicted, len(self._label_names))

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
class _RankingTask(Task):
    """A task that ranks documents for each query.

    Attributes:
        queries: The texts of the queries, keyed by id.
        documents: The texts of the documents, keyed by id.
        relevant: For each query id, the relevance scores of the judged documents, keyed by document id.
    """

    queries: dict[str, str]
    documents: dict[str, str]
    relevant: dict[str, dict[str, int]]

    unit = "queries"
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
        """Rank documents for each query, and return the metrics of each ranking, shape (queries, metrics)."""
        import pytrec_eval

        queries = similarity.prepared(vectors["query"])
        documents = similarity.prepared(vectors["document"])
        evaluator = pytrec_eval.RelevanceEvaluator(self.relevant, set(_TREC_NAMES.values()))
        ranking = self._rank(queries, documents, similarity)
        values_by_query = evaluator.evaluate(ranking)
        outcomes = []
        for query_id in self.queries:
            value_of_metric = values_by_query[query_id]  # keyed by the name of the metric in trec_eval
            outcomes.append([value_of_metric[_TREC_NAMES[metric]] for metric in self.metrics])
        return np.array(outcomes)

    @abstractmethod
    def _rank(
        self, queries: Values, documents: Values, similarity: Similarity
    ) -> dict[str, dict[str, float]]:
        """Return the similarities of the ranked documents, keyed by query id and then by document id."""

    def scores(self, metric: str, outcomes: Values, sample: Sample = None) -> Values:
        value_of_query = outcomes[:, :, self.metrics.index(metric)]  # shape (C, queries), for C conditions
        if sample is not None:
            value_of_query = value_of_query[:, sample]
        return np.asarray(value_of_query.mean(axis=1))  # shape (C,)


@dataclass(frozen=True)
class RetrievalTask(_RankingTask):
    """A retrieval task, as in BEIR: for every query, the 1,000 most similar documents of a corpus are ranked.

    Attributes:
        unranked: Ids of the queries that are also documents of the corpus. A query is not ranked among its
            own results.
    """

    unranked: tuple[str, ...] = ()

    layout = "retrieval"
    metrics = ("ndcg_at_10", "recall_at_100", "map", "mrr")

    def _rank(
        self, queries: Values, documents: Values, similarity: Similarity
    ) -> dict[str, dict[str, float]]:
        """Return the similarities of the best documents, keyed by query id and then by document id."""
        document_ids = list(self.documents)
        query_ids = list(self.queries)
        index_of_document = {document_id: index for index, document_id in enumerate(document_ids)}
        # The index of the document that a query is itself, keyed by query id.
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
                # If all documents are ranked, the query itself is the last of them, and is left out.
                ranked = [index for index in indices.tolist() if index != own_index.get(query_id)]
                ranking[query_id] = {document_ids[index]: float(query_scores[index]) for index in ranked}
        return ranking


@dataclass(frozen=True)
class RerankingTask(_RankingTask):
    """A ranking task in which each query has its own candidate documents.

    Attributes:
        candidates: For each query id, the ids of the documents to rank.
    """

    candidates: dict[str, tuple[str, ...]]

    layout = "reranking"
    metrics = ("map",)

    def _rank(
        self, queries: Values, documents: Values, similarity: Similarity
    ) -> dict[str, dict[str, float]]:
        """Return the similarities of each query's candidates, keyed by query id and then by document id."""
        row_of_document = {document_id: row for row, document_id in enumerate(self.documents)}
        ranking = {}
        # The candidates are listed in the order of the queries.
        for query_vector, (query_id, candidate_ids) in zip(queries, self.candidates.items(), strict=True):
            candidate_vectors = documents[[row_of_document[document_id] for document_id in candidate_ids]]
            (scores,) = similarity.of_all(query_vector[None], candidate_vectors)  # one row for one query
            ranking[query_id] = dict(zip(candidate_ids, scores.tolist(), strict=True))
        return ranking
