"""Categories of vocabulary entries: can an entry appear in real text?

The category of an entry comes from a round trip: decode its id, encode the result,
compare (Land and Bartolo, "Fishing for Magikarp", 2024; Chen et al. 2025, step 2 of
the Sticky Token Detector). Pure: a tokenizer is anything that satisfies `RoundTripTokenizer`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import polars as pl

from stickytoken.errors import InputError
from stickytoken.insertion import Joining, Token

_ANCHORS = ("«", "»", "¿", "#", ":", "a", "b")
_REPLACEMENT_CHARACTER = "\ufffd"


class Category(StrEnum):
    """The result of an entry's round trip."""

    OK = "OK"
    """Text can produce the entry."""
    OK_SPECIAL = "OK_SPECIAL"
    """A special token that text can produce."""
    MEANINGLESS = "MEANINGLESS"
    """Decodes to nothing or white space."""
    UNREACHABLE_SPECIAL = "UNREACHABLE_SPECIAL"
    """Looks like a special token (<...> or [...]), but text does not produce it."""
    UNDECODEABLE = "UNDECODEABLE"
    """Not valid UTF-8 on its own."""
    UNREACHABLE_SINGLE_TOKEN = "UNREACHABLE_SINGLE_TOKEN"
    """Its text encodes to one other entry."""
    UNREACHABLE_MULTI_TOKEN = "UNREACHABLE_MULTI_TOKEN"
    """Its text encodes to several entries."""

    @property
    def available(self) -> bool:
        """Whether the entry can occur in text."""
        return self in (Category.OK, Category.OK_SPECIAL)


class RoundTripTokenizer(Protocol):
    """What `categorize` needs of a tokenizer. All calls are batched."""

    @property
    def entries(self) -> Mapping[int, str]:
        """Vocabulary strings by id, ids ascending."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids with the role of a special token, except the sequence-start (cls) role."""

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Decode each list of ids, keeping special tokens, without clean-up."""

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text without special tokens, padding or truncation."""


