"""Conditions that texts are measured under: no copies, a sticky token, a benign token, or a mixture."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import groupby

import numpy as np

from stickytoken.encoders.protocol import WordEncoder, content_limit
from stickytoken.errors import InputError
from stickytoken.impacts.results import ImpactSettings
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

# Label of a token that the user named and no run calls sticky.
NAMED = "named"


class Kind(StrEnum):
    """Kinds of conditions."""

    CLEAN = "clean"
    STICKY = "sticky"
    BENIGN = "benign"


@dataclass(frozen=True)
class Condition:
    """One way to edit all texts.

    Attributes:
        kind: kind of its tokens.
        tokens: tokens to insert; none for clean texts, several for a mixture.
        repetition: index of the repetition.
        seed: seed of the repetition.
    """

    kind: Kind
    tokens: tuple[Token, ...]
    repetition: int
    seed: int

    def label(self, named: Collection[int]) -> str:
        """Return the name of the condition in tables: tokens that no run calls sticky are "named"."""
        nobody = self.kind is Kind.STICKY and any(token.id in named for token in self.tokens)
        kind = NAMED if nobody else self.kind.value
        return f"{kind} mixture" if self.mixture else kind

    @property
    def mixture(self) -> bool:
        """Whether several tokens share the copies."""
        return len(self.tokens) > 1


def make_conditions(
    sticky: Sequence[Token], benign: Sequence[Token], seed: int, repetitions: int
) -> list[Condition]:
    """List all conditions, grouped by token.

    A repetition has the same seed under every condition, so that a text gets its copies in the same places.
    The mixture of benign tokens has as many tokens as that of sticky ones.
    """
    groups: list[tuple[Kind, tuple[Token, ...]]] = [(Kind.CLEAN, ())]
    groups += [(Kind.STICKY, (token,)) for token in sticky]
    groups += [(Kind.BENIGN, (token,)) for token in benign]
    if len(sticky) > 1:
        groups += [(Kind.STICKY, tuple(sticky)), (Kind.BENIGN, tuple(benign[: len(sticky)]))]
    return [
        Condition(kind, tokens, repetition, seed + repetition)
        for kind, tokens in groups
        for repetition in range(repetitions)
    ]


def grouped(conditions: Sequence[Condition]) -> list[list[Condition]]:
    """Group the repetitions of each token."""
    return [
        list(repetitions) for _, repetitions in groupby(conditions, lambda each: (each.kind, each.tokens))
    ]


def gaps(seed: int, text: str, words: int, copies: int) -> tuple[int, ...]:
    """Draw a gap for each copy for random placement, where copy k goes between ``words + k`` words.

    The draw depends only on the seed and the text, so all conditions treat a text alike, in any order of
    computation.
    """
    generator = _generator(seed, text, "gaps")
    return tuple(int(generator.integers(words + step + 1)) for step in range(copies))


def turns(seed: int, text: str, kinds: int, copies: int) -> tuple[int, ...]:
    """Draw the token of each copy of a mixture; counts differ by at most one. Seeded like `gaps`."""
    generator = _generator(seed, text, "turns")
    kind = generator.permutation(kinds)
    return tuple(int(kind[step]) for step in generator.permutation(copies) % kinds)


def _generator(seed: int, text: str, purpose: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{purpose}\0{text}".encode("utf-8", "surrogatepass")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


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
