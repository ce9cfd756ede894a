"""Contexts for training rows: short texts with places for copies of an entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.errors import RepairError
from stickytoken.insertion import TokenizedText

MANY = 8
"""Copies that show what many do."""
# A row shows most in a short text, which is also the cheapest.
_LEAST, _MOST = 4, 9
# Texts of equal length are read together.
_TOGETHER, _LENGTHS = 4, 4
_DRAWN = 4000


@dataclass(frozen=True)
class Context:
    """A text with a place for copies."""

    text: TokenizedText
    gap: int
    copies: int

    def filled(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the content ids with copies of an entry, or of the pieces in its place."""
        words = self.text.words
        copies = tuple(ids) * self.copies
        return replace(self.text, words=(*words[: self.gap], copies, *words[self.gap :])).ids

    def places(self, row: int) -> torch.Tensor:
        """Return the row at each position if one stands in the context, -1 elsewhere; shape (length,)."""
        return torch.tensor([row if token_id < 0 else -1 for token_id in self.filled((-1,))])


def contexts_among(
    encoder: SentenceTransformerEncoder, texts: Sequence[str], avoided: Sequence[int], longest: int, seed: int
) -> list[Context]:
    """Draw contexts: in each text one copy at a random place, and many behind it.

    Args:
        encoder: the model.
        texts: texts to draw from.
        avoided: entries that no text may hold.
        longest: largest number of tokens in the place of one copy.
        seed: of the draws.

    Returns:
        Two per text, with one copy and with many.
    """
    generator = np.random.default_rng([seed])
    distinct = list(dict.fromkeys(texts))
    drawn = [distinct[k] for k in generator.permutation(len(distinct))[:_DRAWN]]
    fitting = [text for text in encoder.tokenize(drawn) if text.words and set(avoided).isdisjoint(text.ids)]
    fitting = [text for text in fitting if encoder.fits((*text.ids, *text.ids[:1] * longest * MANY))]
    if not fitting:
        raise RepairError(
            f"none of the {len(distinct)} texts to train rows in fits the model with {MANY} copies: pass "
            "short sentences"
        )
    found = []
    for text in _of_few_lengths(fitting):
        found.append(Context(text, int(generator.integers(len(text.words) + 1)), 1))
        found.append(Context(text, len(text.words), MANY))
    return found


def _of_few_lengths(texts: Sequence[TokenizedText]) -> list[TokenizedText]:
    """Choose short texts, several of each of a few lengths; the shortest texts if none is short."""
    by_length: dict[int, list[TokenizedText]] = {}
    for text in texts:
        by_length.setdefault(len(text.ids) - len(text.head), []).append(text)
    short = [length for length in by_length if _LEAST <= length <= _MOST] or sorted(by_length)[:_LENGTHS]
    most = sorted(short, key=lambda length: (-len(by_length[length]), length))[:_LENGTHS]
    return [text for length in sorted(most) for text in by_length[length][:_TOGETHER]]
