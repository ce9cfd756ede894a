"""The folder of a detection."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from pydantic import ConfigDict, SerializeAsAny, ValidationInfo, field_validator

import stickytoken.measurement as store
from stickytoken.errors import RunError
from stickytoken.insertion import Placement
from stickytoken.measurement import resume
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.methods import Moved, Verdict, base
from stickytoken.methods.probes import EvidenceStage
from stickytoken.methods.registry import entries, method_named

if TYPE_CHECKING:
    from stickytoken.detection.run import Run

# Files that a run may lack (evidence, report) need no new version.
SCHEMA_VERSION = 3


class EndpointRecord(resume.Record):
    """How a model behind an endpoint was used; never a key."""

    tokenizer: str | None = None  # folder, name or file of its tokenizer
    candidates: str | None = None  # file of strings in place of a tokenizer
    max_length: int | None = None  # tokens it reads, if the user said so
    dimensions: int | None = None
    key_variable: str | None = None  # environment variable that holds the key


class LoadingRecord(resume.Record):
    dtype: str = "float32"
    revision: str | None = None
    prompt: str | None = None  # null for a saved model that has its own
    token_prepending: bool = False
    start: int | None = None
    exit: int | None = None
    layer: int | None = None
    contrast: bool = False
    contrast_layer: int | None = None
    contrast_strength: float | None = None
    contrast_rule: str | None = None
    layer_choice: str | None = None  # where the layer comes from; null without a prompt
    endpoint: EndpointRecord | None = None  # of a model behind an endpoint

    def prompting(self) -> dict[str, Any]:
        return self.model_dump(exclude={"dtype", "revision", "layer_choice", "endpoint"})


class ModelRecord(resume.Record):
    name: str  # as the user typed it
    vocabulary: int  # entries of the tokenizer
    available: int  # entries that can occur in text
    device: str
    parameters: int | None  # number of parameters, if known
    loading: LoadingRecord | None = None  # null if the encoder was made from a model object

    @property
    def short_name(self) -> str:
        if self.loading is not None and self.loading.endpoint is not None:
            return self.name.rpartition("#")[2] or self.name
        path = Path(self.name)
        return path.name if path.is_absolute() and path.name else self.name


class CorpusRecord(resume.Record):
    source: str
    sentences: int | None  # distinct sentences; null for a pair file
    blank: int = 0
    duplicates: int = 0
    too_long: int = 0  # sentences left out for their length
    unknown: float | None = None  # share of characters that the tokenizer does not know


class RunRecord(resume.MeasurementRecord):
    schema_version: int = SCHEMA_VERSION
    method: str
    model: ModelRecord
    corpus: CorpusRecord
    tokens: int  # number of tokens to measure
    settings: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, str]
    started: str
    result: SerializeAsAny[base.ResultRecord] | None = None

    @field_validator("method")
    @classmethod
    def _registered(cls, method: str) -> str:
        names = [entry.name for entry in entries()]
        if method not in names:
            raise ValueError(f"Input should be {' or '.join(map(repr, names))}")
        return method

    @field_validator("result", mode="wrap")
    @classmethod
    def _of_method(cls, result: Any, _: Any, info: ValidationInfo) -> Any:
        if result is None or isinstance(result, base.ResultRecord) or "method" not in info.data:
            return result
        return method_named(info.data["method"]).result_record.model_validate(result)


# Columns of both tables of tokens that hold text; null stands for a verdict that was not given.
_TEXTS, _TEXTS_OR_NULL = (
    ("token", "decoded"),
    ("category", "verdict", "severity", "kind", "reason", "precision"),
)
_LONGEST_TEXT = 10_000


def _unsound(table: pl.DataFrame) -> str | None:
    ids = table.get_column("token_id", default=pl.Series([None]))
    if not ids.dtype.is_integer() or ids.null_count() or not ids.is_unique().all():
        return "has no column of distinct token ids"
    if ids.is_empty():
        return "has no rows"
    for column in table:
        dtype, wrong = column.dtype, ""
        if column.name in _TEXTS + _TEXTS_OR_NULL:
            if dtype not in (pl.String, pl.Null) or (column.name in _TEXTS and column.null_count()):
                wrong = "rows without text"
            elif dtype == pl.String and (column.str.len_chars() > _LONGEST_TEXT).any():
                wrong = f"a text of more than {_LONGEST_TEXT:,} characters"
        elif column.name == "lift" and not (dtype.is_numeric() or dtype == pl.Null):
            return f"has {dtype} in the column 'lift', which holds numbers"
        elif dtype.is_float() and not column.drop_nulls().is_finite().all():
            wrong = "a number that is not finite"
        if wrong:
            return f"has {wrong} in the column {column.name!r}"
    return None


class RunFolder(store.ResultFolder):
    def read_run(self) -> RunRecord:
        if not self.holds_run():
            raise RunError(f"{self.path} is not a run folder: it has no {store.RUN_FILE}")
        path = self.path / store.RUN_FILE
        raw = store.read_json(path)
        if isinstance(raw, Mapping):
            version = raw.get("schema_version")
            if type(version) is not int or version < 1:  # a bool is an int
                found = "missing" if version is None else json.dumps(version)[:40]
                raise RunError(
                    f"{path} is not a valid record (schema_version: {found}, where a whole number from 1 is "
                    f"needed): {store.repair_advice(path)}"
                )
            store.require_version(version, SCHEMA_VERSION, path)
            if version < SCHEMA_VERSION:
                raise RunError(
                    f"{self.path} was written by an earlier version of stickytoken: run the detection again, "
                    "in another folder"
                )
        return store.validated(RunRecord, raw, path)

    def read_table(
        self, name: str, columns: Sequence[str] | Mapping[str, Any] = (), filled: Sequence[str] = ()
    ) -> pl.DataFrame:
        table = super().read_table(name, columns, filled)
        if name in (store.TOKENS_FILE, store.VOCABULARY_FILE) and (wrong := _unsound(table)) is not None:
            raise RunError(f"{self.path / name} {wrong}: delete it and run the same command again")
        return table

    def settings_of(self, record: RunRecord) -> base.StoredSettings:
        defaults = method_named(record.method).settings()
        return base.StoredSettings(record.settings, defaults, str(self.path / store.RUN_FILE))


def require_usable(path: Path, method: str, settings: base.MethodSettings) -> None:
    folder = RunFolder(path)
    if folder.holds_other_files():
        what = "is a file" if path.is_file() else "contains files but no run"
        raise RunError(f"{path} {what}: choose an empty or new folder")
    store.require_writable(path)
    if not folder.exists():
        return
    with folder.locked():
        earlier_run = RUN.read(folder) if folder.holds_run() else None
        claim = earlier_run or folder.read_record(store.IDENTITY_FILE, resume.IdentityRecord)
    ours: dict[str, Any] = {"method": method, "settings": resume.settings_values(settings)}
    earlier = {} if claim is None else {name: claim.identity_parts.get(name) for name in ours}
    if claim is not None and (different := resume.differences(ours, earlier)):
        raise RunError(
            f"{path} contains a different run (it differs in {', '.join(different)}): choose another folder"
        )


def _is_finished(record: RunRecord, folder: store.ResultFolder) -> bool:
    files = (store.PLAN_FILE, store.VOCABULARY_FILE, store.TOKENS_FILE)
    return record.result is not None and all((folder.path / name).is_file() for name in files)


RUN = resume.MeasurementKind(
    "run", store.RUN_FILE, lambda folder: RunFolder(folder.path).read_run(), _is_finished
)


class EvidenceRecord(resume.Record):
    model_config = ConfigDict(extra="ignore")  # earlier versions also recorded a map of the vocabulary

    carriers: list[str]  # texts with the copies after their last word
    anchors: int  # number of texts that they were compared with
    placement: Placement = Placement.SUFFIX
    pair_copies: int  # number of copies in the pairs
    sequences: int  # number of encoded texts
    seconds: float


FLAGGED = (Verdict.STICKY.value, Verdict.TOPICAL.value)


def is_flagged() -> pl.Expr:
    return pl.col("verdict").is_in(FLAGGED).fill_null(value=False)


def flagged_ids(tokens: pl.DataFrame) -> list[int]:
    ids: list[int] = tokens.filter(is_flagged())["token_id"].to_list()
    return ids


EVIDENCE_FILE = "evidence.parquet"
EVIDENCE_RECORD_FILE = "evidence.json"
# Number of tokens with a curve and pairs: the sticky ones, or else those ranked highest.
_MOST_SHOWN = 12
_LEAST_SHOWN = 4
_ORDINARY_TOKENS = 8
_ORDINARY = 12
_PARTS = {"carrier": pl.String, "anchor": pl.String, "before": pl.Float64, "after": pl.Float64}
_EVIDENCE_SCHEMA: dict[str, Any] = {
    "token_id": pl.Int64,
    "ordinary": pl.Boolean,
    "copies": pl.List(pl.Int64),
    "below": pl.List(pl.Float64),
    "above": pl.List(pl.Float64),
    "ahead": pl.List(pl.Float64),
    **{f"{kind}_{part}": dtype for kind in ("typical", "largest") for part, dtype in _PARTS.items()},
}


class RunEvidence(NamedTuple):
    record: EvidenceRecord
    # One row per token with a curve; below and above are mean similarities by number of copies, empty if no
    # pair lies on that side; ahead is the rank that `CarrierPanel.ahead` computes, null in runs of earlier
    # versions; pairs are null if none lies below.
    tokens: pl.DataFrame

    def moved(self, token_id: int) -> Moved | None:
        copies = self.record.pair_copies
        ranks = {
            row["token_id"]: (row["ordinary"], row["ahead"][row["copies"].index(copies)])
            for row in self.tokens.filter(pl.col("ahead").list.len() > 0).to_dicts()
        }
        if token_id not in ranks:
            return None
        ordinary = [ahead for is_ordinary, ahead in ranks.values() if is_ordinary]
        return Moved(copies, ranks[token_id][1], fmean(ordinary) if ordinary else None)


def measured_evidence(
    job: base.Job[base.MethodSettings],
    stage: EvidenceStage,
    run: Run,
    named: Sequence[int] | None = None,
    with_ordinary: bool = True,
    progress: ProgressCallback = ignore_progress,
) -> RunEvidence:
    started = time.perf_counter()
    available, ranked_by = job.vocabulary.available, run.method.ranked_by.key
    # The sticky tokens, worst first; if they are few, also those that come next.
    ranked = run.tokens.filter(pl.col(ranked_by).is_not_null()).sort(
        pl.col("verdict").eq_missing("sticky"), ranked_by, "token_id", descending=[True, True, False]
    )
    sticky = int((ranked["verdict"] == "sticky").sum())
    worst = ranked["token_id"].head(min(_MOST_SHOWN, max(sticky, _LEAST_SHOWN))).to_list()
    shown = worst if named is None else named
    ordinary: list[int] = []
    if with_ordinary:  # a few random tokens that are not flagged, as a control
        excluded = {*flagged_ids(run.tokens), *worst, *shown}
        order = np.random.default_rng([job.settings.seed, _ORDINARY]).permutation(len(available))
        drawn = (available[place].id for place in order if available[place].id not in excluded)
        ordinary = list(islice(drawn, _ORDINARY_TOKENS))
    by_id = {token.id: token for token in available}
    # One shard for all would fill batches best; small ones bound the memory.
    measure = base.MemoryRunner(job.encoder, progress, _ORDINARY_TOKENS * stage.probes_per_token)
    measured = measure(stage, [by_id[token_id] for token_id in (*shown, *ordinary)]).to_dicts()
    for row in measured:
        row.update(ordinary=row["token_id"] in ordinary, copies=[0, *stage.copies])
    record = EvidenceRecord(
        carriers=list(stage.texts),
        anchors=len(stage.panel.panel.vectors),
        pair_copies=stage.pair_copies,
        sequences=len(measured) * stage.probes_per_token,
        seconds=round(time.perf_counter() - started, 1),
    )
    return RunEvidence(record, pl.DataFrame(measured, schema=_EVIDENCE_SCHEMA))


def has_evidence(folder: RunFolder) -> bool:
    return all((folder.path / name).is_file() for name in (EVIDENCE_RECORD_FILE, EVIDENCE_FILE))


def read_evidence(folder: RunFolder) -> RunEvidence | None:
    record = folder.read_record(EVIDENCE_RECORD_FILE, EvidenceRecord) if has_evidence(folder) else None
    if record is None:
        return None
    needed = [name for name in _EVIDENCE_SCHEMA if name != "ahead"]
    table = folder.read_table(EVIDENCE_FILE, needed)
    if "ahead" not in table.columns:  # a run of an earlier version
        table = table.with_columns(ahead=pl.lit(None, dtype=_EVIDENCE_SCHEMA["ahead"]))
    return RunEvidence(record, table.select(list(_EVIDENCE_SCHEMA)))
