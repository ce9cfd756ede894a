"""Run a stage on an engine: what is missing is computed and committed, all rows come back in order."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from stickytoken.measurement.engines.protocol import Engine
from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.measurement.stage import Shard, Stage
from stickytoken.measurement.store import ResultFolder


def run_stage(
    stage: Stage, shards: Sequence[Shard], engine: Engine, folder: ResultFolder, progress: ProgressCallback
) -> pl.DataFrame:
    """Compute the shards that are not committed yet, then return all rows in order.

    This process alone writes, whoever computes: it holds the lock, and a worker that lost touch with it
    must not change a folder that somebody else continues.

    Args:
        stage: probes and measurement.
        shards: the whole stage.
        engine: computes shards.
        folder: where shards are committed; the caller holds its lock.
        progress: told after every shard.
    """
    total = sum(len(shard.tokens) for shard in shards)
    frames = {shard.index: folder.read_shard(stage.name, shard.index, _ids(shard)) for shard in shards}
    missing = [shard for shard in shards if frames[shard.index] is None]
    progress(Progress(stage.name, 0, total))
    done = total - sum(len(shard.tokens) for shard in missing)
    if done:
        progress(Progress(stage.name, done, total))
    computed = sequences = 0
    for found in engine.compute(stage, missing) if missing else ():
        folder.write_shard(stage.name, found.shard.index, found.rows, found.cost)
        frames[found.shard.index] = pl.DataFrame(list(found.rows), infer_schema_length=None)
        computed += len(found.shard.tokens)
        sequences += found.cost.sequences
        progress(Progress(stage.name, done + computed, total, computed, sequences))
    return pl.concat([frame for shard in shards if (frame := frames[shard.index]) is not None])


def _ids(shard: Shard) -> list[int]:
    return [token.id for token in shard.tokens]
