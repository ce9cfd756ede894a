"""A Ray to compute on: one that is there, or one of our own; what it offers, divided among workers."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from stickytoken.errors import InputError, MissingExtraError, RunError

# Of a Ray of our own: shards and their rows are small, and a container's shared memory may be, too.
_OBJECT_STORE_BYTES = 128 * 2**20
_ANSWER_SECONDS = 5
_SHOWN_REASON = 200
# One core a worker wastes none, but every worker holds the whole model.
_CORES_PER_WORKER = 4


class Node(NamedTuple):
    """A machine of the cluster."""

    cpus: int
    gpus: int


class Share(NamedTuple):
    """How a cluster is divided.

    Attributes:
        workers: how many.
        cores: of each.
        gpus: of each, 0 or 1.
    """

    workers: int
    cores: int
    gpus: int


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Give the module ``ray``, connected.

    A Ray that this process is connected to already is used and left alone. One that is started here ends
    with the block.

    Args:
        address: ``host:port`` or ``auto``; None is the variable RAY_ADDRESS, or a Ray of our own.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: no such address.
        RunError: nobody answers there, or Ray does not start.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("detection on Ray", "ray") from error
    if ray.is_initialized():
        if address is not None:
            raise InputError(
                f"the Ray address {address!r} is asked for, but this process is connected to a Ray already: "
                "leave the address out, or call ray.shutdown() first"
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
        where = "Ray does not start" if address is None else f"no Ray at {address!r}"
        raise RunError(f"{where} ({reason}): check the address, and that the cluster is up") from error


def _require_answer(address: str) -> None:
    """Find out in seconds what Ray finds out in minutes: that nobody listens there."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise InputError(
            f"{address!r} is no Ray address: pass host:port of the head node, or auto on a machine of it"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise RunError(
            f"nobody answers at the Ray address {address!r} ({error}): check it, and that the cluster is up"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Let Ray start without reports to its makers and lines between ours, and answer soon if it cannot."""
    wanted = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_gcs_server_port_wait_time_s": "1",
        # Workers are what the user waits for; Ray would run them behind everything else on the machine.
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
    """The machines that are up, whatever else they are busy with."""
    return [
        Node(int(node["Resources"].get("CPU", 0)), int(node["Resources"].get("GPU", 0)))
        for node in ray.nodes()
        if node["Alive"]
    ]


def divide(nodes: Sequence[Node], device: str, workers: int | None) -> Share:
    """Divide a cluster: a worker has one GPU, or as many cores as so many workers can have.

    Args:
        nodes: of the cluster.
        device: of the coordinator's model; workers compute on the same kind.
        workers: how many; None is one a GPU, or on a CPU one for every four cores, one a machine at least.

    Raises:
        InputError: the cluster has less than was asked for, or a kind of device that Ray does not know.
    """
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise InputError(f"Ray workers compute on cpu or cuda, not on {device}: choose one of these devices")
    if kind == "cuda":
        gpus = sum(node.gpus for node in nodes if node.cpus)
        if not gpus or (workers or 1) > gpus:
            raise InputError(
                f"{workers or 'no'} workers with a GPU each were asked for, the cluster has {gpus}: "
                "ask for fewer workers, or for the device cpu"
            )
        return Share(workers or gpus, 1, 1)
    cpus = sum(node.cpus for node in nodes)
    count = workers or sum(max(1, node.cpus // _CORES_PER_WORKER) for node in nodes if node.cpus)
    cores = next((size for size in range(cpus, 0, -1) if sum(n.cpus // size for n in nodes) >= count), 0)
    if not count or not cores:
        raise InputError(
            f"{workers or 1} workers were asked for, the cluster has {cpus} CPU cores: ask for fewer workers"
        )
    return Share(count, cores, 0)
