"""Place copies in a carrier and label every position of the result. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from stickytoken.explanation.settings import ExplainSettings
from stickytoken.insertion import Insertion, Placement, Token, TokenizedText, copies_as_ids
from stickytoken.methods.probes import KeyedPaths

# Placeholder for the copies; the token itself may also occur in the carrier.
_COPY = Token(-1, "")
_KEY = 0


class Part(IntEnum):
    """What a position of an input belongs to; special tokens come last."""

    CARRIER = 0
    COPIES = 1
    PROMPT = 2
    SPECIAL = 3


PARTS = int(Part.SPECIAL)


@dataclass(frozen=True, slots=True)
class PlacedCarrier:
    """A carrier with places for copies.

    Attributes:
        text: the carrier.
        before: content ids without copies, including the prompt.
        before_labels: the `Part` of each content id in ``before``.
        template: content ids with -1 for each copy.
        labels: the `Part` of each content id in ``template``.
    """

    text: str
    before: tuple[int, ...]
    before_labels: tuple[int, ...]
    template: tuple[int, ...]
    labels: tuple[int, ...]

    def with_copies(self, token_id: int) -> tuple[int, ...]:
        """Return the content ids with copies of a token."""
        return tuple(token_id if entry == _COPY.id else entry for entry in self.template)


def place_copies(
    text: str, tokenized: TokenizedText, number: int, settings: ExplainSettings
) -> PlacedCarrier:
    """Choose the places of the copies, which are the same for every token.

    Args:
        text: the carrier.
        tokenized: ids of the carrier.
        number: index of the carrier; random places depend on it and the seed only.
        settings: placement and number of copies.
    """
    path: tuple[int, ...] = ()
    if settings.placement is Placement.RANDOM:
        words = (len(tokenized.words),)
        path = KeyedPaths(settings.seed, _KEY, words, settings.copies, Insertion.IDS).of(Token(number, ""))[0]
    template = copies_as_ids(_COPY, tokenized, settings.placement, settings.copies, path)
    head = len(tokenized.head)

    def part(place: int, entry: int) -> int:
        if place < head:
            return int(Part.PROMPT)
        return int(Part.COPIES if entry == _COPY.id else Part.CARRIER)

    before = tokenized.ids
    return PlacedCarrier(
        text,
        before,
        tuple(part(place, entry) for place, entry in enumerate(before)),
        template,
        tuple(part(place, entry) for place, entry in enumerate(template)),
    )
