"""Random placement: draw the gaps between words for the copies of a token.

A path lists a gap for each copy: the number of words before it, counting words of earlier copies. A `Walk`
draws the paths of a token, one for each carrier.

The gaps are drawn as in the published runs, or separately for each token. The published code drew all gaps
from a single random stream, ``random.Random(42)``: first the gaps for scoring, for each token in order of id,
then the gaps for validation, for each candidate in descending order of score. The gaps of the published runs
therefore depend only on the seed, the vocabulary, the carriers and the order of the candidates, and can be
reproduced without encoding a text.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from stickytoken.insertion import Insertion, Token, draw_path
from stickytoken.methods import probes
from stickytoken.settings.std import StdSettings

TIE = 1e-5
"""Scores that differ by less than this are ties, because float32 vectors are not exact enough to order them.
Our scores differ from the published scores by less than this. In the published files, candidates whose scores
differ by less are in order of id.
"""


@dataclass(frozen=True)
class Walk:
    """Draws the gaps for the copies of a token in the published order, by carrier and then by copy.

    Attributes:
        word_counts: number of words in each carrier.
        copies: number of copies in each carrier.
        insertion: how copies are inserted into a text.
    """

    word_counts: tuple[int, ...]
    copies: int
    insertion: Insertion = Insertion.TEXT

    @classmethod
    def in_carriers(cls, carriers: Sequence[probes.Carrier], settings: StdSettings) -> Walk:
        """Return a walk that draws gaps in these carriers for as many copies as the settings say."""
        word_counts = tuple(probes.word_count(carrier) for carrier in carriers)
        return cls(word_counts, settings.copies, settings.inserted_as)

    def paths(self, stream: random.Random, token: Token) -> tuple[probes.GapPath, ...]:
        """Draw the path of the token's copies in each carrier, from a random stream."""
        draw = partial(stream.randint, 0)  # from 0 to its argument, as the published code draws
        words_per_copy = probes.words_added(token, self.insertion)
        return tuple(
            draw_path(draw, word_count, self.copies, words_per_copy) for word_count in self.word_counts
        )


def walk_vocabulary(
    seed: int, vocabulary: Iterable[Token], tokens: Iterable[Token], walk: Walk
) -> dict[int, tuple[probes.GapPath, ...]]:
    """Draw the gaps for scoring, token by token from one random stream, as in the published runs.

    Args:
        seed: seed of the random stream.
        vocabulary: all available tokens, in order of id. The gaps for a token depend on all earlier tokens,
            because each of them consumes random numbers.
        tokens: the tokens for which paths are returned.
        walk: draws the gaps for the copies of a token.

    Returns:
        One path per carrier for each of ``tokens``, keyed by token id.
    """
    stream = random.Random(seed)
    token_ids = {token.id for token in tokens}
    last_id = max(token_ids, default=-1)
    paths: dict[int, tuple[probes.GapPath, ...]] = {}
    for token in vocabulary:
        if token.id > last_id:
            break
        paths_of_token = walk.paths(stream, token)  # drawn for every token, to consume the random numbers
        if token.id in token_ids:
            paths[token.id] = paths_of_token
    return paths


def walk_candidates(
    seed: int, vocabulary: Iterable[Token], scoring: Walk, candidates: Iterable[Token], validation: Walk
) -> dict[int, tuple[probes.GapPath, ...]]:
    """Draw the gaps of the copies for validation as in the published runs.

    The published runs drew the gaps for scoring and then the gaps for validation from a single random stream.
    The draws for scoring are therefore repeated before the gaps for validation are drawn.

    Args:
        seed: seed of the random stream.
        vocabulary: all available tokens, in order of id.
        scoring: draws the gaps for the copies of a token in the carriers of the scoring pairs.
        candidates: the candidates, in the order they are validated.
        validation: draws the gaps for the copies of a candidate in the carriers of the validation pairs.

    Returns:
        One path per carrier of the validation pairs for each candidate, keyed by token id.
    """
    stream = random.Random(seed)
    for token in vocabulary:
        scoring.paths(stream, token)  # consume the random numbers that scoring used
    return {token.id: validation.paths(stream, token) for token in candidates}


def validation_order(scores: Mapping[int, float]) -> list[int]:
    """Return the token ids in descending order of score.

    Neighbours in this order whose scores differ by at most `TIE` are tied. Tied tokens are in order of id.
    """
    best_first = sorted(scores, key=lambda token_id: -scores[token_id])
    ids = np.array(best_first, dtype=np.int64)
    descending_scores = np.array([scores[token_id] for token_id in best_first], dtype=np.float64)
    # Tied scores form a group. A new group begins where the score drops by more than TIE. The first score
    # drops from infinity.
    drops = -np.diff(descending_scores, prepend=np.inf)
    groups = np.cumsum(drops > TIE)  # the number of each token's group
    by_group_then_id = np.lexsort((ids, groups))  # the last key of `lexsort` counts most
    in_order: list[int] = ids[by_group_then_id].tolist()
    return in_order


# Key of the random generators, which makes the gaps independent of other draws.
_GAPS_KEY = 1


@dataclass(frozen=True)
class PathsByToken:
    """Draws the gaps of copies for validation, independently of the order in which tokens are validated.

    The gaps depend only on the seed, the token id and the index of the carrier.

    Attributes:
        seed: seed of the run.
        word_counts: number of words in each carrier.
        copies: number of copies in each carrier.
        insertion: how copies are inserted into a text.
    """

    seed: int
    word_counts: tuple[int, ...]
    copies: int
    insertion: Insertion = Insertion.TEXT

    def of(self, token: Token) -> list[probes.GapPath]:
        """Return the path of the token's copies in each carrier."""
        words_per_copy = probes.words_added(token, self.insertion)
        paths = []
        for index, word_count in enumerate(self.word_counts):
            generator = np.random.default_rng([self.seed, _GAPS_KEY, token.id, index])
            draw = partial(generator.integers, endpoint=True)  # from 0 to its argument, included
            paths.append(draw_path(draw, word_count, self.copies, words_per_copy))
        return paths
