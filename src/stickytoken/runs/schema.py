"""What a run folder's JSON files hold."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelRecord(_Record):
    """The model of a run."""

    name: str = Field(description="as the user typed it")
    vocabulary: int = Field(description="entries of the tokenizer")
    available: int = Field(description="entries that can occur in text")
    device: str
    parameters: int | None = Field(description="number of parameters, where the encoder knows it")


class CorpusRecord(_Record):
    """Where sentences or pairs came from."""

    source: str
    sentences: int | None = Field(description="distinct sentences; null for a pair file")
    blank: int = 0
    duplicates: int = 0


class PairRecord(_Record):
    """One sentence pair: the anchor, the carrier, their similarity."""

    sentence1: str
    sentence2: str
    similarity: float


class StdPlanRecord(_Record):
    """plan.json of the method std: what was derived from the model before any token."""

    mean_similarity: float = Field(description="u, the mean cosine over the vocabulary")
    mean_similarity_entries: int = Field(description="vocabulary entries that u rests on")
    left_out: int = Field(description="sentences, or given pairs, too long for the model with copies in")
    similarity_deviation: float = Field(
        description="largest difference between a pair's recorded similarity and the model's own"
    )
    scoring: list[PairRecord]
    validation: list[PairRecord]


class ResultRecord(_Record):
    """What a finished run found, in numbers."""

    scored: int
    candidates: int
    sticky: int
    score_threshold: float = Field(description="score that a candidate reaches")
    rate_threshold: float = Field(description="validation rate that a sticky token exceeds")
    sequences: int = Field(description="texts that shards encoded")
    seconds: float = Field(description="time that shards took")


class RunRecord(_Record):
    """run.json: identity, settings as resolved, versions, hardware, outcome."""

    schema_version: int = SCHEMA_VERSION
    identity: str
    identity_parts: dict[str, Any]
    method: Literal["std"]
    model: ModelRecord
    corpus: CorpusRecord
    tokens: int = Field(description="tokens that the run looks at")
    settings: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, str]
    started: str
    result: ResultRecord | None = None
