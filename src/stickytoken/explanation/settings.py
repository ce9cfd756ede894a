"""Settings of an explanation."""

from __future__ import annotations

from dataclasses import dataclass

from stickytoken.insertion import Placement
from stickytoken.validation import proportion, require_switch, set_choices, set_whole_numbers
from stickytoken.vocabulary.benign import LEAST_BENIGN


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
