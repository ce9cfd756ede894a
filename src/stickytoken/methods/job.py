"""What every method computes from, and how it runs its stages."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import polars as pl

from stickytoken.corpora import Sentences
from stickytoken.corpora.choice import PairCorpus
from stickytoken.encoders.protocol import Encoder, IdEncoder, reads_ids
from stickytoken.encoders.views import MeanSimilarity, View, Views, mean_similarities, only_own, whole_vectors
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.insertion import Insertion, Token
from stickytoken.machine import Precision, digest, keep, recalled
from stickytoken.measurement.engine import Engine, compute_shard, run_stage
from stickytoken.measurement.stage import Progress, ProgressCallback, Shard, Stage, cut_into_shards
from stickytoken.measurement.store import ResultFolder, ShardCost
from stickytoken.methods.records import PlanRecord
from stickytoken.validation import real_number
from stickytoken.vocabulary import Vocabulary

# Texts in a shard: what a kill loses, and enough of every length to fill batches.
SHARD_PROBES = 8192


class MethodSettings(Protocol):
    """Settings of a method: a frozen dataclass with defaults and at least these fields."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def seed(self) -> int:
        """Of all random sampling."""

    @property
    def insertion(self) -> Insertion:
        """How copies go into a text."""


def suited(settings: MethodSettings, texts_only: bool) -> MethodSettings:
    """Make defaults suit a model: one that reads only texts gets its copies as text.

    Args:
        settings: defaults of a method, as far as the user left them open.
        texts_only: whether the model reads only texts.
    """
    if texts_only and settings.insertion is Insertion.IDS:
        return replace(settings, insertion=Insertion.WORDS)
    return settings


def bearable(settings: MethodSettings, encoder: Encoder) -> MethodSettings:
    """Screen in bfloat16 where int8 was asked for and the model does not bear it, with a warning.

    Raises:
        InputError: it does not bear bfloat16 either.
    """
    if getattr(settings, "screen_precision", None) is not Precision.INT8 or not reads_ids(encoder):
        return settings
    try:
        encoder.at(Precision.INT8)
    except InputError as error:
        encoder.at(Precision.BFLOAT16)
        reason = str(error).rpartition(": ")[0]
        warnings.warn(f"{reason}: bfloat16 is used instead", StickyTokenWarning, stacklevel=3)
        changed: Any = {"screen_precision": Precision.BFLOAT16}
        return replace(settings, **changed)
    return settings


Settings_co = TypeVar("Settings_co", bound=MethodSettings, covariant=True)


@dataclass(frozen=True)
class Job(Generic[Settings_co]):
    """Everything that a run is computed from.

    Attributes:
        encoder: the model.
        settings: settings of the method.
        corpus: sentences or pairs.
        vocabulary: vocabulary of the model.
        tokens: tokens to measure; a run has them by ascending id.
        restricted: whether some available tokens are left out.
        sampled: whether the tokens are all available ones or a random sample, not named by a user.
    """

    encoder: Encoder
    settings: Settings_co
    corpus: Sentences | PairCorpus
    vocabulary: Vocabulary
    tokens: list[Token]
    restricted: bool
    sampled: bool

    @property
    def sentences(self) -> Sentences:
        """The corpus of a method that takes no pairs.

        Raises:
            InputError: the corpus is pairs.
        """
        if isinstance(self.corpus, PairCorpus):
            raise InputError("this method takes no pairs: pass sentences")
        return self.corpus


class StageRunner(Protocol):
    """Runs a stage over tokens."""

    def __call__(self, stage: Stage, tokens: Sequence[Token]) -> pl.DataFrame:
        """Return one row per token, in the order of the tokens."""


class FolderRunner:
    """Runs stages shard by shard into a run folder.

    Args:
        engine: computes shards.
        folder: where shards are committed; the caller holds its lock.
        progress: told after every shard.
        shard_probes: texts in a shard, at most.
    """

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
        shards: list[Shard] = cut_into_shards(tokens, stage.probes_per_token, self._shard_probes)
        self._shards[stage.name] = len(shards)
        return run_stage(stage, shards, self._engine, self.folder, self.progress)

    @property
    def cost(self) -> ShardCost:
        """What all stages took so far, earlier sessions included."""
        return self.folder.total_cost(self._shards)


_SHARD_PROBES = 2048


