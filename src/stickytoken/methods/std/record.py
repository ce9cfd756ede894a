"""plan.json and the result of the paper's method."""

from __future__ import annotations

from pydantic import Field

from stickytoken.measurement.records import Record
from stickytoken.methods.records import PlanRecord, ResultRecord


class PairRecord(Record):
    """A sentence pair: the anchor, the carrier and their similarity."""

    sentence1: str
    sentence2: str
    similarity: float


class StdPlanRecord(PlanRecord):
    """plan.json of the paper's method."""

    left_out: int = Field(description="sentences or given pairs too long for the model with the copies in")
    similarity_deviation: float = Field(
        description="largest difference between a pair's recorded similarity and the model's own"
    )
    scoring: list[PairRecord]
    validation: list[PairRecord]


class StdResultRecord(ResultRecord):
    """Result of a finished run of the paper's method."""

    scored: int
    candidates: int
    score_threshold: float = Field(description="score that candidates reach")
    rate_threshold: float = Field(description="validation rate that sticky tokens exceed")
