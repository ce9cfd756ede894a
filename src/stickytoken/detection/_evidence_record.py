"""evidence.json: how the evidence of a run was made."""

from __future__ import annotations

from pydantic import Field

from stickytoken.insertion import Placement
from stickytoken.measurement.records import Record


class EvidenceRecord(Record):
    """How evidence.parquet and map.parquet were made."""

    carriers: list[str] = Field(description="texts with the copies after their last word")
    anchors: int = Field(description="number of texts that they were compared with")
    placement: Placement = Placement.SUFFIX
    pair_copies: int = Field(description="number of copies in the pairs")
    map_explained: float | None = Field(
        description="share of the variance orthogonal to the mean that the second axis holds"
    )
    sequences: int = Field(description="number of encoded texts")
    seconds: float
