"""Exact search in an index, and in how many times as many results a document is with copies (push)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stickytoken.intervals import Intervals, bootstrap_samples
from stickytoken.unit_vectors import Similarity

# Number of copies in a document, and of results that a user is assumed to look at.
COPIES = 8
TOP = 10

# Share of a collection that counts as the first results of a query. Push is measured on the first results
# only, because copies of an ordinary word take a document out of them; the fewer results count as first, the
# more so.
DEPTH_SHARE = 0.01
# Number of bootstrap samples. The ends of a 90% interval are then the 50th values from either side.
_SAMPLES = 1000


def depth_of(documents: int) -> int:
    """Return how many results of a query count as its first results, in a collection of this size."""
    return max(1, math.ceil(DEPTH_SHARE * documents))


@dataclass(frozen=True)
class ExactSearch:
    """An index that compares every query with every document.

    Attributes:
        queries: vectors of the queries, as returned by `Similarity.prepared`, shape (Q, d).
        documents: vectors of the documents, as returned by `Similarity.prepared`, shape (N, d).
        similarity: how the model compares vectors.
        excluded: indices of the document that each query is itself, with its duplicates, keyed by index of
            the query. They are no results of the query.
        duplicates: indices of all documents with the same text as a document, itself included, keyed by index
            of the document. One without duplicates has no entry. (Vectors don't tell: those of equal texts
            from different batches differ by rounding.)
    """

    queries: NDArray[np.float64]
    documents: NDArray[np.float64]
    similarity: Similarity
    excluded: Mapping[int, Collection[int]] = field(default_factory=dict)
    duplicates: Mapping[int, Sequence[int]] = field(default_factory=dict)

    @cached_property
    def similarities(self) -> NDArray[np.float64]:
        """Similarity of every query to every document, shape (Q, N); minus infinity for excluded pairs."""
        similarities = self.similarity.of_all(self.queries, self.documents)
        for query, documents in self.excluded.items():
            similarities[query, list(documents)] = -np.inf
        return similarities

    @cached_property
    def _ascending(self) -> NDArray[np.float64]:
        return np.sort(self.similarities, axis=1)  # similarities of each query, lowest first, shape (Q, N)

    def ranks(self, vectors: NDArray[np.floating], replaced: Sequence[int]) -> NDArray[np.int64]:
        """Return the rank that each given vector would have among the search results of each query.

        The search results are the documents in descending order of their similarity to the query. If a
        document is as similar to the query as the given vector, the document ranks first, as in `limits`.
        Duplicates of the replaced document are left out, as there.

        Args:
            vectors: n vectors as returned by the model, shape (n, d). The rank of a vector does not depend
                on the other vectors.
            replaced: index of the document that each vector replaces; -1 for a vector that is added to the
                index and replaces no document.

        Returns:
            The ranks for each query, counted from 1, shape (Q, n).
        """
        similarities = self.similarity.of_all(self.queries, self.similarity.prepared(vectors))  # (Q, n)
        for query, documents in self.excluded.items():
            similarities[query, np.isin(replaced, list(documents))] = -np.inf  # so they rank last
        documents_above = np.empty(similarities.shape, dtype=np.int64)
        for query, ascending in enumerate(self._ascending):
            # side="left" counts only documents with a lower similarity, not those with the same one.
            documents_below = np.searchsorted(ascending, similarities[query], side="left")
            documents_above[query] = len(ascending) - documents_below
        for column, document in enumerate(replaced):
            if document < 0:  # it replaces no document
                continue
            # A replaced document is no longer in the index, and its duplicates don't count, so none of them
            # may be among the documents above.
            left_out = list(self.duplicates.get(document, [document]))
            is_above = self.similarities[:, left_out] >= similarities[:, [column]]
            documents_above[:, column] -= is_above.sum(axis=1)
        return 1 + documents_above

    def limits(self, document_indices: Sequence[int], depth: int) -> NDArray[np.float64]:
        """Return the similarity that a document must exceed to be among the first results of each query.

        The limit of a document is the ``depth``-th best similarity of all other documents. Its
        duplicates don't count: it competes with them neither before nor after it changes, since any change,
        however small, would put it before or behind all of them.

        Args:
            document_indices: indices of n documents.
            depth: number of first results, less than the number of documents.

        Returns:
            The limits, shape (Q, n).
        """
        last_of_first = self._ascending[:, -depth, None]  # shape (Q, 1)
        # If a document is itself among the first results, the next result takes its place among the other
        # documents.
        next_after_first = self._ascending[:, -depth - 1, None]
        is_among_first = self.similarities[:, list(document_indices)] >= last_of_first  # shape (Q, n)
        limits = np.where(is_among_first, next_after_first, last_of_first)
        for column, document in enumerate(document_indices):
            if document not in self.duplicates:
                continue
            others = np.delete(self.similarities, self.duplicates[document], axis=1)
            if others.shape[1] < depth:
                limits[:, column] = -np.inf  # the document is a first result, whatever its similarity
            else:
                limits[:, column] = np.partition(others, -depth, axis=1)[:, -depth]
        return limits


@dataclass(frozen=True)
class ResultLimits:
    """The similarities that n documents must exceed to be results of Q queries.

    Attributes:
        first: limits for being among the first results of each query, shape (Q, n).
        top: limits for being among the first ten results of each query, that is, being found, shape (Q, n).
        is_answer: whether each document answers each query, shape (Q, n).
    """

    first: NDArray[np.float64]
    top: NDArray[np.float64]
    is_answer: NDArray[np.bool_]

    def wrong_results(self, similarities: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which documents are first results of queries that they don't answer, shape (Q, n)."""
        return (similarities > self.first) & ~self.is_answer

    def found(self, similarities: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return, for each pair of a query and a document that answers it, whether the query finds it."""
        is_found = similarities > self.top
        return is_found[self.is_answer]

    def of_documents(self, documents: slice) -> ResultLimits:
        """Return the limits of some of the documents."""
        return ResultLimits(self.first[:, documents], self.top[:, documents], self.is_answer[:, documents])


def push_ratios(
    with_copies: NDArray[np.bool_],
    without: NDArray[np.bool_],
    weights: NDArray[np.float64],
    confidence: float,
    key: Sequence[int],
) -> Intervals:
    """Return the push of T tokens: the number of wrong results with copies, divided by the number without.

    A result is wrong if the document doesn't answer the query. Queries and documents are resampled at the
    same time, each with weights of its own, because one query or one document affects many pairs (the
    pigeonhole bootstrap of Owen 2007, "The pigeonhole bootstrap", Annals of Applied Statistics 1). The
    intervals are percentiles.

    Args:
        with_copies: whether each document is among the first results of each query with copies of T tokens,
            shape (T, Q, n). Pairs in which the document answers the query must be False.
        without: whether each document is among the first results without copies, shape (Q, n).
        weights: how much each pair of a query and a document counts, shape (Q, n).
        confidence: coverage of the two-sided intervals.
        key: seed of the random draw.

    Returns:
        The ratios. If no document is a wrong result without copies, a ratio is NaN, and nothing is known
        about it: its interval goes from 0 to infinity.

    >>> without = np.array([[True, False], [False, True]])
    >>> with_copies = np.ones((1, 2, 2), dtype=bool)
    >>> push_ratios(with_copies, without, np.ones((2, 2)), 0.9, [1]).value
    array([2.])
    """
    queries, documents = without.shape
    query_weights = _draw_weights(queries, (*key, 0))  # shape (samples, Q)
    document_weights = _draw_weights(documents, (*key, 1))  # shape (samples, n)

    def count_results(is_result: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the weight of the results, shape (1 + samples,): of all pairs, then of each sample."""
        weighted = np.where(is_result, weights, 0.0)
        by_document = query_weights @ weighted  # shape (samples, n)
        of_samples = (by_document * document_weights).sum(axis=1)
        of_all_pairs = weighted.sum()
        return np.concatenate([[of_all_pairs], of_samples])

    has_results_without = (without & (weights > 0)).any()
    if not has_results_without:
        tokens = len(with_copies)
        return Intervals(np.full(tokens, np.nan), np.zeros(tokens), np.full(tokens, np.inf))
    before = count_results(without)
    tail = (1 - confidence) / 2
    values, lows, highs = [], [], []
    # The ratio is undefined on a sample that has no wrong results without copies. All pairs together have
    # some.
    is_defined = before > 0
    for is_result_of_token in with_copies:
        after = count_results(is_result_of_token)
        ratios = after[is_defined] / before[is_defined]
        low, high = np.quantile(ratios[1:], [tail, 1 - tail])  # quantiles over the samples
        values.append(ratios[0])  # the ratio of all pairs
        lows.append(low)
        highs.append(high)
    return Intervals(np.array(values), np.array(lows), np.array(highs))


def _draw_weights(unit_count: int, key: Sequence[int]) -> NDArray[np.float64]:
    # Returns how often each bootstrap sample has drawn each unit, shape (samples, units).
    samples = bootstrap_samples(unit_count, _SAMPLES, key)  # indices of units, shape (samples, units)
    # The offset of its sample makes an index different from the indices of all other samples, so that a
    # single call of `bincount` counts the units of every sample.
    offsets = np.arange(_SAMPLES)[:, None] * unit_count
    counts = np.bincount((samples + offsets).ravel(), minlength=_SAMPLES * unit_count)
    return counts.reshape(_SAMPLES, unit_count).astype(np.float64)
