"""Compare a text with copies with the same text without them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stickytoken.explanation._placing import Part
from stickytoken.unit_vectors import exact_unit_vectors, unit_vectors

if TYPE_CHECKING:
    from stickytoken.inspection.protocol import Inside

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What texts are compared with.

    Attributes:
        direction: direction of the mean pooled vector of vocabulary entries, shape (P,); None if the model
            exposes no pooled vectors.
        anchors: unit vectors of the anchors, shape (anchors, d).
        mean_similarity: pairs with a similarity below it are unrelated.
    """

    direction: Vector | None
    anchors: Vector
    mean_similarity: float

    def unrelated(self, vector: Vector) -> NDArray[np.bool_]:
        """Select the anchors less similar to a vector than the mean, or else the least similar one."""
        similarities = self.anchors @ unit_vectors(vector)
        below: NDArray[np.bool_] = similarities < self.mean_similarity
        return below if below.any() else np.asarray(similarities == similarities.min())


def observe(before: Inside, after: Inside, surroundings: Surroundings) -> dict[str, Vector]:
    """Measure one text.

    Returns:
        Measures by name, shape (layers,) if there is one value per layer, else (). Those that the model does
        not support are absent.
    """
    found = _attention(after) | _hidden(before, after) | _pooling(after, surroundings.direction)
    unrelated = surroundings.unrelated(before.vector.astype(np.float64))
    moved = exact_unit_vectors(after.vector) - exact_unit_vectors(before.vector)
    found["lift_sentences"] = np.asarray((surroundings.anchors[unrelated] @ moved).mean())
    return found


def attention_received(inside: Inside, *, by_copies: bool = True) -> Vector | None:
    """Return the share of attention that the copies receive, shape (layers, heads).

    Args:
        inside: a text with copies.
        by_copies: whether to count attention paid by the copies themselves.
    """
    if inside.attention is None:
        return None
    sizes = np.bincount(inside.labels, minlength=inside.attention.shape[-1]).astype(np.float64)
    if not by_copies:
        sizes[Part.COPIES] = 0
    if not sizes.any():
        return None
    present = sizes > 0
    shares = inside.attention[:, :, present, Part.COPIES]
    received: Vector = shares @ (sizes[present] / sizes.sum())
    return received


def states_of_copies(inside: Inside) -> Vector | None:
    """Return the mean hidden state of the copies by layer, shape (layers + 1, D)."""
    if inside.hidden is None:
        return None
    states: Vector = inside.hidden[:, inside.labels == Part.COPIES].astype(np.float64).mean(axis=1)
    return states


def _attention(after: Inside) -> dict[str, Vector]:
    found = {}
    for name, by_copies in (("attention_received", True), ("attention_from_others", False)):
        received = attention_received(after, by_copies=by_copies)
        if received is not None:
            found[name] = received.mean(axis=1)
    return found


def _hidden(before: Inside, after: Inside) -> dict[str, Vector]:
    if before.hidden is None or after.hidden is None:
        return {}
    old = before.hidden[:, before.labels == Part.CARRIER].astype(np.float64)
    new = after.hidden[:, after.labels == Part.CARRIER].astype(np.float64)
    copies = after.hidden[:, after.labels == Part.COPIES].astype(np.float64)
    found = {"copies_norm": np.linalg.norm(copies, axis=-1).mean(axis=1)}
    if old.shape[1]:
        found["carrier_cosine_drift"] = (1 - _cosine(old, new)).mean(axis=1)
        found["carrier_euclidean_drift"] = np.linalg.norm(new - old, axis=-1).mean(axis=1)
    return found


def _pooling(after: Inside, direction: Vector | None) -> dict[str, Vector]:
    if after.pooled is None or after.supplied is None:
        return {}
    supplied = after.supplied[Part.COPIES]
    square = float(after.pooled @ after.pooled)
    lengths = np.linalg.norm(after.supplied, axis=1)
    found = {
        "pooling_share": supplied @ after.pooled / square,
        "pooling_norm_share": lengths[Part.COPIES] / lengths.sum(),
    }
    if direction is not None:
        found["pooling_toward_mean"] = supplied @ direction / np.sqrt(square)
        found["vector_toward_mean"] = after.pooled @ direction / np.sqrt(square)
    return {name: np.asarray(value, dtype=np.float64) for name, value in found.items()}


def _cosine(left: Vector, right: Vector) -> Vector:
    lengths = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    # A zero state has no direction; count it as unchanged.
    products = (left * right).sum(axis=-1)
    found: Vector = np.divide(products, lengths, out=np.ones_like(products), where=lengths > 0)
    return found


def distances_to_benign(states: Vector, benign: Vector) -> tuple[Vector, Vector]:
    """Return the cosine and Euclidean distances of states to the mean of benign states.

    Args:
        states: states of a token, shape (..., D).
        benign: states of the benign tokens, shape (tokens, ..., D).

    Returns:
        Two arrays, shape (...).
    """
    centre = benign.mean(axis=0)
    return 1 - _cosine(states, centre), np.asarray(np.linalg.norm(states - centre, axis=-1))
