"""What an engine is: it computes shards, in whatever order, and knows no run folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stickytoken.encoders.protocol import EncoderIdentity
from stickytoken.measurement.stage import Shard, Stage
from stickytoken.measurement.store import ShardCost


@dataclass(frozen=True, slots=True)
class ComputedShard:
    """A shard whose rows are there and not committed yet.

    Attributes:
        shard: what was computed.
        rows: one a token, in order.
        cost: what it took.
    """

    shard: Shard
    rows: Sequence[Mapping[str, float | list[float]]]
    cost: ShardCost


@runtime_checkable
class Engine(Protocol):
    """Computes shards of any stage."""

    @property
    def identity(self) -> EncoderIdentity:
        """Of the model that it computes with."""
        ...

    def compute(self, stage: Stage, shards: Sequence[Shard]) -> Iterator[ComputedShard]:
        """Give every shard once, as soon as it is computed.

        Raises:
            StickyTokenError: what the encoder raises on a probe, or an engine that cannot go on.
        """
        ...
