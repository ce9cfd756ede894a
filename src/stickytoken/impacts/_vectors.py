"""Encode the inputs of all conditions, each distinct input once."""

from __future__ import annotations

import hashlib
import io
import time
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders.protocol import Encoder
from stickytoken.insertion import Probe
from stickytoken.measurement.atomic import write_atomically
from stickytoken.measurement.engines.local import encode_probes, tokenized_probes
from stickytoken.measurement.engines.protocol import Engine
from stickytoken.measurement.store import ShardCost

NO_COST = ShardCost(0, 0)
# Number of inputs without copies that an engine encodes at a time.
SHARD_PROBES = 8192


@dataclass(frozen=True)
class CleanVectors:
    """Vectors of all inputs without copies, shared by all conditions.

    Attributes:
        probes: distinct inputs.
        vectors: shape (n, d).
    """

    probes: tuple[Probe, ...]
    vectors: NDArray[np.float32]

    @cached_property
    def places(self) -> dict[Probe, int]:
        """Row index of each input."""
        return {probe: place for place, probe in enumerate(self.probes)}


class EditedVectors:
    """Encodes the inputs of all repetitions of a token, each distinct one once."""

    def __init__(self, encoder: Encoder, clean: CleanVectors) -> None:
        self._encoder = encoder
        self._clean = clean
        self._edited: dict[Probe, NDArray[np.float32]] = {}

    @property
    def encoded(self) -> int:
        """Number of inputs with copies that were encoded."""
        return len(self._edited)

    def of(self, probes: Sequence[Probe]) -> NDArray[np.float32]:
        """Return the vectors of inputs in order, shape (n, d).

        Args:
            probes: all texts, or all id tuples.
        """
        clean = self._clean.places
        missing = [each for each in dict.fromkeys(probes) if each not in clean and each not in self._edited]
        if missing:
            vectors = encode_probes(self._encoder, tokenized_probes(self._encoder, missing))
            self._edited.update(zip(missing, vectors, strict=True))
        return np.stack(
            [self._clean.vectors[clean[each]] if each in clean else self._edited[each] for each in probes]
        )


@dataclass(frozen=True)
class _ProbeShard:
    index: int
    probes: tuple[Probe, ...]


@dataclass(frozen=True)
class _Encoding:
    """Work that encodes inputs unchanged."""

    name: str

    def prepare(self, shard: _ProbeShard, encoder: Encoder) -> Sequence[Probe]:
        """Tokenize the inputs that are texts."""
        return tokenized_probes(encoder, shard.probes)

    def compute(self, prepared: Sequence[Probe], encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Encode the inputs; return one row with all vectors."""
        return [{"vectors": encode_probes(encoder, prepared)}], len(prepared)


def clean_vectors(
    probes: Iterable[Probe], file: Path, engine: Engine, shard_probes: int = SHARD_PROBES
) -> tuple[CleanVectors, ShardCost]:
    """Encode inputs without copies, or read the vectors that an earlier session committed.

    Sharing the vectors keeps the batches of a continued measurement the same as without an interruption.

    Args:
        probes: all texts, or all id tuples; repeated ones are encoded once.
        file: where the vectors are committed.
        engine: computes the vectors.
        shard_probes: number of inputs that the engine encodes at a time.

    Returns:
        The vectors, and their cost in the session that computed them.
    """
    distinct = tuple(dict.fromkeys(probes))
    key = hashlib.sha256(repr(list(distinct)).encode("utf-8", "surrogatepass")).hexdigest()
    found = _read(file, key)
    if found is None:
        started = time.perf_counter()
        starts = range(0, len(distinct), shard_probes)
        shards = [_ProbeShard(k, distinct[start : start + shard_probes]) for k, start in enumerate(starts)]
        computed = {each.shard.index: each.rows for each in engine.compute(_Encoding(file.stem), shards)}
        vectors = np.concatenate([computed[shard.index][0]["vectors"] for shard in shards])
        found = vectors, time.perf_counter() - started
        seconds = np.array(found[1])
        write_atomically(
            file, lambda stream: np.savez(stream, vectors=vectors, seconds=seconds, key=np.array(key))
        )
    return CleanVectors(distinct, found[0]), ShardCost(found[1], len(distinct))


def _read(file: Path, key: str) -> tuple[NDArray[np.float32], float] | None:
    """Read committed vectors; None if they are missing, damaged or belong to other inputs."""
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as content:
            vectors: NDArray[np.float32] = content["vectors"]  # reading to the end verifies the checksum
            return (vectors, float(content["seconds"])) if str(content["key"]) == key else None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return None
