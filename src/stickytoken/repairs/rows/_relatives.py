"""Rows from entries with similar spelling: inflections, derivations, other spellings of the same word.

What an entry means shows in its relatives ("contracts", "contractual" for "contract") more than in its pieces
("contra", "##ct"), which text never put next to each other. How much each counts is fitted to ordinary
entries, whose rows are known. Guessing the vector of a word from vectors of words that share substrings with
it is the idea of Zhao, Mudgal and Liang, "Generalizing Word Embeddings using Bag of Subwords" (2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stickytoken.errors import RepairError
from stickytoken.repairs.rows._embedding_table import EmbeddingTable
from stickytoken.repairs.rows._pieces import pieces_of

_RELATIVES = 10
_SAMPLE = 400
_GRAMS = (2, 5)
# Entries compared at a time: one row of similarities per entry is as long as the vocabulary.
_AT_ONCE = 64
_BEGINS, _ENDS = "<", ">"


class _Guess(NamedTuple):
    """What two sources say about entries, as deviations from the mean row.

    Attributes:
        relatives: of the entries that are spelled alike; zero where there are none, shape (n, D).
        pieces: of their pieces; zero where there are none, shape (n, D).
    """

    relatives: NDArray[np.float32]
    pieces: NDArray[np.float32]


def related_rows(table: EmbeddingTable, seed: int) -> dict[int, NDArray[np.float32]]:
    """Estimate the rows of repaired entries from their relatives and pieces.

    Args:
        table: the matrix, with the entries and their pieces.
        seed: seed of the sample of ordinary entries.
    """
    asked = list(table.pieces)
    spelled = _spelled(table, asked)
    pool = np.array([token_id for token_id in spelled if token_id not in table.avoided])
    if not len(pool):
        raise RepairError("no other entry of the vocabulary contains a letter: use pieces or keep-meaning")
    mean = table.rows[pool].mean(axis=0)
    length = float(np.median(np.linalg.norm(table.rows[pool] - mean, axis=1)))
    drawn = np.random.default_rng([seed]).permutation(pool)[:_SAMPLE].tolist()
    sampled, wanted = (
        _guesses(table, spelled, pool, ids, pieces, mean)
        for ids, pieces in (
            (drawn, pieces_of(table.backend, [*drawn, *table.avoided])),
            (asked, table.pieces),
        )
    )
    weights = _weights(sampled, table.rows[drawn] - mean)
    found = {}
    for token_id, relatives, pieces in zip(asked, wanted.relatives, wanted.pieces, strict=True):
        deviation = weights[0] * relatives + weights[1] * pieces
        size = float(np.linalg.norm(deviation))
        if size == 0:
            raise RepairError(
                f"{table.shown(token_id)} has no pieces, and no entry has a similar spelling: use "
                "keep-meaning, or leave it out"
            )
        # A weighted mean is shorter than a row, and so says less.
        found[token_id] = (mean + deviation * (length / size)).astype(np.float32)
    return found


def _spelled(table: EmbeddingTable, asked: Sequence[int]) -> dict[int, str]:
    """Return the spelling of the asked entries and of all others that hold a letter, by id.

    Case is ignored. Marks at both ends tell the beginning of a word from its continuation.
    """
    added = set(table.backend.get_added_tokens_decoder())
    ids = [
        token_id
        for token_id in sorted(table.backend.get_vocab().values())
        if token_id < len(table.rows) and token_id not in added
    ]
    found = {}
    wanted = set(asked)
    for token_id in [*ids, *(wanted & added)]:
        name = table.backend.id_to_token(token_id) or ""
        text = table.backend.decode([token_id], skip_special_tokens=False).removeprefix("##").strip().lower()
        if token_id in wanted or any(character.isalpha() for character in text):
            found[token_id] = f"{'' if name.startswith('##') else _BEGINS}{text}{_ENDS}"
    return found


def _guesses(
    table: EmbeddingTable,
    spelled: dict[int, str],
    pool: NDArray[np.intp],
    ids: Sequence[int],
    pieces: dict[int, tuple[int, ...]],
    mean: NDArray[np.float32],
) -> _Guess:
    from_relatives = np.zeros((len(ids), len(mean)), dtype=np.float32)
    from_pieces = np.zeros_like(from_relatives)
    for row, (others, weights) in enumerate(_relatives(spelled, pool, ids)):
        if len(others):
            from_relatives[row] = weights @ (table.rows[others] - mean)
    for row, token_id in enumerate(ids):
        if pieces[token_id]:
            from_pieces[row] = table.mean_of_pieces(pieces[token_id]) - mean
    return _Guess(from_relatives, from_pieces)


def _relatives(
    spelled: dict[int, str], pool: NDArray[np.intp], ids: Sequence[int]
) -> list[tuple[NDArray[np.intp], NDArray[np.float32]]]:
    """Find the entries of the pool that are spelled most like each id, with weights that sum to 1."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    reader = TfidfVectorizer(analyzer="char", ngram_range=_GRAMS, lowercase=False, dtype=np.float32)
    known = reader.fit_transform([spelled[token_id] for token_id in pool.tolist()])
    places = {token_id: place for place, token_id in enumerate(pool.tolist())}
    found = []
    for begin in range(0, len(ids), _AT_ONCE):
        some = ids[begin : begin + _AT_ONCE]
        alike = (reader.transform([spelled[token_id] for token_id in some]) @ known.T).toarray()
        for token_id, row in zip(some, alike, strict=True):
            if token_id in places:
                row[places[token_id]] = 0
            nearest = np.argsort(-row, kind="stable")[:_RELATIVES]
            weights = row[nearest] ** 2
            total = weights.sum()
            found.append((pool[nearest], weights / total) if total else (pool[:0], weights[:0]))
    return found


def _weights(guess: _Guess, truth: NDArray[np.float32]) -> tuple[float, float]:
    """Fit how much relatives and pieces count, neither of them negatively."""
    from scipy.optimize import nnls

    both = guess.relatives.any(axis=1) & guess.pieces.any(axis=1)
    if not both.any():
        return 1.0, 1.0
    sources = np.stack([each[both].ravel() for each in guess], axis=1).astype(np.float64)
    fitted = nnls(sources, truth[both].ravel().astype(np.float64))[0]
    return float(fitted[0]), float(fitted[1])
