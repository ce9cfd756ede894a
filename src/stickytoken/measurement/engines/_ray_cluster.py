"""Connect to a Ray cluster or start a local one, and divide its resources among workers."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from stickytoken.errors import InputError, MissingExtraError, RunError

# For a local Ray instance: shards and rows are small, and the shared memory of a container may be, too.
_OBJECT_STORE_BYTES = 128 * 2**20
_ANSWER_SECONDS = 5
_SHOWN_REASON = 200
# One core per worker would be the most efficient, but every worker holds the whole model.
_CORES_PER_WORKER = 4


class Node(NamedTuple):
    """A machine of the cluster."""

    cpus: int
    gpus: int


class Share(NamedTuple):
    """How a cluster is divided.

    Attributes:
        workers: number of workers.
        cores: number of cores of each worker.
        gpus: number of GPUs of each worker, 0 or 1.
    """

    workers: int
    cores: int
    gpus: int


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Yield the module ``ray`` with a connection.

    An existing connection of this process is used and left open. A Ray instance started here stops at the
    end of the block.

    Args:
        address: ``host:port`` or ``auto``; None is the variable RAY_ADDRESS, or a local Ray instance.
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
    _start(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, address: str | None) -> None:
    if address is not None:
        _require_answer(address)
    own = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES} if address is None else {}
    try:
        with _quiet():
            ray.init(address=address or "local", log_to_driver=False, configure_logging=False, **own)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:_SHOWN_REASON]
        where = "Ray does not start" if address is None else f"there is no Ray cluster at {address!r}"
        raise RunError(f"{where} ({reason}): check the address, and that the cluster is running") from error


def _require_answer(address: str) -> None:
    """Check that something listens at an address. Ray takes minutes to do so; this takes seconds."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise InputError(
            f"{address!r} is not a Ray address: pass host:port of the head node, or auto on one of its nodes"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise RunError(
            f"nothing answers at the Ray address {address!r} ({error}): "
            "check it, and that the cluster is running"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Start Ray without usage reports and log lines, and fail fast if it cannot start."""
    wanted = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_gcs_server_port_wait_time_s": "1",
        # The user waits for the workers, but Ray would give them the lowest priority on the machine.
        "RAY_worker_niceness": "0",
    }
    changed = {name: value for name, value in wanted.items() if name not in os.environ}
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


def nodes_of(ray: Any) -> list[Node]:
    """Return the machines that are alive, busy or not."""
    return [
        Node(int(node["Resources"].get("CPU", 0)), int(node["Resources"].get("GPU", 0)))
        for node in ray.nodes()
        if node["Alive"]
    ]


def divide(nodes: Sequence[Node], device: str, workers: int | None) -> Share:
    """Divide a cluster among workers: each gets one GPU, or an equal number of cores.

    Args:
        nodes: machines of the cluster.
        device: device of the coordinator's model; workers compute on the same kind of device.
        workers: number of workers; None is one per GPU, or on a CPU one per four cores and at least one per
            machine.
    """
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
