"""Prepare the texts of a task for copies: truncate them so that copies fit, equally in every condition."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from stickytoken.encoders.content_limit import content_limit
from stickytoken.encoders.protocol import WordEncoder
from stickytoken.errors import InputError
from stickytoken.impacts._conditions import Condition, gaps, turns
from stickytoken.impacts.settings import ImpactSettings
from stickytoken.insertion import (
    Insertion,
    Joining,
    Placement,
    Probe,
    Token,
    TokenizedText,
    place_as_ids,
    place_as_text,
)

_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Carrier:
    """A text that a condition may put copies into.

    Attributes:
        text: the text; not truncated if copies are inserted as ids.
        content: its content ids, truncated.
        cut: whether it was truncated.
    """

    text: str
    content: TokenizedText
    cut: bool


def prepare(
    encoder: WordEncoder, texts: Sequence[str], room: int, insertion: Insertion, name: str
) -> list[Carrier]:
    """Truncate texts so that the model reads them in full with ``room`` more tokens.

    Ids are truncated where the model itself would truncate; text is truncated after a word.

    Raises:
        InputError: the copies leave no room for a text.
    """
    limit = content_limit(encoder)
    content = encoder.tokenize(texts)
    if limit is None:
        return [Carrier(text, ids, False) for text, ids in zip(texts, content, strict=True)]
    longest = limit - room
    if longest <= max((len(ids.head) for ids in content), default=0):
        raise InputError(
            f"{name}: copies of {room} tokens leave no room for a text, because {encoder.name} reads {limit} "
            "tokens: use fewer copies"
        )
    whole = [Carrier(text, ids, False) for text, ids in zip(texts, content, strict=True)]
    cut = cut_ids if insertion is Insertion.IDS else partial(_cut_text, encoder)
    return [carrier if len(carrier.content.ids) <= longest else cut(carrier, longest) for carrier in whole]


def cut_ids(carrier: Carrier, longest: int) -> Carrier:
    """Truncate a carrier to its first ``longest`` content ids."""
    left = longest - len(carrier.content.head)
    words: list[tuple[int, ...]] = []
    for word in carrier.content.words:
        if left <= 0:
            break
        words.append(word[:left])
        left -= len(word)
    return replace(carrier, content=TokenizedText(carrier.content.head, tuple(words)), cut=True)


@dataclass(frozen=True)
class Treatment:
    """How a condition edits a carrier.

    Attributes:
        placement: where copies go.
        insertion: whether copies are inserted as ids or as words.
        copies: number of copies.
    """

    placement: Placement
    insertion: Insertion
    copies: int

    @classmethod
    def of(cls, settings: ImpactSettings) -> Treatment:
        """Return the treatment that the settings ask for."""
        return cls(settings.placement, settings.insertion, settings.copies)

    def probe(self, carrier: Carrier, condition: Condition) -> Probe:
        """Return what the encoder reads under a condition."""
        tokens = self._tokens(carrier, condition)
        if not tokens:
            return self.clean(carrier)
        if self.insertion is not Insertion.IDS:
            words = len(carrier.text.split())
            path = self._path(carrier, condition, words, len(tokens))
            texts = [token.text.strip() for token in tokens]
            return place_as_text(texts, carrier.text, self.placement, path, Joining.WORDS)
        path = self._path(carrier, condition, len(carrier.content.words), len(tokens))
        return place_as_ids([token.id for token in tokens], carrier.content, self.placement, path)

    def clean(self, carrier: Carrier) -> Probe:
        """Return what the encoder reads without copies."""
        return carrier.content.ids if self.insertion is Insertion.IDS else carrier.text

    def _tokens(self, carrier: Carrier, condition: Condition) -> list[Token]:
        if not condition.tokens:
            return []
        kinds = turns(condition.seed, carrier.text, len(condition.tokens), self.copies)
        return [condition.tokens[kind] for kind in kinds]

    def _path(self, carrier: Carrier, condition: Condition, words: int, copies: int) -> tuple[int, ...]:
        if self.placement is not Placement.RANDOM:
            return ()
        return gaps(condition.seed, carrier.text, words, copies)


def needed_room(encoder: WordEncoder, tokens: Sequence[Token], copies: int, insertion: Insertion) -> int:
    """Return how many tokens the copies may take: a copy inserted as a word may take several ids."""
    if insertion is Insertion.IDS:
        return copies
    spelled = encoder.tokenize([f"a {token.text.strip()} a" for token in tokens])
    around = len(encoder.tokenize(["a a"])[0].ids)
    return copies * max((len(ids.ids) - around for ids in spelled), default=1)


def _cut_text(encoder: WordEncoder, carrier: Carrier, longest: int) -> Carrier:
    """Truncate a carrier to its first words with at most ``longest`` content ids."""
    ends = [match.end() for match in _WORD.finditer(carrier.text)]
    low, high = 0, len(ends)
    # The number of ids grows with the number of words.
    while low < high:
        middle = (low + high + 1) // 2
        size = len(encoder.tokenize([carrier.text[: ends[middle - 1]]])[0].ids)
        low, high = (middle, high) if size <= longest else (low, middle - 1)
    text = carrier.text[: ends[low - 1]] if low else ""
    return Carrier(text, encoder.tokenize([text])[0], True)
