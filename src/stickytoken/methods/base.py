"""What a detection method is (`Method`), and the data and runners that both methods work with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

import stickytoken.methods as terms
from stickytoken.data import PairCorpus, Sentences
from stickytoken.encoders.mean_similarity import (
    MeanSimilarity,
    VectorSums,
    add_unit_vectors,
    blocks_of_entries,
    mean_of_sums,
    sampled_entries,
)
from stickytoken.encoders.protocol import Encoder, quote_text
from stickytoken.encoders.roles import Role
from stickytoken.insertion import Insertion, Probe, Token
from stickytoken.measurement import ResultFolder, ShardCost, engine as engines
from stickytoken.measurement.engine import Engine, ProgressCallback, Stage
from stickytoken.measurement.resume import Record
from stickytoken.methods.measures import Severity
from stickytoken.methods.probes import AnchorPanel, EvidenceStage, as_carriers, fitting_copies
from stickytoken.unit_vectors import unit_vectors
from stickytoken.validation import real_number
from stickytoken.vocabulary import Vocabulary


class PlanRecord(Record):
    """The properties of the model that every method records before it measures any token."""

    mean_similarity: float  # u, the mean cosine over all pairs of vocabulary entries
    mean_similarity_entries: int  # number of vocabulary entries used to estimate u
    mean_similarity_error: float = 0.0  # standard error of u; 0 if u is computed from the whole vocabulary

    @property
    def mean_similarity_text(self) -> str:
        error = f" ± {self.mean_similarity_error:.4f}" if self.mean_similarity_error else ""
        return f"{self.mean_similarity:.4f}{error}"


class ResultRecord(Record):
    """The result of a finished run: the numbers that every method provides."""

    sticky: int  # number of sticky tokens
    sequences: int  # number of texts encoded in all stages
    seconds: float  # wall time of all sessions in seconds, without the evidence for reports


class MethodSettings(Protocol):
    """Settings of a method: a frozen dataclass with at least these fields, all of which have defaults."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def seed(self) -> int: ...  # seed of all random sampling
    @property
    def insertion(self) -> Insertion | None: ...  # what the user chose; None if it depends on the model
    @property
    def inserted_as(self) -> Insertion: ...  # how copies are inserted into a text


Settings_co = TypeVar("Settings_co", bound=MethodSettings, covariant=True)


@dataclass(frozen=True)
class Job(Generic[Settings_co]):
    """Everything that a detection needs: the model, the settings, the corpus and the tokens to measure.

    Attributes:
        encoder: the model.
        settings: settings of the method.
        corpus: the texts that the tokens are measured in.
        vocabulary: vocabulary of the model.
        tokens: the tokens to measure; in a run, they are in ascending order of id.
        restricted: whether the job leaves out some of the available tokens.
        sampled: True if ``tokens`` are all available tokens or a random sample; False if a user named them.
    """

    encoder: Encoder
    settings: Settings_co
    corpus: Sentences | PairCorpus
    vocabulary: Vocabulary
    tokens: list[Token]
    _: KW_ONLY
    restricted: bool
    sampled: bool

    @property
    def sentences(self) -> Sentences:
        return cast(Sentences, self.corpus)


# Number of texts in a shard. A killed run loses the current shard, so shards should be small; but a shard
# needs enough texts of every length to fill batches.
SHARD_PROBES = 8192
# Number of texts in a shard on a CUDA GPU, which encodes them in a second or two. Smaller shards would leave
# parts of the GPU idle.
GPU_SHARD_PROBES = 32768


def shard_probes_for(device: str) -> int:
    return GPU_SHARD_PROBES if device.startswith("cuda") else SHARD_PROBES


S = TypeVar("S", bound=engines.AnyShard)
P = TypeVar("P")
# The cost of work that needs no preparation.
_FREE = ShardCost(0, 0)
_ROWS_OF_TOKENS: engines.Rows[engines.Shard] = engines.Rows(
    keys=lambda shard: [token.id for token in shard.tokens],
    column="token_id",
    size=lambda shard: len(shard.tokens),
    unit="tokens",
)
# Beginning of the reason why a token has no verdict, if the server gave no vector for one of its texts.
UNANSWERED_REASON = "not judged: the server gives no vector for the text"
# Columns of a token table that come from the vocabulary. All other columns hold measurements.
_OF_VOCABULARY = ("token_id", "token", "decoded", "category")


# Number of texts in a shard that is kept in memory; small, so that progress is reported often.
_MEMORY_SHARD_PROBES = 2048


