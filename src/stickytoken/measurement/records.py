"""The bases of the JSON files in a result folder."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen record; an unknown entry is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MeasurementRecord(Record):
    """What every kind of measurement says about itself."""

    schema_version: int
    identity: str
    identity_parts: dict[str, Any]
