"""The settings of an impact measurement."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge

from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Placement, Side
from stickytoken.settings import NaturalNumber, OptionName, PositiveCount, Proportion, check_settings


class Edits(StrEnum):
    """How the texts of a task are edited.

    Attributes:
        COPIES: Every text gets the same number of copies of one token, or of a mixture of tokens.
        PAPER: The edits of Chen et al. (2025): every text gets copies of one token, drawn at random.
    """

    COPIES = "copies"
    PAPER = "paper"


# Settings that have no effect on the edits of Chen et al.
_NOT_FOR_PAPER = frozenset({"copies", "placement", "insertion", "side", "sticky", "benign"})


@dataclass(frozen=True)
class ImpactSettings:
    """How the impact of copies is measured. In MTEB tasks, copies are always inserted as words.

    Attributes:
        edits: copies: the same number of copies in every text, as the other settings say. paper: as Chen et
            al. (2025), one token in each text, drawn at random, with a copy for every ten words or part of
            ten.
        copies: Number of copies of a token in a text.
        placement: Where in the text the copies go.
        insertion: ids: the model reads exactly n copies. text: the copies are inserted as words.
            Default: text for a model that reads only texts, otherwise ids.
        side: Which texts get copies. The second sentence of a pair counts as a document.
        sticky: Maximum number of sticky tokens to measure, starting with the worst of the run.
        benign: Number of matched benign tokens for each sticky token.
        seeds: Number of repetitions, each with a different random seed.
        resamples: Number of bootstrap samples of queries, pairs or texts.
        confidence: Confidence level of the intervals.
        seed: Seed of all random sampling.

    Raises:
        InputError: A value is out of range.

    Examples:
        >>> stickytoken.ImpactSettings(copies=4).copies
        4
    """

    edits: Edits = Edits.COPIES
    copies: PositiveCount = 8
    placement: Placement = Placement.RANDOM
    insertion: Insertion | None = None
    side: Side = Side.DOCUMENT
    sticky: PositiveCount = 5
    benign: PositiveCount = 8
    seeds: Annotated[PositiveCount, OptionName("repetitions")] = 1
    resamples: Annotated[int, Ge(100)] = 1000
    confidence: Proportion = 0.9
    seed: NaturalNumber = 42

    def __post_init__(self) -> None:
        check_settings(self)
        if self.edits is not Edits.PAPER:
            return
        for field in fields(self):
            value = getattr(self, field.name)
            # An insertion that the user left out is set by `choose_insertion`, and ignored by these edits.
            is_chosen_insertion = field.name == "insertion" and value is Insertion.IDS
            if field.name in _NOT_FOR_PAPER and value != field.default and not is_chosen_insertion:
                raise InputError(
                    f"{field.name} is {value}, but would have no effect on the edits of the paper: leave it "
                    "out"
                )

    @property
    def inserted_as(self) -> Insertion:
        """How copies are inserted: as `insertion` says, and as ids if it is None.

        The edits of the paper always insert copies as text.
        """
        if self.edits is Edits.PAPER:
            return Insertion.TEXT
        return self.insertion or Insertion.IDS
