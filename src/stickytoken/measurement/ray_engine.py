"""Compute shards on the workers of a Ray cluster."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import stickytoken.measurement as store
from stickytoken.encoders.loading import load_from_spec
from stickytoken.encoders.loading.resolution import EncoderSpec
from stickytoken.encoders.protocol import Encoder, EncoderIdentity, capabilities_of
from stickytoken.errors import InputError, MissingExtraError, RunError, StickyTokenError
from stickytoken.measurement import resume
from stickytoken.measurement.engine import ComputedShard, Engine, LocalEngine, P, S, Work
from stickytoken.validation import shown
from stickytoken.version import __version__

# For a local Ray instance: shards and rows are small, and the shared memory of a container may be, too.
_OBJECT_STORE_BYTES = 128 * 2**20
_SHOWN_REASON = 200
# One core per worker would be the most efficient, but every worker holds the whole model.
_CORES_PER_WORKER = 4


class Node(NamedTuple):
    cpus: int
    gpus: int


class Share(NamedTuple):
    workers: int
    cores: int  # of each worker
    gpus: int  # of each worker, 0 or 1


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("detection on Ray", "ray") from error
    if ray.is_initialized():
        if address is not None:
            raise InputError(
                f"the Ray address is {address!r}, but this process is already connected to Ray: leave the "
                "address out, or call ray.shutdown() first"
            )
        yield ray
        return
    if address is None:
        address = os.environ.get("RAY_ADDRESS") or None
    if address is not None and address != "auto":
        # Ray takes minutes to find out that nothing listens there; this takes seconds.
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or "/" in host:
            raise InputError(
                f"{address!r} is not a Ray address: pass host:port of the head node, or auto on one of its "
                "nodes"
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except (OSError, OverflowError) as error:
            raise RunError(
                f"nothing answers at the Ray address {address!r} ({error}): "
                "check it, and that the cluster is running"
            ) from error
    options: dict[str, Any] = (
        {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES} if address is None else {}
    )
    try:
        with _quiet():
            ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:_SHOWN_REASON]
        where = "Ray does not start" if address is None else f"there is no Ray cluster at {address!r}"
        raise RunError(f"{where} ({reason}): check the address, and that the cluster is running") from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _quiet() -> Iterator[None]:
    requirements = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_gcs_server_port_wait_time_s": "1",
        # The user waits for the workers, but Ray would give them the lowest priority on the machine.
        "RAY_worker_niceness": "0",
    }
    changed = {name: value for name, value in requirements.items() if name not in os.environ}
    os.environ.update(changed)
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name in changed:
            os.environ.pop(name, None)


def divide(nodes: Sequence[Node], device: str, workers: int | None) -> Share:
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise InputError(f"Ray workers compute on cpu or cuda, not on {device}: choose one of these devices")
    if kind == "cuda":
        gpus = sum(node.gpus for node in nodes if node.cpus)
        if not gpus or (workers or 1) > gpus:
            raise InputError(
                f"the cluster has {gpus} GPUs, the number of workers is {workers or 1}, and each needs one: "
                "use fewer workers, or the device cpu"
            )
        return Share(workers or gpus, 1, 1)
    cpus = sum(node.cpus for node in nodes)
    count = workers or sum(max(1, node.cpus // _CORES_PER_WORKER) for node in nodes if node.cpus)
    cores = next((size for size in range(cpus, 0, -1) if sum(n.cpus // size for n in nodes) >= count), 0)
    if not count or not cores:
        raise InputError(
            f"the cluster has {cpus} CPU cores, the number of workers is {workers or 1}, and each needs one: "
            "use fewer workers"
        )
    return Share(count, cores, 0)


@dataclass(frozen=True, slots=True)
class WorkerReport:
    host: str
    pid: int
    version: str  # of this package
    identity: EncoderIdentity  # of the model that it loaded


class ShardWorker:
    def __init__(self, spec: EncoderSpec, device: str, cores: int) -> None:
        self._spec, self._device, self._cores = spec, device, cores
        self._encoder: Encoder  # by `load`
        self._work: tuple[int, Work[Any, Any]] | None = None

    def load(self) -> WorkerReport:
        import torch

        torch.set_num_threads(self._cores)
        host = socket.gethostname()
        try:
            self._encoder = load_from_spec(replace(self._spec, device=self._device))
            identity = self._encoder.identity
        except StickyTokenError as error:
            raise RunError(f"the worker on {host} cannot load the model: {error}") from error
        return WorkerReport(host, os.getpid(), __version__, identity)

    def compute(self, key: int, work: Sequence[Any], shard: Any) -> ComputedShard[Any]:
        if self._work is None or self._work[0] != key:
            import ray

            self._work = (key, ray.get(work[0]))
        computed, started = self._work[1], time.perf_counter()
        rows, sequences = computed.compute(computed.prepare(shard, self._encoder), self._encoder)
        return ComputedShard(shard, rows, store.ShardCost(time.perf_counter() - started, sequences))


_LOG = logging.getLogger(__name__)

# The current shard and the next one, so that a worker never waits for the coordinator.
_IN_FLIGHT = 2
# Give up on a shard that crashed this many workers.
_ATTEMPTS = 3
_START_SECONDS = 300


@dataclass(eq=False)
class _Worker:
    actor: Any
    loading: Any
    ready: bool = False
    given: dict[Any, Any] = field(default_factory=dict)


@contextmanager
def ray_engine(
    encoder: Encoder, address: str | None = None, workers: int | None = None
) -> Iterator[RayEngine]:
    """Yield an engine whose workers, and whose own Ray instance, stop at the end of the block."""
    spec = capabilities_of(encoder).spec
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
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        nodes = [Node(int(node_facts.get("CPU", 0)), int(node_facts.get("GPU", 0))) for node_facts in alive]
        engine = RayEngine(ray, divide(nodes, encoder.device, workers), spec, encoder.identity)
        try:
            yield engine
        finally:
            engine.close()


class RayEngine:
    def __init__(self, ray: Any, share: Share, spec: EncoderSpec, identity: EncoderIdentity) -> None:
        self._ray, self._share, self._spec, self.identity = ray, share, spec, identity
        self.reports: list[WorkerReport] = []  # in the order in which workers became ready
        self._failed_starts = 0
        self._keys = itertools.count()
        self._workers = [self._started() for _ in range(share.workers)]

    def compute(self, work: Work[S, P], shards: Sequence[S]) -> Iterator[ComputedShard[S]]:
        key, reference = next(self._keys), [self._ray.put(work)]
        queue, attempts = deque(shards), Counter[int]()
        try:
            while queue or any(worker.given for worker in self._workers):
                for worker in self._workers:
                    while worker.ready and queue and len(worker.given) < _IN_FLIGHT:
                        shard = queue.popleft()
                        worker.given[worker.actor.compute.remote(key, reference, shard)] = shard
                worker, done = self._wait()
                try:
                    report = self._ray.get(done)
                except self._ray.exceptions.RayTaskError as error:
                    # With Ray's traceback only if it is a bug.
                    raise error.cause if isinstance(error.cause, StickyTokenError) else error from None
                except self._ray.exceptions.RayError as error:
                    queue.extendleft(reversed(self._replace(worker, work.name, attempts, error)))
                    continue
                if worker.ready:
                    worker.given.pop(done)
                    yield report
                else:
                    self._admit(worker, report)
        finally:
            # Results that the caller did not wait for must not appear in the next stage.
            for worker in self._workers:
                for pending in worker.given:
                    self._ray.cancel(pending)
                worker.given.clear()

    def wait_until_ready(self) -> None:
        while not all(worker.ready for worker in self._workers):
            worker, done = self._wait()
            self._admit(worker, self._ray.get(done))

    def close(self) -> None:
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
        if report.version != __version__:
            raise RunError(
                f"the worker on {report.host} has stickytoken {report.version}, but this process has "
                f"{__version__}: install the same version there"
            )
        if different_parts := resume.differences(asdict(self.identity), asdict(report.identity)):
            raise RunError(
                f"the worker on {report.host} has another model under the name {self._spec.model!r} "
                f"(it differs in {', '.join(different_parts)}): copy the same files there"
            )
        worker.ready = True
        self.reports.append(report)
        self._failed_starts = 0

    def _replace(self, worker: _Worker, stage: str, attempts: Counter[int], error: Exception) -> list[Any]:
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
                message_lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [reason]
                raise RunError(
                    f"Ray workers die before they are ready ({message_lines[-1][-_SHOWN_REASON:]}): "
                    "check that stickytoken is installed there and that there is enough memory"
                )
        _LOG.warning(
            "a Ray worker was lost (%s): starting another; %s",
            reason,
            f"{len(lost)} shards of {stage} are computed again" if lost else "it was not computing anything",
        )
        self._workers[self._workers.index(worker)] = self._started()
        return lost


@dataclass(frozen=True, slots=True)
class RayCluster:
    """Where to compute on Ray, and with how many workers.

    Attributes:
        address: ``host:port`` of a cluster's head node, or ``auto``. None is the Ray instance that this
            process is connected to, or that of the variable RAY_ADDRESS, or one that is started on this
            machine and stopped after the run.
        workers: number of workers; None is one per GPU, or on a CPU one per four cores.
    """

    address: str | None = None
    workers: int | None = None


EngineChoice: TypeAlias = str | RayCluster | Engine


def chosen_engine(choice: EngineChoice, encoder: Encoder) -> AbstractContextManager[Engine]:
    if isinstance(choice, str) and choice in ("local", "ray"):
        choice = LocalEngine(encoder) if choice == "local" else RayCluster()
    if isinstance(choice, RayCluster):
        return ray_engine(encoder, choice.address, choice.workers)
    if not isinstance(choice, Engine):
        raise InputError(f"engine {shown(choice)} is unknown: use local, ray, a RayCluster or an engine")
    if choice.identity != encoder.identity:
        raise InputError(
            f"the engine was made for another model, not {encoder.name}: make one for this model"
        )
    return nullcontext(choice)
