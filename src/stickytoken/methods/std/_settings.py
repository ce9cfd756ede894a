"""Settings of the paper's method, and their published values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt, Le

from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.methods import Scores
from stickytoken.settings import NaturalNumber, NonNegativeNumber, PositiveCount, check_settings

PUBLISHED_SEED = 42
"""Seed of the published runs. With it, copies are placed exactly as in these runs."""


@dataclass(frozen=True, slots=True)
class PlacementWeights:
    """Weights of the three placements; they sum to 1."""

    prefix: float
    suffix: float
    random: float

    def __post_init__(self) -> None:
        values = (self.prefix, self.suffix, self.random)
        if not (min(values) >= 0 and abs(sum(values) - 1) <= 1e-9):
            raise InputError(
                f"the placement weights are {values}: none may be negative, and they must sum to 1"
            )


@dataclass(frozen=True, slots=True)
class ScoreConstants:
    """Constants of the sticky score (Chen et al. 2025, step 3 of the Sticky Token Detector).

    Attributes:
        alpha: constant that each fall of the distance adds to the numerator. beta: what each rise adds to the
            denominator.
        gamma: constant that keeps the denominator above 0.
    """

    alpha: float
    beta: float
    gamma: float

    def __post_init__(self) -> None:
        values = (self.alpha, self.beta, self.gamma)
        if not all(map(math.isfinite, values)) or min(values) < 0 or self.gamma == 0:
            raise InputError(f"the constants are {self}: alpha and beta must be at least 0, gamma above 0")


@dataclass(frozen=True, slots=True)
class StdSettings:
    """Settings of the paper's method.

    Attributes:
        sentence_count: number of sentences sampled from the corpus.
        pair_count: number of pairs sampled from them, evenly over similarity.
        scoring_pairs: number of pairs below the mean similarity that score a token (``sent_pair_num`` in the
            paper's code).
        validation_pairs: number of pairs below the mean similarity that validate a candidate
            (``verification_sent_pair_num``).
        copies: largest number of copies; probes hold 1 to this many (``insert_num``).
        insertion: copies as text or as token ids.
        candidate_share: share of the tokens to validate, best scores first.
        outlier_range: a candidate is sticky above Q3 + this x IQR of all rates.
        seed: seed of the sentence sample and of random placement. 42 reproduces the random placements of the
            published runs.
        scoring_weights: weights of the placements in the score.
        validation_weights: weights of the placements in the validation rate.
        angular: score constants for cosine and Euclidean distance.
        manhattan: score constants for Manhattan distance.
        scores: which tokens get an exact score; candidates and verdicts are the same.

    Raises:
        InputError: a value is out of range.
    """

    sentence_count: Annotated[int, Ge(2)] = 1000
    pair_count: PositiveCount = 1000
    scoring_pairs: PositiveCount = 5
    validation_pairs: PositiveCount = 250
    copies: PositiveCount = 8
    insertion: Insertion = Insertion.TEXT
    candidate_share: Annotated[float, Gt(0), Le(1)] = 0.02
    outlier_range: NonNegativeNumber = 0.7
    seed: NaturalNumber = PUBLISHED_SEED
    scoring_weights: PlacementWeights = field(default=PlacementWeights(0.35, 0.35, 0.30))
    validation_weights: PlacementWeights = field(default=PlacementWeights(4 / 11, 4 / 11, 3 / 11))
    angular: ScoreConstants = field(default=ScoreConstants(0.1, 0.05, 0.01))
    manhattan: ScoreConstants = field(default=ScoreConstants(1.0, 0.5, 0.1))
    scores: Scores = Scores.NEEDED

    def __post_init__(self) -> None:
        """Check the values, and convert those that were read from JSON."""
        check_settings(self)
