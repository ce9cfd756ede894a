"""The settings of an impact measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from stickytoken.insertion import Insertion, Placement, Side
from stickytoken.settings import NaturalNumber, OptionName, PositiveCount, Proportion, check_settings


@dataclass(frozen=True)
class ImpactSettings:
    """How the impact of copies is measured. In MTEB tasks, copies are always inserted as words.

    Attributes:
        copies: Number of copies of a token in a text.
        placement: Where in the text the copies go.
        insertion: ids: the model reads exactly n copies. text: the copies are inserted as words.
        side: Which texts get copies. The second sentence of a pair counts as a document.
        sticky: Maximum number of sticky tokens to measure, starting with the worst of the run.
        benign: Number of matched benign tokens for each sticky token.
        seeds: Number of repetitions, each with a different random seed.
        resamples: Number of bootstrap samples of queries, pairs or texts.
        confidence: Confidence level of the intervals.
        seed: Seed of all random sampling.

    Raises:
        InputError: A value is out of range.
    """

    copies: PositiveCount = 8
    placement: Placement = Placement.RANDOM
    insertion: Insertion = Insertion.IDS
    side: Side = Side.DOCUMENT
    sticky: PositiveCount = 5
    benign: PositiveCount = 8
    seeds: Annotated[PositiveCount, OptionName("repetitions")] = 1
    resamples: Annotated[int, Ge(100)] = 1000
    confidence: Proportion = 0.9
    seed: NaturalNumber = 42

    def __post_init__(self) -> None:
        check_settings(self)
