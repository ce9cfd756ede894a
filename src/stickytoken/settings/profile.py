"""The settings of the ``profile`` method."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge, Gt

from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.machine import Precision
from stickytoken.settings import (
    DETECT_ONLY,
    PYTHON_ONLY,
    InsertingSettings,
    NaturalNumber,
    PositiveCount,
    PositiveNumber,
    Proportion,
    check_settings,
)

PRECISION_SETTINGS = frozenset({"budget", "screening_texts", "confirming_texts", "screen_precision"})
"""The settings that change how precise the results are, but not their meaning."""


class Measuring(StrEnum):
    """Which tokens are measured in documents.

    Attributes:
        SOME: Special tokens, tokens with unusual vectors, those that erase most or are expected to push most,
            and random tokens.
        ALL: Every token.
    """

    SOME = "some"
    ALL = "all"


@dataclass(frozen=True)
class RuleSettings:
    """The settings that decide which of the measured tokens are sticky; `ProfileSettings` describes them."""

    smallest_erased: Proportion = 0.4
    smallest_push: Annotated[float, Gt(1)] = 1.5
    # 125 of the 23,699 natural rows of all-MiniLM-L6-v2 reach this. Rows that an attacker optimised lie 6.5
    # to 16 median absolute deviations above the median.
    unusual: PositiveNumber = 6.0
    confidence: Proportion = 0.9


@dataclass(frozen=True)
class ProfileSettings(RuleSettings, InsertingSettings):
    """Settings of the profile method.

    A token reaches a threshold if the lower end of its interval does. For a token with an unusual vector, it
    is enough to come half-way.

    Verdicts depend only on the confirming texts and the documents, which the model always reads in its own
    precision.

    Attributes:
        smallest_erased: Minimum erased share of a sticky token. The erased share is how much less of a text's
            meaning copies of the token leave than copies of an ordinary token do.
        smallest_push: Minimum push of a sticky token: in how many times as many wrong results a document with
            eight copies is.
        unusual: Minimum deviation at which a token vector counts as unusual, in median absolute deviations
            above the median.
        confidence: Confidence level of the intervals.
        budget: Maximum number of texts encoded per token, averaged over all tokens of a run. The budget
            limits how many tokens are measured in further texts after the screening.
        insertion: text: insert the copies into the string. ids: insert exactly n copies among the token ids.
            words: insert the copies into the string, with spaces chosen so that the tokenizer recognizes the
            token in as many copies as possible.
        copies: Numbers of copies in a carrier; successive carriers use these numbers in turn.
        documents: some: measure special tokens, tokens with unusual vectors, the tokens that erase most or
            are expected to push most, and random tokens in documents. all: measure every token in documents,
            which takes ten times as long.
        screening_texts: Number of texts in which all tokens are screened, to find the tokens to measure in
            confirming texts.
        confirming_texts: Number of additional texts in which each token that the screen has selected is
            measured.
        screen_precision: Lower precision for screening all tokens, which is faster but less exact. On a CPU:
            bfloat16. On a GPU: tf32, bfloat16 or float16. Default: the model's own.
        seed: Seed of all random sampling; 42 reproduces the published runs of std.

    Raises:
        InputError: A value is out of range, or two settings contradict each other.

    Examples:
        >>> settings = stickytoken.ProfileSettings(smallest_push=1.3)
        >>> settings.smallest_push, settings.smallest_erased
        (1.3, 0.4)
    """

    budget: Annotated[PositiveNumber, DETECT_ONLY] = 3.4
    insertion: Insertion | None = None  # ids, or words if the model reads only texts
    copies: Annotated[tuple[PositiveCount, ...], PYTHON_ONLY] = (8, 4)
    documents: Measuring = Measuring.SOME
    screening_texts: Annotated[int, Ge(2), PYTHON_ONLY] = 2
    confirming_texts: Annotated[int, Ge(4), PYTHON_ONLY] = 48
    screen_precision: Annotated[Precision | None, DETECT_ONLY] = None
    seed: NaturalNumber = 42

    def __post_init__(self) -> None:
        """Check the values, and convert those that were read from JSON."""
        check_settings(self)
        if self.budget < self.screening_texts:
            raise InputError(
                f"budget is {self.budget:g} texts per token, but screening alone takes "
                f"{self.screening_texts}: raise the budget or lower screening_texts"
            )
