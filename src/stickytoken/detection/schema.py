"""The JSON files of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import (
    Field,
    SerializeAsAny,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from stickytoken.corpora import Sentences
from stickytoken.corpora.choice import PairCorpus
from stickytoken.measurement.records import MeasurementRecord, Record
from stickytoken.methods.records import ResultRecord
from stickytoken.methods.registry import entries, method_named

# Files that a run may lack (evidence, map, report) need no new version.
SCHEMA_VERSION = 3


class EndpointRecord(Record):
    """How a model behind an endpoint was used; never a key."""

    tokenizer: str | None = Field(default=None, description="folder, name or file of its tokenizer")
    candidates: str | None = Field(default=None, description="file of strings in place of a tokenizer")
    max_length: int | None = Field(default=None, description="tokens it reads, if the user said so")
    dimensions: int | None = None
    key_variable: str | None = Field(default=None, description="environment variable that holds the key")


class LoadingRecord(Record):
    """Arguments of `load_encoder` that can change vectors."""

    dtype: str = "float32"
    revision: str | None = None
    prompt: str | None = Field(default=None, description="null for a saved model that has its own")
    token_prepending: bool = False
    start: int | None = None
    exit: int | None = None
    layer: int | None = None
    contrast: bool = False
    contrast_layer: int | None = None
    contrast_strength: float | None = None
    contrast_rule: str | None = None
    layer_choice: str | None = Field(
        default=None, description="where the layer comes from; null without a prompt"
    )

    endpoint: EndpointRecord | None = Field(default=None, description="of a model behind an endpoint")

    def prompting(self) -> dict[str, Any]:
        """Return the arguments of `Prompting`."""
        return self.model_dump(exclude={"dtype", "revision", "layer_choice", "endpoint"})


class ModelRecord(Record):
    """The model of a run."""

    name: str = Field(description="as the user typed it")
    vocabulary: int = Field(description="entries of the tokenizer")
    available: int = Field(description="entries that can occur in text")
    device: str
    parameters: int | None = Field(description="number of parameters, if known")
    loading: LoadingRecord | None = Field(
        default=None, description="null if the encoder was made from a model object"
    )

    @property
    def short_name(self) -> str:
        """The name without a local folder or the address of an endpoint."""
        if self.loading is not None and self.loading.endpoint is not None:
            return self.name.rpartition("#")[2] or self.name
        path = Path(self.name)
        return path.name if path.is_absolute() and path.name else self.name


class CorpusRecord(Record):
    """Source of the sentences or pairs."""

    source: str
    sentences: int | None = Field(description="distinct sentences; null for a pair file")
    blank: int = 0
    duplicates: int = 0
    too_long: int = Field(default=0, description="sentences left out for their length")
    unknown: float | None = Field(
        default=None,
        description="share of characters that the tokenizer does not know",
    )


def corpus_record(corpus: Sentences | PairCorpus) -> CorpusRecord:
    """Describe a corpus for run.json."""
    if isinstance(corpus, PairCorpus):
        return CorpusRecord(source=corpus.source, sentences=None, unknown=corpus.unknown)
    return CorpusRecord(
        source=corpus.source,
        sentences=len(corpus),
        blank=corpus.blank,
        duplicates=corpus.duplicates,
        too_long=corpus.too_long,
        unknown=corpus.unknown,
    )


class RunRecord(MeasurementRecord):
    """run.json: identity, settings as resolved, versions, hardware, outcome."""

    schema_version: int = SCHEMA_VERSION
    method: str
    model: ModelRecord
    corpus: CorpusRecord
    tokens: int = Field(description="number of tokens to measure")
    settings: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, str]
    started: str
    result: SerializeAsAny[ResultRecord] | None = None

    @field_validator("method")
    @classmethod
    def _registered(cls, method: str) -> str:
        names = [entry.name for entry in entries()]
        if method not in names:
            raise ValueError(f"Input should be {' or '.join(map(repr, names))}")
        return method

    @field_validator("result", mode="wrap")
    @classmethod
    def _of_method(cls, result: Any, _: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """Read the result as what its method writes."""
        if result is None or isinstance(result, ResultRecord) or "method" not in info.data:
            return result
        return method_named(info.data["method"]).result_record.model_validate(result)
