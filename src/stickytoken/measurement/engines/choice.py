"""Choose the engine of a run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError
from stickytoken.measurement.engines.local import LocalEngine
from stickytoken.measurement.engines.protocol import Engine
from stickytoken.validation import shown


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
    """Return the chosen engine as a context manager.

    Args:
        choice: ``local``, ``ray``, a `RayCluster`, or an engine, which is not closed.
        encoder: the model.

    Raises:
        InputError: there is no such engine, or it cannot use this encoder.
    """
    if isinstance(choice, str) and choice == "local":
        return nullcontext(LocalEngine(encoder))
    if isinstance(choice, str) and choice == "ray":
        choice = RayCluster()
    if isinstance(choice, Engine):
        if choice.identity != encoder.identity:
            raise InputError(
                f"the engine was made for another model, not {encoder.name}: make one for this model"
            )
        return nullcontext(choice)
    if not isinstance(choice, RayCluster):
        raise InputError(f"engine {shown(choice)} is unknown: use local, ray, a RayCluster or an engine")
    from stickytoken.measurement.engines.ray_engine import ray_engine

    return ray_engine(encoder, choice.address, choice.workers)
