"""Benign tokens that a token is compared with. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from stickytoken.errors import InputError
from stickytoken.insertion import Token
from stickytoken.vocabulary.categories import Vocabulary

# A comparison needs at least so many.
LEAST_BENIGN = 3
# So many are drawn at a time: whoever asks for fewer gets the first of the same ones.
_BLOCK = 16
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

    They are of the same category, alike in whether they begin a word, and near in length of the text and in
    position in the vocabulary, which for most tokenizers is an order of frequency. The first of them are the
    same for every ``count``.

    Args:
        vocabulary: of the model.
        token_id: the token.
        excluded: ids that may not serve, such as flagged tokens.
        count: how many to draw; fewer where there are fewer.
        seed: the draw is a function of it and the token.

    Raises:
        InputError: there are fewer than three.
    """
    place = vocabulary.place(token_id)
    drawn = _drawn(vocabulary, place, excluded, count, seed)[:count]
    if len(drawn) < LEAST_BENIGN:
        raise InputError(
            f"token id {token_id} ({vocabulary.tokens[place]!r}) has {len(drawn)} benign tokens to compare "
            f"with, but {LEAST_BENIGN} are needed: name fewer tokens at a time"
        )
    categories = {vocabulary.categories[k] for k in drawn}
    return BenignMatch(
        tuple(Token(vocabulary.ids[k], vocabulary.decoded[k]) for k in drawn),
        categories == {vocabulary.categories[place]},
    )


def match_apart(
    vocabulary: Vocabulary, token_ids: Sequence[int], excluded: Collection[int], each: int, seed: int
) -> list[Token]:
    """Draw ``each`` benign tokens for every token, none of them twice.

    Each is the first of the token's own matches, as `match_benign` draws them, that no other token has.

    Args:
        vocabulary: of the model.
        token_ids: the tokens.
        excluded: ids that may not serve; ``token_ids`` never do.
        each: how many for every token.
        seed: of the draws.

    Returns:
        A match of each token in order, then the next match of each.

    Raises:
        InputError: the vocabulary has too few.
    """
    unusable, taken = {*excluded, *token_ids}, set[int]()
    drawn: dict[int, list[int]] = {}
    found: list[Token] = []
    for token_id in list(token_ids) * each:
        place = vocabulary.place(token_id)
        if token_id not in drawn:
            drawn[token_id] = _drawn(vocabulary, place, unusable, each, seed)
        free = [k for k in drawn[token_id] if vocabulary.ids[k] not in taken]
        if not free:  # others have all that were drawn
            free = drawn[token_id] = _drawn(vocabulary, place, unusable | taken, each, seed)
        if not free:
            raise InputError(
                f"the vocabulary has too few tokens that are not flagged to match {len(token_ids)} tokens "
                f"with {each} each: ask for fewer benign tokens, or name fewer tokens"
            )
        taken.add(vocabulary.ids[free[0]])
        found.append(Token(vocabulary.ids[free[0]], vocabulary.decoded[free[0]]))
    return found


def _drawn(vocabulary: Vocabulary, place: int, excluded: Collection[int], count: int, seed: int) -> list[int]:
    """Draw places among the nearest tokens, in an order that is no order of nearness.

    They are drawn in blocks, so that what is drawn for a smaller count comes first.
    """
    found: list[int] = []
    for block in range(-(-count // _BLOCK)):
        near = _nearest(vocabulary, place, excluded, (block + 1) * _BLOCK)
        pool = [other for other in near if other not in found]
        key = [seed, vocabulary.ids[place], *([block] if block else [])]
        chosen = np.random.default_rng(key).choice(len(pool), min(_BLOCK, len(pool)), replace=False)
        found += [pool[k] for k in chosen]
    return found


def _nearest(vocabulary: Vocabulary, place: int, excluded: Collection[int], count: int) -> list[int]:
    """Places of the tokens to draw so many from, the nearest first."""
    pool = _alike(vocabulary, place, excluded)
    begins = [other for other in pool if _begins_word(vocabulary, other) == _begins_word(vocabulary, place)]
    length = len(vocabulary.decoded[place].strip())

    def distance(other: int) -> float:
        lengths = abs(len(vocabulary.decoded[other].strip()) - length)
        return lengths * _SHARE_PER_CHARACTER + abs(other - place) / len(vocabulary)

    candidates = begins if len(begins) >= count else pool
    return sorted(candidates, key=lambda other: (distance(other), other))[: _POOL * count]


def _alike(vocabulary: Vocabulary, place: int, excluded: Collection[int]) -> list[int]:
    """Places of usable tokens of the same category; of any, where that has too few."""
    usable = [
        other
        for other, (entry, category) in enumerate(zip(vocabulary.ids, vocabulary.categories, strict=True))
        if category.available and other != place and entry not in excluded
    ]
    alike = [other for other in usable if vocabulary.categories[other] is vocabulary.categories[place]]
    return alike if len(alike) >= LEAST_BENIGN else usable


def _begins_word(vocabulary: Vocabulary, place: int) -> tuple[bool, bool]:
    tail = vocabulary.tokens[place].startswith(_WORDPIECE_TAIL)
    return tail, vocabulary.decoded[place].startswith(" ")
