"""Encode texts, shard by shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import (
    Encoder,
    content_limit,
    quote_text,
    reads_ids,
    require_ids,
    require_usable,
)
from stickytoken.encoders.roles import Role, in_role
from stickytoken.errors import EncodingError
from stickytoken.insertion import Probe
from stickytoken.machine import Precision
from stickytoken.measurement.engine import Shard


def tokenize_probes(encoder: Encoder, probes: Sequence[Probe], truncate: bool = False) -> Sequence[Probe]:
    """Return the probes as token ids if the encoder reads token ids; otherwise, return the probes unchanged.

    Args:
        encoder: the model.
        probes: inputs of the model, either all as texts or all as tuples of token ids.
        truncate: whether to truncate texts to the model's limit.
    """
    texts = [probe for probe in probes if isinstance(probe, str)]
    if not texts or not reads_ids(encoder):
        return probes
    limit = content_limit(encoder) if truncate else None
    return [tuple(ids[:limit]) for ids in encoder.content_ids(texts)]


def encode_probes(
    encoder: Encoder, probes: Sequence[Probe], precision: Precision | None = None
) -> NDArray[np.float32]:
    """Encode probes, and return their vectors, shape (P, d).

    If a server does not encode a text, the row of the text is NaN.

    Args:
        encoder: the model.
        probes: P inputs of the model, either all as texts or all as tuples of token ids.
        precision: precision to run the model in, which requires that the probes are token ids; if None, the
            model's own precision.
    """
    texts = [probe for probe in probes if isinstance(probe, str)]
    if texts and precision is None:
        # `allow_zero` is set to allow rows of NaN. It also allows zero vectors, which are refused here.
        vectors = encoder.encode(texts, allow_zero=True)
        answered = np.flatnonzero(~np.isnan(vectors).any(axis=1)).tolist()

        def quote_answered(row: int) -> str:
            return quote_text(texts[answered[row]])

        require_usable(vectors[answered], encoder.name, quote_answered, allow_zero=False)
        return vectors
    ids = [probe for probe in probes if not isinstance(probe, str)]
    return require_ids(encoder, "insertion 'ids' or a lower precision").at(precision).encode_ids(ids)


# Number of texts per shard. Encoding as many documents takes about 10 seconds on one core.
_SHARD_TEXTS = 128
# A text, with its index in the sequence of all texts.
_NumberedProbe: TypeAlias = tuple[int, Probe]


@dataclass(frozen=True, slots=True)
class TextWork:
    """Encodes texts of a role. The result has one row per text, with the text's index and vector."""

    name: str
    role: Role
    unit = "texts"
    key_column = "text"

    def keys(self, shard: Shard[_NumberedProbe]) -> list[int]:
        return [index for index, _ in shard.items]

    def prepare(self, shard: Shard[_NumberedProbe], encoder: Encoder) -> tuple[list[int], Sequence[Probe]]:
        """Return the indices of the texts and the texts, as token ids if the encoder reads token ids."""
        probes = [probe for _, probe in shard.items]
        return self.keys(shard), tokenize_probes(in_role(encoder, self.role), probes)

    def compute(
        self, prepared: tuple[list[int], Sequence[Probe]], encoder: Encoder
    ) -> tuple[list[dict[str, Any]], int]:
        """Return a row with the index and the vector of each text, and the number of texts."""
        indices, probes = prepared
        vectors = encode_probes(in_role(encoder, self.role), probes)
        unanswered = np.flatnonzero(np.isnan(vectors[:, 0]))  # all components of a missing vector are NaN
        if len(unanswered):
            text = quote_text(str(probes[unanswered[0]]))
            raise EncodingError(f"{encoder.name}: the server gives no vector for the text {text}")
        rows = [
            {self.key_column: index, "vector": vector} for index, vector in zip(indices, vectors, strict=True)
        ]
        return rows, len(rows)


def cut_texts_into_shards(probes: Sequence[Probe]) -> list[Shard[_NumberedProbe]]:
    """Divide texts into shards of up to `_SHARD_TEXTS`."""
    numbered_probes = list(enumerate(probes))
    return [
        Shard(index, tuple(numbered_probes[first : first + _SHARD_TEXTS]))
        for index, first in enumerate(range(0, len(probes), _SHARD_TEXTS))
    ]
