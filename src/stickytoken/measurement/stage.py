"""Stages of a method, which engines execute without knowing the method: probes in, one row per token out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from stickytoken.insertion import Probe, Token
from stickytoken.machine import Precision

Measured: TypeAlias = float | list[float] | NDArray[np.floating[Any]]
"""What a row of a shard holds: a number, or several."""

# The number of shards is a multiple of this, so that one, two or four workers get equal shares.
_TURNS = 4


class Stage(Protocol):
    """One pass over tokens. Pure and self-contained."""

    @property
    def name(self) -> str:
        """Name of the stage and its shards."""

    @property
    def probes_per_token(self) -> int:
        """Number of texts encoded per token."""

    @property
    def precision(self) -> Precision | None:
        """Precision that the model may compute in; None is its own."""

    def probes(self, token: Token) -> Sequence[Probe]:
        """Return the encoder input for one token: all texts, or all id tuples."""

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, Measured]:
        """Compute the numbers of a token from the vectors of its probes, in order."""


class CountingStage(Stage, Protocol):
    """A stage whose rows also say, as ``seen``, how many copies the tokenizer sees in each probe."""

    @property
    def carrier_texts(self) -> Sequence[str]:
        """The text without copies of each probe; empty where copies are not counted."""


class BatchedStage(Stage, Protocol):
    """A stage that measures many tokens at once, from `whole_vectors` where it names layers."""

    @property
    def layers(self) -> tuple[int, ...] | None:
        """Layers whose vectors it needs, maybe none; None where it needs the encoder's own vectors."""

    def measure_all(
        self, tokens: Sequence[Token], vectors: NDArray[np.float32]
    ) -> Sequence[Mapping[str, Measured]]:
        """Compute the numbers of tokens from the vectors of their probes, in order."""


def measures_batches(stage: Stage) -> TypeGuard[BatchedStage]:
    """Check whether a stage measures many tokens at once."""
    return hasattr(stage, "measure_all")


def counts_copies(stage: Stage) -> TypeGuard[CountingStage]:
    """Check whether a stage asks for the copies that the tokenizer sees."""
    return bool(getattr(stage, "carrier_texts", ()))


@dataclass(frozen=True, slots=True)
class Shard:
    """A slice of a stage, computed and committed as a unit.

    Attributes:
        index: position in the stage.
        tokens: tokens that it covers.
    """

    index: int
    tokens: tuple[Token, ...]


def cut_into_shards(tokens: Sequence[Token], probes_per_token: int, shard_probes: int) -> list[Shard]:
    """Divide tokens into shards of at most ``shard_probes`` texts, at least one token each.

    Shard sizes differ by at most one token. The number of shards is a multiple of four, so that two or four
    workers finish together, unless that would make shards smaller than an eighth of ``shard_probes``.
    """
    probes_per_token = max(1, probes_per_token)
    count = -(-len(tokens) // max(1, shard_probes // probes_per_token))
    even = -(-count // _TURNS) * _TURNS
    if even <= len(tokens) and len(tokens) * probes_per_token >= even * shard_probes / 8:
        count = even
    ends = [len(tokens) * index // max(1, count) for index in range(count + 1)]
    return [
        Shard(index, tuple(tokens[start:stop]))
        for index, (start, stop) in enumerate(itertools.pairwise(ends))
    ]


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a run.

    Attributes:
        stage: name of the current stage.
        done: number of units done, including those of earlier sessions.
        total: total number of units.
        computed: number of units that this session computed.
        sequences: number of texts that this session encoded in this stage.
    """

    stage: str
    done: int
    total: int
    computed: int = 0
    sequences: int = 0


ProgressCallback: TypeAlias = Callable[[Progress], None]


def ignore_progress(_: Progress) -> None:
    """Do nothing with a progress report."""
