"""Vocabulary entries: their categories and kinds."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import polars as pl
import regex

from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Joining, Placement, Token, copies_as_text

_ANCHORS = ("«", "»", "¿", "#", ":", "a", "b")


class Category(StrEnum):  # the result of an entry's decode-encode round trip
    OK = "OK"  # text can produce the entry
    OK_SPECIAL = "OK_SPECIAL"  # a special token that text can produce
    MEANINGLESS = "MEANINGLESS"  # decodes to nothing or white space
    # Like <...> or [...], but text does not produce it, or the model has no row for it.
    UNREACHABLE_SPECIAL = "UNREACHABLE_SPECIAL"
    UNDECODEABLE = "UNDECODEABLE"  # not valid UTF-8 on its own
    # Its text encodes to one other entry, or to this one, and the model has no row for it.
    UNREACHABLE_SINGLE_TOKEN = "UNREACHABLE_SINGLE_TOKEN"
    UNREACHABLE_MULTI_TOKEN = "UNREACHABLE_MULTI_TOKEN"  # its text encodes to several entries

    @property
    def available(self) -> bool:
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


@runtime_checkable
class EmbeddedTokenizer(RoundTripTokenizer, Protocol):
    """A tokenizer that also knows how many of its entries the model has a row for."""

    @property
    def rows(self) -> int | None:
        """Rows of the embedding matrix; None if that is unknown or unlimited."""


@dataclass(frozen=True)
class Vocabulary:
    ids: tuple[int, ...]  # ascending
    tokens: tuple[str, ...]  # as the tokenizer stores them
    decoded: tuple[str, ...]  # the text of each, with its leading space if it has one
    categories: tuple[Category, ...]
    joinings: tuple[Joining, ...] = ()  # how copies are written as text; empty if all are glued
    # Entries whose copies in texts are mostly read as others: the share that is not.
    unspelled: Mapping[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        available = sum(category.available for category in self.categories)
        return f"<Vocabulary: {len(self):,} entries, {available:,} available>"

    @property
    def available(self) -> list[Token]:
        return [self.token(place) for place, category in enumerate(self.categories) if category.available]

    def token(self, place: int) -> Token:
        joining = self.joinings[place] if self.joinings else Joining.GLUED
        return Token(self.ids[place], self.decoded[place], joining)

    def place(self, token_id: int) -> int:
        place = bisect_left(self.ids, token_id)
        if self.ids[place : place + 1] != (token_id,):
            raise InputError(
                f"the vocabulary has no token id {token_id}: it has {self.ids[0]} to {self.ids[-1]}"
            )
        return place

    def counts(self) -> dict[str, int]:
        found = Counter(self.categories)
        return {category.value: found[category] for category in Category}

    def frame(self) -> pl.DataFrame:
        categories = [category.value for category in self.categories]
        columns = {"token": self.tokens, "decoded": self.decoded, "category": categories}
        schema = {"token_id": pl.Int64} | dict.fromkeys(columns, pl.String)
        return pl.DataFrame({"token_id": self.ids} | columns, schema=schema)


# What text can produce, but the model cannot read.
_WITHOUT_ROW = {
    Category.OK: Category.UNREACHABLE_SINGLE_TOKEN,
    Category.OK_SPECIAL: Category.UNREACHABLE_SPECIAL,
}


def categorize(tokenizer: RoundTripTokenizer) -> Vocabulary:
    """Categorize entries by a decode-encode round trip, behind an anchor if the tokenizer adds a space.

    An entry that the model has no row for is unreachable, whatever text produces it.
    """
    entries = tokenizer.entries
    trips: dict[int, tuple[str, tuple[int, ...]]] = {}
    first = tokenizer.encode_many(["test"])[0][:1]
    adds_space = bool(first) and entries.get(first[0], "").startswith((" ", "▁", "_", "Ġ"))
    anchors: list[tuple[str, tuple[int, ...]]] = [("", ())]
    if adds_space:  # first behind the characters that survive a round trip
        encoded = tokenizer.encode_many(_ANCHORS)
        trip = zip(_ANCHORS, encoded, tokenizer.decode_many(encoded), strict=True)
        anchors[:0] = [(anchor, tuple(ids)) for anchor, ids, text in trip if text.removeprefix(" ") == anchor]
    for anchor, anchor_ids in anchors:
        waiting = [token_id for token_id in entries if token_id not in trips]
        if not waiting:
            break
        texts = tokenizer.decode_many([[*anchor_ids, token_id] for token_id in waiting])
        if anchor:
            texts = [text.removeprefix(" ") for text in texts]
        kept = [pair for pair in zip(waiting, texts, strict=True) if pair[1].startswith(anchor)]
        encoded = tokenizer.encode_many([text for _, text in kept])
        for (token_id, text), ids in zip(kept, encoded, strict=True):
            if tuple(ids[: len(anchor_ids)]) == anchor_ids:  # the anchor has not changed with the entry
                trips[token_id] = text.removeprefix(anchor), tuple(ids[len(anchor_ids) :])
    special = tokenizer.special_ids
    decoded = tuple(trips[token_id][0] for token_id in entries)
    categories = [_category(token_id, *trips[token_id], token_id in special) for token_id in entries]
    rows = tokenizer.rows if isinstance(tokenizer, EmbeddedTokenizer) else None
    if rows is not None:
        for place, token_id in enumerate(entries):
            if token_id >= rows:
                categories[place] = _WITHOUT_ROW.get(categories[place], categories[place])
    return Vocabulary(tuple(entries), tuple(entries.values()), decoded, tuple(categories))


def _category(token_id: int, text: str, ids: tuple[int, ...], special: bool) -> Category:
    if not text.strip():
        return Category.MEANINGLESS
    if ids == (token_id,):
        return Category.OK_SPECIAL if special else Category.OK
    bracketed = len(text) >= 3 and text[0] in "[<" and text[-1] in "]>"
    if bracketed and any(character.isalpha() for character in text):
        return Category.UNREACHABLE_SPECIAL
    if "\ufffd" in text:
        return Category.UNDECODEABLE
    return Category.UNREACHABLE_SINGLE_TOKEN if len(ids) == 1 else Category.UNREACHABLE_MULTI_TOKEN


# A comparison needs at least so many.
LEAST_BENIGN = 3
# So many are drawn at a time: whoever asks for fewer gets the first of the same ones.
_BLOCK = 16
# Tokens are drawn from this many times as many nearest ones.
_POOL = 4
# A difference of one character in length weighs as much as this share of the vocabulary in position.
_SHARE_PER_CHARACTER = 0.05


class BenignMatch(NamedTuple):
    tokens: tuple[Token, ...]
    same_category: bool  # as that token; false where its category has too few


def match_benign(
    vocabulary: Vocabulary, token_id: int, excluded: Collection[int], count: int, seed: int
) -> BenignMatch:
    """Draw benign tokens of the same category with similar beginnings, lengths and positions."""
    # Most tokenizers order their vocabulary by frequency. The first tokens are the same for every ``count``.
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
    """Draw ``each`` benign tokens for every token, as `match_benign` does, none of them twice."""
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
    found: list[int] = []
    for block in range(-(-count // _BLOCK)):
        near = _nearest(vocabulary, place, excluded, (block + 1) * _BLOCK)
        pool = [other for other in near if other not in found]
        key = [seed, vocabulary.ids[place], *([block] if block else [])]
        chosen = np.random.default_rng(key).choice(len(pool), min(_BLOCK, len(pool)), replace=False)
        found += [pool[k] for k in chosen]
    return found


def _nearest(vocabulary: Vocabulary, place: int, excluded: Collection[int], count: int) -> list[int]:
    ids, categories, decoded = vocabulary.ids, vocabulary.categories, vocabulary.decoded
    available = (other for other, category in enumerate(categories) if category.available)
    usable = [other for other in available if other != place and ids[other] not in excluded]
    alike = [other for other in usable if categories[other] is categories[place]]
    pool = alike if len(alike) >= LEAST_BENIGN else usable

    def beginning(other: int) -> tuple[bool, bool]:
        return vocabulary.tokens[other].startswith("##"), decoded[other].startswith(" ")

    own = beginning(place)
    begins = [other for other in pool if beginning(other) == own]
    length = len(decoded[place].strip())

    def distance(other: int) -> float:
        lengths = abs(len(decoded[other].strip()) - length)
        return lengths * _SHARE_PER_CHARACTER + abs(other - place) / len(vocabulary)

    candidates = begins if len(begins) >= count else pool
    return sorted(candidates, key=lambda other: (distance(other), other))[: _POOL * count]


_UNUSED = re.compile(
    r"[\[<]\|?(unused|extra_id|reserved|madeupword|placeholder|dummy)\w*\|?[\]>]", re.IGNORECASE
)
_BRACKETED = re.compile(r"\[[^\s\[\]]*[^\W\d_][^\s\[\]]*\]|<[^\s<>]*[^\W\d_][^\s<>]*>")
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Scripts of most vocabularies; anything else is "Other".
_SCRIPTS = (
    "Latin", "Cyrillic", "Greek", "Han", "Hiragana", "Katakana", "Hangul", "Arabic", "Hebrew", "Devanagari",
    "Bengali", "Tamil", "Telugu", "Kannada", "Malayalam", "Gujarati", "Gurmukhi", "Sinhala", "Thai", "Lao",
    "Tibetan", "Myanmar", "Khmer", "Ethiopic", "Georgian", "Armenian", "Mongolian",
)  # fmt: skip
_SCRIPT = regex.compile(
    "|".join(rf"(?P<{name}>\p{{Script={name}}})" for name in _SCRIPTS) + r"|(?P<Other>\p{L})"
)
NO_SCRIPT = "none"


class Kind(StrEnum):
    SPECIAL = "special"  # a control token, such as [CLS] or </s>
    UNUSED = "unused"  # a placeholder that no training text contains, such as [unused7]
    BYTE = "byte"  # a byte or part of a character: not valid UTF-8 on its own
    SYMBOL = "symbol"  # neither letters nor digits
    SUBWORD = "subword"  # a piece that continues a word
    WORD = "whole word"  # a word, or the beginning of one


class WordMark(StrEnum):
    CONTINUED = "##"
    BYTE_LEVEL = "Ġ"
    SENTENCEPIECE = "▁"
    NONE = ""


def word_mark(tokens: Iterable[str]) -> WordMark:
    marks = [mark for mark in WordMark if mark]
    found = Counter(mark for token in tokens for mark in marks if token.startswith(mark) and token != mark)
    return found.most_common(1)[0][0] if found else WordMark.NONE


def kind_of(token: str, decoded: str, category: str, mark: WordMark) -> Kind:
    if _BYTE.fullmatch(token) or category == Category.UNDECODEABLE:
        return Kind.BYTE
    if _UNUSED.fullmatch(token):
        return Kind.UNUSED
    special = (Category.OK_SPECIAL, Category.UNREACHABLE_SPECIAL)
    if category in special or _BRACKETED.fullmatch(token):
        return Kind.SPECIAL
    if not any(character.isalnum() for character in decoded):
        return Kind.SYMBOL
    if mark is WordMark.NONE:
        return Kind.WORD
    marked = token.startswith(mark)
    return Kind.SUBWORD if marked == (mark is WordMark.CONTINUED) else Kind.WORD


def script_of(text: str) -> str:
    found = [script for script in map(_script_of_character, text) if script]
    return max(found, key=found.count) if found else NO_SCRIPT


@lru_cache(maxsize=4096)
def _script_of_character(character: str) -> str | None:
    match = _SCRIPT.match(character)
    return str(match.lastgroup) if match else None


_COPIES = 8


def written(vocabulary: Vocabulary, tokenizer: RoundTripTokenizer, insertion: Insertion) -> Vocabulary:
    """Let copies of words be words, and glue copies of pieces that the tokenizer then finds again."""
    if insertion is not Insertion.WORDS:
        return vocabulary
    places = [place for place, category in enumerate(vocabulary.categories) if category.available]
    as_words = _seen(vocabulary, tokenizer, places, Joining.WORDS)
    # Where no copy is lost, nothing can be better.
    merging = [place for place in places if as_words[place] < _COPIES]
    attached = _seen(vocabulary, tokenizer, merging, Joining.ATTACHED)
    chosen = [Joining.WORDS] * len(vocabulary)
    for place in merging:
        if attached[place] > as_words[place]:
            chosen[place] = Joining.ATTACHED
    if getattr(tokenizer, "estimates", False):  # it cannot tell what the model reads
        return replace(vocabulary, joinings=tuple(chosen))
    seen = {vocabulary.ids[place]: max(as_words[place], attached.get(place, 0)) for place in places}
    unspelled = {token_id: count / _COPIES for token_id, count in seen.items() if 2 * count < _COPIES}
    return replace(vocabulary, joinings=tuple(chosen), unspelled=unspelled)


def _seen(
    vocabulary: Vocabulary, tokenizer: RoundTripTokenizer, places: Sequence[int], joining: Joining
) -> dict[int, int]:
    tokens = [replace(vocabulary.token(place), joining=joining) for place in places]
    texts = [copies_as_text(token, "a", Placement.SUFFIX, _COPIES) for token in tokens]
    encoded = tokenizer.encode_many(texts)
    return {place: ids.count(token.id) for place, token, ids in zip(places, tokens, encoded, strict=True)}
