"""Insert copies of a token into texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, IdEncoder, require_ids
from stickytoken.insertion import (
    Insertion,
    Placement,
    Probe,
    Token,
    TokenizedText,
    copies_as_ids,
    copies_as_text,
)

Carrier: TypeAlias = str | TokenizedText
GapPath: TypeAlias = tuple[int, ...]
"""Where randomly placed copies go in a text: for each copy, the number of words before it, including those of
earlier copies.
"""
Floats: TypeAlias = NDArray[np.float64]

# Number of tokens reserved for each copy that is inserted as text, because the tokenizer may split the copy
# into several tokens.
_TOKENS_PER_TEXT_COPY = 8


def require_insertion(encoder: Encoder, insertion: Insertion) -> None:
    """Raise a ModelError if copies are to be inserted as token ids, but the encoder accepts only texts."""
    if insertion is Insertion.IDS:
        _require_ids_for_insertion(encoder)


def _require_ids_for_insertion(encoder: Encoder) -> IdEncoder:
    return require_ids(encoder, "insertion 'ids'", "set insertion to 'text'")


def as_carriers(encoder: Encoder, insertion: Insertion, texts: Sequence[str]) -> tuple[Carrier, ...]:
    """Return texts as carriers: tokenized if copies are inserted as token ids, otherwise unchanged."""
    if insertion is not Insertion.IDS:
        return tuple(texts)
    id_encoder = _require_ids_for_insertion(encoder)
    return tuple(id_encoder.tokenize(texts))


def room_for(encoder: Encoder, insertion: Insertion, copies: int) -> int:
    """Return how many tokens of a text to keep free for copies: at most half of what the model reads."""
    room = copies if insertion is Insertion.IDS else copies * _TOKENS_PER_TEXT_COPY
    return room if encoder.max_length is None else min(room, encoder.max_length // 2)


def has_room(encoder: Encoder, ids: Sequence[int], room: int) -> bool:
    """Return whether the model reads all of a text with these token ids, and ``room`` more tokens."""
    placeholders = (0,) * room
    return encoder.fits((*ids, *placeholders))


def with_copies(
    token: Token, carrier: Carrier, placement: Placement, copies: int, path: GapPath = ()
) -> Probe:
    """Return a carrier with ``copies`` copies of a token inserted.

    ``path`` is needed for random placement only.
    """
    if isinstance(carrier, str):
        return copies_as_text(token, carrier, placement, copies, path)
    return copies_as_ids(token, carrier, placement, copies, path)


def word_count(carrier: Carrier) -> int:
    """Return the number of words in a carrier."""
    return len(carrier.split()) if isinstance(carrier, str) else len(carrier.words)


def balanced(groups: Sequence[str], count: int, seed: int | Sequence[int]) -> list[int]:
    """Draw elements at random, one from each group in turn.

    Every group thus contributes the same number of elements, or all of its elements if it has fewer.

    Args:
        groups: for each element, the name of its group.
        count: maximum number of elements to draw.
        seed: seed of the random generator.

    Returns:
        Indices of the drawn elements.
    """
    generator = np.random.default_rng(seed)
    queues: dict[str, list[int]] = {}  # for each group, the indices of its elements in random order
    for index in generator.permutation(len(groups)):
        queues.setdefault(groups[index], []).append(int(index))
    longest = max(map(len, queues.values()), default=0)
    order: list[int] = []
    for turn in range(longest):
        order += [queue[turn] for queue in queues.values() if turn < len(queue)]
    return order[:count]


def words_added(token: Token, insertion: Insertion) -> int:
    """Return the number of words that a copy adds to a text. A copy inserted as an id counts as one word."""
    return 1 if insertion is Insertion.IDS else len(token.text.split())
