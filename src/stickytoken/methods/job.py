"""What every method computes from, and how it runs its stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import polars as pl
from pydantic import Field

from stickytoken.data import Sentences
from stickytoken.data.corpora import PairCorpus
from stickytoken.encoders.protocol import Encoder, IdEncoder, reads_ids
from stickytoken.encoders.views import MeanSimilarity, View, Views, mean_similarities, only_own, whole_vectors
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.machine import digest, keep, recalled
from stickytoken.measurement.engine import (
    Engine,
    Progress,
    ProgressCallback,
    Shard,
    Stage,
    compute_shard,
    cut_into_shards,
    run_stage,
)
from stickytoken.measurement.resume import Record
from stickytoken.measurement.store import ResultFolder, ShardCost
from stickytoken.validation import real_number
from stickytoken.vocabulary import Vocabulary


class PlanRecord(Record):
    """What plan.json of every method contains."""

    mean_similarity: float = Field(description="u, the mean cosine over the vocabulary")
    mean_similarity_entries: int = Field(description="vocabulary entries that u rests on")
    mean_similarity_error: float = Field(
        default=0.0, description="standard error of u; 0 if it rests on the whole vocabulary"
    )

    @property
    def mean_similarity_text(self) -> str:
        """Write u with its standard error, if it has one."""
        error = f" ± {self.mean_similarity_error:.4f}" if self.mean_similarity_error else ""
        return f"{self.mean_similarity:.4f}{error}"


class ResultRecord(Record):
    """What the result of every method contains."""

    sticky: int = Field(description="sticky tokens")
    sequences: int = Field(description="texts that shards encoded")
    seconds: float = Field(description="time that shards took")


DIMENSIONS_FILE = "dimensions.json"
DIMENSION_TOKENS_FILE = "dimensions.parquet"


class DimensionRecord(Record):
    """What was found in one view."""

    layer: int | None = Field(description="layers that run; null for the model as it is")
    dimension: int
    sticky: int
    topical: int
    severe: int = Field(description="flagged tokens of this severity")
    serious: int
    mild: int
    negligible: int
    similarity_spread: float = Field(description="standard deviation of the similarities of texts")
    ordinary_lift: float = Field(description="lift of the typical token")
    ordinary_sd: float = Field(description="spread of ordinary tokens' lifts, in those standard deviations")
    largest_sd: float | None = Field(
        description="largest lift above the typical token's, in those standard deviations"
    )
    mean_similarity: float = Field(description="u, the mean cosine over the vocabulary")
    ordinary_contraction: float | None = Field(
        default=None, description="contraction of the typical token; null in runs of earlier versions"
    )

    @property
    def view(self) -> View:
        return View(self.dimension, self.layer)


class DimensionsRecord(Record):
    """dimensions.json: one row per view, the model as it is first."""

    views: list[DimensionRecord]


def read_dimensions(path: Path) -> list[DimensionRecord]:
    """Read the views of a run; none if it has only the model as it is."""
    record = ResultFolder(path).read_record(DIMENSIONS_FILE, DimensionsRecord)
    return [] if record is None else record.views


def tokens_in(path: Path, view: View) -> pl.DataFrame:
    table = ResultFolder(path).read_table(DIMENSION_TOKENS_FILE, ("layer", "dimension", "token_id"))
    own = pl.col("layer").eq_missing(pl.lit(view.layer, dtype=pl.Int64))
    return table.filter(own & (pl.col("dimension") == view.dimension)).drop("layer", "dimension")


def dimensions_table(records: list[DimensionRecord]) -> pl.DataFrame:
    kinds = {"layer": pl.Int64, "largest_sd": pl.Float64}
    return pl.DataFrame([record.model_dump() for record in records], schema_overrides=kinds)


class MethodSettings(Protocol):
    """Settings of a method: a frozen dataclass with defaults and at least these fields."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def seed(self) -> int: ...  # of all random sampling
    @property
    def insertion(self) -> Insertion: ...  # how copies go into a text


def adjusted_defaults(settings: MethodSettings, texts_only: bool) -> MethodSettings:
    """Return the defaults of a method for a model: one that reads only texts gets its copies as text."""
    if texts_only and settings.insertion is Insertion.IDS:
        return replace(settings, insertion=Insertion.WORDS)
    return settings


Settings_co = TypeVar("Settings_co", bound=MethodSettings, covariant=True)


