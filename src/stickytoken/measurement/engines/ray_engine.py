"""Compute shards on the workers of a Ray cluster."""

from __future__ import annotations

import itertools
import logging
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from stickytoken.encoders.loading.spec import EncoderSpec
from stickytoken.encoders.protocol import Encoder, EncoderIdentity
from stickytoken.errors import InputError, RunError, StickyTokenError
from stickytoken.measurement.engines._ray_cluster import Share, connected, divide, nodes_of
from stickytoken.measurement.engines._ray_worker import ShardWorker, WorkerReport
from stickytoken.measurement.engines.protocol import ComputedShard, P, S, Work
from stickytoken.measurement.identity import differences
from stickytoken.version import __version__

_LOG = logging.getLogger(__name__)

# The current shard and the next one, so that a worker never waits for the coordinator.
_IN_FLIGHT = 2
# Give up on a shard that crashed this many workers.
_ATTEMPTS = 3
_START_SECONDS = 300
_SHOWN_REASON = 200


@dataclass(eq=False)
class _Worker:
    """An actor and the shards given to it; it computes the first of them."""

    actor: Any
    loading: Any
    ready: bool = False
    given: dict[Any, Any] = field(default_factory=dict)


@contextmanager
def ray_engine(
    encoder: Encoder, address: str | None = None, workers: int | None = None
) -> Iterator[RayEngine]:
    """Yield an engine; its workers, and a Ray instance started for it, stop at the end of the block.

    Workers load the model while the coordinator continues.

    Args:
        encoder: encoder of the coordinator; workers load the same model.
        address: address of a cluster; see `connected`.
        workers: number of workers; see `divide`.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: the encoder was made from a model object, or the cluster is too small.
        RunError: Ray does not answer at the address.
    """
    spec: EncoderSpec | None = getattr(encoder, "spec", None)
    if spec is None:
        raise InputError(
            f"{encoder.name} was made from a model object, which Ray workers cannot load: "
            "save it, and pass its folder or name to load_encoder"
        )
    if spec.endpoint is not None:
        raise InputError(
            f"{encoder.name} is behind an endpoint, so workers would not speed it up: use the engine local"
        )
    if workers is not None and workers < 1:
        raise InputError(f"the number of workers is {workers}: use at least one")
    with connected(address) as ray:
        engine = RayEngine(ray, divide(nodes_of(ray), encoder.device, workers), spec, encoder.identity)
        try:
            yield engine
        finally:
            engine.close()


