"""evidence.json: how the pictures of a run were made."""

from __future__ import annotations

from pydantic import Field

from stickytoken.insertion import Placement
from stickytoken.measurement.records import Record


class EvidenceRecord(Record):
    """What evidence.parquet and map.parquet rest on."""

    carriers: list[str] = Field(description="texts that copies went into, behind their last word")
    anchors: int = Field(description="texts that they were compared with")
    placement: Placement = Placement.SUFFIX
    pair_copies: int = Field(description="copies in the pairs that are shown")
    map_explained: float | None = Field(
        description="share of the variance beside the mean that the second axis of the map holds"
    )
    sequences: int = Field(description="texts that were encoded for it")
    seconds: float
