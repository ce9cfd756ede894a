"""Rows that keep the effect of one copy, while many copies act like those of an ordinary token.

For many copies, the target of a carrier is (1 - k) carrier + p; see `stickytoken.methods.pull`. k is
an ordinary token's. p is the token's own, as one copy shows it, with an ordinary token's share along the
mean of the texts: that share is what drags every text toward the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stickytoken.methods.panel import Vector
from stickytoken.methods.pull import Pull, fit_pull
from stickytoken.repairs.rows._context import RowContext
from stickytoken.repairs.rows._contexts import Context, contexts_among
from stickytoken.repairs.rows._embedding_table import EmbeddingTable
from stickytoken.repairs.rows._network import Network
from stickytoken.repairs.rows._training import Lesson, train
from stickytoken.unit_vectors import unit_vectors

_ORDINARY = 24
# Texts that show what texts share.
_TEXTS = 256


class _Now(NamedTuple):
    """What entries do with their present rows.

    Attributes:
        before: vectors of the texts, shape (K, d).
        single: vectors with one copy, shape (K, T, d).
        pull: contraction and pull of many copies.
    """

    before: NDArray[np.float32]
    single: NDArray[np.float32]
    pull: Pull


def kept_rows(table: EmbeddingTable, network: Network, context: RowContext) -> np.ndarray:
    """Train the rows of the entries that are repaired, shape (T, D), in the order of the table's pieces."""
    asked = list(table.pieces)
    contexts = contexts_among(network.encoder, context.texts, asked, 1, context.seed)
    now = _measure(network, contexts, asked)
    ordinary = _measure(network, contexts, _ordinary(network, asked, context.seed))
    common = _common(network, context, contexts)
    aim = _aim(now.pull, ordinary.pull, common)
    many = (1 - aim.contraction)[None, :, None] * now.before[:, None, :] + aim.pull[None, :, :]
    wanted = np.stack([now.single, unit_vectors(many)], axis=1).reshape(len(contexts), len(asked), -1)
    lessons = [
        Lesson(each, torch.from_numpy(target.astype(np.float32)).to(network.device))
        for each, target in zip(contexts, wanted, strict=True)
    ]
    start = torch.from_numpy(table.rows[asked]).to(network.device)
    found: np.ndarray = train(network, start, lessons, context.seed, context.progress).cpu().numpy()
    return found


def _ordinary(network: Network, asked: Sequence[int], seed: int) -> list[int]:
    usable = [token_id for token_id in network.encoder.usable_entries() if token_id not in set(asked)]
    drawn: list[int] = np.random.default_rng([seed, 1]).permutation(usable)[:_ORDINARY].tolist()
    return drawn


def _common(network: Network, context: RowContext, contexts: Sequence[Context]) -> Vector:
    """Return the direction that texts share, shape (d,); the contexts alone are too few to show it."""
    encoder = network.encoder
    distinct = list(dict.fromkeys(context.texts))
    order = np.random.default_rng([context.seed, 2]).permutation(len(distinct))
    drawn = encoder.content_ids([distinct[k] for k in order[: 2 * _TEXTS]])
    read = sorted((tuple(ids) for ids in drawn if ids and encoder.fits(ids)), key=len)[:_TEXTS]
    vectors = unit_vectors(encoder.encode_ids([*read, *(each.text.ids for each in contexts[::2])]))
    mean = vectors.mean(axis=0, dtype=np.float64)
    direction: Vector = mean / np.linalg.norm(mean)
    return direction


def _measure(network: Network, contexts: Sequence[Context], ids: Sequence[int]) -> _Now:
    """Encode every context with copies of every entry; contexts come in pairs of one copy and many."""
    encoder = network.encoder
    before = unit_vectors(encoder.encode_ids([each.text.ids for each in contexts[::2]]))
    filled = [each.filled((token_id,)) for each in contexts for token_id in ids]
    after = unit_vectors(encoder.encode_ids(filled)).reshape(len(contexts), len(ids), -1)
    return _Now(before, after[::2], fit_pull(before, after[1::2].transpose(1, 0, 2)))


def _aim(now: Pull, ordinary: Pull, common: Vector) -> Pull:
    """Return what many copies should do."""
    contraction = np.full(len(now.contraction), np.median(ordinary.contraction))
    share = float(np.median(ordinary.pull @ common))
    return Pull(contraction, now.pull + (share - now.pull @ common)[:, None] * common)