class RayEngine:
    """Computes shards on actors, each with its own encoder.

    Args:
        ray: the module ``ray``, connected.
        share: number of workers, and the resources of each.
        spec: the model that workers load.
        identity: the identity that this model must have.
    """

    def __init__(self, ray: Any, share: Share, spec: EncoderSpec, identity: EncoderIdentity) -> None:
        self._ray = ray
        self._share = share
        self._spec = spec
        self.identity = identity
        self.reports: list[WorkerReport] = []  # in the order in which workers became ready
        self._failed_starts = 0
        self._keys = itertools.count()
        self._workers = [self._started() for _ in range(share.workers)]

    def compute(self, work: Work[S, P], shards: Sequence[S]) -> Iterator[ComputedShard[S]]:
        """Yield shards in the order in which workers finish them; see `Engine.compute`."""
        try:
            yield from self._computed(work, shards)
        finally:
            # Results that the caller did not wait for must not appear in the next stage.
            for worker in self._workers:
                for reference in worker.given:
                    self._ray.cancel(reference)
                worker.given.clear()

    def _computed(self, work: Work[S, P], shards: Sequence[S]) -> Iterator[ComputedShard[S]]:
        key, reference = next(self._keys), [self._ray.put(work)]
        queue, attempts = deque(shards), Counter[int]()
        while queue or any(worker.given for worker in self._workers):
            for worker in self._workers:
                while worker.ready and queue and len(worker.given) < _IN_FLIGHT:
                    shard = queue.popleft()
                    worker.given[worker.actor.compute.remote(key, reference, shard)] = shard
            worker, done = self._wait()
            try:
                found = self._ray.get(done)
            except self._ray.exceptions.RayTaskError as error:
                raise _as_raised(error) from None
            except self._ray.exceptions.RayError as error:
                queue.extendleft(reversed(self._replace(worker, work.name, attempts, error)))
                continue
            if worker.ready:
                worker.given.pop(done)
                yield found
            else:
                self._admit(worker, found)

    def wait_until_ready(self) -> None:
        """Wait until all workers have loaded the model; `compute` starts with the first one.

        Raises:
            RunError: a worker cannot load the model, loaded another one, or was lost.
        """
        for worker in self._workers:
            if not worker.ready:
                try:
                    self._admit(worker, self._ray.get(worker.loading))
                except self._ray.exceptions.RayTaskError as error:
                    raise _as_raised(error) from None
                except self._ray.exceptions.RayError as error:
                    raise RunError(
                        f"a Ray worker died while it loaded the model ({_last_line(error)})"
                    ) from error

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers = []

    def _started(self) -> _Worker:
        actor = (
            self._ray.remote(ShardWorker)
            .options(num_cpus=self._share.cores, num_gpus=self._share.gpus, max_restarts=0)
            .remote(self._spec, "cuda" if self._share.gpus else "cpu", self._share.cores)
        )
        return _Worker(actor, actor.load.remote())

    def _wait(self) -> tuple[_Worker, Any]:
        """Wait for a worker to finish its start or a shard."""
        waited = {
            reference: worker
            for worker in self._workers
            for reference in ([*worker.given] if worker.ready else [worker.loading])
        }
        busy = any(worker.given for worker in self._workers)
        done, _ = self._ray.wait([*waited], num_returns=1, timeout=None if busy else _START_SECONDS)
        if not done:
            raise RunError(
                f"no Ray worker was ready within {_START_SECONDS} s: {self._share.workers} workers with "
                f"{self._share.cores} cores and {self._share.gpus} GPUs each were requested; the cluster may "
                "be busy"
            )
        return waited[done[0]], done[0]

    def _admit(self, worker: _Worker, report: WorkerReport) -> None:
        """Accept a worker if it computes the same numbers as the coordinator."""
        ours, theirs = __version__, report.version
        if ours != theirs:
            raise RunError(
                f"the worker on {report.host} has stickytoken {theirs}, but this process has {ours}: "
                "install the same version there"
            )
        if parts := differing_parts(self.identity, report.identity):
            raise RunError(
                f"the worker on {report.host} has another model under the name {self._spec.model!r} "
                f"(it differs in {', '.join(parts)}): copy the same files there"
            )
        worker.ready = True
        self.reports.append(report)
        self._failed_starts = 0

    def _replace(self, worker: _Worker, stage: str, attempts: Counter[int], error: Exception) -> list[Any]:
        """Replace a lost worker; return its unfinished shards in order."""
        lost, reason = [*worker.given.values()], type(error).__name__
        self._ray.kill(worker.actor)  # it may be unreachable but still computing
        if lost:
            attempts[lost[0].index] += 1
            if attempts[lost[0].index] >= _ATTEMPTS:
                raise RunError(
                    f"shard {lost[0].index} of {stage} crashed its worker {_ATTEMPTS} times ({reason}): the "
                    "workers probably run out of memory; use fewer workers or a smaller token budget"
                )
        else:
            self._failed_starts += 1
            if self._failed_starts >= _ATTEMPTS * self._share.workers:
                raise RunError(
                    f"Ray workers die before they are ready ({_last_line(error)}): "
                    "check that stickytoken is installed there and that there is enough memory"
                )
        _LOG.warning(
            "a Ray worker was lost (%s): starting another; %s",
            reason,
            f"{len(lost)} shards of {stage} are computed again" if lost else "it was not computing anything",
        )
        self._workers[self._workers.index(worker)] = self._started()
        return lost


def differing_parts(ours: EncoderIdentity, theirs: EncoderIdentity) -> list[str]:
    """Name the parts in which the identities of two models differ."""
    mine: Mapping[str, Any] = asdict(ours)
    return differences(mine, asdict(theirs))


def _as_raised(error: Any) -> Exception:
    """Return the error that the worker raised, with Ray's traceback only if it is a bug."""
    cause = error.cause
    return cause if isinstance(cause, StickyTokenError) else error


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][-_SHOWN_REASON:] if lines else type(error).__name__
