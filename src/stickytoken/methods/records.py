"""What every method writes into plan.json, and into run.json as its result."""

from __future__ import annotations

from pydantic import Field

from stickytoken.measurement.records import Record


class PlanRecord(Record):
    """What plan.json of every method contains."""

    mean_similarity: float = Field(description="u, the mean cosine over the vocabulary")
    mean_similarity_entries: int = Field(description="vocabulary entries that u rests on")
    mean_similarity_error: float = Field(
        default=0.0, description="standard error of u; 0 if it rests on the whole vocabulary"
    )

    @property
    def mean_similarity_text(self) -> str:
        """Write u with its standard error, if it has one."""
        error = f" ± {self.mean_similarity_error:.4f}" if self.mean_similarity_error else ""
        return f"{self.mean_similarity:.4f}{error}"


class ResultRecord(Record):
    """What the result of every method contains."""

    sticky: int = Field(description="sticky tokens")
    sequences: int = Field(description="texts that shards encoded")
    seconds: float = Field(description="time that shards took")
