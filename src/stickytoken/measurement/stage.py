"""What an engine executes without knowing the method: probes in, one row a token out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stickytoken.insertion import Probe, Token
from stickytoken.precision import Precision

# Shards come in multiples of so many, which one, two and four workers share without a rest.
_TURNS = 4


class Stage(Protocol):
    """One pass over tokens. Pure: all that it needs is in it."""

    @property
    def name(self) -> str:
        """Names the stage's shards."""
        ...

    @property
    def probes_per_token(self) -> int:
        """Texts that one token costs."""
        ...

    @property
    def precision(self) -> Precision | None:
        """What the model may compute in; None is its own precision."""
        ...

    def probes(self, token: Token) -> Sequence[Probe]:
        """What the encoder reads for one token: all texts, or all id tuples."""
        ...

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, float | list[float]]:
        """The token's numbers, from the vectors of its probes in order."""
        ...


@dataclass(frozen=True, slots=True)
class Shard:
    """A slice of a stage, computed and committed whole.

    Attributes:
        index: position in the stage.
        tokens: what it covers.
    """

    index: int
    tokens: tuple[Token, ...]


def cut_into_shards(tokens: Sequence[Token], probes_per_token: int, shard_probes: int) -> list[Shard]:
    """Cut tokens into shards of at most ``shard_probes`` texts, at least one token each.

    Two or four workers end together: sizes differ by at most one token, and the number of shards is
    a multiple of four where that leaves an eighth of ``shard_probes`` to each.
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
