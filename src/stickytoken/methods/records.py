"""What every method writes into plan.json, and into run.json as its result."""

from __future__ import annotations

from pydantic import Field

from stickytoken.measurement.records import Record


class PlanRecord(Record):
    """What plan.json of every method holds."""

    mean_similarity: float = Field(description="u, the mean cosine over the vocabulary")
    mean_similarity_entries: int = Field(description="vocabulary entries that u rests on")


class ResultRecord(Record):
    """What the result of every method holds."""

    sticky: int = Field(description="sticky tokens")
    sequences: int = Field(description="texts that shards encoded")
    seconds: float = Field(description="time that shards took")
