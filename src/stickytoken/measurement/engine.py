"""Engines, which use an encoder to compute work shard by shard, and `run_work`, which stores the results."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from stickytoken.encoders.protocol import (
    Encoder,
    EncoderIdentity,
    content_limit,
    quote_text,
    reads_ids,
    require_ids,
    require_usable,
)
from stickytoken.encoders.roles import Role, in_role
from stickytoken.errors import EncodingError
from stickytoken.insertion import Probe, Token
from stickytoken.machine import Precision
from stickytoken.measurement import ShardCost

RowValue: TypeAlias = float | str | list[float] | list[int] | NDArray[np.floating[Any]]
"""A value in a row of a stage: a number, a text, or several numbers."""

# Column of a shard. It has, for each token, a text that a server gave no vector for, or null if there is no
# such text. The column is absent if it would have only nulls.
UNANSWERED = "unanswered"

# The number of shards is rounded up to a multiple of this, so that one, two or four workers get equal numbers
# of shards.
_SHARD_MULTIPLE = 4
# The number of shards is not rounded up if shards would then be smaller than this fraction of the requested
# size.
_LEAST_SHARD = 1 / 8


class Stage(Protocol):
    """One pass over tokens: defines which texts to encode per token, and what to compute from their vectors.

    A stage does not encode anything itself. `BatchStage` and `CopyCountingStage` are optional extensions.
    """

    @property
    def name(self) -> str:
        """Name of the stage and its shards."""

    @property
    def probes_per_token(self) -> int:
        """Maximum number of texts that are encoded for a token."""

    @property
    def precision(self) -> Precision | None:
        """Precision to run the model in; if None, the model's own."""

    def probes(self, token: Token) -> Sequence[Probe]:
        """Return the inputs to encode for a token, either all as texts or all as tuples of token ids."""

    def measure(self, token: Token, vectors: NDArray[np.float32]) -> Mapping[str, RowValue]:
        """Compute a token's row from the vectors of its probes, shape (probes, d)."""


@runtime_checkable
class BatchStage(Protocol):
    """A stage that can also measure many tokens in one call, which is faster."""

    def measure_all(
        self, tokens: Sequence[Token], vectors: NDArray[np.float32]
    ) -> Sequence[Mapping[str, RowValue]]:
        """Compute a row for each token from the vectors of all probes, in the order of the tokens."""


@runtime_checkable
class CopyCountingStage(Protocol):
    """A stage that needs to know how many of the inserted copies the tokenizer recognizes.

    A copy in a text is not recognized if the tokenizer splits it, or merges it with its neighbours. The
    engine counts the recognized copies in each probe, and adds the counts to the token's row as ``seen``.
    """

    @property
    def carrier_texts(self) -> Sequence[str]:
        """The texts of a token's probes, in order, without the copies; empty if no copies are counted."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Tokens that are measured and stored together. ``index`` is the position of the shard in its stage."""

    index: int
    tokens: tuple[Token, ...]


