"""plan.json and the result of the profile method."""

from __future__ import annotations

from pydantic import Field

from stickytoken.measurement.records import Record
from stickytoken.methods.records import PlanRecord, ResultRecord


class SentenceAnchorRecord(Record):
    """An anchor that is a sentence."""

    text: str
    group: int


class VocabularyAnchorRecord(Record):
    """An anchor that is a vocabulary entry, read as a text of its own."""

    token_id: int
    group: int


class ProfilePlanRecord(PlanRecord):
    """plan.json of the profile method."""

    similarity_spread: float = Field(description="standard deviation of carriers' similarities to anchors")
    share_below: float = Field(description="share of the pairs with a similarity below u")
    left_out: int = Field(description="sentences too long for the model")
    groups: list[str] = Field(description="names of the groups of anchors, those of sentences first")
    sentence_anchors: list[SentenceAnchorRecord]
    vocabulary_anchors: list[VocabularyAnchorRecord]
    carriers: dict[str, list[str]] = Field(description="by round")
    reference: list[int] = Field(description="random tokens, to show what is ordinary")
    late_reference: list[int] = Field(description="those of them in every round")


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
    texts_per_token: float = Field(description="texts that shards encoded, per measured token")
