"""What an impact folder's JSON file holds."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from stickytoken.measurement.records import MeasurementRecord, Record

IMPACT_SCHEMA_VERSION = 1


class TokenRecord(Record):
    """A token that was measured."""

    token_id: int
    token: str = Field(description="vocabulary string")
    text: str = Field(description="as it is decoded")
    kind: str = Field(description="sticky (a run says so), named (nobody does) or benign")
    matched_to: int | None = Field(description="the sticky token that a benign one is compared with")


class TaskRecord(Record):
    """A task that was measured."""

    name: str
    layout: str
    unit: str = Field(description="what the intervals resample")
    units: int
    texts: int
    edited: int = Field(description="texts that get copies")
    cut: int = Field(description="texts that were cut to make room, in every condition alike")
    metrics: list[str] = Field(description="the main one first")


class ImpactResultRecord(Record):
    """What a finished measurement took."""

    sequences: int = Field(description="texts that were encoded")
    seconds: float = Field(description="time that shards took")
    failed: dict[str, str] = Field(description="tasks that could not be run, and why")
    tasks: list[TaskRecord]


class ImpactRecord(MeasurementRecord):
    """impact.json: identity, settings as resolved, versions, hardware, outcome."""

    schema_version: int = IMPACT_SCHEMA_VERSION
    model: str
    device: str
    settings: dict[str, Any]
    tokens: list[TokenRecord]
    notes: list[str]
    versions: dict[str, str]
    hardware: dict[str, str]
    started: str
    result: ImpactResultRecord | None = None


def measured_kind(record: ImpactRecord) -> str:
    """Return what the measured tokens are called together: sticky only if a run says so of all of them."""
    return "named" if any(token.kind == "named" for token in record.tokens) else "sticky"
