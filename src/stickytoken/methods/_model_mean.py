"""The mean similarity of a model, computed once and then read from a cache in the user's home."""

from __future__ import annotations

from dataclasses import asdict

from stickytoken.cache import keep, recalled
from stickytoken.encoders.mean_similarity import MeanSimilarity, mean_similarity
from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.hashing import digest
from stickytoken.measurement.progress import Progress, ProgressCallback

# Increased when the same model gives another value.
_VERSION = 1


def model_mean(encoder: Encoder, progress: ProgressCallback, most: int | None = None) -> MeanSimilarity:
    """Return u of a model: from the cache, or computed and put there.

    The key is the identity of the model, so a changed model has another. An encoder of texts only may change
    without notice (an object of the user, a server), and is not looked up.

    Args:
        encoder: the model.
        progress: called while u is computed, and when it is found.
        most: see `mean_similarity`.

    Raises:
        EncodingError: no vocabulary entry can be encoded.
    """

    def told(done: int, total: int, computed: int) -> None:
        progress(Progress("mean similarity", done, total, computed, computed))

    key = _key(encoder, most) if reads_ids(encoder) else None
    if key is not None and (known := _read(key)) is not None:
        entries = known.entries + known.left_out
        told(0, entries, 0)
        told(entries, entries, 0)
        return known
    found = mean_similarity(encoder, lambda done, total: told(done, total, done), most=most)
    if key is not None:
        keep(key, found._asdict())
    return found


def _key(encoder: Encoder, most: int | None) -> str:
    key = digest({"version": _VERSION, "encoder": asdict(encoder.identity), "most": most})
    return f"mean-similarity-{key}"


def _read(key: str) -> MeanSimilarity | None:
    try:
        return MeanSimilarity(**(recalled(key) or {}))
    except TypeError:  # none, or of another version: computed again
        return None
