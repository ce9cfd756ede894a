"""Run work on an engine: compute and commit missing shards, and return all rows in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

import polars as pl

from stickytoken.measurement.engines.local import TokenWork
from stickytoken.measurement.engines.protocol import Engine, P, S, Work
from stickytoken.measurement.progress import Progress, ProgressCallback
from stickytoken.measurement.stage import Shard, Stage
from stickytoken.measurement.store import ResultFolder, ShardCost

_NO_COST = ShardCost(0, 0)


@dataclass(frozen=True)
class Rows(Generic[S]):
    """Keys of the rows of a shard, by which a committed shard is recognised.

    Attributes:
        keys: returns the keys of the rows of a shard, in order.
        column: column that holds the keys.
        size: returns the size of a shard in units of progress.
    """

    keys: Callable[[S], Sequence[int]]
    column: str
    size: Callable[[S], int]


_TOKEN_ROWS: Rows[Shard] = Rows(
    lambda shard: [token.id for token in shard.tokens], "token_id", lambda shard: len(shard.tokens)
)


def run_stage(
    stage: Stage, shards: Sequence[Shard], engine: Engine, folder: ResultFolder, progress: ProgressCallback
) -> pl.DataFrame:
    """Run a stage over tokens; see `run_work`.

    Args:
        stage: probes and measurement.
        shards: all shards of the stage.
        engine: computes shards.
        folder: where shards are committed; the caller holds its lock.
        progress: called after every shard.
    """
    work = TokenWork(stage)
    return pl.concat(
        run_work(stage.name, lambda: (work, _NO_COST), shards, _TOKEN_ROWS, engine, folder, progress)
    )


def run_work(
    name: str,
    make_work: Callable[[], tuple[Work[S, P], ShardCost]],
    shards: Sequence[S],
    rows: Rows[S],
    engine: Engine,
    folder: ResultFolder,
    progress: ProgressCallback,
    title: str | None = None,
) -> list[pl.DataFrame]:
    """Compute the shards that are not committed yet, then return the rows of all shards.

    Only this process writes, because it holds the lock: a worker that lost its connection must not change a
    folder that another process continues.

    Args:
        name: name of the shards.
        make_work: creates the work if anything is missing, and returns its cost, which is added to that of
            the first shard.
        shards: all shards of the work.
        rows: keys and sizes of the shards.
        engine: computes shards.
        folder: where shards are committed; the caller holds its lock.
        progress: called after every shard.
        title: name of the work in progress messages; None is ``name``.

    Returns:
        One table per shard, in order.
    """
    title, total = title or name, sum(rows.size(shard) for shard in shards)
    frames = {
        shard.index: folder.read_shard(name, shard.index, rows.keys(shard), rows.column) for shard in shards
    }
    missing = [shard for shard in shards if frames[shard.index] is None]
    progress(Progress(title, 0, total))
    done = total - sum(rows.size(shard) for shard in missing)
    if done:
        progress(Progress(title, done, total))
    computed = sequences = 0
    if missing:
        work, spent = make_work()
        for found in engine.compute(work, missing):
            cost = found.cost if found.shard.index else found.cost.plus(spent)
            folder.write_shard(name, found.shard.index, found.rows, cost)
            frames[found.shard.index] = pl.DataFrame(list(found.rows), infer_schema_length=None)
            computed += rows.size(found.shard)
            sequences += cost.sequences
            progress(Progress(title, done + computed, total, computed, sequences))
    return [frame for shard in shards if (frame := frames[shard.index]) is not None]
