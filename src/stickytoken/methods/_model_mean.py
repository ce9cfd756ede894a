"""The mean similarity of a model, computed once and then read from a cache in the user's home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stickytoken.cache import keep, recalled
from stickytoken.encoders.mean_similarity import MeanSimilarity, mean_similarities
from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.encoders.views import View, Views, only_own, whole_vectors
from stickytoken.hashing import digest
from stickytoken.measurement.progress import Progress, ProgressCallback

# Increased when the same model gives another value.
_VERSION = 1


def model_mean(encoder: Encoder, progress: ProgressCallback, most: int | None = None) -> MeanSimilarity:
    """Return u of a model: from the cache, or computed and put there; see `model_means`."""
    views = only_own(encoder)
    return model_means(encoder, views, [views.own], progress, most)[views.own]


def model_means(
    encoder: Encoder,
    views: Views,
    wanted: Sequence[View],
    progress: ProgressCallback,
    most: int | None = None,
) -> dict[View, MeanSimilarity]:
    """Return u of a model in some views: from the cache, or computed in one pass and put there.

    The key is the identity of the model, so a changed model has another. An encoder of texts only may change
    without notice (an object of the user, a server), and is not looked up.

    Args:
        encoder: the model.
        views: the views of a measurement.
        wanted: the model as it is, and some of the others.
        progress: called while u is computed, and when it is found.
        most: see `mean_similarity`.
    """

    def told(done: int, total: int, computed: int) -> None:
        progress(Progress("mean similarity", done, total, computed, computed))

    keys: dict[View, str] = {}
    if reads_ids(encoder):
        identity = asdict(encoder.identity)
        keys = {view: _key(identity, most, None if view == views.own else view) for view in wanted}
    known = {view: found for view, key in keys.items() if (found := _read(key)) is not None}
    missing = [view for view in wanted if view not in known]
    if not missing:
        entries = known[wanted[0]].entries + known[wanted[0]].left_out
        told(0, entries, 0)
        told(entries, entries, 0)
        return {view: known[view] for view in wanted}
    computed = mean_similarities(
        _reading(encoder, views, missing), missing, lambda done, total: told(done, total, done), most=most
    )
    for view, u in zip(missing, computed, strict=True):
        known[view] = u
        if view in keys:
            keep(keys[view], u._asdict())
    return {view: known[view] for view in wanted}


def _reading(encoder: Encoder, views: Views, missing: Sequence[View]) -> Encoder:
    """Return the model itself where its own vectors are all that is needed."""
    return encoder if list(missing) == [views.own] else whole_vectors(encoder, views.layers)


def _key(identity: dict[str, Any], most: int | None, view: View | None) -> str:
    parts = {"version": _VERSION, "encoder": identity, "most": most}
    if view is not None:
        parts |= {"layer": view.layer, "dimension": view.dimension}
    return f"mean-similarity-{digest(parts)}"


def _read(key: str) -> MeanSimilarity | None:
    try:
        return MeanSimilarity(**(recalled(key) or {}))
    except TypeError:  # none, or of another version: computed again
        return None
