"""Settings of an impact measurement."""

from __future__ import annotations

from dataclasses import dataclass

from stickytoken.insertion import Insertion, Placement, Side
from stickytoken.validation import proportion, set_choices, set_whole_numbers


@dataclass(frozen=True)
class ImpactSettings:
    """Settings of an impact measurement.

    Attributes:
        copies: number of copies of a token in a text.
        placement: where the copies go.
        insertion: whether copies are inserted as ids or as words; MTEB tasks always use words.
        side: which texts get copies.
        sticky: largest number of sticky tokens to take from a run, the worst first.
        benign: number of matched benign tokens for each sticky token.
        seeds: number of random repetitions.
        resamples: number of bootstrap samples of queries, pairs or texts.
        confidence: coverage of the intervals.
        seed: seed of all randomness.

    Raises:
        InputError: a value is out of range.
    """

    copies: int = 8
    placement: Placement = Placement.RANDOM
    insertion: Insertion = Insertion.IDS
    side: Side = Side.DOCUMENT
    sticky: int = 5
    benign: int = 8
    seeds: int = 1
    resamples: int = 1000
    confidence: float = 0.9
    seed: int = 42

    def __post_init__(self) -> None:
        least = {"copies": 1, "sticky": 1, "benign": 1, "seeds": 1, "resamples": 100, "seed": 0}
        set_whole_numbers(self, least)
        set_choices(self, {"placement": Placement, "insertion": Insertion, "side": Side})
        object.__setattr__(self, "confidence", proportion("confidence", self.confidence))
