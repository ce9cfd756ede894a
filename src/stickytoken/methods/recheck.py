"""Measure named tokens again, on texts that a run has not used: what a method provides for that."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import polars as pl

from stickytoken.corpora import Sentences
from stickytoken.encoders.protocol import IdEncoder
from stickytoken.insertion import Token
from stickytoken.measurement.progress import ProgressCallback
from stickytoken.methods.job import MethodSettings
from stickytoken.methods.records import PlanRecord
from stickytoken.vocabulary.categories import Vocabulary


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
