"""Where shards are computed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from stickytoken.cli.options.panels import COMPUTATION

if TYPE_CHECKING:
    from stickytoken.measurement.engines.choice import EngineChoice


class Engine(StrEnum):
    """Where shards are computed."""

    LOCAL = "local"
    RAY = "ray"


EngineName: TypeAlias = Annotated[
    Engine,
    typer.Option(
        "--engine",
        help="local: this process. ray: workers on a Ray cluster, or on all GPUs of this machine.",
        rich_help_panel=COMPUTATION,
    ),
]
RayAddress: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="With --engine ray: host:port of the head node, or auto. Default: RAY_ADDRESS, else a Ray here.",
        rich_help_panel=COMPUTATION,
    ),
]
Workers: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With --engine ray: number of workers. Default: one per GPU, or one per four cores.",
        rich_help_panel=COMPUTATION,
    ),
]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Where shards are computed."""

    engine: EngineName = Engine.LOCAL
    ray_address: RayAddress = None
    workers: Workers = None

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
