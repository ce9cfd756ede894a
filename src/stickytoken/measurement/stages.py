"""Stages say what to encode for a token and what to compute; `TokenWork` measures tokens with a stage."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, quote_text
from stickytoken.errors import EncodingError
from stickytoken.insertion import Probe, Token
from stickytoken.machine import Precision
from stickytoken.measurement.engine import Shard
from stickytoken.measurement.texts import encode_probes, tokenize_probes

RowValue: TypeAlias = float | str | list[float] | list[int] | NDArray[np.floating[Any]]
"""A value in a row of a stage: a number, a text, or several numbers."""

# Column of a shard. It has, for each token, a text that a server gave no vector for, or null if there is no
# such text. The column is absent if it would have only nulls.
UNANSWERED = "unanswered"


class Stage(Protocol):
    """Says which texts to encode for each token, and what to compute from their vectors.

    A stage does not encode anything itself.
    """

    @property
    def name(self) -> str:
        """Name of the stage and its shards."""

    @property
    def probes_per_token(self) -> int:
        """Maximum number of texts that are encoded for a token."""

    def probes(self, token: Token) -> Sequence[Probe]:
        """Return the inputs to encode for a token, either all as texts or all as tuples of token ids."""

    def measure(
        self, tokens: Sequence[Token], vectors: NDArray[np.float32]
    ) -> Sequence[Mapping[str, RowValue]]:
        """Compute a row for each token from the vectors of all probes, token by token, shape (probes, d)."""


# The number of shards is rounded up to a multiple of this number, so that one, two or four workers get equal
# numbers of shards.
_SHARD_MULTIPLE = 4
# The number of shards is not rounded up if shards would then be smaller than this fraction of the requested
# size.
_LEAST_SHARD = 1 / 8


def cut_into_shards(tokens: Sequence[Token], probes_per_token: int, shard_probes: int) -> list[Shard[Token]]:
    """Divide tokens into shards (groups that are computed and saved together) of nearly equal size.

    A shard has at most ``shard_probes`` probes (texts to encode) if possible. The number of shards is rounded
    up to a multiple of `_SHARD_MULTIPLE`, so that workers get equal numbers of shards, unless shards would
    then have fewer than an eighth of ``shard_probes`` probes.
    """
    probes_per_token = max(1, probes_per_token)  # a stage may need no probes
    tokens_per_shard = max(1, shard_probes // probes_per_token)
    shard_count = math.ceil(len(tokens) / tokens_per_shard)
    rounded_count = math.ceil(shard_count / _SHARD_MULTIPLE) * _SHARD_MULTIPLE
    least_probes = rounded_count * shard_probes * _LEAST_SHARD
    if rounded_count <= len(tokens) and len(tokens) * probes_per_token >= least_probes:
        shard_count = rounded_count
    # A shard has the tokens from one boundary to the next. Without tokens, there is one boundary and no
    # shard.
    boundaries = [len(tokens) * index // max(1, shard_count) for index in range(shard_count + 1)]
    return [
        Shard(index, tuple(tokens[start:stop]))
        for index, (start, stop) in enumerate(itertools.pairwise(boundaries))
    ]


@dataclass(frozen=True, slots=True)
class _PreparedTokens:
    """The probes of a shard's tokens, token by token.

    Attributes:
        tokens: the T tokens of the shard.
        probe_counts: number of probes of each token, shape (T,).
        probes: the P probes of all tokens, as token ids, or as texts if the encoder reads only texts.
        copies_seen: for each token, the number of copies that the tokenizer recognizes in each probe; None if
            they are not counted.
    """

    tokens: Sequence[Token]
    probe_counts: Sequence[int]
    probes: Sequence[Probe]
    copies_seen: Sequence[list[int]] | None


@dataclass(frozen=True, slots=True)
class TokenWork:
    """The work of measuring tokens with a stage.

    Attributes:
        stage: defines which texts to encode, and what to compute from their vectors.
        precision: precision to run the model in; if None, the model's own precision.
        truncate: whether texts that are too long for the model are truncated, as the model itself would do.
        carrier_texts: the texts of a token's probes, in order, without the copies. If this is not empty, the
            copies that the tokenizer recognizes in each probe are counted: the tokenizer may split a copy, or
            merge a copy with its neighbours.
    """

    stage: Stage
    precision: Precision | None = None
    truncate: bool = False
    carrier_texts: Sequence[str] = ()
    unit = "tokens"
    key_column = "token_id"

    @property
    def name(self) -> str:
        return self.stage.name

    def keys(self, shard: Shard[Token]) -> list[int]:
        return [token.id for token in shard.items]

    def prepare(self, shard: Shard[Token], encoder: Encoder) -> _PreparedTokens:
        """Return the probes of a shard, and the numbers of recognized copies if they are counted.

        The probes are tokenized if the encoder reads token ids.
        """
        tokens = shard.items
        probes_by_token = [self.stage.probes(token) for token in tokens]
        probes = [probe for probes_of_token in probes_by_token for probe in probes_of_token]
        copies_seen = None
        if self.carrier_texts:
            copies_seen = _count_copies_seen(encoder, tokens, probes, self.carrier_texts)
        return _PreparedTokens(
            tokens=tokens,
            probe_counts=[len(probes_of_token) for probes_of_token in probes_by_token],
            probes=tokenize_probes(encoder, probes, self.truncate),
            copies_seen=copies_seen,
        )

    def compute(self, prepared: _PreparedTokens, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Encode the probes of a shard, and measure its tokens with the stage.

        Returns:
            One row per token, and the number of probes. A row has the column ``token_id`` and the columns of
            the stage. If copies are counted, a row also has the column ``seen``, with the number of
            recognized copies in each probe. If a server gave no vector for at least one probe of the shard,
            all rows have the column `UNANSWERED`.
        """
        tokens = prepared.tokens
        vectors = encode_probes(encoder, prepared.probes, self.precision)
        unanswered_texts = _fill_unanswered(vectors, prepared, encoder.name)
        measurements = self.stage.measure(tokens, vectors)
        rows: list[dict[str, Any]] = [
            {"token_id": token.id, **measurement}
            for token, measurement in zip(tokens, measurements, strict=True)
        ]
        if prepared.copies_seen is not None:
            for row, copies in zip(rows, prepared.copies_seen, strict=True):
                row["seen"] = copies
        if unanswered_texts:
            for token_index, row in enumerate(rows):
                row[UNANSWERED] = unanswered_texts.get(token_index)
        return rows, len(prepared.probes)


