"""The mean similarity of a model, computed once and then read from a cache in the user's home."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from stickytoken.encoders.mean_similarity import MeanSimilarity, mean_similarity
from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.errors import RunError
from stickytoken.hashing import digest
from stickytoken.measurement.atomic import make_folder, write_atomically
from stickytoken.measurement.progress import Progress, ProgressCallback

_LOG = logging.getLogger("stickytoken")
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

    path = _file(encoder, most) if reads_ids(encoder) else None
    if path is not None and (known := _read(path)) is not None:
        entries = known.entries + known.left_out
        told(0, entries, 0)
        told(entries, entries, 0)
        return known
    found = mean_similarity(encoder, lambda done, total: told(done, total, done), most=most)
    if path is not None:
        _write(path, found)
    return found


def cache_folder() -> Path:
    """Return $STICKYTOKEN_CACHE, or else stickytoken in the user's cache folder."""
    if own := os.environ.get("STICKYTOKEN_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stickytoken"


def _file(encoder: Encoder, most: int | None) -> Path:
    key = digest({"version": _VERSION, "encoder": asdict(encoder.identity), "most": most})
    return cache_folder() / f"mean-similarity-{key}.json"


def _read(path: Path) -> MeanSimilarity | None:
    try:
        known = MeanSimilarity(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # none, or damaged: computed again
        return None
    return known


def _write(path: Path, found: MeanSimilarity) -> None:
    """Keep the value; a cache that cannot be written costs time, and is no error."""

    def write(stream: BinaryIO) -> None:
        stream.write(json.dumps(found._asdict()).encode())

    try:
        make_folder(path.parent)
        write_atomically(path, write)
    except RunError as error:
        _LOG.info("u is not cached: %s", error)
