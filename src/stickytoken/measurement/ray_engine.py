"""Compute shards with the workers of a Ray cluster."""

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

from stickytoken.encoders.files.spec import EncoderSpec
from stickytoken.encoders.protocol import Encoder, EncoderIdentity, capabilities_of
from stickytoken.errors import InputError, MissingExtraError, RunError, StickyTokenError
from stickytoken.loading import load_from_spec
from stickytoken.measurement import resume, store
from stickytoken.measurement.engine import (
    ComputedShard,
    Engine,
    Item,
    LocalEngine,
    Prepared,
    Shard,
    Work,
)
from stickytoken.validation import shown
from stickytoken.version import __version__

# Size in bytes of Ray's object store if this process starts Ray. Shards and rows need only a small store, and
# a container may have little shared memory.
_OBJECT_STORE_BYTES = 128 * 2**20
# Maximum number of characters that an error message quotes from a message of Ray.
_QUOTED_CHARACTERS = 200
# Number of CPU cores per worker. One core per worker would be fastest, but every worker holds a copy of the
# model in memory.
_CORES_PER_WORKER = 4
# Seconds to wait for a connection to the address of a cluster. Ray itself would wait for minutes.
_CONNECT_SECONDS = 5
# Seconds to wait until the first worker has loaded the model.
_START_SECONDS = 300
# Number of shards that are assigned to a worker at a time: the current shard and the next shard, so that the
# worker does not have to wait for this process.
_SHARDS_PER_WORKER = 2
# The run is aborted when the same shard has crashed this many workers.
_ATTEMPTS = 3

_LOG = logging.getLogger(__name__)


class Node(NamedTuple):
    """A machine in the cluster: its numbers of CPU cores and GPUs."""

    cpus: int
    gpus: int


class Share(NamedTuple):
    """How the cluster is divided into workers.

    Attributes:
        workers: number of workers.
        cores: number of CPU cores per worker.
        gpus: number of GPUs per worker, 0 or 1.
    """

    workers: int
    cores: int
    gpus: int


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect to a cluster in a ``with`` block, and yield the module ``ray``.

    For the meaning of the address, see `RayCluster`. At the end of the block, the connection is closed,
    unless the process was already connected.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: the address is malformed, or this process is already connected to Ray.
        RunError: no cluster answers, or Ray does not start.
    """
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
    if address is not None and address != "auto":  # Ray itself finds the cluster for `auto`
        _require_listener(address)
    _connect(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_listener(address: str) -> None:
    # Raises an error if nothing listens at the address, because Ray would wait for minutes.
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise InputError(
            f"{address!r} is not a Ray address: pass host:port of the head node, or auto on one of its nodes"
        )
    host_without_brackets = host.strip("[]")  # an IPv6 address has brackets around it
    try:
        socket.create_connection((host_without_brackets, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:  # a port may be too large a number
        raise RunError(
            f"nothing answers at the Ray address {address!r} ({error}): "
            "check the address, and that the cluster is running"
        ) from error


def _connect(ray: Any, address: str | None) -> None:
    options: dict[str, Any] = {}
    if address is None:  # Ray starts on this machine; it takes these options only when it starts
        options = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    try:
        with _ray_silenced(address):
            ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:_QUOTED_CHARACTERS]
        problem = "Ray does not start" if address is None else f"there is no Ray cluster at {address!r}"
        raise RunError(f"{problem} ({reason}): check the address, and that the cluster is running") from error


@contextmanager
def _ray_silenced(address: str | None) -> Iterator[None]:
    """In a ``with`` block, make Ray start, or connect to an address, without usage reports and log messages.

    Ray's workers get normal priority, instead of the lowest priority. Environment variables that the user has
    set are not changed.
    """
    variables = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # By default, Ray's workers have the lowest priority on the machine, although the user is waiting for
        # their results.
        "RAY_worker_niceness": "0",
    }
    if address is not None:
        # Give up after a second if the cluster does not answer. Without an address, Ray starts on this
        # machine, and gets the time that it needs.
        variables["RAY_gcs_server_port_wait_time_s"] = "1"
    unset_variables = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(unset_variables)
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name in unset_variables:
            os.environ.pop(name, None)


def divide(nodes: Sequence[Node], device: str, workers: int | None) -> Share:
    """Decide how to divide the cluster into workers.

    Args:
        nodes: the machines of the cluster.
        device: ``cpu`` or ``cuda``, optionally with an index.
        workers: number of workers; if None, one worker per GPU on cuda, or per four cores on cpu.

    Raises:
        InputError: Ray workers do not support the device, or the cluster is too small.
    """
    kind = device.partition(":")[0]
    if kind == "cuda":
        return _divide_gpus(nodes, workers)
    if kind == "cpu":
        return _divide_cpus(nodes, workers)
    raise InputError(f"Ray workers compute on cpu or cuda, not on {device}: choose one of these devices")


def _divide_gpus(nodes: Sequence[Node], workers: int | None) -> Share:
    gpus = sum(min(node.gpus, node.cpus) for node in nodes)  # every worker needs a CPU core beside its GPU
    if not gpus or (workers or 1) > gpus:
        raise InputError(
            f"the cluster has {gpus} GPUs, the number of workers is {workers or 1}, and each worker needs a "
            "GPU: use fewer workers, or the device cpu"
        )
    return Share(workers or gpus, cores=1, gpus=1)


def _divide_cpus(nodes: Sequence[Node], workers: int | None) -> Share:
    cpus = sum(node.cpus for node in nodes)
    count = workers or sum(max(1, node.cpus // _CORES_PER_WORKER) for node in nodes if node.cpus)
    # The largest number of cores per worker with which the nodes have room for all workers.
    cores = cpus
    while cores > 0 and sum(node.cpus // cores for node in nodes) < count:
        cores -= 1
    if not count or not cores:
        raise InputError(
            f"the cluster has {cpus} CPU cores, the number of workers is {workers or 1}, and each worker "
            "needs a core: use fewer workers"
        )
    return Share(count, cores, gpus=0)


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker reports after it has loaded the model.

    Attributes:
        host: name of the worker's machine.
        pid: process id of the worker.
        version: version of this package on that machine.
        identity: identity of the model that the worker loaded.
    """

    host: str
    pid: int
    version: str
    identity: EncoderIdentity


