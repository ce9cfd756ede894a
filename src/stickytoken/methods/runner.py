"""Run the stages of a measurement on an engine, and keep what they measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder, quote_text
from stickytoken.encoders.roles import Role
from stickytoken.errors import EncodingError
from stickytoken.insertion import Probe, Token
from stickytoken.machine import Precision
from stickytoken.measurement.engine import (
    Engine,
    Item,
    LocalEngine,
    Prepared,
    Progress,
    ProgressCallback,
    Shard,
    Work,
)
from stickytoken.measurement.stages import UNANSWERED, Stage, TokenWork, cut_into_shards
from stickytoken.measurement.store import ResultFolder
from stickytoken.measurement.texts import TextWork, cut_texts_into_shards

# Number of texts in a shard. A killed run loses the current shard, so shards should be small; but a shard
# needs enough texts of every length to fill batches.
SHARD_PROBES = 8192
# Number of texts in a shard on a CUDA GPU, which encodes them in a second or two. Smaller shards would leave
# parts of the GPU idle.
GPU_SHARD_PROBES = 32768


def shard_probes_for(device: str) -> int:
    return GPU_SHARD_PROBES if device.startswith("cuda") else SHARD_PROBES


# Number of texts in a shard that is not kept in a folder; small, so that progress is reported often.
_MEMORY_SHARD_PROBES = 2048
# Beginning of the reason why a token has no verdict, if the server gave no vector for one of its texts.
UNANSWERED_REASON = "not judged: the server gives no vector for the text"
# Columns of a token table that come from the vocabulary. All other columns hold measurements.
_OF_VOCABULARY = ("token_id", "token", "decoded", "category")


@dataclass
class Runner:
    """Runs the stages of a measurement on an engine, and keeps their shards.

    Attributes:
        engine: computes the shards.
        folder: keeps the shards; None for a measurement that writes no files.
        progress: called after every shard.
        shard_probes: number of texts in a shard.
        unanswered: for each token that could not be measured, a text that the server gave no vector for,
            keyed by token id.
    """

    engine: Engine
    folder: ResultFolder | None
    progress: ProgressCallback
    shard_probes: int = SHARD_PROBES
    unanswered: dict[int, str] = field(default_factory=dict)

    @classmethod
    def in_memory(
        cls, encoder: Encoder, progress: ProgressCallback, shard_probes: int = _MEMORY_SHARD_PROBES
    ) -> Runner:
        """Return a runner that computes in this process and writes no files."""
        return cls(LocalEngine(encoder), None, progress, shard_probes)

    def __call__(
        self,
        stage: Stage,
        tokens: Sequence[Token],
        *,
        precision: Precision | None = None,
        truncate: bool = False,
        carrier_texts: Sequence[str] = (),
    ) -> pl.DataFrame:
        """Run a stage and return one row per token. The keyword arguments are those of `TokenWork`."""
        shards = cut_into_shards(tokens, stage.probes_per_token, self.shard_probes)
        work = TokenWork(stage, precision, truncate, carrier_texts)
        # Only shards in which a text has no vector have the column `UNANSWERED`.
        table = pl.concat(self.run_work(work, shards), how="diagonal")
        if UNANSWERED in table.columns:
            incomplete = table.filter(pl.col(UNANSWERED).is_not_null())
            for token_id, text in incomplete.select("token_id", UNANSWERED).rows():
                self.unanswered.setdefault(token_id, text)  # keep the text of an earlier stage
            table = table.drop(UNANSWERED)
        return table

    def run_work(self, work: Work[Item, Prepared], shards: Sequence[Shard[Item]]) -> list[pl.DataFrame]:
        """Compute the shards that the folder lacks, write them into it, and return the tables of all shards.

        Without a folder, all shards are computed.

        Args:
            work: the work. Its shards are stored under its name.
            shards: all shards of the work.

        Returns:
            One table per shard, in the order of ``shards``.
        """
        if self.folder is not None:
            self.folder.begin()
        total = sum(len(shard.items) for shard in shards)
        tables: dict[int, pl.DataFrame] = {}  # keyed by the index of the shard
        missing: list[Shard[Item]] = []
        for shard in shards:
            table = None
            if self.folder is not None:
                table = self.folder.read_shard(work.name, shard.index, work.keys(shard), work.key_column)
            if table is None:
                missing.append(shard)
            else:
                tables[shard.index] = table
        done_earlier = total - sum(len(shard.items) for shard in missing)
        self.progress(Progress(work.name, done_earlier, total, unit=work.unit))
        computed = 0
        sequences = 0
        for result in self.engine.compute(work, missing):
            index = result.shard.index
            if self.folder is None:
                tables[index] = pl.DataFrame(list(result.rows), infer_schema_length=None)
            else:
                tables[index] = self.folder.write_shard(work.name, index, result.rows, result.cost)
            computed += len(result.shard.items)
            sequences += result.cost.sequences
            done = done_earlier + computed
            self.progress(Progress(work.name, done, total, computed, sequences, unit=work.unit))
        if self.folder is not None:
            # An earlier session may have divided the work into more shards. `ResultFolder.total_cost` would
            # count their texts too.
            self.folder.remove_shards_from(work.name, len(shards))
        return [tables[shard.index] for shard in shards]

    def encode(self, name: str, probes: Sequence[Probe], role: Role = Role.DOCUMENT) -> NDArray[np.float32]:
        """Return the vectors of texts of a role, shape (texts, d), and store them under a name.

        Raises:
            EncodingError: a server gives no vector for a text.
        """
        tables = self.run_work(TextWork(name, role), cut_texts_into_shards(probes))
        return np.concatenate([np.array(table["vector"].to_list(), dtype=np.float32) for table in tables])

    def require_answers(self, tokens: Sequence[Token]) -> None:
        """Raise an EncodingError if one of the tokens could not be measured."""
        for token in tokens:
            if token.id in self.unanswered:
                text = quote_text(self.unanswered[token.id])
                raise EncodingError(
                    f"{token.text!r} (token id {token.id}) cannot be measured, because the server gives no "
                    f"vector for the text {text}: leave the token out"
                )

    def without_unanswered(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return the table tokens.parquet without the measurements and verdicts of `unanswered` tokens.

        Their measurements become null, and their number of texts 0. If the table has a ``reason`` column, it
        quotes the text that the server gave no vector for.
        """
        if not self.unanswered:
            return table
        is_unanswered = pl.col("token_id").is_in(list(self.unanswered))
        for name in table.columns:
            if name not in _OF_VOCABULARY:
                unmeasured = 0 if name == "texts" else None  # the column "texts" has the number of texts
                known = pl.when(is_unanswered).then(unmeasured).otherwise(pl.col(name))
                table = table.with_columns(known.alias(name))
        if "reason" not in table.columns:
            return table
        reasons = {
            token_id: f"{UNANSWERED_REASON} {quote_text(text)}" for token_id, text in self.unanswered.items()
        }
        new_reason = pl.col("token_id").replace_strict(reasons, default=None, return_dtype=pl.String)
        reason = pl.when(is_unanswered).then(new_reason).otherwise(pl.col("reason"))
        return table.with_columns(reason.alias("reason"))
