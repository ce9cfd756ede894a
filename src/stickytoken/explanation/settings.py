"""What an explanation looks at, and how closely."""

from __future__ import annotations

from dataclasses import dataclass

from stickytoken.insertion import Placement
from stickytoken.validation import proportion, set_whole_numbers
from stickytoken.vocabulary.benign import LEAST_BENIGN


@dataclass(frozen=True, slots=True)
class ExplainSettings:
    """Settings of `explain`.

    Attributes:
        copies: of the token in each carrier.
        placement: where they go.
        carriers: texts that they are put into; fewer where the corpus or the user has fewer.
        benign: matched tokens that each token is compared with.
        confidence: coverage of the intervals.
        attribution: whether integrated Jacobians are computed.
        attribution_carriers: carriers whose similarities are attributed.
        attribution_benign: benign tokens that are attributed beside.
        pairs: pairs of carrier and anchor whose token-by-token matrix is kept.
        steps: points of the integrals; more are taken where they are too few.
        neighbours: nearest rows of the embedding matrix to name.
        directions: random vocabulary entries that the mean direction rests on.
        seed: of all sampling.

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
        object.__setattr__(self, "confidence", proportion("confidence", self.confidence))
