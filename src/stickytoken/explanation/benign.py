"""Benign tokens that a token is compared with. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from stickytoken.errors import InputError
from stickytoken.explanation.settings import LEAST_BENIGN
from stickytoken.insertion import Token
from stickytoken.vocabulary.categories import Vocabulary

# Tokens are drawn from this many times as many nearest ones.
_POOL = 4
# A difference of one character in length weighs as much as this share of the vocabulary in position.
_SHARE_PER_CHARACTER = 0.05
_WORDPIECE_TAIL = "##"


@dataclass(frozen=True, slots=True)
class BenignMatch:
    """Tokens to compare one token with.

    Attributes:
        tokens: drawn among the nearest in length and position.
        same_category: whether they are of its category; false where that has too few.
    """

    tokens: tuple[Token, ...]
    same_category: bool


def match_benign(
    vocabulary: Vocabulary, token_id: int, excluded: Collection[int], count: int, seed: int
) -> BenignMatch:
    """Draw benign tokens like a given one.

    Of the same category, alike in whether they begin a word, and near in length of the text and in position
    in the vocabulary, which for most tokenizers is an order of frequency.

    Args:
        vocabulary: of the model.
        token_id: the token.
        excluded: tokens that are flagged or explained themselves.
        count: how many to draw; fewer where there are fewer.
        seed: the draw is a function of it and the token.

    Raises:
        InputError: there are fewer than three.
    """
    place = vocabulary.ids.index(token_id)
    usable = [
        other
        for other, (entry, category) in enumerate(zip(vocabulary.ids, vocabulary.categories, strict=True))
        if category.available and entry != token_id and entry not in excluded
    ]
    alike = [other for other in usable if vocabulary.categories[other] is vocabulary.categories[place]]
    same = len(alike) >= LEAST_BENIGN
    pool = alike if same else usable
    begins = [other for other in pool if _begins_word(vocabulary, other) == _begins_word(vocabulary, place)]
    pool = begins if len(begins) >= count else pool
    if len(pool) < LEAST_BENIGN:
        raise InputError(
            f"token id {token_id} ({vocabulary.tokens[place]!r}) has {len(pool)} benign tokens to compare "
            f"with, {LEAST_BENIGN} are needed: explain fewer tokens at a time"
        )
    length = len(vocabulary.decoded[place].strip())

    def distance(other: int) -> float:
        lengths = abs(len(vocabulary.decoded[other].strip()) - length)
        return lengths * _SHARE_PER_CHARACTER + abs(other - place) / len(vocabulary)

    nearest = sorted(pool, key=lambda other: (distance(other), other))[: _POOL * count]
    size = min(count, len(nearest))
    drawn = np.random.default_rng([seed, token_id]).choice(len(nearest), size=size, replace=False)
    chosen = [nearest[k] for k in drawn]  # in the order drawn: the first few are no narrower choice
    return BenignMatch(tuple(Token(vocabulary.ids[k], vocabulary.decoded[k]) for k in chosen), same)


def _begins_word(vocabulary: Vocabulary, place: int) -> tuple[bool, bool]:
    tail = vocabulary.tokens[place].startswith(_WORDPIECE_TAIL)
    return tail, vocabulary.decoded[place].startswith(" ")
