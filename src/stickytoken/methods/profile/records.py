"""The records of the profile method in plan.json and run.json."""

from __future__ import annotations

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from stickytoken.measurement.resume import Record
from stickytoken.methods.base import PlanRecord, ResultRecord


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
