"""Put copies of tokens into a sentence, as text or among token ids.

Pure: no model, no tokenizer, no random state. Random placement takes a *path*, one gap index per step, drawn
by the caller: step k inserts one more copy into the sentence of step k - 1 (Chen et al. 2025).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias, TypeVar

from stickytoken.errors import InputError

Probe: TypeAlias = str | tuple[int, ...]
"""What an encoder reads: a text, or content ids without the special tokens."""

Copy = TypeVar("Copy", str, int)


class Placement(StrEnum):
    PREFIX = "prefix"
    SUFFIX = "suffix"
    RANDOM = "random"


class Insertion(StrEnum):
    TEXT = "text"  # joined to the string, which is tokenized again: neighbouring copies may merge
    IDS = "ids"  # put among the token ids: the model sees exactly n copies
    WORDS = "words"  # as text, each token written in the way in which the tokenizer sees most of its copies


class Side(StrEnum):
    """Which texts of a task get the copies."""

    QUERY = "query"  # queries; the first sentence of a pair
    DOCUMENT = "document"  # documents; the second sentence of a pair
    BOTH = "both"

    @property
    def roles(self) -> frozenset[str]:
        """Roles of the texts that are changed."""
        return frozenset({"query", "document"} if self is Side.BOTH else {self.value})


class Joining(StrEnum):  # how copies before or after a text are written
    GLUED = "glued"  # without a separator, as in the published runs: neighbouring copies may merge
    WORDS = "words"  # each as a word of its own
    ATTACHED = "attached"  # glued to each other, apart from the text; among words, each to the word before


@dataclass(frozen=True, slots=True)
class Token:
    id: int  # of a vocabulary entry
    text: str  # decoded, with the leading space if it has one
    joining: Joining = Joining.GLUED


@dataclass(frozen=True, slots=True)
class TokenizedText:  # content ids, cut where whitespace separates words
    head: tuple[int, ...]  # stays in front (the prompt)
    words: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...] = ()  # stays behind (a quotation mark that shares a token with the last sign)

    @property
    def ids(self) -> tuple[int, ...]:
        return self.head + tuple(token_id for word in self.words for token_id in word) + self.tail


def insert_as_text(
    token: Token, text: str, placement: Placement, counts: int, path: Sequence[int] = ()
) -> list[str]:
    # By default, prefix and suffix copies are glued, as in the published runs; a random one is a word.
    copies = [_spelled(token)] * counts
    if placement is Placement.RANDOM:
        return list(_texts_at_random(copies, text, path, token.joining))
    return [
        place_as_text(copies[:count], text, placement, (), token.joining) for count in range(1, counts + 1)
    ]


def insert_as_ids(
    token: Token, text: TokenizedText, placement: Placement, counts: int, path: Sequence[int] = ()
) -> list[tuple[int, ...]]:
    copies = [token.id] * counts
    if placement is Placement.RANDOM:
        return list(_ids_at_random(copies, text, path))
    return [place_as_ids(copies[:count], text, placement) for count in range(1, counts + 1)]


def copies_as_text(
    token: Token, text: str, placement: Placement, copies: int, path: Sequence[int] = ()
) -> str:
    return place_as_text([_spelled(token)] * copies, text, placement, path, token.joining)


def copies_as_ids(
    token: Token, text: TokenizedText, placement: Placement, copies: int, path: Sequence[int] = ()
) -> tuple[int, ...]:
    return place_as_ids([token.id] * copies, text, placement, path)


def place_as_text(
    copies: Sequence[str],
    text: str,
    placement: Placement,
    path: Sequence[int] = (),
    joining: Joining = Joining.GLUED,
) -> str:
    if placement is Placement.RANDOM:
        return [text, *_texts_at_random(copies, text, path, joining)][-1]
    if joining is Joining.ATTACHED:
        copies = ["".join(copies)]
    parts = [*copies, text] if placement is Placement.PREFIX else [text, *copies]
    return ("" if joining is Joining.GLUED else " ").join(part for part in parts if part)


def place_as_ids(
    copies: Sequence[int], text: TokenizedText, placement: Placement, path: Sequence[int] = ()
) -> tuple[int, ...]:
    if placement is Placement.RANDOM:
        return [text.ids, *_ids_at_random(copies, text, path)][-1]
    words = (tuple(copies), *text.words) if placement is Placement.PREFIX else (*text.words, tuple(copies))
    return replace(text, words=words).ids


def _spelled(token: Token) -> str:
    return token.text if token.joining is Joining.GLUED else token.text.strip()


def _texts_at_random(
    copies: Sequence[str], text: str, path: Sequence[int], joining: Joining = Joining.GLUED
) -> Iterator[str]:
    for copy, gap in _steps(copies, path):
        words = text.split()
        if joining is Joining.ATTACHED and words:
            # The text does not grow by words, and so a late gap may lie behind its end.
            place = min(gap, len(words))
            words[max(0, place - 1)] = words[place - 1] + copy if place else copy + words[0]
        else:
            words.insert(_inside(gap, len(words)), copy)
        text = " ".join(words)
        yield text


def _ids_at_random(
    copies: Sequence[int], text: TokenizedText, path: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    words = list(text.words)
    for copy, gap in _steps(copies, path):
        words.insert(_inside(gap, len(words)), (copy,))
        yield replace(text, words=tuple(words)).ids


def _steps(copies: Sequence[Copy], path: Sequence[int]) -> Iterator[tuple[Copy, int]]:
    if len(path) < len(copies):
        raise InputError(
            f"random placement of {len(copies)} copies needs a path of {len(copies)} gaps, got {len(path)}"
        )
    return zip(copies, path, strict=False)


def _inside(gap: int, words: int) -> int:
    if not 0 <= gap <= words:
        raise InputError(f"gap {gap} of a random placement lies outside a sentence of {words} words")
    return gap
