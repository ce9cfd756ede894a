"""Runs stages without a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from stickytoken.encoders.protocol import Encoder
from stickytoken.insertion import Token
from stickytoken.measurement.engines.local import compute_shard
from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.measurement.stage import Shard, Stage

_SHARD_PROBES = 2048


class MemoryRunner:
    """Runs stages in memory, in shards small enough to show progress."""

    def __init__(self, encoder: Encoder, progress: ProgressCallback) -> None:
        self._encoder = encoder
        self._progress = progress

    def __call__(self, stage: Stage, tokens: Sequence[Token]) -> pl.DataFrame:
        """Return one row per token, in their order."""
        size = max(1, _SHARD_PROBES // stage.probes_per_token)
        rows: list[dict[str, Any]] = []
        sequences = 0
        self._progress(Progress(stage.name, 0, len(tokens)))
        for start in range(0, len(tokens), size):
            part = tuple(tokens[start : start + size])
            found, encoded = compute_shard(stage, Shard(start, part), self._encoder)
            rows += found
            sequences += encoded
            self._progress(Progress(stage.name, len(rows), len(tokens), len(rows), sequences))
        return pl.DataFrame(rows, infer_schema_length=None)