def cut_into_shards(tokens: Sequence[Token], probes_per_token: int, shard_probes: int) -> list[Shard]:
    """Divide tokens into shards of nearly equal size, each with at most ``shard_probes`` probes if possible.

    The number of shards is rounded up to a multiple of `_SHARD_MULTIPLE`, unless shards would then have fewer
    than an eighth of ``shard_probes`` probes.
    """
    probes_per_token = max(1, probes_per_token)
    count = math.ceil(len(tokens) / max(1, shard_probes // probes_per_token))
    rounded_count = math.ceil(count / _SHARD_MULTIPLE) * _SHARD_MULTIPLE
    least_probes = rounded_count * shard_probes * _LEAST_SHARD
    if rounded_count <= len(tokens) and len(tokens) * probes_per_token >= least_probes:
        count = rounded_count
    ends = [len(tokens) * index // max(1, count) for index in range(count + 1)]
    return [
        Shard(index, tuple(tokens[start:stop]))
        for index, (start, stop) in enumerate(itertools.pairwise(ends))
    ]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a stage, counted in tokens or in another unit of work.

    Attributes:
        stage: name of the stage.
        done: number of finished units, including units of earlier sessions.
        total: total number of units.
        computed: number of units computed in this session.
        sequences: number of texts that were encoded for this stage in this session.
        note: a message to show to the user once.
        unit: plural name of the unit, such as "documents". If this name is empty, no rate is shown, because
            a user could not tell what the rate counts.
    """

    stage: str
    done: int
    total: int
    computed: int = 0
    sequences: int = 0
    note: str = ""
    unit: str = ""


ProgressCallback: TypeAlias = Callable[[Progress], None]


def ignore_progress(_: Progress) -> None:
    """A progress callback that does nothing."""


class AnyShard(Protocol):
    """A part of a `Work`. ``index`` is the position of the part in the work, from 0."""

    @property
    def index(self) -> int: ...


S = TypeVar("S", bound=AnyShard)
S_contra = TypeVar("S_contra", bound=AnyShard, contravariant=True)
P = TypeVar("P")


class Work(Protocol[S_contra, P]):
    """Work that an engine executes shard by shard. Work can be pickled, and needs only an encoder to run."""

    @property
    def name(self) -> str: ...

    def prepare(self, shard: S_contra, encoder: Encoder) -> P:
        """Return the inputs of a shard. This may run while the model computes the previous shard."""

    def compute(self, prepared: P, encoder: Encoder) -> tuple[Sequence[Mapping[str, Any]], int]:
        """Return the rows of a shard, and the number of texts that were encoded for them."""


@dataclass(frozen=True, slots=True)
class ComputedShard(Generic[S]):
    """A shard with its rows and its cost."""

    shard: S
    rows: Sequence[Mapping[str, Any]]
    cost: ShardCost


@runtime_checkable
class Engine(Protocol):
    """Computes shards with a model, in this process or elsewhere."""

    def identify(self) -> EncoderIdentity:
        """Return the identity of the model."""

    def compute(self, work: Work[S, P], shards: Sequence[S]) -> Iterator[ComputedShard[S]]:
        """Yield the result of every shard as soon as it is computed, in any order."""


class LocalEngine:
    """Computes shards in this process, while another thread prepares the next shard."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def identify(self) -> EncoderIdentity:
        return self._encoder.identify()

    def compute(self, work: Work[S, P], shards: Sequence[S]) -> Iterator[ComputedShard[S]]:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="probes") as executor:
            preparations = [executor.submit(work.prepare, shard, self._encoder) for shard in shards[:1]]
            for position, shard in enumerate(shards):
                if position + 1 < len(shards):
                    next_shard = shards[position + 1]
                    preparations.append(executor.submit(work.prepare, next_shard, self._encoder))
                started = time.perf_counter()
                prepared = preparations.pop(0).result()
                rows, sequences = work.compute(prepared, self._encoder)
                yield ComputedShard(shard, rows, ShardCost(time.perf_counter() - started, sequences))


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The probes of a shard, in the order of the tokens.

    Attributes:
        tokens: the T tokens of the shard.
        counts: number of probes of each token, shape (T,).
        probes: the P probes of all tokens, as token ids, or as texts if the encoder reads only texts.
        copies_seen: for each token, the number of copies that the tokenizer recognizes in each probe; empty
            if the stage does not count copies.
    """

    tokens: Sequence[Token]
    counts: Sequence[int]
    probes: Sequence[Probe]
    copies_seen: Sequence[list[int]]


@dataclass(frozen=True, slots=True)
class TokenWork:
    """The work of measuring tokens with a stage.

    Attributes:
        stage: defines which texts to encode, and what to compute from their vectors.
        truncate: whether texts that are too long for the model are truncated, as the model itself would do.
    """

    stage: Stage
    truncate: bool = False

    @property
    def name(self) -> str:
        return self.stage.name

    def prepare(self, shard: Shard, encoder: Encoder) -> _Prepared:
        """Return the probes of a shard, and the numbers of recognized copies if the stage counts copies.

        The probes are tokenized if the encoder reads token ids.
        """
        by_token = [self.stage.probes(token) for token in shard.tokens]
        probes = [probe for of_token in by_token for probe in of_token]
        counts = [len(of_token) for of_token in by_token]
        copies_seen: list[list[int]] = []
        if isinstance(self.stage, CopyCountingStage) and self.stage.carrier_texts:
            copies_seen = _copies_seen(encoder, shard.tokens, probes, self.stage.carrier_texts)
        inputs = tokenize_probes(encoder, probes, self.truncate)
        return _Prepared(shard.tokens, counts, inputs, copies_seen)

    def compute(self, prepared: _Prepared, encoder: Encoder) -> tuple[list[dict[str, Any]], int]:
        """Encode the probes of a shard, and measure its tokens with the stage.

        Returns:
            One row per token, and the number of probes. A row has the column ``token_id`` and the columns of
            the stage. If the stage counts copies (see `CopyCountingStage`), a row also has the column
            ``seen``, with the number of recognized copies in each probe. If a server gave no vector for at
            least one probe of the shard, all rows have the column `UNANSWERED`.
        """
        stage = self.stage
        tokens = prepared.tokens
        vectors = encode_probes(encoder, prepared.probes, stage.precision)
        unanswered_texts = _fill_unanswered(vectors, prepared, encoder.name)
        measurements: Sequence[Mapping[str, Any]]
        if isinstance(stage, BatchStage):
            measurements = stage.measure_all(tokens, vectors)
        else:
            by_token = np.split(vectors, np.cumsum(prepared.counts)[:-1])
            measurements = [
                stage.measure(token, of_token) for token, of_token in zip(tokens, by_token, strict=True)
            ]
        rows: list[dict[str, Any]] = [
            {"token_id": token.id, **numbers} for token, numbers in zip(tokens, measurements, strict=True)
        ]
        if prepared.copies_seen:
            for row, copies in zip(rows, prepared.copies_seen, strict=True):
                row["seen"] = copies
        if unanswered_texts:
            for index, row in enumerate(rows):
                row[UNANSWERED] = unanswered_texts.get(index)
        return rows, len(prepared.probes)


def _copies_seen(
    encoder: Encoder, tokens: Sequence[Token], probes: Sequence[Probe], carrier_texts: Sequence[str]
) -> list[list[int]]:
    carriers = encoder.content_ids(carrier_texts)
    text_probes = [probe for probe in probes if isinstance(probe, str)]
    probe_ids = encoder.content_ids(text_probes)
    copies_of_tokens: list[list[int]] = []
    for position, token in enumerate(tokens):
        start = position * len(carriers)
        own_ids = probe_ids[start : start + len(carriers)]
        of_token = []
        for ids, carrier in zip(own_ids, carriers, strict=True):
            added = ids.count(token.id) - carrier.count(token.id)
            of_token.append(max(0, added))
        copies_of_tokens.append(of_token)
    return copies_of_tokens


def _fill_unanswered(vectors: NDArray[np.float32], prepared: _Prepared, name: str) -> dict[int, str]:
    """Replace vectors that a server did not return, so that methods need not handle missing vectors.

    If the vector of a token's n-th probe is missing, the mean over the other tokens' n-th probes takes its
    place. The results of tokens with a missing vector are removed later; see `Runner.unanswered`.

    Returns:
        For each token with a missing vector, its first text for which the server gave no vector. The texts
        are keyed by the token's position in the shard.

    Raises:
        EncodingError: the vector of the same probe is missing for all tokens of the shard.
    """
    missing = np.isnan(vectors[:, 0])
    unanswered: dict[int, str] = {}
    if not missing.any():
        return unanswered
    token_of_probe = np.repeat(np.arange(len(prepared.counts)), prepared.counts)
    number_of_probe = np.concatenate([np.arange(count) for count in prepared.counts])
    for row in np.flatnonzero(missing).tolist():
        text = str(prepared.probes[row])
        unanswered.setdefault(int(token_of_probe[row]), text)
        answered = vectors[(number_of_probe == number_of_probe[row]) & ~missing]
        if not len(answered):
            raise EncodingError(
                f"{name}: the server gives no vector for the text {quote_text(text)}, nor for this text "
                "with other tokens: leave the token out, or use shorter sentences or fewer copies"
            )
        vectors[row] = answered.mean(axis=0)
    return unanswered


def tokenize_probes(encoder: Encoder, probes: Sequence[Probe], truncate: bool = False) -> Sequence[Probe]:
    """Return the probes as token ids if the encoder reads token ids; otherwise, return the probes unchanged.

    Args:
        encoder: the model.
        probes: the probes, either all as texts or all as tuples of token ids.
        truncate: whether to truncate texts to the model's limit.
    """
    texts = [probe for probe in probes if isinstance(probe, str)]
    if not texts or not reads_ids(encoder):
        return probes
    limit = content_limit(encoder) if truncate else None
    return [tuple(ids[:limit]) for ids in encoder.content_ids(texts)]


def encode_probes(
    encoder: Encoder, probes: Sequence[Probe], precision: Precision | None = None
) -> NDArray[np.float32]:
    """Encode probes, and return their vectors, shape (P, d).

    If a server does not encode a text, the row of the text is NaN.

    Args:
        encoder: the model.
        probes: the P probes, either all as texts or all as tuples of token ids.
        precision: precision to run the model in, which requires that the probes are token ids; if None, the
            model's own precision.
    """
    texts = [probe for probe in probes if isinstance(probe, str)]
    if texts and precision is None:
        # `allow_zero` is set to allow rows of NaN. It also allows zero vectors, which are refused here.
        vectors = encoder.encode(texts, allow_zero=True)
        answered = np.flatnonzero(~np.isnan(vectors).any(axis=1)).tolist()
        require_usable(
            vectors[answered], encoder.name, lambda row: quote_text(texts[answered[row]]), allow_zero=False
        )
        return vectors
    ids = [probe for probe in probes if not isinstance(probe, str)]
    return require_ids(encoder, "insertion 'ids' or a lower precision").at(precision).encode_ids(ids)


@dataclass(frozen=True)
class Rows(Generic[S]):
    """Defines which rows the stored table of a shard must have.

    Attributes:
        keys: returns the keys of a shard's rows, in order.
        column: name of the column with the keys.
        size: returns a shard's size in units of progress.
        unit: plural name of the unit; empty if it has none.
    """

    keys: Callable[[S], Sequence[int]]
    column: str
    size: Callable[[S], int]
    unit: str = ""


class ShardStore(Protocol):
    """Keeps computed shards: a `ResultFolder`, or `MemoryShards`."""

    def read_shard(
        self, stage: str, index: int, keys: Sequence[int], key: str = "token_id"
    ) -> pl.DataFrame | None:
        """Return the rows of a shard; None unless it is kept and has the expected keys."""

    def write_shard(
        self, stage: str, index: int, rows: Sequence[Mapping[str, Any]], cost: ShardCost
    ) -> pl.DataFrame:
        """Keep a shard, and return its rows."""


class MemoryShards:
    """Keeps the shards of a measurement that writes no files."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, int], pl.DataFrame] = {}

    def read_shard(
        self, stage: str, index: int, keys: Sequence[int], key: str = "token_id"
    ) -> pl.DataFrame | None:
        """Return the rows of a shard; None unless it is kept and has the expected keys."""
        frame = self._frames.get((stage, index))
        return frame if frame is not None and frame[key].to_list() == list(keys) else None

    def write_shard(
        self, stage: str, index: int, rows: Sequence[Mapping[str, Any]], cost: ShardCost
    ) -> pl.DataFrame:
        """Keep a shard, and return its rows."""
        del cost
        frame = pl.DataFrame(list(rows), infer_schema_length=None)
        self._frames[stage, index] = frame
        return frame


def run_work(
    name: str,
    make_work: Callable[[], tuple[Work[S, P], ShardCost]],
    shards: Sequence[S],
    rows: Rows[S],
    engine: Engine,
    folder: ShardStore,
    progress: ProgressCallback,
    title: str | None = None,
) -> list[pl.DataFrame]:
    """Compute the shards that a folder lacks, write them to the folder, and return the tables of all shards.

    Args:
        name: name of the stage, under which its shards are stored.
        make_work: prepares the work, and returns the work and the cost of its preparation. ``make_work`` is
            not called if the folder already has all shards.
        shards: all shards of the work.
        rows: defines which rows the stored table of a shard must have.
        engine: computes the shards.
        folder: keeps the shards.
        progress: called before the first shard, and then after every shard.
        title: name of the stage in progress reports; if None, ``name``.

    Returns:
        One table per shard, in the order of ``shards``.
    """
    title = title or name
    total = sum(rows.size(shard) for shard in shards)
    frames: dict[int, pl.DataFrame] = {}
    missing: list[S] = []
    for shard in shards:
        frame = folder.read_shard(name, shard.index, rows.keys(shard), rows.column)
        if frame is None:
            missing.append(shard)
        else:
            frames[shard.index] = frame
    done = total - sum(rows.size(shard) for shard in missing)
    progress(Progress(title, 0, total, unit=rows.unit))
    if done:
        progress(Progress(title, done, total, unit=rows.unit))
    computed = 0
    sequences = 0
    if missing:
        work, preparation = make_work()
        for result in engine.compute(work, missing):
            index = result.shard.index
            cost = result.cost
            # The cost of the preparation is stored only once, with the first shard, even if the work is
            # prepared again when a run is resumed.
            if index == 0:
                cost = ShardCost(cost.seconds + preparation.seconds, cost.sequences + preparation.sequences)
            frames[index] = folder.write_shard(name, index, result.rows, cost)
            computed += rows.size(result.shard)
            sequences += cost.sequences
            progress(Progress(title, done + computed, total, computed, sequences, unit=rows.unit))
    return [frames[shard.index] for shard in shards]


# Number of texts per shard. Encoding one shard takes about 10 seconds on one core.
_SHARD_TEXTS = 128
# Column of a shard of texts, with the position of each text.
_POSITION = "text"


@dataclass(frozen=True, slots=True)
class TextShard:
    """Consecutive texts that are encoded together; ``first`` is the position of the first among all texts."""

    index: int
    first: int
    probes: tuple[Probe, ...]

    @property
    def positions(self) -> list[int]:
        """Positions of the texts, which are the keys of the shard's rows."""
        return list(range(self.first, self.first + len(self.probes)))


@dataclass(frozen=True, slots=True)
class TextWork:
    """Encodes texts; the result has one row per text, with its vector."""

    name: str
    role: Role

    def prepare(self, shard: TextShard, encoder: Encoder) -> tuple[list[int], Sequence[Probe]]:
        return shard.positions, tokenize_probes(in_role(encoder, self.role), shard.probes)

    def compute(
        self, prepared: tuple[list[int], Sequence[Probe]], encoder: Encoder
    ) -> tuple[list[dict[str, Any]], int]:
        positions, probes = prepared
        vectors = encode_probes(in_role(encoder, self.role), probes)
        missing = np.flatnonzero(np.isnan(vectors[:, 0]))
        if len(missing):
            text = quote_text(str(probes[missing[0]]))
            raise EncodingError(f"{encoder.name}: the server gives no vector for the text {text}")
        rows = [
            {_POSITION: position, "vector": vector}
            for position, vector in zip(positions, vectors, strict=True)
        ]
        return rows, len(rows)


def encode_in_shards(
    name: str,
    probes: Sequence[Probe],
    engine: Engine,
    folder: ShardStore,
    progress: ProgressCallback,
    role: Role = Role.DOCUMENT,
) -> NDArray[np.float32]:
    """Encode texts of a role shard by shard, but none that the folder has from an interrupted session.

    Args:
        name: name under which the folder keeps the vectors.
        probes: the texts, all as texts or all as tuples of token ids.
        engine: computes the shards.
        folder: keeps the shards.
        progress: called after every shard.
        role: what the texts are for.

    Returns:
        The vectors, shape (texts, d).
    """
    shards = []
    for index, first in enumerate(range(0, len(probes), _SHARD_TEXTS)):
        shards.append(TextShard(index, first, tuple(probes[first : first + _SHARD_TEXTS])))
    rows: Rows[TextShard] = Rows(
        keys=lambda shard: shard.positions,
        column=_POSITION,
        size=lambda shard: len(shard.probes),
        unit="texts",
    )
    work = TextWork(name, role)
    frames = run_work(name, lambda: (work, ShardCost(0, 0)), shards, rows, engine, folder, progress)
    return np.concatenate([np.array(frame["vector"].to_list(), dtype=np.float32) for frame in frames])