class RoundTrip(NamedTuple):
    """The text of an entry, and the ids that this text encodes to."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Vocabulary:
    """All entries of a tokenizer with their categories.

    Attributes:
        ids: Token ids, ascending.
        tokens: Vocabulary strings, as the tokenizer stores them.
        decoded: The text of each entry, with its leading space if it has one.
        categories: The category of each entry.
        joinings: How copies of each entry are written as text; empty if all are glued.
    """

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    decoded: tuple[str, ...]
    categories: tuple[Category, ...]
    joinings: tuple[Joining, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        available = sum(category.available for category in self.categories)
        return f"<Vocabulary: {len(self):,} entries, {available:,} available>"

    @property
    def available(self) -> list[Token]:
        """Entries that can occur in text, in ascending order of id."""
        return [self.token(place) for place, category in enumerate(self.categories) if category.available]

    def token(self, place: int) -> Token:
        """Return the entry at a place, as it is inserted."""
        joining = self.joinings[place] if self.joinings else Joining.GLUED
        return Token(self.ids[place], self.decoded[place], joining)

    def place(self, token_id: int) -> int:
        """Return the place of an entry.

        Raises:
            InputError: The vocabulary has no such entry.
        """
        place = bisect_left(self.ids, token_id)
        if self.ids[place : place + 1] != (token_id,):
            raise InputError(
                f"the vocabulary has no token id {token_id}: it has {self.ids[0]} to {self.ids[-1]}"
            )
        return place

    def counts(self) -> dict[str, int]:
        """Return the number of entries in each category, including empty ones."""
        found = Counter(self.categories)
        return {category.value: found[category] for category in Category}

    def frame(self) -> pl.DataFrame:
        """Return one row per entry: token_id, token, decoded, category."""
        return pl.DataFrame(
            {
                "token_id": pl.Series(self.ids, dtype=pl.Int64),
                "token": pl.Series(self.tokens, dtype=pl.String),
                "decoded": pl.Series(self.decoded, dtype=pl.String),
                "category": pl.Series([category.value for category in self.categories], dtype=pl.String),
            }
        )


def categorize(tokenizer: RoundTripTokenizer) -> Vocabulary:
    """Categorize every entry of a tokenizer by its decode-encode round trip."""
    entries = tokenizer.entries
    trips = _round_trips(tokenizer, list(entries))
    return Vocabulary(
        ids=tuple(entries),
        tokens=tuple(entries.values()),
        decoded=tuple(trip.text for trip in trips),
        categories=tuple(
            _category(token_id, trip, tokenizer.special_ids)
            for token_id, trip in zip(entries, trips, strict=True)
        ),
    )


def _category(token_id: int, trip: RoundTrip, special_ids: frozenset[int]) -> Category:
    if not trip.text.strip():
        return Category.MEANINGLESS
    if trip.ids == (token_id,):
        return Category.OK_SPECIAL if token_id in special_ids else Category.OK
    if _looks_special(trip.text):
        return Category.UNREACHABLE_SPECIAL
    if _REPLACEMENT_CHARACTER in trip.text:
        return Category.UNDECODEABLE
    if len(trip.ids) == 1:
        return Category.UNREACHABLE_SINGLE_TOKEN
    return Category.UNREACHABLE_MULTI_TOKEN


def _looks_special(text: str) -> bool:
    bracketed = len(text) >= 3 and text[0] in "[<" and text[-1] in "]>"
    return bracketed and any(character.isalpha() for character in text)


def _round_trips(tokenizer: RoundTripTokenizer, ids: list[int]) -> list[RoundTrip]:
    """Decode and encode every id, behind an anchor character if the tokenizer adds a leading space.

    A tokenizer that puts a space before the first word makes "tip" and " tip" look
    alike at the start of a text. Behind an anchor character they differ. An entry that
    merges with one anchor is tried behind the next, and bare as the last resort.
    """
    anchors = _anchors(tokenizer) if _adds_leading_space(tokenizer) else []
    trips: dict[int, RoundTrip] = {}
    for anchor, anchor_ids in [*anchors, ("", ())]:
        waiting = [token_id for token_id in ids if token_id not in trips]
        if not waiting:
            break
        trips.update(_behind_anchor(tokenizer, waiting, anchor, anchor_ids))
    return [trips[token_id] for token_id in ids]


def _behind_anchor(
    tokenizer: RoundTripTokenizer, ids: Iterable[int], anchor: str, anchor_ids: tuple[int, ...]
) -> dict[int, RoundTrip]:
    ids = list(ids)
    texts = tokenizer.decode_many([[*anchor_ids, token_id] for token_id in ids])
    if anchor:
        texts = [text.removeprefix(" ") for text in texts]
    kept = [(token_id, text) for token_id, text in zip(ids, texts, strict=True) if text.startswith(anchor)]
    encoded = tokenizer.encode_many([text for _, text in kept])
    size = len(anchor_ids)
    return {
        token_id: RoundTrip(text.removeprefix(anchor), tuple(found[size:]))
        for (token_id, text), found in zip(kept, encoded, strict=True)
        if tuple(found[:size]) == anchor_ids
    }


def _adds_leading_space(tokenizer: RoundTripTokenizer) -> bool:
    first = tokenizer.encode_many(["test"])[0][:1]
    return bool(first) and tokenizer.entries.get(first[0], "").startswith((" ", "▁", "_", "Ġ"))


def _anchors(tokenizer: RoundTripTokenizer) -> list[tuple[str, tuple[int, ...]]]:
    """Return the characters that survive a round trip, with their ids."""
    encoded = tokenizer.encode_many(_ANCHORS)
    decoded = tokenizer.decode_many(encoded)
    return [
        (anchor, tuple(ids))
        for anchor, ids, text in zip(_ANCHORS, encoded, decoded, strict=True)
        if text.removeprefix(" ") == anchor
    ]
