"""The records that the profile method writes to plan.json and run.json."""

from __future__ import annotations

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from stickytoken.measurement.resume import Record
from stickytoken.methods.base import PlanRecord, ResultRecord


class AnchorGroupRecord(Record):
    """A group of anchors: a kind of text, a topic, or the whole corpus."""

    name: str
    weight: float  # weight of the group in the lift; 0 if the group is not part of the lift
    kind: bool  # whether the group is one of the kinds of text that decide between sticky and topical
    spread: float  # standard deviation of the cosines between carriers and anchors of the group


class AnchorRecord(Record):
    """An anchor: a text that carriers are compared with."""

    text: str
    group: int  # index of the anchor's group in the plan's ``groups``


class ProfilePlanRecord(PlanRecord):
    """Everything that a run computes from the model and the corpus before it measures a token."""

    similarity_spread: float  # standard deviation of the cosines between carriers and anchors of the lift
    share_below: float  # share of carrier-anchor pairs used for the lift, weighted by anchor group
    # The median similarity, if the corpus has too few pairs below u. The pairs below the median then count
    # for the lift. Otherwise None.
    narrow_limit: float | None = None
    left_out: int  # number of sentences left out because the model does not read them in full
    groups: list[AnchorGroupRecord]
    anchors: list[AnchorRecord]  # the anchors of the lift come first
    carriers: list[str]
    pilots: list[int]  # ids of random tokens that are measured in all carriers to define the ordinary token
    call_noise: float = 0.0  # standard deviation of one cosine over repeated calls to the model

    @model_serializer(mode="wrap")
    def _without_empty_values(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialize(self)
        for name in ("narrow_limit", "isoscore"):
            if written[name] is None:
                del written[name]
        return written

    @property
    def unrelated_below(self) -> float:
        """Similarity below which a pair counts for the lift: ``narrow_limit`` if it is set, otherwise u."""
        return self.mean_similarity if self.narrow_limit is None else self.narrow_limit

    @property
    def kinds(self) -> int:
        """Number of kinds of text that the anchors cover."""
        return sum(group.kind for group in self.groups)


class ProfileResultRecord(ResultRecord):
    """The numbers that summarize the result of a run."""

    looked_at: int  # number of tokens with a verdict
    confirmed: int  # number of tokens that were measured closely
    unconfirmed: int  # number of tokens that may reach a threshold, but were left out because of the budget
    topical: int
    ordinary_lift: float  # lift of the ordinary token, as a difference of cosines
    # contraction of the ordinary token; null in the oldest runs
    ordinary_contraction: float | None
    vectors_compared: bool  # whether the model has enough token vectors for the rule on unusual vectors
    screening_carriers: list[int]  # plan indices of the carriers into which every token was inserted
    texts_per_token: float  # number of texts encoded in all stages, divided by the number of judged tokens
