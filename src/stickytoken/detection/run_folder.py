"""The folder of a detection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from pydantic import Field, SerializeAsAny, ValidationInfo, ValidatorFunctionWrapHandler, field_validator

from stickytoken.corpora import Sentences
from stickytoken.corpora.choice import PairCorpus
from stickytoken.errors import RunError
from stickytoken.insertion import Placement
from stickytoken.machine import Precision
from stickytoken.measurement.atomic import require_writable
from stickytoken.measurement.resume import (
    IdentityRecord,
    Kind,
    MeasurementRecord,
    Record,
    differences,
    settings_values,
)
from stickytoken.measurement.store import (
    IDENTITY_FILE,
    PLAN_FILE,
    RUN_FILE,
    TOKENS_FILE,
    VOCABULARY_FILE,
    ResultFolder,
    read_json,
    repair_advice,
    require_version,
    validated,
)
from stickytoken.methods.entry import Verdict
from stickytoken.methods.job import MethodSettings, StoredSettings
from stickytoken.methods.records import ResultRecord
from stickytoken.methods.registry import entries, method_named

if TYPE_CHECKING:
    from stickytoken.detection.run import Run


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


_SHOWN_VERSION = 40


class RunFolder(ResultFolder):
    """Reads and writes the files of one run."""

    def read_run(self) -> RunRecord:
        """Read run.json."""
        if not self.holds_run():
            raise RunError(f"{self.path} is not a run folder: it has no {RUN_FILE}")
        path = self.path / RUN_FILE
        raw = read_json(path)
        if isinstance(raw, Mapping):
            _require_readable(raw.get("schema_version"), path)
        return validated(RunRecord, raw, path)

    def settings_of(self, record: RunRecord) -> StoredSettings:
        """The settings in run.json."""
        defaults = method_named(record.method).settings()
        return StoredSettings(record.settings, defaults, str(self.path / RUN_FILE))


def require_usable(path: Path, method: str, settings: MethodSettings) -> None:
    """Refuse a folder that a run cannot go to, before a model is loaded."""
    folder = RunFolder(path)
    if folder.holds_other_files():
        what = "is a file" if path.is_file() else "contains files but no run"
        raise RunError(f"{path} {what}: choose an empty or new folder")
    require_writable(path)
    if not folder.exists():
        return
    with folder.locked():
        earlier_run = RUN.read(folder) if folder.holds_run() else None
        claim = earlier_run or folder.read_record(IDENTITY_FILE, IdentityRecord)
    ours: dict[str, Any] = {"method": method, "settings": settings_values(settings)}
    earlier = {} if claim is None else {name: claim.identity_parts.get(name) for name in ours}
    screens = [(known.get("settings") or {}).get("screen_precision") for known in (ours, earlier)]
    if screens == [Precision.INT8, Precision.BFLOAT16]:  # of a model that does not bear int8
        ours["settings"]["screen_precision"] = Precision.BFLOAT16
    if claim is not None and (different := differences(ours, earlier)):
        raise RunError(
            f"{path} contains a different run (it differs in {', '.join(different)}): choose another folder"
        )


def _require_readable(version: Any, path: Path) -> None:
    if type(version) is not int or version < 1:  # a bool is an int
        found = "missing" if version is None else json.dumps(version)[:_SHOWN_VERSION]
        raise RunError(
            f"{path} is not a valid record (schema_version: {found}, where a whole number from 1 is "
            f"needed): {repair_advice(path)}"
        )
    require_version(version, SCHEMA_VERSION, path)
    if version < SCHEMA_VERSION:
        raise RunError(
            f"{path.parent} was written by an earlier version of stickytoken: run the detection again, in "
            "another folder"
        )


def _is_finished(record: RunRecord, folder: ResultFolder) -> bool:
    files = (PLAN_FILE, VOCABULARY_FILE, TOKENS_FILE)
    return record.result is not None and all((folder.path / name).is_file() for name in files)


RUN = Kind("run", RUN_FILE, lambda folder: RunFolder(folder.path).read_run(), _is_finished)


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


FLAGGED = (Verdict.STICKY.value, Verdict.TOPICAL.value)


def is_flagged() -> pl.Expr:
    """Select the sticky and topical rows of `tokens.parquet`; a token without a verdict is neither."""
    return pl.col("verdict").is_in(FLAGGED).fill_null(value=False)


def flagged_ids(tokens: pl.DataFrame) -> list[int]:
    """List the ids of the flagged tokens in the order of the rows."""
    ids: list[int] = tokens.filter(is_flagged())["token_id"].to_list()
    return ids


def flagged_tokens(run: Run | None) -> frozenset[int]:
    """Ids of the tokens that a run flags; none without a run."""
    return frozenset() if run is None else frozenset(flagged_ids(run.tokens))
