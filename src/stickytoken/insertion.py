"""Insert copies of tokens into a sentence, as text or as token ids.

These functions need no model, tokenizer or random state. For random placement, the caller passes a *path*
(see `draw_path`), which lists the gap of each copy. The gap of a copy is the number of words before the copy.
Step k inserts one more copy into the sentence of step k - 1 (Chen et al. 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import SupportsInt, TypeAlias, TypeVar

from stickytoken.errors import InputError

Probe: TypeAlias = str | tuple[int, ...]
"""Input of an encoder: a text, or its token ids without the special tokens."""

Copy = TypeVar("Copy", str, int)


class Placement(StrEnum):
    """Where copies stand: before the sentence, after it, or at random gaps between its words."""

    PREFIX = "prefix"
    SUFFIX = "suffix"
    RANDOM = "random"


class Insertion(StrEnum):
    """How copies are inserted into a text.

    Attributes:
        TEXT: Copies are inserted into the text, which is then tokenized. Neighbouring copies may merge into
            other tokens.
        IDS: Copies are inserted into the token ids. The model sees every copy.
        WORDS: Copies are inserted into the text, with spaces chosen so that the tokenizer maps as many of the
            copies as possible to the token itself.
    """

    TEXT = "text"
    IDS = "ids"
    WORDS = "words"


class Joining(StrEnum):
    """How spaces separate copies from each other and from the text.

    Attributes:
        GLUED: No spaces, as in the published runs. Neighbouring copies may merge into other tokens. At a
            random gap, a copy is a word of its own, with spaces on both sides.
        WORDS: Spaces on both sides of every copy.
        ATTACHED: No spaces between copies, but a space between the copies and the text. At a random gap, a
            copy is attached to the word before it.
    """

    GLUED = "glued"
    WORDS = "words"
    ATTACHED = "attached"


@dataclass(frozen=True, slots=True)
class Token:
    """A vocabulary entry.

    Attributes:
        id: Token id.
        text: Decoded text, with the leading space if the token has one.
        joining: How spaces separate copies of the token when they are written as text.
    """

    id: int
    text: str
    joining: Joining = Joining.GLUED


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """The token ids of a text without special tokens, divided into words.

    Attributes:
        head: Ids before the words, such as the ids of a prompt prefix.
        words: The ids of each word.
        tail: Ids after the words, such as the id of a closing quotation mark in the prompt.
    """

    head: tuple[int, ...]
    words: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids in order: head, words and tail."""
        return (*self.head, *chain.from_iterable(self.words), *self.tail)


def draw_path(
    draw: Callable[[int], SupportsInt], words: int, copies: int, words_per_copy: int = 1
) -> tuple[int, ...]:
    """Draw where copies go: for each, how many words come before it, counting words of earlier copies.

    Args:
        draw: returns a random number from 0 to its argument, both included.
        words: number of words in the text.
        copies: number of copies.
        words_per_copy: number of words that a copy adds to the text.
    """
    return tuple(int(draw(words + earlier_copies * words_per_copy)) for earlier_copies in range(copies))


def insert_as_text(
    token: Token, text: str, placement: Placement, max_copies: int, path: Sequence[int] = ()
) -> list[str]:
    """Return one text for each number of copies of a token, from 1 to ``max_copies``.

    ``path`` lists, for each copy, the number of words before it, including earlier copies. It is used for
    random placement only.
    """
    copies = [_spell_copy(token)] * max_copies
    if placement is Placement.RANDOM:
        return list(_insert_texts_at_random(copies, text, path, token.joining))
    return [
        place_as_text(copies[:count], text, placement, joining=token.joining)
        for count in range(1, max_copies + 1)
    ]


def insert_as_ids(
    token: Token, text: TokenizedText, placement: Placement, max_copies: int, path: Sequence[int] = ()
) -> list[tuple[int, ...]]:
    """Return the token ids of one text for each number of copies of a token, from 1 to ``max_copies``.

    ``path`` lists, for each copy, the number of words before it, including earlier copies. It is used for
    random placement only.
    """
    copies = [token.id] * max_copies
    if placement is Placement.RANDOM:
        # The words with 1 copy, with 2 copies, and so on.
        growing_words = _insert_words_at_random(copies, text, path)
        return [replace(text, words=tuple(words)).ids for words in growing_words]
    return [place_as_ids(copies[:count], text, placement) for count in range(1, max_copies + 1)]


