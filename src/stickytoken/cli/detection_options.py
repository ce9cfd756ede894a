"""Options of the methods of detection, in groups."""

from __future__ import annotations

from dataclasses import dataclass

from stickytoken.cli import options as o


@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """What carriers, anchors and pairs are made from."""

    sentences: o.SentenceSource = None
    column: o.Column = None
    pairs: o.PairsFile = None


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Where shards are computed."""

    engine: o.EngineName = o.Engine.LOCAL
    ray_address: o.RayAddress = None
    workers: o.Workers = None
