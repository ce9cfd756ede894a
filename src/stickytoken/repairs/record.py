"""repair.json: what was changed in a model and why, and what was measured before and after."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from stickytoken.measurement.records import MeasurementRecord, Record

REPAIR_SCHEMA_VERSION = 1
REPAIR_FILE = "repair.json"
DOCUMENT_FILE = "REPAIR.md"
CENTRE_FILE = "centre.json"
PICTURE_FILE = "repair.svg"


class MeasuredRecord(Record):
    """A token on texts that the run has not used."""

    lift: float
    deviations: float = Field(
        description="lift beyond an ordinary token's, in standard deviations of the model's similarities"
    )
    contraction: float | None = Field(
        default=None, description="share of a text's meaning that 8 copies take"
    )
    verdict: str | None = Field(default=None, description="null where the token was measured but not judged")


class CurveRecord(Record):
    """Mean similarity of unrelated texts by number of copies."""

    copies: list[int]
    before: list[float]
    after: list[float]
    ordinary: list[float]


class TriedRecord(Record):
    """A strategy that was tried on a token."""

    strategy: str
    deviations: float


class RepairedTokenRecord(Record):
    """One repaired token."""

    token_id: int
    token: str
    text: str
    strategy: str
    reason: str
    pieces: list[str] = Field(description="what its text is tokenized to now; empty if it is unchanged")
    tried: list[TriedRecord] = Field(default_factory=list)
    before: MeasuredRecord | None = None
    after: MeasuredRecord | None = None
    curve: CurveRecord | None = None


class NeighbourRecord(Record):
    """A token near a repaired one, measured again because the repair must not shift the defect to it."""

    token_id: int
    token: str
    near: str = Field(description="the repaired token")
    in_run: str | None = Field(description="verdict of the run")
    before: MeasuredRecord
    after: MeasuredRecord


class ScoreRecord(Record):
    """Score of an unedited task."""

    task: str
    metric: str
    texts: int
    before: float
    after: float


class CheckRecord(Record):
    """Something that a repair must satisfy."""

    name: str
    passed: bool
    finding: str = Field(description="one sentence")


class VerificationRecord(Record):
    """What was measured on the repaired model."""

    ordinary_lift: float
    similarity_spread: float
    ordinary_contraction: float
    carriers: int
    anchors: int
    source: str = Field(description="where the texts come from; none of them was used by the run")
    neighbours: list[NeighbourRecord]
    scores: list[ScoreRecord]
    checks: list[CheckRecord]

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return all(check.passed for check in self.checks)


class RepairRecord(MeasurementRecord):
    """repair.json, written last."""

    schema_version: int = REPAIR_SCHEMA_VERSION
    model: str = Field(description="last part of the name of the model")
    run: str = Field(description="identity of the run")
    strategy: str = Field(description="as asked for")
    settings: dict[str, Any]
    tokens: list[RepairedTokenRecord]
    verification: VerificationRecord | None = Field(description="null if it was switched off")
    notes: list[str]
    versions: dict[str, str]
    hardware: dict[str, str]
    started: str
    seconds: float

    @property
    def verified(self) -> bool | None:
        """Whether the repair was verified; None if it was not checked."""
        return None if self.verification is None else self.verification.passed

    @property
    def state(self) -> str:
        """The same in words."""
        return {True: "verified", False: "NOT VERIFIED", None: "not verified"}[self.verified]
