"""A small search that shows how copies of a token in documents change search results.

Each text is cut in half: the first half is a query, the second half is the document that answers the query. A
document is found if it is among the first ten results of its query. Copies are added to one document at a
time; the other documents are left as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder
from stickytoken.insertion import Insertion, Placement, Probe, Token
from stickytoken.machine import Precision
from stickytoken.measurement.engine import Measured
from stickytoken.methods.probes import Carrier, as_carriers, room_for, with_copies
from stickytoken.unit_vectors import unit_vectors

# Number of results that a user is assumed to look at. A document among these results counts as found.
TOP = 10
# Number of copies that are appended to a document.
COPIES = 8
# Minimum number of words in a text. The halves of a shorter text are too short for a query and a document.
_LEAST_WORDS = 12
# Maximum and minimum number of documents. With more, the search takes too long; with fewer, too many
# documents are among the first ten results by chance.
_MOST_DOCUMENTS = 200
_LEAST_DOCUMENTS = 5 * TOP


class SearchShares(NamedTuple):
    """How often a document is among the first ten results of a query."""

    answering: float  # share of the queries whose answering document is among the first ten (recall@10)
    unrelated: float  # share of all other query-document pairs where the document is among the first ten


class Halves(NamedTuple):
    """Queries and the documents that answer them, in the same order."""

    queries: list[str]
    documents: list[str]


def halves_of(texts: Sequence[str]) -> Halves:
    """Cut each text of at least twelve words in half, and return the queries and documents."""
    queries = []
    documents = []
    for text in texts:
        words = text.split()
        if len(words) >= _LEAST_WORDS:
            queries.append(" ".join(words[: len(words) // 2]))
            documents.append(" ".join(words[len(words) // 2 :]))
    return Halves(queries, documents)


@dataclass(frozen=True)
class SearchStage:
    """Appends copies of a token to each document and searches with all queries.

    Attributes:
        documents: the N documents.
        similarities: cosines of queries and documents without copies, shape (N, N).
        queries: unit vectors of the queries, shape (N, d).
        name: name of the stage.
        precision: precision to run the model in; if None, the model's own precision.
    """

    documents: tuple[Carrier, ...]
    similarities: NDArray[np.float64]
    queries: NDArray[np.float32]
    name: str = "search"
    precision: Precision | None = None

    @property
    def probes_per_token(self) -> int:
        return len(self.documents)

    def probes(self, token: Token) -> Sequence[Probe]:
        return [with_copies(token, document, Placement.SUFFIX, COPIES) for document in self.documents]

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> dict[str, Measured]:
        after = self.queries @ unit_vectors(vectors).T
        shares = search_shares(self.similarities, after.astype(np.float64))
        return {"answering": shares.answering, "unrelated": shares.unrelated}

    @property
    def without_copies(self) -> SearchShares:
        """How often documents without copies are among the first ten results."""
        return search_shares(self.similarities, self.similarities)


def search_shares(before: NDArray[np.float64], after: NDArray[np.float64]) -> SearchShares:
    """Return how often a document with copies is among the first ten of N search results.

    Args:
        before: similarities between queries (rows) and documents (columns) without copies, shape (N, N).
            Document i answers query i.
        after: similarities between queries and documents with copies, shape (N, N). Each document with copies
            competes with all other documents, which have no copies.

    Returns:
        Two shares of query-document pairs in which the document with copies is among the first ten: the share
        of the N pairs of a query and the document that answers it, and the share of all other pairs.
    """
    descending = -np.sort(-before, axis=1)
    tenth = descending[:, TOP - 1 : TOP]
    eleventh = descending[:, TOP : TOP + 1]
    # A document with copies is among the first ten if it is more similar to the query than the tenth best of
    # the other documents. If the document itself was among the first ten without copies, this is the eleventh
    # best of all documents; otherwise, it is the tenth.
    limit = np.where(before >= tenth, eleventh, tenth)
    is_in_top = after > limit
    answers = np.eye(len(before), dtype=np.bool_)  # document i answers query i
    return SearchShares(float(is_in_top[answers].mean()), float(is_in_top[~answers].mean()))


def search_stage(encoder: Encoder, insertion: Insertion, texts: Sequence[str]) -> SearchStage | None:
    """Return the stage that measures a token's effect on a small search among the texts.

    The result is None if too few texts are both long enough to be cut in half and short enough to leave room
    for the copies.
    """
    room = room_for(encoder, insertion, COPIES)
    halves = halves_of(texts)
    tokenized = encoder.content_ids(halves.documents)
    fitting = [index for index, ids in enumerate(tokenized) if encoder.fits((0,) * (len(ids) + room))]
    if len(fitting) < _LEAST_DOCUMENTS:
        return None
    # The texts are sorted by kind, so evenly spaced texts cover all kinds.
    even = np.linspace(0, len(fitting) - 1, min(len(fitting), _MOST_DOCUMENTS)).round().astype(np.intp)
    document_indices = [fitting[position] for position in even]
    documents = [halves.documents[index] for index in document_indices]
    queries = unit_vectors(encoder.encode([halves.queries[index] for index in document_indices]))
    vectors = unit_vectors(encoder.encode(documents))
    similarities = (queries @ vectors.T).astype(np.float64)
    return SearchStage(as_carriers(encoder, insertion, documents), similarities, queries)