@dataclass(frozen=True)
class Job(Generic[Settings_co]):
    """Everything that a run is computed from."""

    encoder: Encoder
    settings: Settings_co
    corpus: Sentences | PairCorpus
    vocabulary: Vocabulary
    tokens: list[Token]  # to measure; a run has them by ascending id
    restricted: bool  # whether some available tokens are left out
    sampled: bool  # whether the tokens are all available ones or a random sample, not named by a user

    @property
    def sentences(self) -> Sentences:
        """The corpus of a method that takes no pairs.

        Raises:
            InputError: the corpus is pairs.
        """
        if isinstance(self.corpus, PairCorpus):
            raise InputError("this method takes no pairs: pass sentences")
        return self.corpus


StageRunner: TypeAlias = Callable[[Stage, Sequence[Token]], pl.DataFrame]
"""Runs a stage over tokens; returns one row per token, in the order of the tokens."""


# Texts in a shard: what a kill loses, and enough of every length to fill batches.
SHARD_PROBES = 8192
_MEMORY_PROBES = 2048  # small enough to show progress


class FolderRunner:
    """Runs stages shard by shard into a run folder, whose lock the caller holds."""

    def __init__(
        self,
        engine: Engine,
        folder: ResultFolder,
        progress: ProgressCallback,
        shard_probes: int = SHARD_PROBES,
    ) -> None:
        self._engine = engine
        self.folder = folder
        self.progress = progress
        self._shard_probes = shard_probes
        self._shards: dict[str, int] = {}

    def __call__(self, stage: Stage, tokens: Sequence[Token]) -> pl.DataFrame:
        """Return one row per token, in their order; committed shards are not computed again."""
        shards = cut_into_shards(tokens, stage.probes_per_token, self._shard_probes)
        self._shards[stage.name] = len(shards)
        return run_stage(stage, shards, self._engine, self.folder, self.progress)

    @property
    def cost(self) -> ShardCost:
        """What all stages took so far, earlier sessions included."""
        return self.folder.total_cost(self._shards)


