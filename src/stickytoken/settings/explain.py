"""The settings of an explanation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from annotated_types import Ge

from stickytoken.insertion import Placement
from stickytoken.settings import (
    PYTHON_ONLY,
    NaturalNumber,
    OptionName,
    PositiveCount,
    Proportion,
    check_settings,
)

LEAST_BENIGN = 3
"""Minimum number of benign tokens for a comparison."""
_BenignCount: TypeAlias = Annotated[int, Ge(LEAST_BENIGN)]


@dataclass(frozen=True)
class ExplainSettings:
    """What an explanation measures, and how thoroughly.

    Attributes:
        copies: Number of copies of a token in a text.
        placement: Where in the text the copies go.
        carriers: Maximum number of texts to insert copies into.
        benign: Number of matched benign tokens to compare each token with.
        confidence: Confidence level of the intervals.
        attribution: Attribute similarities to tokens.
        attribution_carriers: Number of texts whose similarities are attributed to their tokens.
        attribution_benign: Number of benign tokens that are included in the attribution for comparison.
        pairs: Number of text pairs whose similarity is attributed to individual pairs of tokens.
        neighbours: Number of nearest rows of the embedding matrix to list.
        directions: Number of random vocabulary entries from which the mean direction is computed.
        seed: Seed of all random sampling.

    Raises:
        InputError: A value is out of range.

    Examples:
        >>> stickytoken.ExplainSettings(copies=4).copies
        4
    """

    copies: PositiveCount = 8
    placement: Placement = Placement.SUFFIX
    carriers: PositiveCount = 50
    benign: _BenignCount = 16
    confidence: Proportion = 0.9
    attribution: bool = True
    attribution_carriers: Annotated[PositiveCount, PYTHON_ONLY] = 4
    attribution_benign: Annotated[_BenignCount, PYTHON_ONLY] = 6
    pairs: Annotated[NaturalNumber, OptionName("attributed_pairs")] = 1
    neighbours: Annotated[NaturalNumber, PYTHON_ONLY] = 8
    directions: Annotated[PositiveCount, PYTHON_ONLY] = 512
    seed: NaturalNumber = 42

    def __post_init__(self) -> None:
        check_settings(self)
