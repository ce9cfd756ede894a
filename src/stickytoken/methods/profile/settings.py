"""Settings of the profile method."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.machine import Precision
from stickytoken.measurement.resume import LATER
from stickytoken.validation import (
    distinct_numbers,
    proportion,
    real_number,
    require_switch,
    set_choices,
    set_whole_numbers,
    whole_number,
)

# With fewer texts per token, nothing would be left for the last round.
_LEAST_BUDGET = 3


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Settings of the profile method.

    Attributes:
        budget: texts per available token, on average over the vocabulary.
        confidence: coverage of the intervals.
        fdr: false discovery rate of the verdicts.
        smallest_effect: smallest lift above the typical token's that must not be missed, in standard
            deviations of the model's own similarities of texts.
        adaptive: spend what the first round leaves on the tokens that lift most; otherwise spend the
            same on every token.
        insertion: copies as token ids or as text.
        copies: numbers of copies; the carriers take turns.
        anchors: largest number of texts to compare carriers with, shared by the kinds of text; as many
            sentences of a corpus of one's own.
        vocabulary_anchors: largest number of vocabulary entries, each a text of its own, to measure
            `lift_words` on.
        topics: number of groups of anchors if the model cannot read the bundled kinds of text and the
            corpus does not name its topics.
        confirming_texts: number of texts per token in the last round; verdicts on its tokens rest on
            them alone.
        reference: number of random tokens that show what is ordinary if only a part of the
            vocabulary is measured.
        screen_precision: precision of the model in the round of all tokens; None is its own,
            which the pilot and the last round always use.
        seed: seed of all random sampling.
        dimensions: also judge the tokens by so many first components of the vectors.
        layers: also judge them by the vectors after so many layers.

    Raises:
        InputError: a value is out of range, or two settings contradict each other.
    """

    budget: float = 4.0
    confidence: float = 0.9
    fdr: float = 0.05
    smallest_effect: float = 0.5
    adaptive: bool = True
    insertion: Insertion = Insertion.IDS
    copies: tuple[int, ...] = (8, 4)
    anchors: int = 440
    vocabulary_anchors: int = 200
    topics: int = 24
    confirming_texts: int = 48
    reference: int = 400
    screen_precision: Precision | None = None
    seed: int = 42
    dimensions: tuple[int, ...] = field(default=(), metadata=LATER)
    layers: tuple[int, ...] = field(default=(), metadata=LATER)

    def __post_init__(self) -> None:
        least = {
            "anchors": 2,
            "vocabulary_anchors": 0,
            "topics": 1,
            "confirming_texts": 4,
            "reference": 2,
            "seed": 0,
        }
        set_whole_numbers(self, least)
        for name in ("dimensions", "layers"):
            object.__setattr__(self, name, distinct_numbers(name, getattr(self, name), 1))
        given: Any = self.copies
        copies = given if isinstance(given, (tuple, list)) else (given,)
        object.__setattr__(self, "copies", tuple(whole_number("copies", count, 1) for count in copies))
        for name in ("budget", "smallest_effect"):
            object.__setattr__(self, name, real_number(name, getattr(self, name)))
        for name in ("confidence", "fdr"):
            object.__setattr__(self, name, proportion(name, getattr(self, name)))
        if not self.copies:
            raise InputError("copies is empty: name at least one number of copies")
        if not _LEAST_BUDGET <= self.budget < math.inf:
            raise InputError(
                f"budget is {self.budget}: it must be a finite number of texts per available token, "
                f"at least {_LEAST_BUDGET}"
            )
        if not 0 <= self.smallest_effect < math.inf:
            raise InputError(
                f"smallest_effect is {self.smallest_effect}: it must be a finite number of at least 0"
            )
        set_choices(self, {"insertion": Insertion})
        require_switch("adaptive", self.adaptive)
        object.__setattr__(self, "screen_precision", _screen_precision(self.screen_precision, self.adaptive))


def _screen_precision(given: Any, adaptive: bool) -> Precision | None:
    if given is None:
        return None
    if given not in tuple(Precision):
        raise InputError(f"screen_precision is {given!r}: it must be one of {', '.join(Precision)}")
    if not adaptive:
        raise InputError(
            f"screen_precision is {given}, but without adaptive rounds there is nothing to screen for: "
            "leave one of them out"
        )
    return Precision(given)
