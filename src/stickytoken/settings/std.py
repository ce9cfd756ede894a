"""The settings of ``std``, the method of the paper, with their published values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Gt, Le

from stickytoken.insertion import Insertion
from stickytoken.settings import (
    DETECT_ONLY,
    InsertingSettings,
    NaturalNumber,
    NonNegativeNumber,
    PositiveCount,
    check_settings,
)

PUBLISHED_SEED = 42
"""Seed of the published runs. With it, copies are placed exactly as in these runs."""


class Scores(StrEnum):
    """Which tokens get an exact score."""

    NEEDED = "needed"  # only tokens that may be candidates get an exact score; all others get an upper bound
    ALL = "all"


@dataclass(frozen=True)
class StdSettings(InsertingSettings):
    """Settings of the paper's method.

    Only pairs with a similarity below the mean are used for scoring and validation. Candidates and verdicts
    do not depend on ``scores``.

    Attributes:
        sentence_count: Number of sentences sampled from the corpus.
        pair_count: Number of pairs sampled from the sentences, spread evenly over their similarities.
        scoring_pairs: Number of pairs used to score a token (the paper's sent_pair_num).
        validation_pairs: Number of pairs used to validate a token (the paper's verification_sent_pair_num).
        copies: Maximum number of copies in a text (the paper's insert_num).
        insertion: text: insert the copies into the string. ids: insert exactly n copies among the token ids.
            words: insert the copies into the string, with spaces chosen so that the tokenizer recognizes the
            token in as many copies as possible.
        candidate_share: Share of the tokens to validate, starting with the highest scores.
        outlier_range: A candidate is sticky if its validation rate is above Q3 + this factor x IQR of all
            candidates' rates.
        seed: Seed of all random sampling; 42 reproduces the published runs of std.
        scores: needed: stop scoring a token once it cannot become a candidate. all: score every token
            exactly.

    Raises:
        InputError: A value is out of range.

    Examples:
        >>> stickytoken.StdSettings(scores="all").scores.value
        'all'
    """

    sentence_count: Annotated[int, Ge(2)] = 1000
    pair_count: PositiveCount = 1000
    scoring_pairs: Annotated[PositiveCount, DETECT_ONLY] = 5
    validation_pairs: PositiveCount = 250
    copies: PositiveCount = 8
    insertion: Insertion = Insertion.TEXT
    candidate_share: Annotated[float, Gt(0), Le(1), DETECT_ONLY] = 0.02
    outlier_range: Annotated[NonNegativeNumber, DETECT_ONLY] = 0.7
    seed: NaturalNumber = PUBLISHED_SEED
    scores: Annotated[Scores, DETECT_ONLY] = Scores.NEEDED

    def __post_init__(self) -> None:
        """Check the values, and convert those that were read from JSON."""
        check_settings(self)
