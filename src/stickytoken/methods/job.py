"""What every method computes from, and how it runs its stages."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import Field, dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import polars as pl

from stickytoken.corpora import Sentences
from stickytoken.corpora.choice import PairCorpus
from stickytoken.encoders.protocol import Encoder, reads_ids
from stickytoken.errors import InputError, StickyTokenWarning
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.engines.protocol import Engine
from stickytoken.measurement.engines.stages import run_stage
from stickytoken.measurement.progress import ProgressCallback
from stickytoken.measurement.stage import Shard, Stage, cut_into_shards
from stickytoken.measurement.store import ResultFolder, ShardCost
from stickytoken.precision import Precision
from stickytoken.vocabulary.categories import Vocabulary

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