def _count_copies_seen(
    encoder: Encoder, tokens: Sequence[Token], probes: Sequence[Probe], carrier_texts: Sequence[str]
) -> list[list[int]]:
    """Return, for each token, how many copies of it the tokenizer recognizes in each carrier text.

    ``probes`` has the carrier texts with copies: first all with copies of the first token, and so on.
    """
    ids_of_carriers = encoder.content_ids(carrier_texts)
    # Tokenizing all probes at once is faster than token by token. All probes are texts; the condition is for
    # mypy.
    ids_of_probes = encoder.content_ids([probe for probe in probes if isinstance(probe, str)])
    copies_by_token = []
    for token_index, token in enumerate(tokens):
        first_probe = token_index * len(ids_of_carriers)
        ids_of_own_probes = ids_of_probes[first_probe : first_probe + len(ids_of_carriers)]
        copies = []
        for ids_without, ids_with in zip(ids_of_carriers, ids_of_own_probes, strict=True):
            # The difference is below 0 if a copy merges with an occurrence of the token in the carrier
            # itself.
            copies.append(max(0, ids_with.count(token.id) - ids_without.count(token.id)))
        copies_by_token.append(copies)
    return copies_by_token


def _fill_unanswered(vectors: NDArray[np.float32], prepared: _PreparedTokens, name: str) -> dict[int, str]:
    """Replace vectors that a server did not return, so that methods need not handle missing vectors.

    If the vector of a token's n-th probe is missing, the mean over the other tokens' n-th probes takes its
    place. The results of tokens with a missing vector are removed later; see `Runner.unanswered`.

    Returns:
        For each token with a missing vector, its first text for which the server gave no vector. The texts
        are keyed by the token's index in the shard.

    Raises:
        EncodingError: the vector of the same probe is missing for all tokens of the shard.
    """
    is_missing = np.isnan(vectors[:, 0])  # all components of a missing vector are NaN
    unanswered_texts: dict[int, str] = {}
    if not is_missing.any():
        return unanswered_texts
    # For each vector: the index of its token, and the number n of its probe among the token's probes.
    token_indices = np.repeat(np.arange(len(prepared.probe_counts)), prepared.probe_counts)
    probe_numbers = np.concatenate([np.arange(count) for count in prepared.probe_counts])
    for row in np.flatnonzero(is_missing).tolist():
        text = str(prepared.probes[row])
        unanswered_texts.setdefault(int(token_indices[row]), text)  # keeps the first text of a token
        same_probe = vectors[(probe_numbers == probe_numbers[row]) & ~is_missing]
        if not len(same_probe):
            raise EncodingError(
                f"{name}: the server gives no vector for the text {quote_text(text)}, nor for this text "
                "with other tokens: leave the token out, or use shorter sentences or fewer copies"
            )
        vectors[row] = same_probe.mean(axis=0)
    return unanswered_texts
