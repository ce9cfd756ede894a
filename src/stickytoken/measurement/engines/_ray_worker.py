"""Code that runs inside a Ray worker, as an actor of the engine."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stickytoken.encoders.loading.load import load_from_spec
from stickytoken.encoders.loading.spec import EncoderSpec
from stickytoken.encoders.protocol import Encoder, EncoderIdentity
from stickytoken.errors import RunError, StickyTokenError
from stickytoken.measurement.engines.protocol import ComputedShard, Work
from stickytoken.measurement.store import ShardCost
from stickytoken.version import __version__


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker reports once its model is loaded.

    Attributes:
        host: name of its machine.
        pid: id of its process.
        version: its version of this package.
        identity: identity of the model that it loaded.
        threads: number of threads that it computes with.
        device: device that it computes on.
    """

    host: str
    pid: int
    version: str
    identity: EncoderIdentity
    threads: int
    device: str


class ShardWorker:
    """Loads the encoder once, then computes shards."""

    def __init__(self, spec: EncoderSpec, device: str, cores: int) -> None:
        self._spec = spec
        self._device = device
        self._cores = cores
        self._encoder: Encoder | None = None
        self._work: tuple[int, Work[Any, Any]] | None = None

    def load(self) -> WorkerReport:
        """Load the encoder."""
        import torch

        torch.set_num_threads(self._cores)
        host = socket.gethostname()
        try:
            self._encoder = load_from_spec(self._spec, self._device)
            identity = self._encoder.identity
        except StickyTokenError as error:
            raise RunError(f"the worker on {host} cannot load the model: {error}") from error
        return WorkerReport(
            host=host,
            pid=os.getpid(),
            version=__version__,
            identity=identity,
            threads=torch.get_num_threads(),
            device=self._encoder.device,
        )

    def compute(self, key: int, work: Sequence[Any], shard: Any) -> ComputedShard[Any]:
        """Compute a shard, after `load`.

        Args:
            key: identifies the work.
            work: a list with a reference to the work. Ray resolves arguments but not references inside
                them, so the work is fetched once and not for every shard.
            shard: the shard to compute.
        """
        if self._encoder is None:
            raise RunError("a worker got work before it loaded the model: this is a bug in stickytoken")
        if self._work is None or self._work[0] != key:
            import ray

            self._work = (key, ray.get(work[0]))
        found, started = self._work[1], time.perf_counter()
        rows, sequences = found.compute(found.prepare(shard, self._encoder), self._encoder)
        return ComputedShard(shard, rows, ShardCost(time.perf_counter() - started, sequences))
