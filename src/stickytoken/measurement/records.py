"""The base of everything in a run folder's JSON files."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A frozen record; an unknown entry is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)