@dataclass
class Runner:
    """Runs the stages of a measurement on an engine, and keeps their shards."""

    engine: Engine
    store: engines.ShardStore  # a run folder, or memory
    progress: ProgressCallback
    shard_probes: int = SHARD_PROBES
    # For each token that could not be measured: a text that the server gave no vector for, keyed by token id.
    unanswered: dict[int, str] = field(default_factory=dict)
    # Called before any work, when nothing can be refused any more.
    begin: Callable[[], object] = lambda: None

    @classmethod
    def in_memory(
        cls, encoder: Encoder, progress: ProgressCallback, shard_probes: int = _MEMORY_SHARD_PROBES
    ) -> Runner:
        """Return a runner that computes in this process and writes no files."""
        return cls(engines.LocalEngine(encoder), engines.MemoryShards(), progress, shard_probes)

    def __call__(self, stage: Stage, tokens: Sequence[Token], truncate: bool = False) -> pl.DataFrame:
        """Run a stage and return one row per token. If ``truncate``, cut texts to the model's limit."""
        shards = engines.cut_into_shards(tokens, stage.probes_per_token, self.shard_probes)
        frames = self.run_work(engines.TokenWork(stage, truncate), shards, _ROWS_OF_TOKENS)
        table = pl.concat(frames, how="diagonal")
        if engines.UNANSWERED in table.columns:
            incomplete = table.filter(pl.col(engines.UNANSWERED).is_not_null())
            for token_id, text in incomplete.select("token_id", engines.UNANSWERED).rows():
                self.unanswered.setdefault(token_id, text)
            table = table.drop(engines.UNANSWERED)
        return table

    def run_work(
        self, work: engines.Work[S, P], shards: Sequence[S], rows: engines.Rows[S]
    ) -> list[pl.DataFrame]:
        """Compute the shards that the store lacks, and return the tables of all."""
        self.begin()
        return engines.run_work(
            work.name, lambda: (work, _FREE), shards, rows, self.engine, self.store, self.progress
        )

    def encode(self, name: str, probes: Sequence[Probe], role: Role = Role.DOCUMENT) -> NDArray[np.float32]:
        """Encode texts of a role, and keep their vectors in the store under a name; shape (texts, d)."""
        self.begin()
        return engines.encode_in_shards(name, probes, self.engine, self.store, self.progress, role)

    def without_unanswered(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return the table without the measurements and verdicts of the tokens in `unanswered`.

        The measurements of an unanswered token become null, and its number of texts becomes 0. If the table
        has a ``reason`` column, the token's reason quotes the text that the server gave no vector for.
        """
        if not self.unanswered:
            return table
        is_unanswered = pl.col("token_id").is_in(list(self.unanswered))
        measured = [name for name in table.columns if name not in _OF_VOCABULARY]
        cleared = [
            pl.when(is_unanswered).then(0 if name == "texts" else None).otherwise(pl.col(name)).alias(name)
            for name in measured
        ]
        table = table.with_columns(cleared)
        if "reason" in table.columns:
            reasons = {
                token_id: f"{UNANSWERED_REASON} {quote_text(text)}"
                for token_id, text in self.unanswered.items()
            }
            reason = pl.col("token_id").replace_strict(reasons, default=None, return_dtype=pl.String)
            table = table.with_columns(
                pl.when(is_unanswered).then(reason).otherwise("reason").alias("reason")
            )
        return table


@dataclass(frozen=True, slots=True)
class EntryShard:
    """Groups of vocabulary entries, as texts of their own, that are encoded together."""

    index: int
    groups: tuple[tuple[str, ...], ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return sum(len(group) for group in self.groups)


class EntryWork:
    """Adds up the unit vectors of vocabulary entries; the result has one row per group."""

    name = "mean similarity"

    def prepare(self, shard: EntryShard, encoder: Encoder) -> EntryShard:
        del encoder
        return shard

    def compute(self, shard: EntryShard, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        rows = []
        for group, (total, count) in enumerate(zip(*add_unit_vectors(encoder, shard.groups), strict=True)):
            rows.append({"group": group, "sum": total, "entries": int(count)})
        return rows, shard.size


_ROWS_OF_ENTRIES: engines.Rows[EntryShard] = engines.Rows(
    keys=lambda shard: list(range(len(shard.groups))),
    column="group",
    size=lambda shard: shard.size,
    unit="texts",
)
# Number of entries in the first sample that u is estimated from. Each further sample has twice as many.
_FIRST_SAMPLE = 256
_LARGEST_SAMPLE = 2048


def model_mean(encoder: Encoder, runner: Runner, tolerance: float | None = None) -> MeanSimilarity:
    """Return the model's mean similarity u.

    Args:
        encoder: the model.
        runner: encodes the vocabulary entries, and keeps what it has encoded.
        tolerance: u is estimated from twice as many random entries until its standard error is at most
            ``tolerance``, or the largest sample is used. If None, all entries are encoded.
    """
    entries = len(encoder.tokenizer.entries)
    if tolerance is not None:
        blocks = sampled_entries(encoder, _FIRST_SAMPLE, _LARGEST_SAMPLE)
        count = 1
        while True:
            similarity = _mean_of_blocks(encoder, runner, blocks[:count], entries)
            if similarity.error <= tolerance or count >= len(blocks):
                return similarity
            count *= 2
    return _mean_of_blocks(encoder, runner, blocks_of_entries(encoder), entries)


def _mean_of_blocks(
    encoder: Encoder, runner: Runner, blocks: Sequence[tuple[tuple[str, ...], ...]], entries: int
) -> MeanSimilarity:
    shards = [EntryShard(index, groups) for index, groups in enumerate(blocks)]
    parts = []
    for frame in runner.run_work(EntryWork(), shards, _ROWS_OF_ENTRIES):
        sums = np.array(frame["sum"].to_list(), dtype=np.float64)
        parts.append(VectorSums(sums, frame["entries"].to_numpy()))
    return mean_of_sums(encoder.name, parts, sum(shard.size for shard in shards), entries)


@dataclass(frozen=True)
class StoredSettings:
    """The settings of a finished run, as stored in run.json."""

    values: Mapping[str, Any]  # from run.json
    defaults: MethodSettings  # the method's default settings
    place: str  # where the settings are stored, for error messages

    def number(self, name: str) -> float:
        default = getattr(self.defaults, name, None)  # a run by an earlier version may lack the setting
        return real_number(f"{name} in {self.place}", self.values.get(name, default))

    def restored(self) -> MethodSettings:
        """Return the settings as an instance of the method's settings class.

        Unknown settings are ignored. Settings that were stored as mappings are not restored and keep their
        defaults.
        """
        names = self.defaults.__dataclass_fields__
        plain = {
            name: value
            for name, value in self.values.items()
            if name in names and not isinstance(value, dict)
        }
        return replace(self.defaults, **plain)

    def text(self, name: str) -> str:
        """Return a setting as text. If the setting has several values, join them with "or"."""
        value = self.values.get(name, getattr(self.defaults, name, None))
        return " or ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


# Numbers of copies at which the curves in reports are measured. These few points are enough to show the shape
# of a curve.
_EVIDENCE_COPIES = (1, 2, 4, 8, 16, 32)
# Maximum number of copies of the token in the example text pairs that reports show.
_MOST_PAIR_COPIES = 8


def evidence_stage(
    job: Job[MethodSettings], carriers: list[str], sentences: list[str], anchors: AnchorPanel, u: float
) -> EvidenceStage:
    """Return the stage that measures symptom curves and example pairs for reports.

    Args:
        job: provides the model, and the setting for how copies are inserted.
        carriers: the texts into which copies are inserted.
        sentences: the texts of the anchors.
        anchors: the vectors of the anchors, in the same order as ``sentences``.
        u: similarity below which a pair of texts counts as unrelated.
    """
    encoder = job.encoder
    insertion = job.settings.inserted_as
    copies = fitting_copies(encoder, insertion, carriers, _EVIDENCE_COPIES)
    return EvidenceStage(
        as_carriers(encoder, insertion, carriers),
        copies,
        anchors.against(unit_vectors(encoder.encode(carriers)), u),
        pair_copies=max(count for count in copies if count <= _MOST_PAIR_COPIES),
        texts=carriers,
        sentences=sentences,
    )


def worst_first(tokens: pl.DataFrame) -> pl.DataFrame:
    """Sort tokens: sticky tokens first, then all others.

    Tokens with the same verdict are sorted by severity, then by erased share, then by push, worst first.
    """
    verdicts = {verdict.value: rank for rank, verdict in enumerate(terms.Verdict)}
    grades = {grade.value: rank for rank, grade in enumerate(Severity)}
    order = [
        pl.col("verdict").replace_strict(verdicts, default=len(verdicts), return_dtype=pl.Int8),
    ]
    if "severity" in tokens.columns:
        order.append(-pl.col("severity").replace_strict(grades, default=-1, return_dtype=pl.Int8))
    order += [-pl.col(name) for name in ("erased", "push") if name in tokens.columns]
    return tokens.sort(*order, "token_id", nulls_last=True)


Plan_co = TypeVar("Plan_co", bound=PlanRecord, covariant=True)
Result_co = TypeVar("Result_co", bound=ResultRecord, covariant=True)


@dataclass(frozen=True)
class Preparation(Generic[Plan_co]):
    """What a method has chosen and measured before it measures all tokens: its plan, and what it adds."""

    plan: Plan_co


class ProbedToken(Protocol):  # the results of probing a token: a dataclass with at least these fields
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def token_id(self) -> int: ...
    @property
    def token(self) -> str: ...  # the string of the token in the vocabulary


class FinishedRun(Protocol[Plan_co, Result_co]):  # the part of `stickytoken.detection.Run` that a method uses
    @property
    def path(self) -> Path: ...
    @property
    def model_title(self) -> str: ...  # the name, with the layer and dimensions if they are not the defaults
    @property
    def available(self) -> int: ...  # number of vocabulary entries that can occur in text
    @property
    def settings(self) -> StoredSettings: ...
    @property
    def plan(self) -> Plan_co: ...
    @property
    def result(self) -> Result_co: ...
    @property
    def tokens(self) -> pl.DataFrame: ...
    @property
    def sticky(self) -> pl.DataFrame: ...  # The sticky tokens, worst first.


class Method(Protocol):
    """What a detection method is: a package of this folder with these constants and functions.

    tokens.parquet has at least the columns token_id, token, decoded, category and verdict.
    """

    PLAN_RECORD: type[PlanRecord]  # class of the plan in plan.json
    RESULT_RECORD: type[ResultRecord]  # class of the result in run.json
    COLUMNS: tuple[str, ...]  # columns that tokens.parquet must have
    VERDICTS: tuple[terms.Verdict, ...]
    # Columns that `stickytoken show` prints between the category and the verdict. A text column is omitted if
    # it has no values.
    LISTED: tuple[terms.Column, ...]
    REPORTED: tuple[terms.Column, ...]  # columns that a report shows after the verdict
    RANKED_BY: terms.Column  # the column that tokens are ranked by; the worst token has the highest value
    GLOSSARY: Mapping[str, str]  # explanations of the terms in reports, keyed by term

    def prepare(self, job: Job[Any], runner: Runner, stored: Any | None) -> Preparation[Any]:
        """Choose what tokens are measured in, and measure what comes before all tokens.

        ``stored`` is the plan of an interrupted session, a `PLAN_RECORD`; None if there is none, and one is
        made.
        """

    def compute(
        self, job: Job[Any], preparation: Any, runner: Runner, folder: ResultFolder
    ) -> tuple[pl.DataFrame, Any]:
        """Run all stages and judge the tokens. Return the table tokens.parquet and a `RESULT_RECORD`.

        ``folder`` keeps the shards, and gets what else the method writes.
        """

    def probe(self, job: Job[Any], progress: ProgressCallback) -> Sequence[ProbedToken]:
        """Measure the job's tokens without a run folder. Return one result per token, in the same order."""

    def evidence_stage(self, job: Job[Any], plan: Any) -> EvidenceStage:
        """Return the stage that measures the evidence for reports."""

    def plan_texts(self, plan: Any) -> terms.PlanTexts:
        """Return the carriers and the anchors of a plan."""

    def headline(self, run: FinishedRun[Any, Any]) -> str:
        """Return one or two sentences that say whether the model has sticky tokens, and how bad they are."""

    def describe(self, settings: StoredSettings) -> str:
        """Return an explanation of the method in a few sentences."""

    def lines(self, run: FinishedRun[Any, Any]) -> list[str]:
        """Return the lines that summarize a run in the terminal, first the result and then its basis."""

    def notes(self, run: FinishedRun[Any, Any]) -> list[str]:
        """Return the caveats that a reader should know before relying on the run."""

    def describe_coverage(self, run: FinishedRun[Any, Any]) -> list[str]:
        """Say which tokens were measured in part only, and what is known of them; empty if there are none."""

    def key_facts(self, run: FinishedRun[Any, Any]) -> list[terms.Fact]:
        """Return the method's own numbers for the top of a report."""

    def plan_facts(self, plan: Any) -> dict[str, Any]:
        """Return the plan's numeric fields for the JSON report, keyed by name."""

    def figures(self, run: FinishedRun[Any, Any]) -> list[terms.Figure]:
        """Return descriptions of the figures that a report draws from tokens.parquet."""

    def probe_lines(self, probed: Sequence[Any]) -> list[terms.ProbeTable | str]:
        """Return the results of `probe` as tables and sentences."""
