"""Put copies of tokens into a sentence, as text or among token ids.

These functions need no model, no tokenizer and no random state. The caller draws the *path* of random
placement: one gap for each copy. Step k inserts one more copy into the sentence of step k - 1 (Chen et al.
2025), and the gap is the number of words in front of the copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import TypeAlias, TypeVar

from stickytoken.errors import InputError

Probe: TypeAlias = str | tuple[int, ...]
"""What an encoder reads: a text, or content ids without the special tokens."""

Copy = TypeVar("Copy", str, int)


class Placement(StrEnum):
    """Where copies stand: before the sentence, after it, or at random gaps between its words."""

    PREFIX = "prefix"
    SUFFIX = "suffix"
    RANDOM = "random"


class Insertion(StrEnum):
    """How copies get into a text.

    Attributes:
        TEXT: As text, which is tokenized again. Neighbouring copies may merge.
        IDS: Among the token ids. The model sees every copy.
        WORDS: As text, each token written so that the tokenizer reads most of its copies.
    """

    TEXT = "text"
    IDS = "ids"
    WORDS = "words"


class Side(StrEnum):
    """Which texts of a task get the copies.

    Attributes:
        QUERY: The queries, or the first sentence of each pair.
        DOCUMENT: The documents, or the second sentence of each pair.
        BOTH: All of them.
    """

    QUERY = "query"
    DOCUMENT = "document"
    BOTH = "both"

    @property
    def roles(self) -> frozenset[str]:
        """Roles of the texts that are changed."""
        return frozenset({"query", "document"} if self is Side.BOTH else {self.value})


class Joining(StrEnum):
    """How copies before or after a text are written.

    Attributes:
        GLUED: Without a space, as in the published runs. Neighbouring copies may merge.
        WORDS: Each copy is a word of its own.
        ATTACHED: Copies are glued to each other, with a space between them and the text. At a random gap, a
            copy is glued to the word before it.
    """

    GLUED = "glued"
    WORDS = "words"
    ATTACHED = "attached"


@dataclass(frozen=True, slots=True)
class Token:
    """A vocabulary entry.

    Attributes:
        id: Its token id.
        text: Its decoded text, with the leading space if it has one.
        joining: How copies of it are written as text.
    """

    id: int
    text: str
    joining: Joining = Joining.GLUED


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """The token ids of a text without special tokens, divided into words.

    Attributes:
        head: Ids before the words, such as those of a prompt.
        words: The ids of each word.
        tail: Ids after the words, such as a quotation mark of the prompt.
    """

    head: tuple[int, ...]
    words: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        return (*self.head, *chain.from_iterable(self.words), *self.tail)


def insert_as_text(
    token: Token, text: str, placement: Placement, counts: int, path: Sequence[int] = ()
) -> list[str]:
    """Return the text with 1, 2, ... ``counts`` copies of a token."""
    copies = [_spelled(token)] * counts
    if placement is Placement.RANDOM:
        return list(_texts_at_random(copies, text, path, token.joining))
    return [
        place_as_text(copies[:count], text, placement, (), token.joining) for count in range(1, counts + 1)
    ]


def insert_as_ids(
    token: Token, text: TokenizedText, placement: Placement, counts: int, path: Sequence[int] = ()
) -> list[tuple[int, ...]]:
    """Return the ids of the text with 1, 2, ... ``counts`` copies of a token."""
    copies = [token.id] * counts
    if placement is Placement.RANDOM:
        return [replace(text, words=tuple(words)).ids for words in _words_at_random(copies, text, path)]
    return [place_as_ids(copies[:count], text, placement) for count in range(1, counts + 1)]


def copies_as_text(
    token: Token, text: str, placement: Placement, copies: int, path: Sequence[int] = ()
) -> str:
    """Return the text with copies of one token."""
    return place_as_text([_spelled(token)] * copies, text, placement, path, token.joining)


def copies_as_ids(
    token: Token, text: TokenizedText, placement: Placement, copies: int, path: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the ids of the text with copies of one token."""
    return place_as_ids([token.id] * copies, text, placement, path)


def place_as_text(
    copies: Sequence[str],
    text: str,
    placement: Placement,
    path: Sequence[int] = (),
    joining: Joining = Joining.GLUED,
) -> str:
    """Return the text with copies, which may be of different tokens."""
    if placement is Placement.RANDOM:
        for longer_text in _texts_at_random(copies, text, path, joining):
            text = longer_text
        return text
    if joining is Joining.ATTACHED:
        copies = ["".join(copies)]
    pieces = [*copies, text] if placement is Placement.PREFIX else [text, *copies]
    separator = "" if joining is Joining.GLUED else " "
    return separator.join(piece for piece in pieces if piece)


def place_as_ids(
    copies: Sequence[int], text: TokenizedText, placement: Placement, path: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the ids of the text with copies, which may be of different tokens."""
    if placement is Placement.RANDOM:
        final_words: Sequence[tuple[int, ...]] = text.words
        for words in _words_at_random(copies, text, path):
            final_words = words
    elif placement is Placement.PREFIX:
        final_words = (tuple(copies), *text.words)
    else:
        final_words = (*text.words, tuple(copies))
    return (*text.head, *chain.from_iterable(final_words), *text.tail)


def _spelled(token: Token) -> str:
    """Return the text of a copy: with its leading space only if copies are glued."""
    return token.text if token.joining is Joining.GLUED else token.text.strip()


def _texts_at_random(
    copies: Sequence[str], text: str, path: Sequence[int], joining: Joining = Joining.GLUED
) -> Iterator[str]:
    """Yield the text after each step of random placement."""
    for copy, gap in _steps(copies, path):
        words = text.split()
        if joining is Joining.ATTACHED and words:
            # Attached copies add no words, so that a gap may lie beyond the end of the text.
            words_before = min(gap, len(words))
            if words_before:
                words[words_before - 1] += copy
            else:
                words[0] = copy + words[0]
        else:
            words.insert(_inside(gap, len(words)), copy)
        text = " ".join(words)
        yield text


def _words_at_random(
    copies: Sequence[int], text: TokenizedText, path: Sequence[int]
) -> Iterator[list[tuple[int, ...]]]:
    """Yield the words after each step of random placement: one list, which grows."""
    words = list(text.words)
    for copy, gap in _steps(copies, path):
        words.insert(_inside(gap, len(words)), (copy,))
        yield words


def _steps(copies: Sequence[Copy], path: Sequence[int]) -> Iterator[tuple[Copy, int]]:
    """Pair each copy with its gap."""
    if len(path) < len(copies):
        raise InputError(
            f"random placement of {len(copies)} copies needs a path of {len(copies)} gaps, got {len(path)}"
        )
    return zip(copies, path, strict=False)


def _inside(gap: int, words: int) -> int:
    """Return a gap that lies within a sentence of so many words, and refuse others."""
    if not 0 <= gap <= words:
        raise InputError(f"gap {gap} of a random placement lies outside a sentence of {words} words")
    return gap
