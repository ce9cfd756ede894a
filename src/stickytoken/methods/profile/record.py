"""plan.json and the result of the profile method."""

from __future__ import annotations

from pydantic import Field

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
