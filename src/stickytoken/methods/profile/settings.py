"""Settings of the profile method, and its records in plan.json and run.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import SerializerFunctionWrapHandler, model_serializer

from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.machine import Precision
from stickytoken.measurement.resume import Record
from stickytoken.methods.base import PlanRecord, ResultRecord
from stickytoken.settings import NaturalNumber, PositiveCount, PositiveNumber, Proportion, check_settings


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Settings of the profile method.

    Attributes:
        smallest_lift: smallest lift of a sticky token beyond the ordinary token's, in standard deviations of
            the model's similarities. 0.5 is a medium effect (Cohen 1988); the largest lift of a natural token
            of all-MiniLM-L6-v2 is 0.34.
        smallest_erased: smallest share that a sticky token erases of what the ordinary token leaves of a
            text. The largest share of a natural word of all-MiniLM-L6-v2 is 0.41. With a larger share, a
            search hardly finds a document.
        unusual: smallest number of median absolute deviations above the median of an unusual token vector.
            For such a token, half of the smallest lift or erased share is enough.
        confidence: coverage of the two-sided intervals. A token reaches a threshold if the low end of its
            interval does.
        budget: most texts per token, on average over the tokens of a run. It limits how many tokens are
            measured closely.
        insertion: copies as token ids or as text.
        copies: numbers of copies, which alternate from carrier to carrier.
        anchors: largest number of texts of all kinds to compare carriers with, and largest number of
            sentences of a user's corpus.
        topics: number of groups of anchors, if the model cannot read the bundled kinds of text and the corpus
            names no topics.
        screening_texts: number of texts that get copies of every token, to find the tokens to measure
            closely.
        confirming_texts: number of further texts for the tokens to measure closely. Verdicts depend only on
            these texts.
        screen_precision: precision of the model while it screens; None is its own. Verdicts always rest on
            the model's own precision.
        seed: seed of all random sampling.

    Raises:
        InputError: a value is out of range, or two settings contradict each other.
    """

    smallest_lift: PositiveNumber = 0.5
    smallest_erased: Proportion = 0.4
    unusual: PositiveNumber = 6.0
    confidence: Proportion = 0.9
    budget: PositiveNumber = 3.4
    insertion: Insertion = Insertion.IDS
    copies: tuple[PositiveCount, ...] = (8, 4)
    anchors: Annotated[int, Ge(2)] = 440
    topics: PositiveCount = 24
    screening_texts: Annotated[int, Ge(2)] = 2
    confirming_texts: Annotated[int, Ge(4)] = 48
    screen_precision: Precision | None = None
    seed: NaturalNumber = 42

    def __post_init__(self) -> None:
        """Check the values, and convert those that were read from JSON."""
        check_settings(self)
        if self.budget < self.screening_texts:
            raise InputError(
                f"budget is {self.budget:g} texts per token, and screening alone takes "
                f"{self.screening_texts}: raise the budget or lower screening_texts"
            )


class AnchorGroupRecord(Record):
    """A group of anchors: a kind of text, a topic, or the whole corpus."""

    name: str
    weight: float  # weight in the lift; 0 for a group that is not part of it
    kind: bool  # whether the group is a kind of text; these decide between sticky and topical
    spread: float  # standard deviation of the carriers' similarities to its anchors


class AnchorRecord(Record):
    """A text to compare carriers with."""

    text: str
    group: int  # index in the plan's groups


class ProfilePlanRecord(PlanRecord):
    """Everything that a run computes from the model and the corpus before it measures a token."""

    similarity_spread: float  # standard deviation of carriers' similarities to the anchors of the lift
    share_below: float  # share of these pairs that count for the lift
    # Median similarity of a corpus with too few pairs below u. Pairs below this median then count for the
    # lift.
    narrow_limit: float | None = None
    left_out: int  # number of sentences that are too long for the model
    groups: list[AnchorGroupRecord]
    anchors: list[AnchorRecord]  # anchors of the lift come first
    carriers: list[str]
    pilots: list[int]  # random tokens that are measured in all carriers to define the ordinary token
    call_noise: float = 0.0  # standard deviation of a cosine between calls of the model

    @model_serializer(mode="wrap")
    def _without_empty_values(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialize(self)
        for name in ("narrow_limit", "isoscore"):
            if written[name] is None:
                del written[name]
        return written

    @property
    def unrelated_below(self) -> float:
        """The similarity below which pairs count for the lift: u, or ``narrow_limit`` if there is one."""
        return self.mean_similarity if self.narrow_limit is None else self.narrow_limit

    @property
    def kinds(self) -> int:
        """Number of kinds of text that the anchors cover."""
        return sum(group.kind for group in self.groups)


class ProfileResultRecord(ResultRecord):
    """What a run found, in numbers."""

    looked_at: int  # number of tokens with a verdict
    confirmed: int  # number of these tokens that were measured closely
    unconfirmed: int  # number of tokens that might reach a threshold but were over budget
    topical: int
    ordinary_lift: float  # lift of the ordinary token, as a difference of cosines
    # Contraction of the ordinary token; null in the first runs of an older rule.
    ordinary_contraction: float | None
    vectors_compared: bool  # whether the model has enough rows for the rule on unusual vectors
    screening_carriers: list[int]  # indices in the plan of the carriers that got copies of every token
    texts_per_token: float  # number of texts that shards encoded, per measured token
