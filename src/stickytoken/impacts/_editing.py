"""The conditions of a measurement, and the inputs of the model under each condition. Pure functions."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import groupby

import numpy as np

from stickytoken.encoders.fitting import FittedText
from stickytoken.encoders.protocol import WordEncoder
from stickytoken.insertion import (
    Insertion,
    Joining,
    Placement,
    Probe,
    Token,
    draw_path,
    place_as_ids,
    place_as_text,
)
from stickytoken.settings.impact import Edits, ImpactSettings


class Kind(StrEnum):
    """Kind of the tokens that are copied into texts."""

    CLEAN = "clean"
    STICKY = "sticky"
    BENIGN = "benign"


@dataclass(frozen=True)
class Condition:
    """A way to edit all texts of a task.

    Attributes:
        kind: kind of the tokens that are copied.
        tokens: the tokens that are copied: none for clean texts, one, or several for a mixture.
        repetition: index of the random repetition, starting at 0.
        seed: seed for random gaps of the copies, and for random steps of the task.
        draws_token: whether every text draws one of the tokens to copy, as in `edit_as_published`.
    """

    kind: Kind
    tokens: tuple[Token, ...]
    repetition: int
    seed: int
    draws_token: bool = False


def make_conditions(
    sticky: Sequence[Token], benign: Sequence[Token], settings: ImpactSettings
) -> list[Condition]:
    """Return all conditions (ways to edit the texts), in which repetitions of a condition are consecutive.

    There is a clean condition, one condition for each token and, if there are several sticky tokens, a
    condition with a mixture of them and a condition with a mixture of as many benign tokens. With the edits
    of the paper, there are only three conditions: clean texts, all sticky tokens, and all benign tokens.
    """
    groups: list[tuple[Kind, tuple[Token, ...]]] = [(Kind.CLEAN, ())]
    draws_token = settings.edits is Edits.PAPER
    if draws_token:
        groups += [(Kind.STICKY, tuple(sticky)), (Kind.BENIGN, tuple(benign))]
    else:
        groups += [(Kind.STICKY, (token,)) for token in sticky]
        groups += [(Kind.BENIGN, (token,)) for token in benign]
        if len(sticky) > 1:
            groups.append((Kind.STICKY, tuple(sticky)))
            groups.append((Kind.BENIGN, tuple(benign[: len(sticky)])))
    conditions = []
    for kind, tokens in groups:
        for repetition in range(settings.seeds):
            # Within a repetition, the copies of all tokens go into the same gaps.
            seed = settings.seed + repetition
            is_drawn = draws_token and bool(tokens)  # clean texts draw no token
            conditions.append(Condition(kind, tokens, repetition, seed, is_drawn))
    return conditions


def group_by_tokens(conditions: Sequence[Condition]) -> list[tuple[Condition, ...]]:
    """Group the conditions by tokens, so that each group holds all repetitions of a condition."""

    def tokens_of(condition: Condition) -> tuple[Kind, tuple[Token, ...]]:
        return condition.kind, condition.tokens

    # Conditions with the same tokens are consecutive, as `groupby` needs.
    return [tuple(group) for _, group in groupby(conditions, tokens_of)]


# Number of words of a text for which Chen et al. insert a copy.
_WORDS_PER_COPY = 10


def edit_as_published(texts: Iterable[str], tokens: Sequence[str], stream: random.Random) -> Iterator[str]:
    """Yield texts with copies of tokens, edited as by Chen et al. (2025).

    Their code is not published. The edits follow from the texts that their notebooks display: a text gets
    copies of one token, one copy for every ten words or part of ten words. All copies are before the text or
    all after it, without spaces. For each text, the token and then the side are drawn from one random stream,
    which begins with seed 42 for each task.

    Args:
        texts: The texts of a task, in the order of the data.
        tokens: The tokens as text. Chen et al. order them by score, the highest first.
        stream: The random stream, which this function advances.
    """
    for text in texts:
        token = stream.choice(tokens)
        placement = stream.choice((Placement.PREFIX, Placement.SUFFIX))
        copies = math.ceil(len(text.split()) / _WORDS_PER_COPY)
        yield place_as_text([token] * copies, text, placement)


def draw_random_path(seed: int, text: str, words: int, copies: int) -> tuple[int, ...]:
    """Draw, for each copy, the number of words before it; the same for the same seed and text."""
    generator = _make_generator(seed, text, "gaps")
    return draw_path(partial(generator.integers, endpoint=True), words, copies)


def draw_tokens(seed: int, text: str, tokens: int, copies: int) -> tuple[int, ...]:
    """Choose at random which token each copy is a copy of.

    Args:
        seed: seed of the random choice. The same seed and text always give the same tokens.
        text: the text that gets the copies.
        tokens: number of different tokens.
        copies: number of copies.

    Returns:
        The index of a token for each copy. The tokens' numbers of copies differ by at most one.
    """
    generator = _make_generator(seed, text, "turns")
    # Tokens take turns: copy i is a copy of token i % tokens, so the tokens' numbers of copies differ by at
    # most one. Both copies and tokens are shuffled, so that chance decides the order of the copies, and which
    # tokens get one copy more.
    shuffled_tokens = generator.permutation(tokens)
    turns = generator.permutation(copies) % tokens
    return tuple(int(shuffled_tokens[turn]) for turn in turns)


def _make_generator(seed: int, text: str, purpose: str) -> np.random.Generator:
    # With different purposes, draws of gaps and draws of tokens are independent.
    digest = hashlib.sha256(f"{purpose}\0{text}".encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def insert_copies(settings: ImpactSettings, fitted: FittedText, condition: Condition, copies: int) -> Probe:
    """Insert the copies of a condition into a text.

    Which token each copy is a copy of, and random gaps, depend only on the text and on the seed of the
    condition.

    Args:
        settings: settings that say where in the text copies are placed, and whether as token ids or as text.
        fitted: the text, truncated so that the model reads it in full together with the copies.
        condition: the condition, whose tokens are copied.
        copies: total number of copies.

    Returns:
        The input of the encoder: token ids or text. If the condition has no tokens, or the number of copies
        is 0, this is the text without copies.
    """
    insertion = settings.inserted_as
    if not condition.tokens or not copies:
        return fitted.as_probe(insertion)
    as_ids = insertion is Insertion.IDS
    word_count = len(fitted.content.words) if as_ids else len(fitted.text.split())
    path: tuple[int, ...] = ()  # how many words come before each copy; only random placement needs it
    if settings.placement is Placement.RANDOM:
        path = draw_random_path(condition.seed, fitted.text, word_count, copies)
    token_indices = draw_tokens(condition.seed, fitted.text, len(condition.tokens), copies)
    tokens = [condition.tokens[index] for index in token_indices]
    if as_ids:
        return place_as_ids([token.id for token in tokens], fitted.content, settings.placement, path)
    words_to_insert = [token.text.strip() for token in tokens]
    return place_as_text(words_to_insert, fitted.text, settings.placement, path, Joining.WORDS)


def compute_room(
    encoder: WordEncoder, conditions: Sequence[Condition], copies: int, insertion: Insertion
) -> int:
    """Return how many tokens to leave free in a text, so that the model reads all copies of any condition.

    The result is 0 for conditions in which each text draws its token (``draws_token``), as in the published
    runs: there, the model truncates a text after it was edited.

    Args:
        encoder: the model.
        conditions: the conditions.
        copies: number of copies per text.
        insertion: how copies are inserted. A copy inserted as ids is one token. A copy inserted as text may
            be tokenized into several tokens.
    """
    if any(condition.draws_token for condition in conditions):
        return 0
    if insertion is Insertion.IDS:
        return copies
    words = dict.fromkeys(token.text.strip() for condition in conditions for token in condition.tokens)
    if not words:  # all conditions are without copies
        return 0
    # How many tokens a word adds is measured between two other words, because a copy may be inserted there.
    texts_with_word = encoder.tokenize([f"a {word} a" for word in words])
    length_without_word = len(encoder.tokenize(["a a"])[0].ids)
    return copies * max(len(text.ids) - length_without_word for text in texts_with_word)
