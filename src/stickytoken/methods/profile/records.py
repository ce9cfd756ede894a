"""The records that the profile method writes to plan.json and run.json."""

from __future__ import annotations

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from stickytoken.measurement.resume import Record
from stickytoken.methods.base import PlanRecord, ResultRecord


class AnchorGroupRecord(Record):
    """A group of anchors: a kind of text, a topic, or the whole corpus."""

    name: str
    weight: float  # Weight of the group in the lift; 0 if the lift is not computed from the group.
    # Whether the group is a kind of text: a flagged token that lifts only a few kinds is topical, not sticky.
    kind: bool
    spread: float  # Standard deviation of the cosines between carriers and anchors of the group.


class AnchorRecord(Record):
    """An anchor: a text that carriers are compared with."""

    text: str
    group: int  # Index of the anchor's group in the plan's ``groups``.


class ProfilePlanRecord(PlanRecord):
    """Everything that a run computes from the model and the corpus before it measures a token.

    Attributes:
        similarity_spread: standard deviation of the cosines between the carriers and the anchors from which
            the lift is computed.
        share_below: weighted share of the carrier-anchor pairs that are unrelated and so used for the lift.
        narrow_limit: if the corpus has too few pairs with a similarity below u, the median similarity, below
            which pairs count as unrelated instead; None if pairs with a similarity below u count as
            unrelated.
        left_out: number of sentences that were left out because the model does not read them in full.
        groups: the groups of anchors.
        anchors: the anchors; the anchors from which the lift is computed come first.
        carriers: the texts into which copies are inserted.
        pilots: ids of random tokens that are measured in all carriers to define the ordinary token.
        call_noise: standard deviation of one cosine over repeated calls to the model.
    """

    similarity_spread: float
    share_below: float
    narrow_limit: float | None = None
    left_out: int
    groups: list[AnchorGroupRecord]
    anchors: list[AnchorRecord]
    carriers: list[str]
    pilots: list[int]
    call_noise: float = 0.0

    @model_serializer(mode="wrap")
    def _without_empty_values(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialize(self)
        for name in ("narrow_limit", "isoscore"):
            if written[name] is None:
                del written[name]
        return written

    @property
    def unrelated_below(self) -> float:
        """Similarity below which a carrier and an anchor are unrelated: ``narrow_limit`` if set, else u."""
        return self.mean_similarity if self.narrow_limit is None else self.narrow_limit

    @property
    def kinds(self) -> int:
        """Number of kinds of text that the anchors cover."""
        return sum(group.kind for group in self.groups)


class ProfileResultRecord(ResultRecord):
    """The numbers that summarize the result of a run.

    Attributes:
        looked_at: number of tokens with a verdict.
        confirmed: number of tokens that were measured in the confirming carriers.
        unconfirmed: number of tokens that may reach a threshold but were not confirmed, because the budget
            was used up.
        topical: number of topical tokens.
        ordinary_lift: lift of the ordinary token, as a difference of cosines.
        ordinary_contraction: share of a text that copies of the ordinary token erase; null in the oldest
            runs.
        vectors_compared: whether the model has enough token vectors for the rule on unusual vectors.
        screening_carriers: plan indices of the carriers into which every token was inserted.
        texts_per_token: number of texts encoded in all stages, divided by the number of judged tokens.
    """

    looked_at: int
    confirmed: int
    unconfirmed: int
    topical: int
    ordinary_lift: float
    ordinary_contraction: float | None
    vectors_compared: bool
    screening_carriers: list[int]
    texts_per_token: float
