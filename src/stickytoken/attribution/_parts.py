"""Cut a text into the parts that its similarity is attributed to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from stickytoken.encoders.protocol import IdEncoder
from stickytoken.errors import EncodingError

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class CutText:
    """A text as the model reads it, in parts.

    Attributes:
        text: the whole text.
        parts: content ids of each part, in order.
        names: each part as text.
        left_out: tokens beyond what the model reads.
    """

    text: str
    parts: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    left_out: int

    @property
    def ids(self) -> tuple[int, ...]:
        """All content ids."""
        return tuple(token_id for part in self.parts for token_id in part)

    @property
    def labels(self) -> list[int]:
        """The part of each id."""
        return [place for place, part in enumerate(self.parts) for _ in part]

    def only(self, places: Collection[int]) -> tuple[int, ...]:
        """Content ids of some parts, in their order."""
        return tuple(
            token_id for place, part in enumerate(self.parts) if place in places for token_id in part
        )

    def without(self, places: Collection[int]) -> tuple[int, ...]:
        """Content ids without some parts."""
        return self.only(set(range(len(self.parts))).difference(places))


def cut_text(encoder: IdEncoder, text: str, *, words: bool, most: int) -> CutText:
    """Cut a text into tokens or words, and into longer spans if there would be too many.

    Args:
        encoder: the model.
        text: any text; what the model does not read of it is left out.
        words: whether the tokens of a word are one part.
        most: largest number of parts.
    """
    tokenized = encoder.tokenize([text])[0]
    ids = tokenized.ids
    if not ids:
        raise EncodingError(f"{encoder.name}: the text {text[:80]!r} has no tokens: pass a text with words")
    read = _readable(encoder, ids)
    pieces: list[tuple[int, ...]] = [(token_id,) for token_id in ids]
    if words:
        outside = [[(token_id,) for token_id in side] for side in (tokenized.head, tokenized.tail)]
        pieces = [*outside[0], *tokenized.words, *outside[1]]
    parts, taken = [], 0
    for piece in pieces:
        if kept := piece[: read - taken]:
            parts.append(kept)
        taken += len(kept)
    if len(parts) > most:
        parts = [
            tuple(token_id for place in span for token_id in parts[place])
            for span in np.array_split(np.arange(len(parts)), most)
        ]
    return CutText(text, tuple(parts), tuple(_names(encoder, parts)), len(ids) - read)


def _readable(encoder: IdEncoder, ids: Sequence[int]) -> int:
    """Return how many of the ids the model reads together with what it puts around them."""
    if encoder.max_length is None or encoder.fits(ids):
        return len(ids)
    low, high = 0, min(len(ids), encoder.max_length)  # a text that fits, the longest that may fit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if encoder.fits(ids[:middle]) else (low, middle - 1)
    return low or len(ids)  # an entry without a row, for which the encoder has its own error


def _names(encoder: IdEncoder, parts: Sequence[tuple[int, ...]]) -> list[str]:
    """Return parts as text; a piece of a character has only its vocabulary string."""
    entries = encoder.tokenizer.entries
    return [
        shown
        if (shown := decoded.strip()) and _REPLACEMENT not in shown
        else "".join(entries.get(token_id, str(token_id)) for token_id in part)
        for part, decoded in zip(parts, encoder.tokenizer.decode_many(parts), strict=True)
    ]
