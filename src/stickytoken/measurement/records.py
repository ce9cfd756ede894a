"""Base classes of the JSON files in a result folder."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen record; an unknown entry is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MeasurementRecord(Record):
    """Fields shared by the records of all kinds of measurements."""

    schema_version: int
    identity: str
    identity_parts: dict[str, Any]