class ShardWorker:
    """A worker: an actor in a process of the cluster, which loads the model and computes shards."""

    def __init__(self, spec: EncoderSpec, device: str, cores: int) -> None:
        self._spec = spec
        self._device = device
        self._cores = cores
        self._encoder: Encoder  # set by `load`
        # The work that was computed last, after its key; see `compute`.
        self._work: tuple[int, Work[Any, Any]] | None = None

    def load(self) -> WorkerReport:
        """Load the model.

        Raises:
            RunError: the model cannot be loaded on this machine.
        """
        import torch

        torch.set_num_threads(self._cores)
        host = socket.gethostname()
        try:
            self._encoder = load_from_spec(replace(self._spec, device=self._device))
            identity = self._encoder.identify()
        except StickyTokenError as error:
            raise RunError(f"the worker on {host} cannot load the model: {error}") from error
        return WorkerReport(host, os.getpid(), __version__, identity)

    def compute(self, key: int, reference: Sequence[Any], shard: Any) -> ComputedShard[Any]:
        """Compute a shard of some work, and return the result.

        Args:
            key: number that identifies the work. The worker fetches the work only if ``key`` has changed.
            reference: Ray's reference to the work, as the only item of a list. If the reference itself were
                passed, Ray would fetch the work on every call.
            shard: the shard.
        """
        if self._work is None or self._work[0] != key:
            import ray

            self._work = (key, ray.get(reference[0]))
        work = self._work[1]
        started = time.perf_counter()
        rows, sequences = work.compute(work.prepare(shard, self._encoder), self._encoder)
        return ComputedShard(shard, rows, store.ShardCost(time.perf_counter() - started, sequences))


@dataclass(eq=False)
class _Worker:
    """What this process knows about a worker.

    Attributes:
        actor: Ray's handle to the `ShardWorker`.
        loading: Ray's reference to the report that `ShardWorker.load` returns.
        is_ready: whether the worker has loaded the right model.
        shards: the shards that the worker is computing, keyed by Ray's reference to the result.
    """

    actor: Any
    loading: Any
    is_ready: bool = False
    shards: dict[Any, Any] = field(default_factory=dict)


