"""Where shards are computed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from stickytoken.cli.options.panels import computation_option

if TYPE_CHECKING:
    from stickytoken.measurement.engines.choice import EngineChoice


class Engine(StrEnum):
    """Where shards are computed."""

    LOCAL = "local"
    RAY = "ray"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Where shards are computed."""

    engine: Annotated[
        Engine,
        computation_option(
            "--engine",
            help="local: this process. ray: workers on a Ray cluster, or on all GPUs of this machine.",
        ),
    ] = Engine.LOCAL
    ray_address: Annotated[
        str | None,
        computation_option(
            help="With --engine ray: host:port of the head node, or auto. Default: RAY_ADDRESS, else Ray is "
            "started on this machine."
        ),
    ] = None
    workers: Annotated[
        int | None,
        computation_option(
            min=1, help="With --engine ray: number of workers. Default: one per GPU, or one per four cores."
        ),
    ] = None

    @property
    def choice(self) -> EngineChoice:
        """The engine as `detect` takes it.

        Raises:
            typer.BadParameter: an option of the engine ray without that engine.
        """
        if self.engine is Engine.RAY:
            from stickytoken.measurement.engines.choice import RayCluster

            return RayCluster(self.ray_address, self.workers)
        for option, value in (("--ray-address", self.ray_address), ("--workers", self.workers)):
            if value is not None:
                raise typer.BadParameter("it needs --engine ray", param_hint=option)
        return "local"
