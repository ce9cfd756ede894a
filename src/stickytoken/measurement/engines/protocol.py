"""What engines execute and what an engine is. An engine knows no result folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from stickytoken.encoders.protocol import Encoder, EncoderIdentity
from stickytoken.measurement.store import ShardCost


class AnyShard(Protocol):
    """A slice of some work, computed and committed whole."""

    @property
    def index(self) -> int:
        """Position in the work."""
        ...


S = TypeVar("S", bound=AnyShard)
S_contra = TypeVar("S_contra", bound=AnyShard, contravariant=True)
P = TypeVar("P")


class Work(Protocol[S_contra, P]):
    """What an engine executes shard by shard. Pure but for the encoder; it can be sent to another process."""

    @property
    def name(self) -> str:
        """Name of its shards."""
        ...

    def prepare(self, shard: S_contra, encoder: Encoder) -> P:
        """Do what can be done while the model still computes the shard before."""
        ...

    def compute(self, prepared: P, encoder: Encoder) -> tuple[Sequence[Mapping[str, Any]], int]:
        """Compute the rows of a shard.

        Returns:
            The rows, and the number of texts that were encoded for them.
        """
        ...


@dataclass(frozen=True, slots=True)
class ComputedShard(Generic[S]):
    """A shard whose rows are there and not committed yet.

    Attributes:
        shard: what was computed.
        rows: in order.
        cost: what it took.
    """

    shard: S
    rows: Sequence[Mapping[str, Any]]
    cost: ShardCost


@runtime_checkable
class Engine(Protocol):
    """Computes shards of any work."""

    @property
    def identity(self) -> EncoderIdentity:
        """Identity of the model that it computes with."""
        ...

    def compute(self, work: Work[S, P], shards: Sequence[S]) -> Iterator[ComputedShard[S]]:
        """Give every shard once, as soon as it is computed.

        Raises:
            StickyTokenError: what the encoder raises on a probe, or an engine that cannot go on.
        """
        ...
