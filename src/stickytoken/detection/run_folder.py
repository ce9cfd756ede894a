"""The folder of a run: read and check its records and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Self

import polars as pl
from pydantic import (
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from stickytoken.encoders.endpoint import names_endpoint
from stickytoken.encoders.files.resolution import names_folder
from stickytoken.encoders.files.spec import EncoderSpec
from stickytoken.errors import RunError
from stickytoken.measurement import resume, store
from stickytoken.methods import SETTINGS_OF_METHOD, Verdict, base, method_named
from stickytoken.settings import part_of
from stickytoken.settings.endpoint import EndpointOptions
from stickytoken.settings.loading import RecordedLoading
from stickytoken.settings.prompting import Prompting
from stickytoken.settings.reading import Columns
from stickytoken.validation import shown
from stickytoken.words import counted

# Version of the files in a run folder. A change to the report, which is optional, needs no new version.
SCHEMA_VERSION = 7


class EndpointRecord(resume.Record):
    """The options that the endpoint of a model was called with. The API key is never recorded."""

    tokenizer: str | None = None  # folder, name or file of the model's tokenizer
    candidates: str | None = None  # file of strings to examine instead of a tokenizer
    max_length: int | None = None  # the model's maximum input length in tokens, if the user gave one
    request_dimensions: int | None = None  # number of components to request; null for the model's own number
    request_fields: str | None = None  # further fields of every request, as a JSON object
    key_variable: str | None = None  # environment variable that holds the key


class LoadingRecord(resume.Record):
    """The options that the model of a run was loaded with.

    In JSON, the fields of ``settings`` and ``prompting`` are stored at the top level, beside the other
    fields.
    """

    settings: RecordedLoading = RecordedLoading()
    prompting: Prompting = Prompting()  # default values if the prompt is part of the saved model
    layer_choice: str | None = None  # where the layer comes from; null without a prompt
    endpoint: EndpointRecord | None = None  # null for a model on this machine

    @model_validator(mode="before")
    @classmethod
    def _gather_settings(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or "prompting" in values:  # made in Python, not read
            return values
        # In the file, settings and prompting lie flat beside the other fields.
        settings = {name: values[name] for name in asdict(RecordedLoading()) if name in values}
        prompting = {name: values[name] for name in Prompting().as_options() if name in values}
        others = {name: value for name, value in values.items() if name not in settings | prompting}
        return others | {"settings": settings, "prompting": prompting}

    @model_serializer(mode="wrap")
    def _spread_settings(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        others: dict[str, Any] = serialize(self)
        # They are written in the way of `_gather_settings`: flat.
        del others["settings"], others["prompting"]
        return asdict(self.settings) | self.prompting.as_options() | others

    @classmethod
    def of(cls, spec: EncoderSpec) -> LoadingRecord:
        """Return the record of a model that was loaded in this way."""
        endpoint = None
        settings = part_of(spec, RecordedLoading)
        if spec.endpoint is not None:
            settings = replace(settings, max_length=None)  # that of an endpoint is among its options
            endpoint = EndpointRecord(
                tokenizer=spec.tokenizer,
                candidates=spec.candidates,
                max_length=spec.max_length,
                request_dimensions=spec.endpoint.request_dimensions,
                request_fields=spec.endpoint.request_fields,
                key_variable=spec.endpoint.key_variable,
            )
        return cls(
            settings=settings,
            prompting=spec.prompting,
            layer_choice=spec.layer_choice,
            endpoint=endpoint,
        )

    def complete(self, chosen: EncoderSpec) -> EncoderSpec:
        """Return how to load the model again: as recorded, except for what the user chose.

        Another prompt replaces all recorded settings of prompts, because layers are chosen for a prompt.

        Args:
            chosen: Where the model is now, and the user's options. The options of an endpoint are used only
                if the model is now behind one.
        """
        recorded: dict[str, Any] = asdict(self.settings)
        if names_folder(chosen.model):
            del recorded["revision"]  # of the hub: a folder, such as a copy of the model, has none
        recorded_endpoint = self.endpoint if names_endpoint(chosen.model) else None
        if recorded_endpoint is not None:
            recorded["max_length"] = recorded_endpoint.max_length
        # What the user chose comes first. An option that was not chosen is None.
        options = {name: getattr(chosen, name) or value for name, value in recorded.items()}
        spec = replace(chosen, **options)
        if chosen.prompting.prompt is None and chosen.prompting.prompt_name is None:
            # No other prompt was chosen, so the recorded one stays, also beside another layer.
            changes = {
                field.name: getattr(chosen.prompting, field.name)
                for field in fields(Prompting)
                if getattr(chosen.prompting, field.name) != field.default
            }
            spec = replace(spec, prompting=replace(self.prompting, **changes))
        if recorded_endpoint is None:
            return spec
        if not (chosen.tokenizer or chosen.candidates):  # an endpoint has either, not both
            spec = replace(
                spec, tokenizer=recorded_endpoint.tokenizer, candidates=recorded_endpoint.candidates
            )
        endpoint = chosen.endpoint or EndpointOptions()
        endpoint = replace(
            endpoint,
            request_dimensions=endpoint.request_dimensions or recorded_endpoint.request_dimensions,
            request_fields=endpoint.request_fields or recorded_endpoint.request_fields,
            key_variable=endpoint.key_variable or recorded_endpoint.key_variable,
        )
        return replace(spec, endpoint=endpoint)


class ModelRecord(resume.Record):
    """The model of a run."""

    name: str  # as the user typed it
    vocabulary: int  # number of vocabulary entries
    available: int  # number of entries that can occur in text
    device: str
    parameters: int | None  # number of parameters, if known
    loading: LoadingRecord | None = None  # null if the encoder was made from a model object
    route: str | None = None  # route that was measured; null for a model without routes
    folder: str | None = None  # absolute path of the model's folder; null for a name

    @property
    def location(self) -> str:
        """What to load the model from: its folder if it still exists, else its name."""
        return self.folder if self.folder is not None and Path(self.folder).is_dir() else self.name

    @property
    def short_name(self) -> str:
        """The name without the address of an endpoint or the folders of an absolute path."""
        if self.loading is not None and self.loading.endpoint is not None:
            return self.name.rpartition("#")[2] or self.name
        path = Path(self.name)
        return path.name if path.is_absolute() and path.name else self.name

    @property
    def reading(self) -> str:
        """The layer and dimensions that the user chose, such as ``layer 6, 64 dimensions``.

        The text is empty if the user chose neither, or if the encoder was made from a model object. The layer
        of a language model with a prompt is never named.
        """
        if self.loading is None:
            return ""
        phrases = []
        # For a language model with a prompt, the layer is a setting of the prompt, which titles do not name
        # either. Any other model has a layer only if the user chose one.
        has_prompt = self.loading.layer_choice is not None
        layer = self.loading.prompting.layer
        if layer is not None and not has_prompt:
            phrases.append(f"layer {layer}")
        dimensions = self.loading.settings.truncate_dim
        if dimensions is not None:
            phrases.append("1 dimension" if dimensions == 1 else f"{dimensions} dimensions")
        return ", ".join(phrases)

    @property
    def short_title(self) -> str:
        """The short name, with the layer and dimensions if they are not the defaults."""
        return f"{self.short_name} ({self.reading})" if self.reading else self.short_name

    @property
    def title(self) -> str:
        """The name as the user typed it, with the layer and dimensions if they are not the defaults."""
        return f"{self.name} ({self.reading})" if self.reading else self.name


class CorpusRecord(resume.Record):
    """The corpus of a run."""

    source: str
    sentences: int | None  # number of distinct sentences; null for pairs
    blank: int = 0  # number of blank sentences that were left out
    duplicates: int = 0  # number of repeated sentences that were left out
    too_long: int = 0  # number of sentences that were left out because they are too long
    unknown: float | None = None  # share of characters that the tokenizer does not know
    columns: Columns = Columns()  # the columns of a file with sentences that the user chose


class RunRecord(resume.MeasurementRecord):
    """run.json: everything about a run except its tables."""

    schema_version: int = SCHEMA_VERSION
    method: str
    model: ModelRecord
    corpus: CorpusRecord
    tokens: int  # number of tokens to measure
    # Ids of the special tokens that are measured in addition to a random sample; None if none was drawn.
    beside_sample: list[int] | None = None
    settings: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, str]
    started: str
    result: SerializeAsAny[base.ResultRecord] | None = None

    @property
    def scope(self) -> base.Scope:
        """Which of the available tokens the run measures."""
        if self.beside_sample is not None:
            return base.Scope.SAMPLE
        return base.Scope.WHOLE if self.identity_parts.get("tokens") is None else base.Scope.NAMED

    @property
    def is_profile(self) -> bool:
        """Whether the method is profile, which measures every token with intervals and grades sticky ones."""
        return self.method == "profile"

    def continued_by(self, later: resume.MeasurementRecord) -> Self:
        continued = super().continued_by(later)
        if not isinstance(later, RunRecord):
            return continued
        device = resume.join_sessions(self.model.device, later.model.device)
        return continued.model_copy(update={"model": self.model.model_copy(update={"device": device})})

    @field_validator("method")
    @classmethod
    def _require_method(cls, method: str) -> str:
        if method not in SETTINGS_OF_METHOD:
            raise ValueError(f"Input should be {' or '.join(map(repr, SETTINGS_OF_METHOD))}")
        return method

    @field_validator("result", mode="wrap")
    @classmethod
    def _read_result_of_method(cls, result: Any, _: Any, info: ValidationInfo) -> Any:
        if result is None or isinstance(result, base.ResultRecord):
            return result
        if "method" not in info.data:  # it is invalid, which is reported
            return result
        return method_named(info.data["method"]).RESULT_RECORD.model_validate(result)


# Text columns of token tables. Only columns of the second group may be null.
_TEXT_COLUMNS = ("token", "decoded")
_NULLABLE_TEXT_COLUMNS = ("category", "verdict", "severity", "reason")
# Maximum length, in characters, of a text in a token table. A longer text means that the file is damaged.
_LONGEST_TEXT = 10_000


def _describe_defect_of_table(table: pl.DataFrame) -> str | None:
    # A missing column counts as one without ids.
    ids = table.get_column("token_id", default=pl.Series([None]))
    if not ids.dtype.is_integer() or ids.null_count() or not ids.is_unique().all():
        return "has no column of distinct token ids"
    if ids.is_empty():
        return "has no rows"
    for column in table:
        defect = _describe_defect_of_column(column)
        if defect is not None:
            return f"has {defect} in the column {column.name!r}"
    return None


def _describe_defect_of_column(column: pl.Series) -> str | None:
    dtype = column.dtype
    if column.name in _TEXT_COLUMNS + _NULLABLE_TEXT_COLUMNS:
        has_gaps = column.name in _TEXT_COLUMNS and column.null_count() > 0
        if has_gaps or dtype not in (pl.String, pl.Null):
            return "rows without text"
        if dtype == pl.String and (column.str.len_chars() > _LONGEST_TEXT).any():
            return f"a text of more than {_LONGEST_TEXT:,} characters"
        return None
    if dtype.is_float() and not column.drop_nulls().is_finite().all():
        return "a number that is not finite"
    return None


def _describe_defect_of_tokens(
    tokens: pl.DataFrame, record: RunRecord, result: base.ResultRecord
) -> str | None:
    """Return in what the table of tokens is not one of its method, or not the one of its run; else None."""
    table = method_named(record.method).TABLE
    for column in (*table.listed, *table.reported, table.ranked_by):
        # A column without values may have the type Null; one that is missing counts as such.
        dtype = tokens.schema.get(column.key, pl.Null())
        shows_numbers = column.digits is not None
        if shows_numbers and not (dtype.is_numeric() or dtype == pl.Null):
            return f"has the type {dtype} in the column {column.key!r}, which must hold numbers"
    sticky = tokens.filter(pl.col("verdict") == Verdict.STICKY.value)
    if sticky[table.ranked_by.key].null_count():
        return f"has sticky tokens without a number in the column {table.ranked_by.key!r}"
    if len(tokens) != record.tokens:
        return f"has {len(tokens):,} rows for {record.tokens:,} tokens"
    other_verdicts = set(tokens["verdict"].drop_nulls()) - set(table.verdicts)
    if other_verdicts:
        return f"has the verdict {shown(min(other_verdicts))}, which {record.method} does not give"
    if len(sticky) != result.sticky:
        return f"has {counted(len(sticky), 'sticky token')}, but {store.RUN_FILE} has {result.sticky:,}"
    return None


class RunFolder(store.ResultFolder):
    """The folder of a run."""

    def lacks_record(self) -> bool:
        """Return whether the folder holds a run whose run.json is missing."""
        # Only a run has such a file. It is written after run.json.
        return not self.holds_run() and (self.path / store.VOCABULARY_FILE).is_file()

    def read_run(self) -> RunRecord:
        """Return the record in run.json.

        Raises:
            RunError: The folder or the file is missing, or the file is damaged or of another schema version.
        """
        if not self.exists():
            raise RunError(
                f"no run folder {str(self.path)!r}: name the folder that detect printed as its run folder, "
                "which by default is runs/<model>-<method>-<identity>"
            )
        record = self.read_record(store.RUN_FILE, RunRecord, SCHEMA_VERSION, "detect")
        if record is not None:
            return record
        lack = f"it has no {store.RUN_FILE}"
        if self.lacks_record():
            raise RunError(
                f"the run in {self.path} is damaged, because {lack}: restore it, or run "
                f"{store.command_of(self.path)} again"
            )
        raise RunError(f"{self.path} is not a run folder: {lack}")

    def read_finished(self) -> tuple[RunRecord, base.ResultRecord]:
        """Return the record and the result in run.json.

        Raises:
            RunError: As for `read_run`, or the run is not finished.
        """
        record = self.read_run()
        return record, resume.require_result(record.result, self, "run")

    def read_plan(self, method: str) -> base.PlanRecord | None:
        """Return the record in plan.json; None if the file has not been written yet."""
        path = self.path / store.PLAN_FILE
        if not path.is_file():
            return None
        plan: base.PlanRecord = store.validated(method_named(method).PLAN_RECORD, store.read_json(path), path)
        return plan

    def read_vocabulary(self) -> pl.DataFrame:
        """Return the table vocabulary.parquet.

        Raises:
            RunError: The table is missing or damaged.
        """
        columns = ("token_id", "token", "decoded", "category", "special")
        vocabulary = self.read_table(store.VOCABULARY_FILE, columns)
        self._refuse_table(store.VOCABULARY_FILE, _describe_defect_of_table(vocabulary))
        return vocabulary

    def read_tokens(self, record: RunRecord, result: base.ResultRecord) -> pl.DataFrame:
        """Return the table tokens.parquet of a finished run, of which run.json has the record and the result.

        Raises:
            RunError: The table is missing or damaged, or is not the one of this run.
        """
        tokens = self.read_table(store.TOKENS_FILE, method_named(record.method).TABLE.columns)
        defect = _describe_defect_of_table(tokens) or _describe_defect_of_tokens(tokens, record, result)
        self._refuse_table(store.TOKENS_FILE, defect)
        return tokens

    def _refuse_table(self, name: str, defect: str | None) -> None:
        if defect is not None:
            path = self.path / name
            raise RunError(f"{path} {defect}: {store.repair_advice(path)}")


def require_usable(path: Path, method: str, settings: base.MethodSettings) -> None:
    """Raise an error if a run cannot be written into a folder. Called before the model is loaded.

    Raises:
        RunError: The folder holds other files or another run, or cannot be written.
    """
    resume.require_place(path, RUN)
    folder = RunFolder(path)
    earlier_run = folder.read_run() if folder.holds_run() else None
    # The identity is written first: it may be the only record of an interrupted run.
    earlier_record = earlier_run or resume.read_identity(folder)
    if earlier_record is None:
        return
    # Of the identity, only these parts are known without the model.
    requested: dict[str, Any] = {"method": method, "settings": resume.settings_values(settings)}
    earlier = {name: earlier_record.identity_parts.get(name) for name in requested}
    if resume.differences(requested, earlier):
        resume.refuse_different(path, RUN.name, requested, earlier)


def _is_finished(record: RunRecord, folder: store.ResultFolder) -> bool:
    files = (store.PLAN_FILE, store.VOCABULARY_FILE, store.TOKENS_FILE)
    return record.result is not None and all((folder.path / name).is_file() for name in files)


RUN = resume.MeasurementKind(
    "run", store.RUN_FILE, lambda folder: RunFolder(folder.path).read_run(), _is_finished
)
