"""Vectors of what conditions read, each distinct input encoded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder
from stickytoken.insertion import Probe
from stickytoken.runs.engines.local import probe_ids


class VectorStore:
    """Encodes what was not encoded before.

    Inputs without copies are kept to the end, since all conditions share them; those with
    copies until the next token, since only repetitions of the same token share them.

    Args:
        encoder: the model.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._kept: dict[Probe, NDArray[np.float32]] = {}
        self._recent: dict[Probe, NDArray[np.float32]] = {}
        self._token: object = None
        self.encoded = 0

    def begin(self, token: object) -> None:
        """Say whose copies come next; those of another token are forgotten."""
        if token != self._token:
            self._recent = {}
            self._token = token

    def of(self, probes: Sequence[Probe], *, keep: bool) -> NDArray[np.float32]:
        """Vectors of inputs in order, shape (n, d).

        Args:
            probes: all texts, or all id tuples.
            keep: whether other tokens' conditions read them too.
        """
        known = self._kept, self._recent
        missing = [each for each in dict.fromkeys(probes) if not any(each in part for part in known)]
        if missing:
            found = self._encoder.encode_ids(probe_ids(self._encoder, missing))
            self.encoded += len(missing)
            (self._kept if keep else self._recent).update(zip(missing, found, strict=True))
        return np.stack([self._kept[each] if each in self._kept else self._recent[each] for each in probes])
