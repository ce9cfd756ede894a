"""Run work on an engine: what is missing is computed and committed, all rows come back in order."""

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
    """What the rows of a shard are about, by which a committed shard is known again.

    Attributes:
        keys: of the rows of a shard, in order.
        column: of the rows that holds them.
        size: of a shard, as progress counts it.
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
        shards: the whole stage.
        engine: computes shards.
        folder: where shards are committed; the caller holds its lock.
        progress: told after every shard.
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
    """Compute the shards that are not committed yet, then return the rows of all, shard by shard.

    This process alone writes, whoever computes: it holds the lock, and a worker that lost touch with it
    must not change a folder that somebody else continues.

    Args:
        name: of the work's shards.
        make_work: makes the work if anything is missing, and says what that took, which is counted with the
            first shard.
        shards: the whole work.
        rows: what the rows of a shard are about.
        engine: computes shards.
        folder: where shards are committed; the caller holds its lock.
        progress: told after every shard.
        title: what progress calls the work; None is its name.
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
