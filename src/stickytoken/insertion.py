"""Put copies of a token into a sentence, as text or among token ids.

Pure: no model, no tokenizer, no random state. Random placement takes a *path*, one
gap index a step, drawn by the caller: step k inserts one more copy into the sentence
of step k - 1 (Chen et al. 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from stickytoken.errors import InputError

Probe: TypeAlias = str | tuple[int, ...]
"""What an encoder reads: a text, or content ids without the special tokens."""


class Placement(StrEnum):
    """Where the copies go."""

    PREFIX = "prefix"
    SUFFIX = "suffix"
    RANDOM = "random"


class Insertion(StrEnum):
    """How the copies go in."""

    TEXT = "text"
    """Joined to the string, which is tokenized again: neighbouring copies may merge."""
    IDS = "ids"
    """Put among the token ids: the model sees exactly n copies."""


@dataclass(frozen=True, slots=True)
class Token:
    """One vocabulary entry, as inserted.

    Attributes:
        id: its id.
        text: its decoded text, with the leading space if it has one.
    """

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """Content ids of one text, cut where whitespace separates its words.

    Attributes:
        head: ids that stay in front (the prompt).
        words: ids of each word, in order.
        tail: ids that stay behind (a quotation mark that shares a token with the last sign).
    """

    head: tuple[int, ...]
    words: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        """All content ids in order."""
        return self.head + tuple(token_id for word in self.words for token_id in word) + self.tail


def insert_as_text(
    token: Token, text: str, placement: Placement, counts: int, path: Sequence[int] = ()
) -> list[str]:
    """Return the texts with 1, 2, ..., ``counts`` copies.

    Prefix and suffix copies are joined without a separator, as in the published runs;
    a random copy becomes a word of its own.

    Args:
        token: what to insert.
        text: the carrier.
        placement: where.
        counts: the largest number of copies.
        path: for random placement, the gap of each step: 0 is before the first word.

    Raises:
        InputError: the path is too short or leaves the sentence.
    """
    if placement is not Placement.RANDOM:
        return [copies_as_text(token, text, placement, n) for n in range(1, counts + 1)]
    texts: list[str] = []
    for gap in _checked(path, counts):
        words = (texts[-1] if texts else text).split()
        words.insert(_inside(gap, len(words)), token.text)
        texts.append(" ".join(words))
    return texts


def insert_as_ids(
    token: Token, text: TokenizedText, placement: Placement, counts: int, path: Sequence[int] = ()
) -> list[tuple[int, ...]]:
    """Return the content ids with 1, 2, ..., ``counts`` copies; see ``insert_as_text``."""
    if placement is not Placement.RANDOM:
        return [copies_as_ids(token, text, placement, n) for n in range(1, counts + 1)]
    copy = (token.id,)
    words = list(text.words)
    probes: list[tuple[int, ...]] = []
    for gap in _checked(path, counts):
        words.insert(_inside(gap, len(words)), copy)
        probes.append(replace(text, words=tuple(words)).ids)
    return probes


def copies_as_text(
    token: Token, text: str, placement: Placement, copies: int, path: Sequence[int] = ()
) -> str:
    """Return the text with exactly ``copies`` copies; see ``insert_as_text``."""
    if placement is Placement.PREFIX:
        return token.text * copies + text
    if placement is Placement.SUFFIX:
        return text + token.text * copies
    return insert_as_text(token, text, placement, copies, path)[-1]


def copies_as_ids(
    token: Token, text: TokenizedText, placement: Placement, copies: int, path: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the content ids with exactly ``copies`` copies; see ``insert_as_text``."""
    if placement is Placement.PREFIX:
        return replace(text, words=((token.id,) * copies, *text.words)).ids
    if placement is Placement.SUFFIX:
        return replace(text, words=(*text.words, (token.id,) * copies)).ids
    return insert_as_ids(token, text, placement, copies, path)[-1]


def _checked(path: Sequence[int], counts: int) -> Sequence[int]:
    if len(path) < counts:
        raise InputError(
            f"random placement of {counts} copies needs a path of {counts} gaps, got {len(path)}"
        )
    return path[:counts]


def _inside(gap: int, words: int) -> int:
    if not 0 <= gap <= words:
        raise InputError(f"gap {gap} of a random placement lies outside a sentence of {words} words")
    return gap
