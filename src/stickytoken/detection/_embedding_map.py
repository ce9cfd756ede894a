"""Map tokens by their closeness to the vocabulary's mean and their direction from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.insertion import Token
from stickytoken.unit_vectors import exact_unit_vectors

MAP_SCHEMA = {"token_id": pl.Int64, "to_mean": pl.Float64, "component": pl.Float64, "drawn": pl.Boolean}
# Number of random tokens: enough to show the shape of a vocabulary of any size.
DRAWN_TOKENS = 3000
_LEAST_DRAWN = 3
_DRAW = 11


class EmbeddingMap(NamedTuple):
    """The vocabulary in two dimensions.

    Attributes:
        points: token_id; to_mean, the cosine to the mean of the drawn tokens; component, the first
            principal component of what is orthogonal to that mean; drawn, whether the token is one of
            those that mean and component come from.
        explained: share of the orthogonal part's variance that the component holds; None without points.
    """

    points: pl.DataFrame
    explained: float | None


NO_MAP = EmbeddingMap(pl.DataFrame(schema=MAP_SCHEMA), None)


def embedding_map(
    encoder: Encoder, vocabulary: Sequence[Token], shown: Sequence[Token], seed: int
) -> EmbeddingMap:
    """Encode tokens as inputs of their own, and place them on two axes.

    The first axis is the direction that sticky tokens pull to, the second the direction orthogonal to
    it in which the vocabulary varies most. Both come from random tokens alone, so that the tokens to
    show do not affect them.
    """
    drawn = np.random.default_rng([seed, _DRAW]).permutation(len(vocabulary))[:DRAWN_TOKENS]
    chosen = {vocabulary[k].id for k in drawn}
    ids = np.array(sorted(chosen | {token.id for token in shown}), dtype=np.int64)
    texts = {token.id: token.text for token in (*vocabulary, *shown)}
    ids, vectors = _encoded(encoder, ids, texts)
    own = np.isin(ids, sorted(chosen))
    mean = vectors[own].mean(axis=0) if own.any() else np.zeros(vectors.shape[1])
    length = float(np.linalg.norm(mean))
    if own.sum() < _LEAST_DRAWN or length == 0:
        return NO_MAP
    return _laid_out(ids, vectors, own, mean / length)


def _encoded(
    encoder: Encoder, ids: NDArray[np.int64], texts: Mapping[int, str]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Unit vectors of the ids that have one; an encoder that reads no ids gets their texts."""
    by_id = encoder if reads_ids(encoder) else None
    head = by_id.tokenize(["a"])[0].head if by_id else ()
    usable = np.array([k for k in ids.tolist() if encoder.fits((*head, k))], dtype=np.int64)
    if not len(usable):
        return usable, np.empty((0, encoder.dimension))
    if by_id:
        found = by_id.encode_ids([(*head, k) for k in usable.tolist()], allow_zero=True)
    else:
        found = encoder.encode([texts[k] for k in usable.tolist()], allow_zero=True)
    units = exact_unit_vectors(found)
    known = units.any(axis=1)
    return usable[known], units[known]


def _laid_out(
    ids: NDArray[np.int64],
    vectors: NDArray[np.float64],
    drawn: NDArray[np.bool_],
    direction: NDArray[np.float64],
) -> EmbeddingMap:
    from sklearn.decomposition import PCA

    to_mean = vectors @ direction
    rest = vectors - to_mean[:, None] * direction
    if np.allclose(rest[drawn], rest[drawn].mean(axis=0)):
        return NO_MAP
    components = PCA(1, svd_solver="covariance_eigh").fit(rest[drawn])  # exact: no random start
    points = {
        "token_id": ids,
        "to_mean": to_mean,
        "component": components.transform(rest)[:, 0],
        "drawn": drawn,
    }
    return EmbeddingMap(
        pl.DataFrame(points, schema=MAP_SCHEMA), float(components.explained_variance_ratio_[0])
    )
