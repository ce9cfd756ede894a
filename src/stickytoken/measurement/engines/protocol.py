"""Protocols of engines and of the work that they execute. Engines know nothing about result folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from stickytoken.encoders.protocol import Encoder, EncoderIdentity
from stickytoken.measurement.store import ShardCost


class AnyShard(Protocol):
    """A slice of work, computed and committed as a unit."""

    @property
    def index(self) -> int:
        """Position in the work."""


S = TypeVar("S", bound=AnyShard)
S_contra = TypeVar("S_contra", bound=AnyShard, contravariant=True)
P = TypeVar("P")


class Work(Protocol[S_contra, P]):
    """Work that an engine executes shard by shard. Pure except for the encoder; it can be pickled."""

    @property
    def name(self) -> str:
        """Name of its shards."""

    def prepare(self, shard: S_contra, encoder: Encoder) -> P:
        """Prepare a shard while the model computes the previous one."""

    def compute(self, prepared: P, encoder: Encoder) -> tuple[Sequence[Mapping[str, Any]], int]:
        """Compute the rows of a shard.

        Returns:
            The rows, and the number of texts encoded for them.
        """


@dataclass(frozen=True, slots=True)
class ComputedShard(Generic[S]):
    """A shard that is computed but not committed.

    Attributes:
        shard: the shard.
        rows: its rows in order.
        cost: cost of computing it.
    """

    shard: S
    rows: Sequence[Mapping[str, Any]]
    cost: ShardCost


@runtime_checkable
class Engine(Protocol):
    """Computes shards of any work."""

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the model."""

    def compute(self, work: Work[S, P], shards: Sequence[S]) -> Iterator[ComputedShard[S]]:
        """Yield every shard once, as soon as it is computed.

        Raises:
            StickyTokenError: the encoder rejects a probe, or the engine cannot continue.
        """