@contextmanager
def ray_engine(
    encoder: Encoder, address: str | None = None, workers: int | None = None
) -> Iterator[RayEngine]:
    """Yield an engine on Ray. At the end of the ``with`` block, the workers of the engine stop.

    Args:
        encoder: the model, which each worker loads from its name or folder.
        address: address of the cluster; see `RayCluster`.
        workers: number of workers; see `RayCluster`.

    Raises:
        InputError: workers cannot load the model, or the cluster is too small for the number of workers.
    """
    spec = capabilities_of(encoder).spec
    if spec is None:
        raise InputError(
            f"{encoder.name} was made from a model object, which Ray workers cannot load: "
            "save it, and pass its folder or name to load_encoder"
        )
    if spec.endpoint is not None:
        raise InputError(
            f"{encoder.name} runs behind an endpoint, so Ray workers would not make it faster: use the "
            "local engine"
        )
    if workers is not None and workers < 1:
        raise InputError(f"the number of workers is {workers}: use at least one")
    with connected(address) as ray:
        resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        nodes = [Node(int(amounts.get("CPU", 0)), int(amounts.get("GPU", 0))) for amounts in resources]
        engine = RayEngine(ray, divide(nodes, encoder.device, workers), spec, encoder.identify())
        try:
            yield engine
        finally:
            engine.close()


