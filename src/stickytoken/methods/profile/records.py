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
    """Everything that a run computes from the model and the corpus before it measures a token."""

    # Standard deviation of the cosines between the carriers and the anchors from which the lift is computed.
    similarity_spread: float
    share_below: float  # Weighted share of carrier-anchor pairs that are unrelated and so used for the lift.
    # The median similarity, if the corpus has too few pairs with a similarity below u. Pairs below the median
    # then count as unrelated. ``narrow_limit`` is None if pairs below u count as unrelated.
    narrow_limit: float | None = None
    left_out: int  # Number of sentences left out because the model does not read them in full.
    groups: list[AnchorGroupRecord]
    anchors: list[AnchorRecord]  # Begins with the anchors from which the lift is computed.
    carriers: list[str]
    pilots: list[int]  # Ids of random tokens that are measured in all carriers to define the ordinary token.
    call_noise: float = 0.0  # Standard deviation of one cosine over repeated calls to the model.

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
    """The numbers that summarize the result of a run."""

    looked_at: int  # Number of tokens with a verdict.
    confirmed: int  # Number of tokens that were measured closely.
    unconfirmed: int  # Number of tokens that may reach a threshold, but were left out because of the budget.
    topical: int
    ordinary_lift: float  # Lift of the ordinary token, as a difference of cosines.
    # Share of a text that copies of the ordinary token erase; null in the oldest runs.
    ordinary_contraction: float | None
    vectors_compared: bool  # Whether the model has enough token vectors for the rule on unusual vectors.
    screening_carriers: list[int]  # Plan indices of the carriers into which every token was inserted.
    texts_per_token: float  # Number of texts encoded in all stages, divided by the number of judged tokens.
