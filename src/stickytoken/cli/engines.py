"""The engine that the options name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from stickytoken.cli.options import Engine

if TYPE_CHECKING:
    from stickytoken.measurement.engines.choice import EngineChoice


def chosen_engine(engine: Engine, ray_address: str | None, workers: int | None) -> EngineChoice:
    """The engine as `detect` takes it.

    Raises:
        typer.BadParameter: an option of the engine ray without that engine.
    """
    if engine is Engine.LOCAL:
        for option, value in (("--ray-address", ray_address), ("--workers", workers)):
            if value is not None:
                raise typer.BadParameter("it belongs to the engine ray: add --engine ray", param_hint=option)
        return "local"
    from stickytoken.measurement.engines.choice import RayCluster

    return RayCluster(ray_address, workers)
