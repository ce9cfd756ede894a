"""Vocabulary entries with their categories, kinds and scripts, and benign entries for comparison."""

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
from stickytoken.settings.explain import LEAST_BENIGN

# Some tokenizers add a space at the beginning of a text. For these tokenizers, `categorize` puts one of these
# characters before an entry, and tries them in turn until the text of the entry encodes to the entry. The
# text "'s", for example, encodes to the entry "'s" only after a letter.
_ANCHORS = ("«", "»", "¿", "#", ":", "a", "b")


class Category(StrEnum):
    """Whether the text of an entry encodes back to the entry, and if not, why.

    Attributes:
        OK: The text of the entry encodes to the entry.
        OK_SPECIAL: The text of the entry encodes to the entry, which is a special token.
        MEANINGLESS: The entry decodes to nothing or to white space.
        UNREACHABLE_SPECIAL: The text of the entry looks like <...> or [...] but does not encode to the entry,
            or the entry is a special token that the model has no row for.
        UNDECODEABLE: The entry is not valid UTF-8 on its own.
        UNREACHABLE_SINGLE_TOKEN: The text of the entry encodes to a single other entry, or it encodes to the
            entry itself but the model has no row for it.
        UNREACHABLE_MULTI_TOKEN: The text of the entry encodes to several entries.
    """

    OK = "OK"
    OK_SPECIAL = "OK_SPECIAL"
    MEANINGLESS = "MEANINGLESS"
    UNREACHABLE_SPECIAL = "UNREACHABLE_SPECIAL"
    UNDECODEABLE = "UNDECODEABLE"
    UNREACHABLE_SINGLE_TOKEN = "UNREACHABLE_SINGLE_TOKEN"
    UNREACHABLE_MULTI_TOKEN = "UNREACHABLE_MULTI_TOKEN"

    @property
    def available(self) -> bool:
        """Whether text can produce the entry and the model has a row for it."""
        return self in (Category.OK, Category.OK_SPECIAL)


