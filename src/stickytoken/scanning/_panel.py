"""What documents are compared with: queries, and clean documents of the collection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import IdReader
from stickytoken.errors import InputError
from stickytoken.hashing import digest
from stickytoken.unit_vectors import unit_vectors

QUERIES = 100
REFERENCE = 200
QUERY_WORDS = 30
MOST_QUERIES = 500
_LEAST = 10

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Texts:
    """Texts of a panel."""

    queries: tuple[str, ...]
    reference: tuple[str, ...]
    source: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all texts."""
        return digest([self.queries, self.reference])


@dataclass(frozen=True)
class Panel:
    """Queries and clean documents as the model sees them.

    Attributes:
        queries: Unit vectors, shape (q, d).
        reference: Unit vectors, shape (n, d).
        ranked: Similarities of the clean documents to each query, ascending, shape (n, q).
        spread: Standard deviation of these similarities.
    """

    queries: Vectors
    reference: Vectors
    ranked: Vectors
    spread: float


def panel_texts(sample: Sequence[str], own: Sequence[str] | None, source: str, name: str) -> Texts:
    """Choose queries and clean documents.

    Without queries of one's own, the first words of random clean documents stand for what users look for;
    these documents are not among those that ranks are computed against.
    """
    needed = _LEAST if own is not None else 2 * _LEAST
    if len(sample) < needed:
        raise InputError(
            f"{name} has {len(sample)} documents without findings, and {needed} are needed to compare the "
            "others with: pass more documents, or leave effects out"
        )
    if own is not None:
        return Texts(tuple(own), tuple(sample[:REFERENCE]), source)
    drawn = min(QUERIES, len(sample) // 2)
    queries = tuple(" ".join(text.split()[:QUERY_WORDS]) for text in sample[:drawn])
    return Texts(queries, tuple(sample[drawn : drawn + REFERENCE]), f"the first words of {drawn} documents")


def encoded_panel(texts: Texts, encoder: IdReader, limit: int | None) -> Panel:
    """Encode a panel."""
    queries, reference = (
        unit_vectors(encoder.encode_ids([text.ids[:limit] for text in encoder.tokenize(each)]))
        for each in (texts.queries, texts.reference)
    )
    similarities = reference @ queries.T
    spread = float(similarities.std())
    if spread < 1e-6:
        raise InputError(
            f"{encoder.name} gives all documents the same similarity to the queries: pass others"
        )
    return Panel(queries, reference, np.sort(similarities, axis=0), spread)