def copies_as_text(
    token: Token, text: str, placement: Placement, copies: int, path: Sequence[int] = ()
) -> str:
    """Return the text after inserting ``copies`` copies of one token."""
    return place_as_text([_spell_copy(token)] * copies, text, placement, path, token.joining)


def copies_as_ids(
    token: Token, text: TokenizedText, placement: Placement, copies: int, path: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the ids of the text after inserting ``copies`` copies of one token."""
    return place_as_ids([token.id] * copies, text, placement, path)


def place_as_text(
    copies: Sequence[str],
    text: str,
    placement: Placement,
    path: Sequence[int] = (),
    joining: Joining = Joining.GLUED,
) -> str:
    """Return the text with the given copies inserted; the copies may be of different tokens.

    `Joining` says where spaces go. For random placement only, ``path`` lists how many words come before each
    copy, including earlier copies, and all whitespace of the text becomes single spaces.
    """
    if placement is Placement.RANDOM:
        # Each step inserts one more copy; the text of the last step has all of them.
        for longer_text in _insert_texts_at_random(copies, text, path, joining):
            text = longer_text
        return text
    if joining is Joining.ATTACHED:
        copies = ["".join(copies)]  # all copies together are a single word
    pieces = [*copies, text] if placement is Placement.PREFIX else [text, *copies]
    separator = "" if joining is Joining.GLUED else " "
    return separator.join(piece for piece in pieces if piece)  # no space around an empty text


def place_as_ids(
    copies: Sequence[int], text: TokenizedText, placement: Placement, path: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the ids of the text with the given copies inserted; the copies may be of different tokens.

    The copies go between the head and the tail of the text, which belong to a prompt: before its words, after
    them, or at random among them. ``path`` lists, for each copy, the number of words before it, including
    earlier copies. It is used for random placement only.
    """
    if placement is Placement.RANDOM:
        # Each step inserts one more copy; the words of the last step contain all copies.
        final_words: Sequence[tuple[int, ...]] = text.words
        for words in _insert_words_at_random(copies, text, path):
            final_words = words
    # The result doesn't show which ids form a word, so all copies are inserted like a single word.
    elif placement is Placement.PREFIX:
        final_words = (tuple(copies), *text.words)
    else:
        final_words = (*text.words, tuple(copies))
    return (*text.head, *chain.from_iterable(final_words), *text.tail)


def _spell_copy(token: Token) -> str:
    # Returns a copy as text. If `Joining` puts spaces around copies, the token's own space is left out.
    return token.text if token.joining is Joining.GLUED else token.text.strip()


def _insert_texts_at_random(
    copies: Sequence[str], text: str, path: Sequence[int], joining: Joining
) -> Iterator[str]:
    # Yields the text with 1 copy, with 2 copies, and so on. ``path`` has the number of words before each
    # copy, earlier copies included.
    for copy, gap in _pair_with_gaps(copies, path):
        words = text.split()
        if joining is Joining.ATTACHED and words:
            # Attached copies add no words, though the path counts each as one: a gap may lie beyond the last
            # word.
            words_before = min(gap, len(words))
            if words_before:
                words[words_before - 1] += copy
            else:
                words[0] = copy + words[0]
        else:
            words.insert(_require_inside(gap, len(words)), copy)
        text = " ".join(words)
        yield text


def _insert_words_at_random(
    copies: Sequence[int], text: TokenizedText, path: Sequence[int]
) -> Iterator[list[tuple[int, ...]]]:
    # Yields the ids of each word with 1 copy, with 2 copies, and so on.
    words = list(text.words)
    for copy, gap in _pair_with_gaps(copies, path):
        words.insert(_require_inside(gap, len(words)), (copy,))
        yield words  # always the same list, which grows


def _pair_with_gaps(copies: Sequence[Copy], path: Sequence[int]) -> Iterator[tuple[Copy, int]]:
    # The gap of a copy is the number of words before it.
    if len(path) < len(copies):
        raise InputError(
            f"random placement of {len(copies)} copies needs a path of {len(copies)} gaps, got {len(path)}"
        )
    return zip(copies, path, strict=False)  # a path drawn for more copies serves too


def _require_inside(gap: int, word_count: int) -> int:
    # Returns the gap, the number of words before a copy, or raises an error if the text has fewer words.
    if not 0 <= gap <= word_count:
        raise InputError(
            f"gap {gap} of a random placement lies outside a sentence of {word_count} words: pass a gap "
            f"from 0 to {word_count}"
        )
    return gap
