"""Settings of an explanation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from stickytoken.insertion import Insertion, Placement, Token, TokenizedText, copies_as_ids
from stickytoken.methods.probes import KeyedPaths
from stickytoken.validation import proportion, require_switch, set_choices, set_whole_numbers
from stickytoken.vocabulary import LEAST_BENIGN


@dataclass(frozen=True, slots=True)
class ExplainSettings:
    """Settings of `explain`.

    Attributes:
        copies: number of copies of the token in each carrier.
        placement: where the copies go.
        carriers: number of texts that copies are added to; fewer if the corpus or the user has fewer.
        benign: number of matched benign tokens that each token is compared with.
        confidence: coverage of the intervals.
        attribution: whether to compute integrated Jacobians.
        attribution_carriers: number of carriers whose similarities are attributed.
        attribution_benign: number of benign tokens whose similarities are also attributed.
        pairs: number of carrier-anchor pairs whose token-by-token matrix is kept.
        steps: points per integral; more are used where the integrand changes sharply.
        neighbours: number of nearest rows of the embedding matrix to list.
        directions: number of random vocabulary entries used for the mean direction.
        seed: seed of all sampling.

    Raises:
        InputError: a value is out of range.
    """

    copies: int = 8
    placement: Placement = Placement.SUFFIX
    carriers: int = 50
    benign: int = 16
    confidence: float = 0.9
    attribution: bool = True
    attribution_carriers: int = 4
    attribution_benign: int = 6
    pairs: int = 1
    steps: int = 32
    neighbours: int = 8
    directions: int = 512
    seed: int = 42

    def __post_init__(self) -> None:
        least = {
            "copies": 1,
            "carriers": 1,
            "benign": LEAST_BENIGN,
            "attribution_carriers": 1,
            "attribution_benign": LEAST_BENIGN,
            "pairs": 0,
            "steps": 1,
            "neighbours": 0,
            "directions": 1,
            "seed": 0,
        }
        set_whole_numbers(self, least)
        set_choices(self, {"placement": Placement})
        require_switch("attribution", self.attribution)
        object.__setattr__(self, "confidence", proportion("confidence", self.confidence))


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
    """Choose the places of the copies, which are the same for every token."""
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