class RoundTripTokenizer(Protocol):
    """The part of a tokenizer that `categorize` needs. All methods take batches."""

    @property
    def entries(self) -> Mapping[int, str]:
        """Vocabulary strings, keyed by id, in ascending order of id."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens, except for the token that starts a sequence (role cls)."""

    def decode_many(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Decode each list of ids, keeping special tokens and leaving spaces as they are."""

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text without special tokens, padding or truncation."""


@runtime_checkable
class EmbeddedTokenizer(RoundTripTokenizer, Protocol):
    """A tokenizer that also knows the number of rows in the model's embedding matrix."""

    @property
    def rows(self) -> int | None:
        """Number of rows in the embedding matrix; None if it is unknown or unlimited."""


@runtime_checkable
class MarkingTokenizer(RoundTripTokenizer, Protocol):
    """A tokenizer that marks special tokens."""

    @property
    def marked_ids(self) -> frozenset[int]:
        """Ids of all special tokens, including the token with the role cls."""


@runtime_checkable
class NormalizingTokenizer(Protocol):
    """A tokenizer whose normaliser, which decides which spellings of a word it reads alike, may be known."""

    @property
    def normalizer(self) -> str | None:
        """The normaliser in JSON, as the tokenizers library writes it; None if it isn't known."""


@runtime_checkable
class CandidateTokenizer(Protocol):
    """A stand-in for an unpublished tokenizer: it lists candidate strings and estimates token counts."""

    @property
    def candidate_ids(self) -> tuple[int, ...]:
        """Ids of the strings to examine."""


@dataclass(frozen=True)
class Vocabulary:
    """The entries of a tokenizer, in ascending order of id.

    Attributes:
        ids: Token id of each entry.
        tokens: Each entry as the tokenizer stores it.
        decoded: The text of each entry, with its leading space if it has one.
        categories: Category of each entry.
        joinings: How spaces separate the copies of each entry when they are written as text; empty if all
            copies are written without spaces.
        unspelled: For each entry, the share of its written copies that the tokenizer reads as the entry,
            keyed by token id. Only shares below one half are listed.
    """

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    decoded: tuple[str, ...]
    categories: tuple[Category, ...]
    joinings: tuple[Joining, ...] = ()
    unspelled: Mapping[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        available = sum(category.available for category in self.categories)
        return f"<Vocabulary: {len(self):,} entries, {available:,} available>"

    @property
    def available(self) -> list[Token]:
        """The entries whose category is `available`, in ascending order of id."""
        return [self.token(index) for index, category in enumerate(self.categories) if category.available]

    def token(self, index: int) -> Token:
        """Return the entry at an index. The index differs from the id if the vocabulary has gaps."""
        joining = self.joinings[index] if self.joinings else Joining.GLUED
        return Token(self.ids[index], self.decoded[index], joining)

    def index_of(self, token_id: int) -> int:
        """Return the index of the entry with this id.

        Raises:
            InputError: The vocabulary has no such id.
        """
        index = bisect_left(self.ids, token_id)
        has_id = self.ids[index : index + 1] == (token_id,)  # the slice is empty after the last entry
        if not has_id:
            raise InputError(
                f"the vocabulary has no token id {token_id}: its ids go from {self.ids[0]} to {self.ids[-1]}"
            )
        return index

    def counts(self) -> dict[str, int]:
        """Return the number of entries in each category, keyed by the name of the category."""
        counter = Counter(self.categories)
        return {category.value: counter[category] for category in Category}

    def frame(self) -> pl.DataFrame:
        """Return a table with the columns token_id, token, decoded and category."""
        categories = [category.value for category in self.categories]
        columns = {"token": self.tokens, "decoded": self.decoded, "category": categories}
        schema = {"token_id": pl.Int64} | dict.fromkeys(columns, pl.String)
        return pl.DataFrame({"token_id": self.ids} | columns, schema=schema)


def special_tokens(vocabulary: Vocabulary, tokenizer: RoundTripTokenizer) -> list[Token]:
    """Return the special tokens that text can produce, by the tokenizer's own marks."""
    if not isinstance(tokenizer, MarkingTokenizer):
        return []
    return [token for token in vocabulary.available if token.id in tokenizer.marked_ids]


def frame_with_special(vocabulary: Vocabulary, tokenizer: RoundTripTokenizer) -> pl.DataFrame:
    """Return the table of a vocabulary, with a column that says which entries are `special_tokens`.

    Some vocabularies have tags of HTML as ordinary entries, so the text of an entry does not tell.
    """
    special_ids = [token.id for token in special_tokens(vocabulary, tokenizer)]
    return vocabulary.frame().with_columns(special=pl.col("token_id").is_in(special_ids))


# The printable characters of ASCII and their full-width forms, which some normalisers make equal.
_FULL_WIDTH = {code_point: code_point + 0xFEE0 for code_point in range(0x21, 0x7F)}
# Characters that some normalisers drop from a word: an accent, and two that are invisible.
_DROPPED = ("\u0301", "\u00ad", "\x01")


def find_normalized_specials(specials: Mapping[int, str], tokenizer: RoundTripTokenizer) -> list[str]:
    """Return the special tokens that a tokenizer also reads from other spellings, because it normalises them.

    Each is tried: in another case, in full width, and with characters in it that may be dropped. Whether an
    entry is normalised before it is looked for differs between the special tokens of one tokenizer.

    Args:
        specials: The text of each special token, keyed by id.
        tokenizer: The tokenizer.

    Returns:
        Their texts, without spaces around them.
    """
    normalized_specials = []
    for token_id, decoded in specials.items():
        special = decoded.strip()
        spellings = [special.upper(), special.lower(), special.translate(_FULL_WIDTH)]
        spellings += [character.join(special) for character in _DROPPED]
        other_spellings = [spelling for spelling in spellings if spelling != special]
        ids_read = tokenizer.encode_many(other_spellings)
        texts_read = tokenizer.decode_many(ids_read)
        # An unknown character is read as a special token, too, but beside other entries.
        if any(
            token_id in ids and text.strip() == special
            for ids, text in zip(ids_read, texts_read, strict=True)
        ):
            normalized_specials.append(special)
    return normalized_specials


# An entry whose text encodes to the entry itself is nevertheless unreachable if the embedding matrix has no
# row for the entry. Maps the category of an entry that has a row to the category of an entry without a row.
_WITHOUT_ROW = {
    Category.OK: Category.UNREACHABLE_SINGLE_TOKEN,
    Category.OK_SPECIAL: Category.UNREACHABLE_SPECIAL,
}


class _RoundTrip(NamedTuple):
    """An entry decoded to text, and the ids that this text encodes to."""

    text: str
    ids: tuple[int, ...]


class _Anchor(NamedTuple):
    """A text to put before an entry, and the ids of this text; `_NO_ANCHOR` stands for no text."""

    text: str
    ids: tuple[int, ...]


_NO_ANCHOR = _Anchor("", ())


def categorize(tokenizer: RoundTripTokenizer) -> Vocabulary:
    """Return the vocabulary of a tokenizer, with the category of every entry.

    To find the category, the entry is decoded and its text is encoded again. If the tokenizer adds a space at
    the beginning of a text, an anchor is put before the entry, so that the space is not added to the entry
    itself. The entry is reachable if its text encodes to the entry after any of the anchors. An entry without
    a row in the model is unreachable even if its text encodes to the entry.
    """
    entries = tokenizer.entries
    # For each entry, the first round trip that reaches the entry or, if none does, the first round trip. With
    # an anchor, an entry may have no round trip. Without an anchor, it always has a round trip.
    trips: dict[int, _RoundTrip] = {}
    unreached_ids = list(entries)
    for anchor in [*_find_usable_anchors(tokenizer), _NO_ANCHOR]:
        still_unreached_ids = []
        new_trips = _make_round_trips(tokenizer, unreached_ids, anchor)
        for token_id in unreached_ids:
            trip = new_trips.get(token_id)
            is_reached = trip is not None and trip.ids == (token_id,)
            if trip is not None and (is_reached or token_id not in trips):
                trips[token_id] = trip
            if not is_reached:
                still_unreached_ids.append(token_id)
        unreached_ids = still_unreached_ids
    special_ids = tokenizer.special_ids
    row_count = tokenizer.rows if isinstance(tokenizer, EmbeddedTokenizer) else None
    categories = []
    for token_id in entries:
        category = _choose_category(token_id, trips[token_id], token_id in special_ids)
        if row_count is not None and token_id >= row_count:
            category = _WITHOUT_ROW.get(category, category)
        categories.append(category)
    decoded = tuple(trips[token_id].text for token_id in entries)
    return Vocabulary(tuple(entries), tuple(entries.values()), decoded, tuple(categories))


def _find_usable_anchors(tokenizer: RoundTripTokenizer) -> list[_Anchor]:
    """Return the texts that can be put before an entry, so that the entry doesn't begin the text.

    The list is empty for a tokenizer that adds no space at the beginning of a text.
    """
    (test_ids,) = tokenizer.encode_many(["test"])
    first_entry = tokenizer.entries.get(test_ids[0], "") if test_ids else ""
    adds_space = first_entry.startswith((" ", "▁", "_", "Ġ"))  # all of them stand for a space
    if not adds_space:
        return []  # entries need no anchor
    encoded = tokenizer.encode_many(_ANCHORS)
    decoded = tokenizer.decode_many(encoded)
    usable_anchors = []
    for anchor, ids, text in zip(_ANCHORS, encoded, decoded, strict=True):
        # An anchor is usable if encoding and decoding don't change it.
        if text.removeprefix(" ") == anchor:
            usable_anchors.append(_Anchor(anchor, tuple(ids)))
    return usable_anchors


def _make_round_trips(
    tokenizer: RoundTripTokenizer, token_ids: Sequence[int], anchor: _Anchor
) -> dict[int, _RoundTrip]:
    """Decode each token after an anchor, and encode the text again.

    After an anchor, a token does not begin the text, where some tokenizers add a space. With `_NO_ANCHOR`,
    the token is the whole text. Tokens whose text or ids no longer begin with the anchor are left out.
    """
    texts = tokenizer.decode_many([[*anchor.ids, token_id] for token_id in token_ids])
    text_of = {}  # the anchor and the token as text, keyed by token id
    for token_id, text in zip(token_ids, texts, strict=True):
        # Only a tokenizer that adds a space before a text has anchors, and decoding may leave this space
        # before the anchor. Without an anchor, a space may belong to the token.
        anchored_text = text.removeprefix(" ") if anchor.text else text
        if anchored_text.startswith(anchor.text):
            text_of[token_id] = anchored_text
    trips = {}
    encoded = tokenizer.encode_many(list(text_of.values()))
    anchor_length = len(anchor.ids)
    for (token_id, text), ids in zip(text_of.items(), encoded, strict=True):
        begins_with_anchor = tuple(ids[:anchor_length]) == anchor.ids
        if begins_with_anchor:
            trips[token_id] = _RoundTrip(text.removeprefix(anchor.text), tuple(ids[anchor_length:]))
    return trips


def _choose_category(token_id: int, trip: _RoundTrip, is_special: bool) -> Category:
    text, ids = trip  # the entry as text, and the ids of this text
    if not text.strip():
        return Category.MEANINGLESS
    if ids == (token_id,):
        return Category.OK_SPECIAL if is_special else Category.OK
    is_bracketed = len(text) >= 3 and text[0] in "[<" and text[-1] in "]>"
    if is_bracketed and any(character.isalpha() for character in text):
        return Category.UNREACHABLE_SPECIAL
    if "\ufffd" in text:  # stands for bytes that are not UTF-8
        return Category.UNDECODEABLE
    return Category.UNREACHABLE_SINGLE_TOKEN if len(ids) == 1 else Category.UNREACHABLE_MULTI_TOKEN


# Benign tokens are drawn in blocks of this size, so that a smaller sample is always the start of a larger
# one.
_BLOCK = 16
# Size of the pool of most similar tokens, as a multiple of the number of tokens drawn from it.
_POOL = 4
# A length difference of one character counts as much as a position difference of this share of the
# vocabulary.
_SHARE_PER_CHARACTER = 0.05


class BenignMatch(NamedTuple):
    """Benign tokens that resemble a given token.

    Attributes:
        tokens: The benign tokens.
        same_category: Whether all benign tokens have the category of the given token. If this category has
            too few benign tokens, tokens of other categories are included.
    """

    tokens: tuple[Token, ...]
    same_category: bool


def match_benign(
    vocabulary: Vocabulary, token_id: int, excluded: Collection[int], count: int, seed: int
) -> BenignMatch:
    """Draw benign tokens that resemble a token in category, beginning, length and position.

    Most tokenizers order their vocabulary by frequency, so entries at nearby positions are about equally
    frequent. With a smaller ``count``, the result is the beginning of the result for a larger ``count``.

    Args:
        vocabulary: The vocabulary.
        token_id: The token to match.
        excluded: Ids that must not be drawn, such as flagged tokens.
        count: Number of tokens to draw. Fewer tokens are returned if the vocabulary has fewer benign tokens
            than ``count``.
        seed: Seed of the random draw.

    Returns:
        The benign tokens, and whether all of them have the category of the given token.

    Raises:
        InputError: Fewer than three benign tokens remain to be drawn.
    """
    index = vocabulary.index_of(token_id)
    matches = _draw_benign(vocabulary, index, excluded, count, seed)[:count]  # indices of the entries
    if len(matches) < LEAST_BENIGN:
        raise InputError(
            f"token id {token_id} ({vocabulary.tokens[index]!r}) has only {len(matches)} benign tokens to "
            f"compare with, and {LEAST_BENIGN} are needed: name fewer tokens at a time"
        )
    tokens = tuple(Token(vocabulary.ids[match], vocabulary.decoded[match]) for match in matches)
    categories = {vocabulary.categories[match] for match in matches}
    return BenignMatch(tokens, same_category=categories == {vocabulary.categories[index]})


def _draw_benign(
    vocabulary: Vocabulary, index: int, excluded: Collection[int], count: int, seed: int
) -> list[int]:
    """Return indices of benign entries that resemble the entry at an index, drawn at random in blocks.

    A block depends on the blocks before it, but not on ``count``: a larger ``count`` only adds blocks at the
    end. The result has whole blocks, so it may have more than ``count`` indices.
    """
    matches: list[int] = []  # indices in the vocabulary
    block_count = -(-count // _BLOCK)  # rounded up
    for block in range(block_count):
        drawn_after_block = (block + 1) * _BLOCK
        # The number of candidates is about `_POOL` times the number of tokens that will have been drawn after
        # this block. The tokens of earlier blocks are among the candidates and are left out of the pool.
        candidates = _find_similar(vocabulary, index, excluded, drawn_after_block)
        pool = [candidate for candidate in candidates if candidate not in matches]
        seeds = [seed, vocabulary.ids[index], block]
        random = np.random.default_rng(seeds)
        choices = random.choice(len(pool), min(_BLOCK, len(pool)), replace=False)  # indices in the pool
        matches += [pool[choice] for choice in choices]
    return matches


def _find_similar(vocabulary: Vocabulary, index: int, excluded: Collection[int], count: int) -> list[int]:
    """Return a pool of tokens from which ``count`` tokens similar to a token can be drawn at random.

    Two tokens are similar if their texts have similar lengths, and if they are close to each other in the
    vocabulary.

    Returns:
        Indices of at most ``_POOL * count`` tokens that text can produce, most similar first. All tokens in
        the pool have the category of the token, unless fewer than `LEAST_BENIGN` tokens have this category.
        If at least ``count`` of the tokens have the same beginning as the token (``##``, a space or neither),
        the pool contains only tokens with this beginning.
    """
    candidates = []
    for candidate, category in enumerate(vocabulary.categories):
        is_other = candidate != index and vocabulary.ids[candidate] not in excluded
        if is_other and category.available:
            candidates.append(candidate)
    wanted_category = vocabulary.categories[index]
    same_category = [
        candidate for candidate in candidates if vocabulary.categories[candidate] is wanted_category
    ]
    if len(same_category) >= LEAST_BENIGN:
        candidates = same_category

    def beginning(candidate: int) -> tuple[bool, bool]:
        return vocabulary.tokens[candidate].startswith("##"), vocabulary.decoded[candidate].startswith(" ")

    wanted_beginning = beginning(index)
    same_beginning = [candidate for candidate in candidates if beginning(candidate) == wanted_beginning]
    if len(same_beginning) >= count:
        candidates = same_beginning
    length = len(vocabulary.decoded[index].strip())

    def distance(candidate: int) -> float:
        length_difference = abs(len(vocabulary.decoded[candidate].strip()) - length)
        return length_difference * _SHARE_PER_CHARACTER + abs(candidate - index) / len(vocabulary)

    return sorted(candidates, key=lambda candidate: (distance(candidate), candidate))[: _POOL * count]


_UNUSED = re.compile(
    r"[\[<]\|?(unused|extra_id|reserved|madeupword|placeholder|dummy)\w*\|?[\]>]", re.IGNORECASE
)
_BRACKETED = re.compile(r"\[[^\s\[\]]*[^\W\d_][^\s\[\]]*\]|<[^\s<>]*[^\W\d_][^\s<>]*>")
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# The scripts that vocabularies commonly contain. Letters of all other scripts count as "Other".
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
    """What an entry stands for.

    Attributes:
        SPECIAL: A control token, such as [CLS] or </s>.
        UNUSED: A placeholder that no training text contains, such as [unused7].
        BYTE: A byte or a part of a character, which is not valid UTF-8 on its own.
        SYMBOL: Text without letters or digits.
        SUBWORD: A piece that continues a word.
        WORD: A word, or the beginning of a word.
    """

    SPECIAL = "special"
    UNUSED = "unused"
    BYTE = "byte"
    SYMBOL = "symbol"
    SUBWORD = "subword"
    WORD = "whole word"


class WordMark(StrEnum):
    """The prefix of entries that continue a word (``##``) or that begin a word (``Ġ`` and ``▁``)."""

    CONTINUED = "##"
    BYTE_LEVEL = "Ġ"
    SENTENCEPIECE = "▁"
    NONE = ""


def word_mark(tokens: Iterable[str]) -> WordMark:
    """Return the most frequent mark at the beginning of entries; `WordMark.NONE` if no entry has a mark."""
    counter: Counter[WordMark] = Counter()
    for token in tokens:
        for mark in (WordMark.CONTINUED, WordMark.BYTE_LEVEL, WordMark.SENTENCEPIECE):
            if token.startswith(mark) and token != mark:
                counter[mark] += 1
    if not counter:
        return WordMark.NONE
    return counter.most_common(1)[0][0]


def kind_of(token: str, decoded: str, category: str, mark: WordMark) -> Kind:
    """Return the kind of an entry.

    Args:
        token: The entry as the tokenizer stores it.
        decoded: The text of the entry.
        category: The category of the entry.
        mark: The mark of the vocabulary; see `word_mark`.
    """
    if _BYTE.fullmatch(token) or category == Category.UNDECODEABLE:
        return Kind.BYTE
    if _UNUSED.fullmatch(token):
        return Kind.UNUSED
    is_special = category in (Category.OK_SPECIAL, Category.UNREACHABLE_SPECIAL)
    if is_special or _BRACKETED.fullmatch(token):  # such as [CLS] or </s>
        return Kind.SPECIAL
    if not any(character.isalnum() for character in decoded):
        return Kind.SYMBOL
    if mark is WordMark.NONE:
        return Kind.WORD
    # The mark "##" begins pieces that continue a word. The other marks begin entries that begin a word.
    has_mark = token.startswith(mark)
    continues_word = has_mark if mark is WordMark.CONTINUED else not has_mark
    return Kind.SUBWORD if continues_word else Kind.WORD


def script_of(text: str) -> str:
    """Return the most frequent script among the letters of a text; ``none`` if it has no letters."""
    scripts = [script for script in map(_find_script, text) if script]
    return max(scripts, key=scripts.count) if scripts else NO_SCRIPT


@lru_cache(maxsize=4096)
def _find_script(character: str) -> str | None:
    match = _SCRIPT.match(character)
    return str(match.lastgroup) if match else None  # each group of the pattern has the name of its script


# Number of copies in each text that is encoded to compare the ways of writing an entry's copies.
_COPIES = 8


def choose_joinings(
    vocabulary: Vocabulary, tokenizer: RoundTripTokenizer, insertion: Insertion
) -> Vocabulary:
    """Return the vocabulary with the best way to write copies of each entry, as words or attached.

    An entry is listed in ``unspelled`` if the tokenizer reads fewer than half of its copies as the entry. The
    vocabulary is returned unchanged unless ``insertion`` is `Insertion.WORDS`.
    """
    if insertion is not Insertion.WORDS:
        return vocabulary
    available = [index for index, category in enumerate(vocabulary.categories) if category.available]
    tokens = [vocabulary.token(index) for index in available]
    written = choose_joining(tokenizer, tokens, Joining.ATTACHED, text="a", copies=_COPIES)
    joinings = [Joining.WORDS] * len(vocabulary)
    unspelled = {}
    for index, (token, copies_read) in zip(available, written, strict=True):
        joinings[index] = token.joining
        share_read = copies_read / _COPIES
        if share_read < 0.5:
            unspelled[token.id] = share_read
    if isinstance(tokenizer, CandidateTokenizer):
        # A list of candidate strings does not reveal how the model tokenizes copies, so the shares that were
        # read mean nothing.
        return replace(vocabulary, joinings=tuple(joinings))
    return replace(vocabulary, joinings=tuple(joinings), unspelled=unspelled)


def ordinary_ids(vocabulary: Vocabulary, tokenizer: RoundTripTokenizer) -> list[int]:
    """Return the ids of the entries that random tokens are drawn from: those that copies can be made of.

    A user's candidates are left out, because they are expected to be unusual: a long list of them would make
    what they do look ordinary.
    """
    excluded = set(vocabulary.unspelled)
    if isinstance(tokenizer, CandidateTokenizer):
        excluded.update(tokenizer.candidate_ids)
    return [token.id for token in vocabulary.available if token.id not in excluded]


def choose_joining(
    tokenizer: RoundTripTokenizer, tokens: Sequence[Token], otherwise: Joining, text: str, copies: int
) -> list[tuple[Token, int]]:
    """Choose how to write copies of each token, so that the tokenizer reads as many of them as possible.

    Copies are separate words, unless the tokenizer reads more of them with the joining ``otherwise``.

    Args:
        tokenizer: the tokenizer.
        tokens: the tokens.
        otherwise: the joining to try if some copies are misread as words.
        text: a text behind which copies are written to try a joining.
        copies: number of copies to try.

    Returns:
        Each token with its joining, and how many of the copies the tokenizer reads as the token.
    """
    as_words = [replace(token, joining=Joining.WORDS) for token in tokens]
    read_as_words = count_copies_read(tokenizer, as_words, text, copies)
    written = list(zip(as_words, read_as_words, strict=True))
    misread_rows = [row for row, copies_read in enumerate(read_as_words) if copies_read < copies]
    joined = [replace(tokens[row], joining=otherwise) for row in misread_rows]
    read_joined = count_copies_read(tokenizer, joined, text, copies)
    for row, token, copies_read in zip(misread_rows, joined, read_joined, strict=True):
        if copies_read > read_as_words[row]:
            written[row] = (token, copies_read)
    return written


def count_copies_read(
    tokenizer: RoundTripTokenizer, tokens: Sequence[Token], text: str, copies: int
) -> list[int]:
    """Return for each token how many of its copies after a text the tokenizer reads as the token."""
    texts = [copies_as_text(token, text, Placement.SUFFIX, copies) for token in tokens]
    encoded = tokenizer.encode_many(texts)
    return [list(ids).count(token.id) for token, ids in zip(tokens, encoded, strict=True)]
