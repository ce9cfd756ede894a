"""plan.json and the result of the profile method."""

from __future__ import annotations

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from stickytoken.encoders.views import View
from stickytoken.measurement.records import Record
from stickytoken.methods.records import PlanRecord, ResultRecord


class AnchorGroupRecord(Record):
    """A group of anchors: a kind of text, a topic of the corpus, or vocabulary entries."""

    name: str
    weight: float = Field(description="in the lift; 0 for a group that is measured beside it")
    kind: bool = Field(description="whether universality counts it")
    spread: float = Field(description="standard deviation of carriers' similarities to its anchors")


class AnchorRecord(Record):
    """An anchor that is a text."""

    text: str
    group: int


class ViewRecord(Record):
    """What the plan knows of one view: some first components of the vectors, maybe after an earlier layer."""

    dimension: int
    layer: int | None = Field(description="layers that run; null for the model as it is")
    mean_similarity: float
    mean_similarity_entries: int
    mean_similarity_error: float
    similarity_spread: float
    share_below: float
    spreads: list[float] = Field(description="by group of anchors")


class ProfilePlanRecord(PlanRecord):
    """plan.json of the profile method."""

    similarity_spread: float = Field(
        description="standard deviation of carriers' similarities to the anchors of the lift"
    )
    share_below: float = Field(description="share of those pairs with a similarity below u")
    left_out: int = Field(description="sentences too long for the model")
    groups: list[AnchorGroupRecord] = Field(description="vocabulary entries, if any, are the last")
    anchors: list[AnchorRecord] = Field(description="those that the lift is measured on first")
    vocabulary_anchors: list[int] = Field(description="token ids, each read as a text of its own")
    carriers: list[str]
    reference: list[int] = Field(description="random tokens, to show what is ordinary")
    late_reference: list[int] = Field(description="those of them that are measured on all carriers")
    call_noise: float = Field(
        default=0.0, description="standard deviation of a cosine from one call of the model to the next"
    )
    views: list[ViewRecord] = Field(default=[], description="of all views but the model as it is")

    @model_serializer(mode="wrap")
    def _without_empty_views(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialize(self)
        if not self.views:  # so that earlier versions read the plan
            del written["views"]
        return written

    def seen_in(self, view: View) -> ProfilePlanRecord:
        """Return the plan with the numbers of another view."""
        found = next(each for each in self.views if view.is_at(each.dimension, each.layer))
        spreads = zip(self.groups, found.spreads, strict=True)
        numbers = found.model_dump(exclude={"dimension", "layer", "spreads"})
        groups = [group.model_copy(update={"spread": spread}) for group, spread in spreads]
        return self.model_copy(update=numbers | {"groups": groups})


class ProfileResultRecord(ResultRecord):
    """Result of a finished run of the profile method."""

    looked_at: int = Field(description="tokens that the run measured")
    candidates: int = Field(description="those of them that the last round measured")
    topical: int
    ordinary_lift: float = Field(description="lift of the typical token")
    ordinary_spread: float = Field(description="standard deviation of the lifts of ordinary tokens")
    empirical_null: bool = Field(
        description="whether false discoveries are controlled; with too few tokens, intervals decide"
    )
    screening_carriers: list[int] = Field(description="places in the plan of the first round's carriers")
    texts_per_token: float = Field(description="texts that shards encoded, per measured token")
