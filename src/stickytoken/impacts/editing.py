"""Put a sequence of tokens into a text, the same way for every sequence. Pure.

Where copies go, and which of several tokens each copy is, is a function of the seed and
the text: all conditions treat a text alike, whatever the order of computation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from stickytoken.insertion import Placement, TokenizedText

_Word = TypeVar("_Word")


def gaps(seed: int, text: str, words: int, copies: int) -> tuple[int, ...]:
    """The gap of each copy for random placement: step k draws from the gaps of a text of words + k words."""
    generator = _generator(seed, text, "gaps")
    return tuple(int(generator.integers(words + step + 1)) for step in range(copies))


def turns(seed: int, text: str, kinds: int, copies: int) -> tuple[int, ...]:
    """Which of ``kinds`` tokens each copy of a mixture is; every kind comes up as often, to one."""
    generator = _generator(seed, text, "turns")
    kind = generator.permutation(kinds)
    return tuple(int(kind[step]) for step in generator.permutation(copies) % kinds)


def insert_ids(
    tokens: Sequence[int], text: TokenizedText, placement: Placement, path: Sequence[int]
) -> tuple[int, ...]:
    """Content ids with one copy of each of ``tokens``.

    Args:
        tokens: token ids in order; equal ones are copies.
        text: the carrier.
        placement: where.
        path: for random placement, the gap of each token.
    """
    copies: list[tuple[int, ...]] = [(token_id,) for token_id in tokens]
    return TokenizedText(text.head, tuple(_placed(list(text.words), copies, placement, path))).ids


def insert_words(tokens: Sequence[str], text: str, placement: Placement, path: Sequence[int]) -> str:
    """The text with one copy of each of ``tokens``, each a word of its own."""
    if placement is Placement.RANDOM:
        return " ".join(_placed(text.split(), list(tokens), placement, path))
    parts = [*tokens, text] if placement is Placement.PREFIX else [text, *tokens]
    return " ".join(part for part in parts if part)


def _placed(
    words: list[_Word], copies: list[_Word], placement: Placement, path: Sequence[int]
) -> list[_Word]:
    if placement is Placement.PREFIX:
        return [*copies, *words]
    if placement is Placement.SUFFIX:
        return [*words, *copies]
    for copy, gap in zip(copies, path, strict=True):
        words.insert(gap, copy)
    return words


def _generator(seed: int, text: str, purpose: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{purpose}\0{text}".encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
