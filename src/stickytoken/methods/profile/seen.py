"""Anchors and carriers of a plan in every view of the vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.mean_similarity import MeanSimilarity
from stickytoken.encoders.protocol import Encoder
from stickytoken.encoders.views import View
from stickytoken.errors import InputError
from stickytoken.methods.panel import AnchorPanel
from stickytoken.methods.profile.record import ViewRecord

# Smallest share of the anchors that must lie below the mean similarity for each carrier.
_LEAST_BELOW = 0.02
_NO_SPREAD = 1e-5


class Seen(NamedTuple):
    """Anchors in one view."""

    view: View
    panel: AnchorPanel
    mean_similarity: float


def seen_anchors(
    vectors: NDArray[np.float32],
    places: NDArray[np.intp],
    weights: NDArray[np.float64],
    means: Mapping[View, MeanSimilarity],
) -> list[Seen]:
    """Return the anchors in every view.

    Args:
        vectors: of `whole_vectors`, shape (A, any).
        places: group of each anchor, shape (A,).
        weights: of the groups.
        means: u by view.
    """
    return [
        Seen(view, AnchorPanel(view.units(vectors), places, weights), u.value) for view, u in means.items()
    ]


def usable_carriers(
    encoder: Encoder, texts: Sequence[str], seen: Sequence[Seen], needed: int, source: str
) -> tuple[list[str], list[NDArray[np.float32]]]:
    """Choose the first carriers that have enough unrelated anchors in all views.

    Args:
        encoder: from `whole_vectors`.
        texts: to choose from.
        seen: the anchors in every view.
        needed: number of carriers.
        source: where the texts come from, for messages.

    Returns:
        The carriers, and for every view their similarities to the anchors.

    Raises:
        InputError: there are too few, or the model does not tell the sentences apart.
    """
    vectors = encoder.encode(texts)
    every = [view.units(vectors) @ panel.vectors.T for view, panel, _ in seen]
    for (view, panel, _), before in zip(seen, every, strict=True):
        if before[:, panel.weights > 0].std() < _NO_SPREAD:
            raise InputError(
                f"{encoder.name} gives all sentences of {source} the same similarity "
                f"({before.mean():.4f}{_where(seen, view)}): there is nothing that a token could move"
            )
    usable = np.ones(len(texts), dtype=np.bool_)
    for (view, panel, u), before in zip(seen, every, strict=True):
        usable &= (before < u) @ panel.weights >= _LEAST_BELOW
        if usable.sum() < needed:
            raise InputError(
                f"only {usable.sum()} of {len(texts)} carriers from {source} have a similarity below the "
                f"model's mean {u:.4f} to some anchors{_where(seen, view)}, {needed} are needed: "
                "use sentences on more varied subjects or, if the model finds all texts more similar than "
                "single words, load it with the prompt and pooling that it was trained with"
            )
    first = np.flatnonzero(usable)[:needed]
    return [texts[k] for k in first], [before[first] for before in every]


def _where(seen: Sequence[Seen], view: View) -> str:
    """Name a view in a message, if there are several."""
    return f" at {view}" if len(seen) > 1 else ""


def view_record(seen: Seen, u: MeanSimilarity, before: NDArray[np.float32]) -> ViewRecord:
    """Describe a view for plan.json.

    Args:
        seen: anchors in it.
        u: mean similarity in it.
        before: similarities of the carriers to the anchors, shape (K, A).
    """
    view, panel, _ = seen
    return ViewRecord(
        dimension=view.dimension,
        layer=view.layer,
        mean_similarity=u.value,
        mean_similarity_entries=u.entries,
        mean_similarity_error=u.error,
        similarity_spread=spread_of(before, panel.weights),
        share_below=float(((before < u.value) @ panel.weights).mean()),
        spreads=[group_spread(before[:, panel.groups == k]) for k in range(len(panel.group_weights))],
    )


def group_spread(before: NDArray[np.float32]) -> float:
    """Standard deviation of similarities to the anchors of one group."""
    return spread_of(before, np.full(before.shape[1], 1 / before.shape[1]))


def spread_of(before: NDArray[np.float32], weights: NDArray[np.float64]) -> float:
    """Standard deviation of similarities, weighted by anchor."""
    mean = float((before @ weights).mean())
    return float(np.sqrt((((before - mean) ** 2) @ weights).mean()))
