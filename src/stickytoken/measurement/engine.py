"""Engines, which use an encoder to compute work shard by shard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from stickytoken.encoders.protocol import Encoder, EncoderIdentity
from stickytoken.measurement.store import ShardCost

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)
Item_contra = TypeVar("Item_contra", contravariant=True)
Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class Shard(Generic[Item_co]):
    """Items that are computed and stored together. ``index`` numbers the shards of a work from 0."""

    index: int
    items: tuple[Item_co, ...]


class Work(Protocol[Item_contra, Prepared]):
    """Work that an engine executes shard by shard. Work can be pickled, and needs only an encoder to run.

    It has two steps, so that one thread can tokenize the next shard while the model computes the current
    shard.
    """

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...  # plural name of a shard's items, to report progress
    @property
    def key_column(self) -> str: ...  # column of a shard's rows whose values identify them

    def keys(self, shard: Shard[Item_contra]) -> Sequence[int]:
        """Return the values in the key column of a shard's rows, in order.

        A stored table with other keys comes from another division of the work into shards, and is computed
        again.
        """

    def prepare(self, shard: Shard[Item_contra], encoder: Encoder) -> Prepared:
        """Return the inputs of a shard. This may run while the model computes the previous shard."""

    def compute(self, prepared: Prepared, encoder: Encoder) -> tuple[Sequence[Mapping[str, Any]], int]:
        """Return the rows of a shard, and the number of texts that were encoded for them."""


@dataclass(frozen=True, slots=True)
class ComputedShard(Generic[Item]):
    """A shard with its rows and its cost."""

    shard: Shard[Item]
    rows: Sequence[Mapping[str, Any]]
    cost: ShardCost


@runtime_checkable
class Engine(Protocol):
    """Computes shards with a model, in this process or elsewhere."""

    def identify(self) -> EncoderIdentity:
        """Return the identity of the model."""

    def compute(
        self, work: Work[Item, Prepared], shards: Sequence[Shard[Item]]
    ) -> Iterator[ComputedShard[Item]]:
        """Yield the result of every shard as soon as it is computed, in any order."""


class LocalEngine:
    """Computes shards in this process, while another thread prepares the next shard."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def identify(self) -> EncoderIdentity:
        return self._encoder.identify()

    def compute(
        self, work: Work[Item, Prepared], shards: Sequence[Shard[Item]]
    ) -> Iterator[ComputedShard[Item]]:
        if not shards:
            return
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="probes") as executor:
            preparation = executor.submit(work.prepare, shards[0], self._encoder)
            for shard, next_shard in zip_longest(shards, shards[1:]):  # the last `next_shard` is None
                started = time.perf_counter()
                prepared = preparation.result()
                if next_shard is not None:  # prepare it while the model computes `shard`
                    preparation = executor.submit(work.prepare, next_shard, self._encoder)
                rows, sequences = work.compute(prepared, self._encoder)
                yield ComputedShard(shard, rows, ShardCost(time.perf_counter() - started, sequences))


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a stage, counted in tokens or in another unit of work.

    Attributes:
        stage: name of the stage.
        done: number of finished units, including units of earlier sessions.
        total: total number of units.
        computed: number of units computed in this session.
        sequences: number of texts that were encoded for this stage in this session.
        note: a message to show to the user once.
        unit: plural name of the unit, such as "documents". If this name is empty, no rate is shown, because
            a user could not tell what the rate counts.
    """

    stage: str
    done: int
    total: int
    computed: int = 0
    sequences: int = 0
    note: str = ""
    unit: str = ""


ProgressCallback: TypeAlias = Callable[[Progress], None]


def ignore_progress(_: Progress) -> None:
    """A progress callback that does nothing."""