class RayEngine:
    """Computes shards on workers of a Ray cluster, and replaces workers that die.

    Attributes:
        reports: reports of the workers, in the order they became ready.
    """

    def __init__(self, ray: Any, share: Share, spec: EncoderSpec, identity: EncoderIdentity) -> None:
        self._ray = ray
        self._share = share
        self._spec = spec
        self._identity = identity
        self.reports: list[WorkerReport] = []
        # Number of workers that have died while loading the model since a worker last became ready.
        self._failed_starts = 0
        self._keys = itertools.count()
        self._workers = [self._start_worker() for _ in range(share.workers)]

    def identify(self) -> EncoderIdentity:
        return self._identity

    def compute(
        self, work: Work[Item, Prepared], shards: Sequence[Shard[Item]]
    ) -> Iterator[ComputedShard[Item]]:
        """Yield the result of every shard as soon as it is computed, in any order.

        Raises:
            RunError: no worker becomes ready, a worker has a different model or version, or workers keep
                dying.
            StickyTokenError: the work raised this error on a worker.
        """
        key = next(self._keys)  # tells the workers that this is new work
        reference = [self._ray.put(work)]  # in a list, so that Ray does not fetch the work for every shard
        queue = deque(shards)
        # Numbers of workers that died, keyed by the index of the shard that they were computing.
        attempts = Counter[int]()
        try:
            while queue or any(worker.shards for worker in self._workers):
                for worker in self._workers:
                    while worker.is_ready and queue and len(worker.shards) < _SHARDS_PER_WORKER:
                        shard = queue.popleft()
                        worker.shards[worker.actor.compute.remote(key, reference, shard)] = shard
                worker, finished = self._wait_for_answer()
                try:
                    answer = self._ray.get(finished)
                except self._ray.exceptions.RayTaskError as error:
                    if isinstance(error.cause, StickyTokenError):
                        raise error.cause from None
                    raise error from None  # a bug in the work, which Ray's traceback shows
                except self._ray.exceptions.RayError as error:
                    lost_shards = self._replace_worker(worker, work.name, attempts, error)
                    queue.extendleft(reversed(lost_shards))  # computed next, in their original order
                    continue
                if worker.is_ready:
                    worker.shards.pop(finished)
                    yield answer  # a computed shard
                else:
                    self._admit_worker(worker, answer)  # the first answer of a worker is its `WorkerReport`
        finally:
            # If the caller did not consume all results, the remaining results must not turn up in the next
            # stage.
            for worker in self._workers:
                for pending in worker.shards:
                    self._ray.cancel(pending)
                worker.shards.clear()

    def close(self) -> None:
        """Stop all workers."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers = []

    def _start_worker(self) -> _Worker:
        # Ray must not restart a worker, because the restarted worker would have no model. `_replace_worker`
        # starts another.
        remote_class = self._ray.remote(ShardWorker).options(
            num_cpus=self._share.cores, num_gpus=self._share.gpus, max_restarts=0
        )
        device = "cuda" if self._share.gpus else "cpu"
        actor = remote_class.remote(self._spec, device, self._share.cores)
        return _Worker(actor, actor.load.remote())

    def _wait_for_answer(self) -> tuple[_Worker, Any]:
        """Wait until a worker has finished something, and return the worker and Ray's reference to the
        answer.

        The answer is the report of a worker that was loading the model, or a shard that was computed.
        """
        worker_by_reference: dict[Any, _Worker] = {}
        for worker in self._workers:
            references = list(worker.shards) if worker.is_ready else [worker.loading]
            worker_by_reference.update(dict.fromkeys(references, worker))
        is_computing = any(worker.shards for worker in self._workers)
        timeout = None if is_computing else _START_SECONDS  # a shard may take as long as it needs
        finished, _ = self._ray.wait(list(worker_by_reference), num_returns=1, timeout=timeout)
        if not finished:
            raise RunError(
                f"no Ray worker was ready within {_START_SECONDS} s: {self._share.workers} workers with "
                f"{self._share.cores} cores and {self._share.gpus} GPUs each were requested; the cluster may "
                "be busy"
            )
        return worker_by_reference[finished[0]], finished[0]

    def _admit_worker(self, worker: _Worker, report: WorkerReport) -> None:
        # Marks a worker as ready if it has the same version and model as this process.
        if report.version != __version__:
            raise RunError(
                f"the worker on {report.host} has stickytoken {report.version}, but this process has "
                f"{__version__}: install the same version there"
            )
        different_parts = resume.differences(asdict(self._identity), asdict(report.identity))
        if different_parts:
            raise RunError(
                f"the worker on {report.host} has another model under the name {self._spec.model!r} "
                f"(it differs in {', '.join(different_parts)}): copy the same files there"
            )
        worker.is_ready = True
        self.reports.append(report)
        self._failed_starts = 0

    def _replace_worker(
        self, worker: _Worker, stage: str, attempts: Counter[int], error: Exception
    ) -> list[Any]:
        """Start a new worker to replace a worker that died.

        ``attempts`` counts, for each shard, the workers that died while they computed it.

        Returns:
            The shards that were assigned to the worker, which must be computed again.

        Raises:
            RunError: the same shard has crashed too many workers, or too many workers have died while they
                were loading.
        """
        lost_shards = list(worker.shards.values())
        reason = type(error).__name__
        self._ray.kill(worker.actor)  # the worker may still be computing although it is unreachable
        if lost_shards:
            # A worker computes its shards in order, so it died while it was computing its first unfinished
            # shard.
            current_index = lost_shards[0].index
            attempts[current_index] += 1
            if attempts[current_index] >= _ATTEMPTS:
                raise RunError(
                    f"shard {current_index} of {stage} crashed its worker {_ATTEMPTS} times ({reason}): the "
                    "workers probably run out of memory; use fewer workers or a smaller token budget"
                )
            consequence = f"{len(lost_shards)} shards of {stage} are computed again"
        else:
            self._failed_starts += 1
            if self._failed_starts >= _ATTEMPTS * self._share.workers:
                message_lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                # The last line of a traceback names the error.
                last_line = message_lines[-1] if message_lines else reason
                raise RunError(
                    f"Ray workers die before they are ready ({last_line[-_QUOTED_CHARACTERS:]}): "
                    "check that stickytoken is installed there and that there is enough memory"
                )
            consequence = "it was not computing anything"
        _LOG.warning("a Ray worker was lost (%s): starting another; %s", reason, consequence)
        self._workers[self._workers.index(worker)] = self._start_worker()
        return lost_shards


@dataclass(frozen=True, slots=True)
class RayCluster:
    """The Ray cluster to compute on, and the number of workers.

    Attributes:
        address: ``host:port`` of a cluster's head node, or ``auto`` on a node of the cluster. If None, the
            first of these that exists is used: the Ray instance to which this process is connected, the
            address in the environment variable RAY_ADDRESS, or a new Ray instance on this machine, which
            stops after the run.
        workers: number of workers; if None, one worker per GPU on cuda, or per four cores on cpu.
    """

    address: str | None = None
    workers: int | None = None


EngineChoice: TypeAlias = str | RayCluster | Engine


def chosen_engine(choice: EngineChoice, encoder: Encoder) -> AbstractContextManager[Engine]:
    """Return a context manager that yields the engine that the user chose.

    Args:
        choice: ``local``, ``ray``, a cluster, or an engine. An engine that is passed here is not closed at
            the end of the block.
        encoder: the model.

    Raises:
        InputError: the choice is invalid, or the engine was made for another model.
    """
    if isinstance(choice, str) and choice == "local":
        return nullcontext(LocalEngine(encoder))
    if isinstance(choice, str) and choice == "ray":
        choice = RayCluster()
    if isinstance(choice, RayCluster):
        return ray_engine(encoder, choice.address, choice.workers)
    if not isinstance(choice, Engine):
        raise InputError(f"engine {shown(choice)} is unknown: use local, ray, a RayCluster or an engine")
    if choice.identify() != encoder.identify():
        raise InputError(
            f"the engine was made for another model, not for {encoder.name}: make an engine for this model"
        )
    return nullcontext(choice)