class MemoryRunner:
    """Runs stages in memory, in shards small enough to show progress."""

    def __init__(self, encoder: Encoder, progress: ProgressCallback) -> None:
        self._encoder = encoder
        self._progress = progress

    def __call__(self, stage: Stage, tokens: Sequence[Token]) -> pl.DataFrame:
        """Return one row per token, in their order."""
        size = max(1, _SHARD_PROBES // stage.probes_per_token)
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
    """Tokens to measure, by how their copies go into a text.

    Attributes:
        as_ids: the model sees exactly n copies.
        written: words of the text, tokenized with it.
        glued: tokenized with the text, joined to it without a space.
    """

    as_ids: list[Token]
    written: list[Token]
    glued: list[Token]

    @property
    def ids(self) -> list[int]:
        """The ids of all of them."""
        return [token.id for tokens in self for token in tokens]


class MeasuredTokens(NamedTuple):
    """Mean lift and contraction of tokens, by id."""

    lifts: dict[int, float]
    contractions: dict[int, float]


class Rechecked(NamedTuple):
    """What a recheck found.

    Attributes:
        rows: one row per token, as in tokens.parquet.
        lifts: mean lift of each token, by id, without shrinkage.
        ordinary_lift: lift of the typical token.
        ordinary_contraction: contraction of the typical token.
    """

    rows: pl.DataFrame
    lifts: dict[int, float]
    ordinary_lift: float
    ordinary_contraction: float


@dataclass(frozen=True)
class RecheckJob:
    """What a recheck begins with.

    Attributes:
        encoder: the model.
        vocabulary: its vocabulary.
        corpus: the corpus of the run, or another one.
        plan: plan of the run.
        used: carriers and anchors of the run.
        settings: settings of the run, of any method.
        seed: another one than that of the run.
        same_model: whether the mean similarity of the plan is that of the encoder.
        progress: called after every step.
    """

    encoder: IdEncoder
    vocabulary: Vocabulary
    corpus: Sentences
    plan: PlanRecord
    used: Collection[str]
    settings: MethodSettings
    seed: int
    same_model: bool
    progress: ProgressCallback


class Recheck(Protocol):
    """One model on texts that a run has not used."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the model."""

    @property
    def similarity_spread(self) -> float:
        """Standard deviation of the similarities of the texts."""

    @property
    def carriers(self) -> int:
        """Number of texts that copies go into."""

    @property
    def anchors(self) -> int:
        """Number of texts that they are compared with."""

    @property
    def copies(self) -> tuple[int, ...]:
        """Numbers of copies of `curves`, without 0."""

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

    def told(done: int, total: int, computed: int) -> None:
        progress(Progress("mean similarity", done, total, computed, computed))

    keys: dict[View, str] = {}
    if reads_ids(encoder):
        identity = asdict(encoder.identity)
        keys = {view: _key(identity, most, None if view == views.own else view) for view in wanted}
    known = {view: found for view, key in keys.items() if (found := _read(key)) is not None}
    missing = [view for view in wanted if view not in known]
    if not missing:
        entries = known[wanted[0]].entries + known[wanted[0]].left_out
        told(0, entries, 0)
        told(entries, entries, 0)
        return {view: known[view] for view in wanted}
    computed = mean_similarities(
        _reading(encoder, views, missing), missing, lambda done, total: told(done, total, done), most=most
    )
    for view, u in zip(missing, computed, strict=True):
        known[view] = u
        if view in keys:
            keep(keys[view], u._asdict())
    return {view: known[view] for view in wanted}


def _reading(encoder: Encoder, views: Views, missing: Sequence[View]) -> Encoder:
    """Return the model itself where its own vectors are all that is needed."""
    return encoder if list(missing) == [views.own] else whole_vectors(encoder, views.layers)


def _key(identity: dict[str, Any], most: int | None, view: View | None) -> str:
    parts = {"version": _VERSION, "encoder": identity, "most": most}
    if view is not None:
        parts |= {"layer": view.layer, "dimension": view.dimension}
    return f"mean-similarity-{digest(parts)}"


def _read(key: str) -> MeanSimilarity | None:
    try:
        return MeanSimilarity(**(recalled(key) or {}))
    except TypeError:  # none, or of another version: computed again
        return None


@dataclass(frozen=True)
class StoredSettings:
    """The settings of a run.

    Attributes:
        values: from run.json.
        defaults: of the method.
        place: the file, for errors.
    """

    values: Mapping[str, Any]
    defaults: MethodSettings
    place: str

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
        return replace(self.defaults, **plain)

    def text(self, name: str) -> str:
        """A setting as words; several values are joined by "or"."""
        value = self.values.get(name, getattr(self.defaults, name))
        return " or ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
