"""The folder of a detection."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from pydantic import ConfigDict, SerializeAsAny, ValidationInfo, field_validator

import stickytoken.measurement as store
from stickytoken.data import SpanTokenizer
from stickytoken.detection import _older_runs
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import RunError
from stickytoken.insertion import Placement, Token
from stickytoken.measurement import resume
from stickytoken.measurement.engine import UNANSWERED, ProgressCallback, ignore_progress
from stickytoken.methods import Moved, Verdict, base
from stickytoken.methods.probes import EvidenceStage
from stickytoken.methods.registry import entries, method_named
from stickytoken.methods.small_search import COPIES, SearchShares, SearchStage
from stickytoken.methods.wording import SearchHarm

if TYPE_CHECKING:
    from stickytoken.detection.run import Run

# Files that a run may lack (evidence, report) need no new version.
SCHEMA_VERSION = 4


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
    truncate_dim: int | None = None  # components that are read; null for all
    route: str | None = None  # as asked; null is the default of the model

    def prompting(self) -> dict[str, Any]:
        return self.model_dump(
            exclude={"dtype", "revision", "layer_choice", "endpoint", "truncate_dim", "route"}
        )


class ModelRecord(resume.Record):
    name: str  # as the user typed it
    vocabulary: int  # entries of the tokenizer
    available: int  # entries that can occur in text
    device: str
    parameters: int | None  # number of parameters, if known
    loading: LoadingRecord | None = None  # null if the encoder was made from a model object
    route: str | None = None  # that was measured; null for a model without routes

    @property
    def short_name(self) -> str:
        if self.loading is not None and self.loading.endpoint is not None:
            return self.name.rpartition("#")[2] or self.name
        path = Path(self.name)
        return path.name if path.is_absolute() and path.name else self.name

    @property
    def reading(self) -> str:
        """How the model was read if not as it was saved, such as ``layer 6, 64 dimensions``."""
        if self.loading is None:
            return ""
        parts = []
        # A language model with a prompt has a choice of the layer, and always a layer.
        if self.loading.layer is not None and self.loading.layer_choice is None:
            parts.append(f"layer {self.loading.layer}")
        if (count := self.loading.truncate_dim) is not None:
            parts.append("1 dimension" if count == 1 else f"{count} dimensions")
        return ", ".join(parts)

    @property
    def title(self) -> str:
        """The short name, and how the model was read."""
        return f"{self.short_name} ({self.reading})" if self.reading else self.short_name

    @property
    def long_title(self) -> str:
        """The name as the user typed it, and how the model was read."""
        return f"{self.name} ({self.reading})" if self.reading else self.name


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
    ("category", "verdict", "severity", "kind", "strongest_kind", "reason", "precision"),
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
            if version == _older_runs.OLDER_SCHEMA:
                raw = _older_runs.upgraded_run(raw)
            elif version < SCHEMA_VERSION:
                raise RunError(
                    f"{self.path} was written by an earlier version of stickytoken: run the detection again, "
                    "in another folder"
                )
        return store.validated(RunRecord, raw, path)

    def read_plan(self, method: str) -> base.PlanRecord | None:
        """Read plan.json; None if it is not written yet."""
        path = self.path / store.PLAN_FILE
        if not path.is_file():
            return None
        raw = _older_runs.upgraded_plan(store.read_json(path))
        plan: base.PlanRecord = store.validated(method_named(method).plan_record, raw, path)
        return plan

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


class SearchRecord(resume.Record):
    """The small search that shows what copies do to results, without any copies."""

    documents: int
    copies: int  # in a document
    answering: float  # share of queries with the document that answers them among the first ten
    unrelated: float  # share of pairs of a query and another document with that document among the first ten


class EvidenceRecord(resume.Record):
    model_config = ConfigDict(extra="ignore")  # earlier versions also recorded a map of the vocabulary

    carriers: list[str]  # texts with the copies after their last word
    anchors: int  # number of texts that they were compared with
    placement: Placement = Placement.SUFFIX
    pair_copies: int  # number of copies in the pairs
    sequences: int  # number of encoded texts
    seconds: float
    search: SearchRecord | None = None  # null if too few texts are long enough, and in earlier versions


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
    "answering": pl.Float64,
    "unrelated": pl.Float64,
    **{f"{kind}_{part}": dtype for kind in ("typical", "largest") for part, dtype in _PARTS.items()},
}


class RunEvidence(NamedTuple):
    record: EvidenceRecord
    # One row per token with a curve; below and above are mean similarities by number of copies, empty if no
    # pair lies on that side, and null for numbers of copies that the tokenizer reads as unknown; ahead is the
    # rank that `CarrierPanel.ahead` computes, null in runs of earlier versions; pairs are null if none lies
    # below.
    tokens: pl.DataFrame

    def moved(self, token_id: int) -> Moved | None:
        copies = self.record.pair_copies
        ranks = {
            row["token_id"]: (row["ordinary"], row["ahead"][row["copies"].index(copies)])
            for row in self.tokens.filter(pl.col("ahead").list.len() > 0).to_dicts()
        }
        if token_id not in ranks or ranks[token_id][1] is None:
            return None
        ordinary = [ahead for is_ordinary, ahead in ranks.values() if is_ordinary]
        return Moved(copies, ranks[token_id][1], fmean(ordinary) if ordinary else None)

    def cut_curves(self) -> str | None:
        """Say which curves leave numbers of copies out; None if none does."""
        curves = [pl.col(name).list.eval(pl.element().is_null()).list.any() for name in ("below", "above")]
        is_cut = pl.any_horizontal(curves).fill_null(value=False)
        tokens = self.tokens.filter(is_cut)
        if tokens.is_empty():
            return None
        first = tokens.row(0, named=True)
        unknown = [
            copies
            for copies, below, above in zip_longest(first["copies"], first["below"], first["above"])
            if below is None and above is None
        ]
        others = f", and those of {len(tokens) - 1} more tokens" if len(tokens) > 1 else ""
        return (
            f"the curve of token {first['token_id']} leaves {min(unknown)} copies and more out{others}: the "
            "tokenizer reads so many copies as an unknown word"
        )

    def harm(self, token_id: int) -> SearchHarm | None:
        """Return what copies of a token do in a small search; None where that was not measured."""
        search = self.record.search
        rows = self.tokens.filter(pl.col("answering").is_not_null())
        own = rows.filter(pl.col("token_id") == token_id)
        if search is None or own.is_empty():
            return None
        ordinary = rows.filter("ordinary")
        of_ordinary = None
        if not ordinary.is_empty():
            of_ordinary = SearchShares(fmean(ordinary["answering"]), fmean(ordinary["unrelated"]))
        return SearchHarm(
            SearchShares(own["answering"][0], own["unrelated"][0]),
            SearchShares(search.answering, search.unrelated),
            of_ordinary,
        )


def measured_evidence(
    job: base.Job[base.MethodSettings],
    stage: EvidenceStage,
    run: Run,
    named: Sequence[int] | None = None,
    with_ordinary: bool = True,
    search: SearchStage | None = None,
    progress: ProgressCallback = ignore_progress,
) -> RunEvidence:
    """Measure curves, pairs and search results of the worst tokens, and of ordinary ones as a control.

    Args:
        job: the run's job.
        stage: measures curves and pairs.
        run: the finished run.
        named: ids of the tokens to show; None is the sticky tokens, and the strongest others if they are few.
        with_ordinary: also measure a few random tokens that are not flagged.
        search: measures search results; None leaves them out.
        progress: told of every step.
    """
    started = time.perf_counter()
    worst = _tokens_to_show(run)
    shown = worst if named is None else list(named)
    available = job.vocabulary.available
    ordinary: list[int] = []
    if with_ordinary:
        excluded = {*flagged_ids(run.tokens), *worst, *shown}
        order = np.random.default_rng([job.settings.seed, _ORDINARY]).permutation(len(available))
        others = (available[place] for place in order if available[place].id not in excluded)
        drawn = (token.id for token in others if not unknown_copies(job.encoder, stage, token))
        ordinary = list(islice(drawn, _ORDINARY_TOKENS))
    by_id = {token.id: token for token in available}
    tokens = [by_id[token_id] for token_id in (*shown, *ordinary)]
    # One shard for all would fill batches best; small ones bound the memory.
    measure = base.MemoryRunner(job.encoder, progress, _ORDINARY_TOKENS * stage.probes_per_token)
    rows = {row["token_id"]: row for row in _answered(measure(stage, tokens)).to_dicts()}
    sequences = len(tokens) * stage.probes_per_token
    search_record = None
    if search is not None:
        for found in _answered(measure(search, tokens)).to_dicts():
            if found["token_id"] in rows:
                rows[found["token_id"]] |= found
        sequences += len(tokens) * search.probes_per_token
        without = search.without_copies
        search_record = SearchRecord(
            documents=search.probes_per_token,
            copies=COPIES,
            answering=without.answering,
            unrelated=without.unrelated,
        )
    for token_id, row in rows.items():
        row.update(ordinary=token_id in ordinary, copies=[0, *stage.copies])
        _leave_out_unknown(row, unknown_copies(job.encoder, stage, by_id[token_id]))
    record = EvidenceRecord(
        carriers=list(stage.texts),
        anchors=len(stage.panel.panel.vectors),
        pair_copies=stage.pair_copies,
        sequences=sequences,
        seconds=round(time.perf_counter() - started, 1),
        search=search_record,
    )
    return RunEvidence(record, pl.DataFrame(list(rows.values()), schema=_EVIDENCE_SCHEMA))


def _answered(table: pl.DataFrame) -> pl.DataFrame:
    """Leave out tokens for which a server gave no vector for one of their texts."""
    if UNANSWERED not in table.columns:
        return table
    return table.filter(pl.col(UNANSWERED).is_null()).drop(UNANSWERED)


def _tokens_to_show(run: Run) -> list[int]:
    """Return the worst sticky tokens; if they are few, also those that come next."""
    sticky = run.sticky["token_id"].to_list()
    others = run.strongest(_MOST_SHOWN)["token_id"].to_list()
    count = min(_MOST_SHOWN, max(len(sticky), _LEAST_SHOWN))
    return list(dict.fromkeys([*sticky, *others]))[:count]


def _leave_out_unknown(row: dict[str, Any], unknown: set[int]) -> None:
    """Remove from the curves of a token the numbers of copies that the tokenizer reads as unknown."""
    if not unknown:
        return
    for curve in ("below", "above", "ahead"):
        values = zip(row["copies"], row[curve], strict=False)  # a curve may be empty
        row[curve] = [None if copies in unknown else value for copies, value in values]


def unknown_copies(encoder: Encoder, stage: EvidenceStage, token: Token) -> set[int]:
    """Return the numbers of copies with which the tokenizer reads a part of a text as unknown.

    Copies that are joined to a text become one long word, and a BERT tokenizer does not know words of more
    than 100 characters.
    """
    carriers = [carrier for carrier in stage.carriers if isinstance(carrier, str)]
    tokenizer = encoder.tokenizer
    if not carriers or not isinstance(tokenizer, SpanTokenizer) or tokenizer.unknown_id in (None, token.id):
        return set()
    unknown_id = tokenizer.unknown_id
    before = [ids.count(unknown_id) for ids in encoder.content_ids(carriers)]
    texts = [probe for probe in stage.probes(token) if isinstance(probe, str)]
    found: set[int] = set()
    for place, ids in enumerate(encoder.content_ids(texts)):
        carrier, number = divmod(place, len(stage.copies))
        if ids.count(unknown_id) > before[carrier]:
            found.add(stage.copies[number])
    return found


def has_evidence(folder: RunFolder) -> bool:
    return all((folder.path / name).is_file() for name in (EVIDENCE_RECORD_FILE, EVIDENCE_FILE))


def read_evidence(folder: RunFolder) -> RunEvidence | None:
    record = folder.read_record(EVIDENCE_RECORD_FILE, EvidenceRecord) if has_evidence(folder) else None
    if record is None:
        return None
    later = ("ahead", "answering", "unrelated")  # runs of earlier versions lack them
    table = folder.read_table(EVIDENCE_FILE, [name for name in _EVIDENCE_SCHEMA if name not in later])
    absent = [name for name in later if name not in table.columns]
    table = table.with_columns(pl.lit(None, dtype=_EVIDENCE_SCHEMA[name]).alias(name) for name in absent)
    return RunEvidence(record, table.select(list(_EVIDENCE_SCHEMA)))
