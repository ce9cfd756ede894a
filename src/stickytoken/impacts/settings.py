"""What an impact measurement depends on beside the model, the tasks and the tokens."""

from __future__ import annotations

from dataclasses import dataclass

from stickytoken.insertion import Insertion, Placement
from stickytoken.tasks.protocol import Side
from stickytoken.validation import proportion, set_whole_numbers


@dataclass(frozen=True)
class ImpactSettings:
    """Settings of an impact measurement.

    Attributes:
        copies: copies of a token in a text.
        placement: where they go.
        insertion: as ids, or as words of the text; MTEB tasks take text only.
        side: which texts get them.
        sticky: at most so many of a run's sticky tokens, the worst first.
        benign: matched tokens for each sticky one.
        seeds: repetitions of everything random.
        resamples: bootstrap samples of queries, pairs or texts.
        confidence: coverage of the intervals.
        seed: of everything random.

    Raises:
        InputError: a value is out of range.
    """

    copies: int = 8
    placement: Placement = Placement.RANDOM
    insertion: Insertion = Insertion.IDS
    side: Side = Side.DOCUMENT
    sticky: int = 10
    benign: int = 1
    seeds: int = 2
    resamples: int = 1000
    confidence: float = 0.9
    seed: int = 42

    def __post_init__(self) -> None:
        least = {"copies": 1, "sticky": 1, "benign": 1, "seeds": 1, "resamples": 100, "seed": 0}
        set_whole_numbers(self, least)
        object.__setattr__(self, "confidence", proportion("confidence", self.confidence))
