"""Random placement: the gaps into which the copies of a token go, as in the published runs or by token.

The published code drew all gaps from one ``random.Random(42)``: first for scoring, token by token in order of
id, then for validation, candidate by candidate in descending order of score. The gaps therefore follow from
the seed, the vocabulary, the carriers and the order of the candidates; walking the stream encodes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stickytoken.insertion import Insertion, Token
from stickytoken.methods import probes

TIE = 1e-5
"""Scores closer than this are tied: float32 vectors do not order them. Ours agree with the published ones to
this, and the two published candidates that are closer stand in the order of their ids."""


@dataclass(frozen=True)
class Walk:
    """How the published code draws gaps for one token: every carrier in order, every number of copies."""

    words: tuple[int, ...]  # number of words in each carrier
    copies: int
    insertion: Insertion = Insertion.TEXT

    def paths(self, stream: random.Random, token: Token) -> tuple[probes.Path, ...]:
        added = probes.words_added(token, self.insertion)
        return tuple(
            tuple(stream.randint(0, start + step * added) for step in range(self.copies))
            for start in self.words
        )


def walk_vocabulary(
    seed: int, vocabulary: Iterable[Token], wanted: Iterable[Token], walk: Walk
) -> dict[int, tuple[probes.Path, ...]]:
    """Replay the stream of scoring; return the paths of the wanted tokens, one per carrier, by token id."""
    stream = random.Random(seed)
    wanted_ids = {token.id for token in wanted}
    last = max(wanted_ids, default=-1)
    paths: dict[int, tuple[probes.Path, ...]] = {}
    for token in vocabulary:
        if token.id > last:
            break
        drawn = walk.paths(stream, token)
        if token.id in wanted_ids:
            paths[token.id] = drawn
    return paths


def walk_candidates(
    seed: int, vocabulary: Iterable[Token], scoring: Walk, candidates: Iterable[Token], validation: Walk
) -> dict[int, tuple[probes.Path, ...]]:
    """Replay the stream of scoring and then of validation; return the paths of all candidates by token id.

    Args:
        seed: of the stream.
        vocabulary: all available tokens, in order of id.
        scoring: how their gaps were drawn.
        candidates: in the order in which they are validated.
        validation: how their gaps are drawn.
    """
    stream = random.Random(seed)
    for token in vocabulary:
        scoring.paths(stream, token)
    return {token.id: validation.paths(stream, token) for token in candidates}


def validation_order(scores: Mapping[int, float]) -> list[int]:
    """Order token ids by descending score, and by ascending id where scores are tied."""
    ids = np.array(sorted(scores), dtype=np.int64)
    values = np.array([scores[token_id] for token_id in ids.tolist()], dtype=np.float64)
    by_score = np.argsort(-values, kind="stable")
    # A new group begins where a score is below the one before it by more than a tie.
    groups = np.cumsum(np.append(0, -np.diff(values[by_score]) > TIE))[: len(ids)]
    in_order: list[int] = ids[by_score][np.lexsort((ids[by_score], groups))].tolist()
    return in_order


def paths_by_token(seed: int, words: Sequence[int], copies: int, insertion: Insertion) -> probes.KeyedPaths:
    """Draw the gaps of validation from a generator keyed by seed, token and pair, in whatever order."""
    return probes.KeyedPaths(seed, 1, tuple(words), copies, insertion)
