"""scan.json: what was scanned, and what was found."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from stickytoken.measurement.records import MeasurementRecord, Record

SCAN_SCHEMA_VERSION = 1


class SkippedRecord(Record):
    """A record without readable text."""

    place: str
    reason: str


class SourceRecord(Record):
    """The documents of one source."""

    source: str | None
    documents: int
    found: int
    matter: int | None = Field(description="null without effects")


class EffectRecord(Record):
    """What effects were compared with, and how prediction and measurement agree."""

    kind: str = Field(description="measured or predicted")
    queries: int
    queries_from: str
    reference: int = Field(description="clean documents that ranks and spread rest on")
    spread: float = Field(description="standard deviation of the similarities of queries and clean documents")
    agreement: float | None = Field(description="Spearman correlation of predicted and measured shifts")
    compared: int = Field(description="documents that have both")
    nothing_left: int = Field(description="documents that consist of copies only, and have no effect")


class ScanResultRecord(Record):
    """What a finished scan found."""

    documents: int
    found: int
    matter: int | None = Field(
        description="documents that copies lift by half a spread or more; null without effects"
    )
    skipped: int
    skipped_first: list[SkippedRecord]
    kinds: dict[str, int] = Field(description="documents by kind of finding")
    sources: list[SourceRecord] = Field(description="those with the most findings; empty without sources")
    effect: EffectRecord | None
    seconds: float


class ScanRecord(MeasurementRecord):
    """scan.json."""

    model: str
    run: str = Field(description="the run folder, as named")
    documents: str = Field(description="name of the collection")
    rules: dict[str, Any]
    started: str
    versions: dict[str, str]
    result: ScanResultRecord | None = None
