"""Contents of impact.json."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from stickytoken.measurement.records import MeasurementRecord, Record

IMPACT_SCHEMA_VERSION = 1


class TokenRecord(Record):
    """A token that was measured."""

    token_id: int
    token: str = Field(description="vocabulary string")
    text: str = Field(description="decoded text")
    kind: str = Field(description="sticky (if a run says so), named (otherwise) or benign")
    matched_to: int | None = Field(description="id of the sticky token that a benign token is compared with")


class TaskRecord(Record):
    """A task that was measured."""

    name: str
    layout: str
    unit: str = Field(description="what the intervals resample")
    units: int
    texts: int
    edited: int = Field(description="number of texts that get copies")
    cut: int = Field(description="number of texts truncated to make room, the same in every condition")
    metrics: list[str] = Field(description="the main one first")


class ImpactResultRecord(Record):
    """Outcome and cost of a finished measurement."""

    sequences: int = Field(description="number of texts encoded")
    seconds: float = Field(description="time spent on shards")
    failed: dict[str, str] = Field(description="tasks that could not be run, and why")
    tasks: list[TaskRecord]


class ImpactRecord(MeasurementRecord):
    """impact.json: identity, resolved settings, versions, hardware, outcome."""

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
    """Return the common name of the measured tokens: sticky only if a run says so of all of them."""
    return "named" if any(token.kind == "named" for token in record.tokens) else "sticky"