class MemoryRunner:
    """Runs stages in memory."""

    def __init__(self, encoder: Encoder, progress: ProgressCallback) -> None:
        self._encoder = encoder
        self._progress = progress

    def __call__(self, stage: Stage, tokens: Sequence[Token]) -> pl.DataFrame:
        size = max(1, _MEMORY_PROBES // stage.probes_per_token)
        rows: list[dict[str, Any]] = []
        sequences = 0
        self._progress(Progress(stage.name, 0, len(tokens)))
        for start in range(0, len(tokens), size):
            part = tuple(tokens[start : start + size])
            found, encoded = compute_shard(stage, Shard(start, part), self._encoder)
            rows += found
            sequences += encoded
            self._progress(Progress(stage.name, len(rows), len(tokens), len(rows), sequences))
        return pl.DataFrame(rows, infer_schema_length=None)


class Tokens(NamedTuple):
    """Tokens to measure, by how their copies go into a text."""

    as_ids: list[Token]  # the model sees exactly n copies
    written: list[Token]  # words of the text, tokenized with it
    glued: list[Token]  # tokenized with the text, joined to it without a space

    @property
    def ids(self) -> list[int]:
        return [token.id for tokens in self for token in tokens]


class MeasuredTokens(NamedTuple):
    """What was measured of tokens, by id."""

    lifts: dict[int, float]
    contractions: dict[int, float]


class Rechecked(NamedTuple):
    """What a recheck found."""

    rows: pl.DataFrame  # one per token, as in tokens.parquet
    lifts: dict[int, float]  # mean lift of each token, by id, without shrinkage
    ordinary_lift: float  # of the typical token
    ordinary_contraction: float


@dataclass(frozen=True)
class RecheckJob:
    """What a recheck begins with."""

    encoder: IdEncoder
    vocabulary: Vocabulary
    corpus: Sentences  # of the run, or another one
    plan: PlanRecord  # of the run
    used: Collection[str]  # carriers and anchors of the run
    settings: MethodSettings  # of the run, of any method
    seed: int  # another one than that of the run
    same_model: bool  # whether the mean similarity of the plan is that of the encoder
    progress: ProgressCallback


class Recheck(Protocol):
    """One model on texts that a run has not used."""

    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def similarity_spread(self) -> float: ...  # standard deviation of the similarities of the texts
    @property
    def carriers(self) -> int: ...  # number of texts that copies go into
    @property
    def anchors(self) -> int: ...  # number of texts that they are compared with
    @property
    def copies(self) -> tuple[int, ...]: ...  # of `curves`, without 0

    def of_model(self, encoder: IdEncoder, vocabulary: Vocabulary, name: str) -> Recheck:
        """Put another model on the same texts."""

    def ordinary(self, excluded: Iterable[int], count: int | None = None) -> list[Token]:
        """Return random tokens, at most ``count``, without those that are excluded by id."""

    def measured(self, tokens: Tokens) -> MeasuredTokens:
        """Put tokens into all carriers."""

    def judged(self, tokens: Tokens, excluded: Iterable[int]) -> Rechecked:
        """Measure tokens together with ordinary ones, and judge them as a run does."""

    def curves(self, tokens: Tokens) -> dict[int, list[float]]:
        """Average the similarity of unrelated pairs by number of copies, 0 first, then `copies`."""


# Increased when the same model gives another value.
_VERSION = 1


def model_mean(encoder: Encoder, progress: ProgressCallback, most: int | None = None) -> MeanSimilarity:
    """Return u of a model: from the cache, or computed and put there; see `model_means`."""
    views = only_own(encoder)
    return model_means(encoder, views, [views.own], progress, most)[views.own]


def model_means(
    encoder: Encoder,
    views: Views,
    wanted: Sequence[View],
    progress: ProgressCallback,
    most: int | None = None,
) -> dict[View, MeanSimilarity]:
    """Return u of a model in some views: from the cache, or computed in one pass and put there.

    The key is the identity of the model, so a changed model has another. An encoder of texts only may change
    without notice (an object of the user, a server), and is not looked up.

    Args:
        encoder: the model.
        views: the views of a measurement.
        wanted: the model as it is, and some of the others.
        progress: called while u is computed, and when it is found.
        most: see `mean_similarity`.
    """

    keys: dict[View, str] = {}
    if reads_ids(encoder):
        parts = {"version": _VERSION, "encoder": asdict(encoder.identity), "most": most}
        for view in wanted:
            of_view = {} if view == views.own else {"layer": view.layer, "dimension": view.dimension}
            keys[view] = f"mean-similarity-{digest(parts | of_view)}"
    known: dict[View, MeanSimilarity] = {}
    for view, key in keys.items():
        with suppress(TypeError):  # none, or of another version: computed again
            known[view] = MeanSimilarity(**(recalled(key) or {}))
    if missing := [view for view in wanted if view not in known]:
        # The model itself where its own vectors are all that is needed.
        reading = encoder if missing == [views.own] else whole_vectors(encoder, views.layers)
        computed = mean_similarities(
            reading,
            missing,
            lambda done, total: progress(Progress("mean similarity", done, total, done, done)),
            most=most,
        )
        for view, u in zip(missing, computed, strict=True):
            known[view] = u
            if view in keys:
                keep(keys[view], u._asdict())
    else:
        entries = known[wanted[0]].entries + known[wanted[0]].left_out
        progress(Progress("mean similarity", 0, entries))
        progress(Progress("mean similarity", entries, entries))
    return {view: known[view] for view in wanted}


@dataclass(frozen=True)
class StoredSettings:
    """The settings of a run."""

    values: Mapping[str, Any]  # from run.json
    defaults: MethodSettings  # of the method
    place: str  # the file, for errors

    def number(self, name: str) -> float:
        """A setting that is a number; its default where the run was written before it existed.

        Raises:
            InputError: run.json holds something else.
        """
        return real_number(f"{name} in {self.place}", self.values.get(name, getattr(self.defaults, name)))

    def restored(self) -> MethodSettings:
        """The settings as the method's own class; what is unknown or compound keeps its default.

        Raises:
            InputError: a value is out of range.
        """
        known = {field.name for field in fields(self.defaults)}
        plain = {
            name: value
            for name, value in self.values.items()
            if name in known and not isinstance(value, dict)
        }
        if plain.get("screen_precision") == "int8":  # of earlier versions; a finished run screens no more
            del plain["screen_precision"]
        return replace(self.defaults, **plain)

    def text(self, name: str) -> str:
        """A setting as words; several values are joined by "or"."""
        value = self.values.get(name, getattr(self.defaults, name))
        return " or ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
