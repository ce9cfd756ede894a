"""Exact search in an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stickytoken.data.metrics import Values
from stickytoken.unit_vectors import Similarity


@dataclass(frozen=True)
class ExactSearch:
    """An index that compares every query with every document.

    Attributes:
        queries: vectors of the queries, as returned by `Similarity.prepared`, shape (Q, d).
        documents: vectors of the documents, as returned by `Similarity.prepared`, shape (N, d).
        similarity: how the model compares vectors.
    """

    queries: Values
    documents: Values
    similarity: Similarity

    @cached_property
    def similarities(self) -> Values:
        """Similarity of every query to every document, shape (Q, N)."""
        return self.similarity.of_all(self.queries, self.documents)

    @cached_property
    def _ascending(self) -> Values:
        return np.sort(self.similarities, axis=1)

    def ranks(self, vectors: NDArray[np.floating], places: Sequence[int]) -> NDArray[np.int64]:
        """Return the rank that each given vector would have among the search results of each query.

        The search results are the documents in descending order of their similarity to the query. If a
        document is as similar to the query as the given vector, the given vector ranks before the document.

        Args:
            vectors: n vectors as returned by the model, shape (n, d). The rank of a vector does not depend
                on the other vectors.
            places: index of the document that each vector replaces; -1 for a vector that is added to the
                index and replaces no document.

        Returns:
            The ranks for each query, counted from 1, shape (Q, n).
        """
        similarities = self.similarity.of_all(self.queries, self.similarity.prepared(vectors))
        documents_above = np.empty(similarities.shape, dtype=np.int64)
        for query, ascending in enumerate(self._ascending):
            at_most_as_similar = np.searchsorted(ascending, similarities[query], side="right")
            documents_above[query] = len(ascending) - at_most_as_similar
        replaced = np.asarray(places, dtype=np.intp)
        # A replaced document is no longer in the index, so it must not be counted among the documents above
        # its replacement. The index -1 selects the last document, so these entries are masked.
        is_above = self.similarities[:, replaced] > similarities
        replaced_above = is_above & (replaced >= 0)
        return 1 + documents_above - replaced_above

    def ranks_of_documents(self, places: Sequence[int]) -> NDArray[np.int64]:
        """Return the ranks, among all documents, of the documents at ``places``; shape (Q, len(places))."""
        of_documents = self.similarities[:, list(places)]
        ranks = np.empty(of_documents.shape, dtype=np.int64)
        for query, ascending in enumerate(self._ascending):
            ranks[query] = 1 + len(ascending) - np.searchsorted(ascending, of_documents[query], side="right")
        return ranks
