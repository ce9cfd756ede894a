"""plan.json and the result of the method std."""

from __future__ import annotations

from pydantic import Field

from stickytoken.measurement.records import Record
from stickytoken.methods.records import PlanRecord, ResultRecord


class PairRecord(Record):
    """One sentence pair: the anchor, the carrier, their similarity."""

    sentence1: str
    sentence2: str
    similarity: float


class StdPlanRecord(PlanRecord):
    """plan.json of the method std: what was derived from the model before any token."""

    left_out: int = Field(description="sentences, or given pairs, too long for the model with copies in")
    similarity_deviation: float = Field(
        description="largest difference between a pair's recorded similarity and the model's own"
    )
    scoring: list[PairRecord]
    validation: list[PairRecord]


class StdResultRecord(ResultRecord):
    """What a finished run of the method std found, in numbers."""

    scored: int
    candidates: int
    score_threshold: float = Field(description="score that a candidate reaches")
    rate_threshold: float = Field(description="validation rate that a sticky token exceeds")
