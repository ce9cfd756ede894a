"""A model behind an OpenAI-compatible endpoint as an encoder of texts, its answers, and what it will cost."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from stickytoken.encoders import protocol
from stickytoken.encoders._tokenizer import HuggingFaceTokenizer
from stickytoken.encoders.endpoint import Address, EndpointOptions, parse_address
from stickytoken.encoders.endpoint._client import Client, Spending, price
from stickytoken.encoders.endpoint._server import Capabilities, discover
from stickytoken.encoders.endpoint.vocabulary import CandidateVocabulary, vocabulary_of
from stickytoken.encoders.loading.resolution import EncoderSpec
from stickytoken.encoders.protocol import shown
from stickytoken.encoders.text_encoder import SENTINELS, TextEncoder, vocabulary_hash
from stickytoken.errors import EncodingError, InputError, ModelError, RunError
from stickytoken.insertion import TokenizedText
from stickytoken.machine import cache_folder
from stickytoken.vocabulary import RoundTripTokenizer

# Requests after which the sentinel texts are sent again.
_CHECKED_EVERY = 200
# What earlier releases wrote into identities.
_KIND = "stickytoken.encoders.endpoint.encoder.EndpointModel"

_FILE = "answers.sqlite"
_QUERIED = 500
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (text BLOB PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class Answers:
    """A cache of answers for several threads and processes: one SQLite file outside of runs."""

    # It holds hashes of texts, their vectors and what was found out about the server; no text, and no key.

    def __init__(self, address: Address, dimensions: int | None) -> None:
        whole = f"{address.base_url}\0{address.model}\0{dimensions}"
        stem = re.sub(r"[^A-Za-z0-9._]+", "-", address.model).strip("-.")[:60]
        name = f"{stem or 'model'}-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"
        self.folder = cache_folder().expanduser() / "endpoints" / name
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def find(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        by_key = {_key(text): text for text in texts}
        keys = list(by_key)
        found = {}
        for start in range(0, len(keys), _QUERIED):
            part = keys[start : start + _QUERIED]
            marks = ",".join("?" * len(part))  # marks only, no value
            rows = self._read(f"SELECT text, vector FROM answers WHERE text IN ({marks})", part)
            found.update({by_key[key]: np.frombuffer(vector, dtype="<f4") for key, vector in rows})
        return found

    def keep(self, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        rows = [(_key(text), vector.astype("<f4").tobytes()) for text, vector in vectors.items()]
        with self._used() as connection, connection:
            connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)

    def fact(self, name: str) -> str | None:
        rows = self._read("SELECT value FROM facts WHERE name = ?", [name])
        return str(rows[0][0]) if rows else None

    def note(self, name: str, value: str) -> None:
        with self._used() as connection, connection:
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def __len__(self) -> int:
        rows = self._read("SELECT COUNT(*) FROM answers")
        return int(rows[0][0]) if rows else 0

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _read(self, query: str, values: Sequence[object] = ()) -> list[tuple[bytes, ...]]:
        if not (self.folder / _FILE).is_file():
            return []
        with self._used() as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        path = self.folder / _FILE
        with self._lock:
            try:
                if self._connection is None:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    connection = sqlite3.connect(path, timeout=30, check_same_thread=False)
                    # Readers and one writer at a time; a kill loses nothing that was committed.
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.execute("PRAGMA synchronous = NORMAL")
                    connection.executescript(_TABLES)
                    self._connection = connection
                yield self._connection
            except (sqlite3.Error, OSError) as error:
                raise RunError(
                    f"the answers in {self.folder} cannot be used ({error}): free space or fix its "
                    f"permissions; if {_FILE} is damaged, move it away, and its answers are requested again"
                ) from error


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


class EndpointEncoder(TextEncoder):
    def __init__(
        self,
        address: Address,
        tokenizer: RoundTripTokenizer,
        prompt: str,
        options: EndpointOptions,
        max_length: int | None,
    ) -> None:
        self.address, self.prompt, self.options = address, prompt, options
        self.name, self.device = address.name, "endpoint"
        self.tokenizer = tokenizer
        self.spec: EncoderSpec | None = None
        self.answers = Answers(address, options.dimensions)
        self.spending = Spending(options.price_per_million, options.max_cost)
        self.before_sending: Callable[[], None] | None = None  # called once, before the first request
        self.waits: Callable[[str, float], None] = lambda reason, seconds: None
        self.refused: dict[str, str] = {}  # texts that the server does not take, and why
        self.unchecked = _CHECKED_EVERY  # before the first request of this process
        # What was found out about the server before, or else is found out now.
        fact = f"capabilities {vocabulary_hash(tokenizer)} {max_length}"
        known = None
        if (noted := self.answers.fact(fact)) is not None:
            with suppress(ValidationError):  # of another version
                known = Capabilities.model_validate_json(noted)
        if known is None:
            tokenizer_known = not isinstance(tokenizer, CandidateVocabulary)
            known = discover(self.client, self.count, max_length, tokenizer_known)
            self.answers.note(fact, known.model_dump_json())
            self.unchecked = 0
        self.capabilities, self.dimension = known, known.dimension
        self._max_length = known.max_length if max_length is None else max_length
        self.noise = known.noise  # standard deviation of a cosine from one call to the next

    @property
    def max_length(self) -> int | None:
        return self._max_length

    @property
    def identity(self) -> protocol.EncoderIdentity:
        # The vectors of fixed texts, as they were first answered, identify the model.
        weights, modules = (
            hashlib.sha256(text.encode()).hexdigest() for text in (self.capabilities.fingerprint, _KIND)
        )
        return protocol.EncoderIdentity(
            weights=weights,
            tokenizer=vocabulary_hash(self.tokenizer),
            modules=modules,
            prompt=self.prompt,
            dtype="float32",
            max_length=self.max_length,
            dimension=self.dimension,
        )

    @cached_property
    def client(self) -> Client:
        return Client(self.address, self.options, self.spending)

    @property
    def _given_tokenizer(self) -> Any:
        return self.tokenizer

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        if not isinstance(self.tokenizer, HuggingFaceTokenizer):
            return super().tokenize(texts)  # its content ids include the prompt
        return self.tokenizer.tokenize(texts, self.prompt)

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.encode_many([self.prompt + text for text in texts])

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        vectors = super().encode(texts, allow_zero=True)
        if not allow_zero:
            for row in np.flatnonzero(~vectors.any(axis=1)).tolist():
                if (why := self.refused.get(self.prompt + texts[row])) is not None:
                    raise EncodingError(
                        f"{self.name}: the server refuses the text {shown(texts[row])} ({why}): "
                        "leave it out, or use shorter sentences or fewer copies"
                    )
            protocol.require_usable(vectors, self.name, lambda row: shown(texts[row]), allow_zero=False)
        return vectors

    def _vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        asked = [self.prompt + text for text in texts]
        found = self.answers.find(asked)
        unanswered = ([text for text in batch if text not in found] for batch in self.batches(asked))
        batches = [batch for batch in unanswered if batch]
        if batches and self.before_sending is not None:
            self.before_sending()
            self.before_sending = None
        known = self.capabilities

        def keep(vectors: Mapping[str, NDArray[np.float32]]) -> None:
            for text, vector in vectors.items():
                if len(vector) != known.dimension:
                    raise EncodingError(
                        f"{self.name}: the vector of the text {shown(text)} has {len(vector)} components, "
                        f"and those before it had {known.dimension}: another model answers under this name"
                    )
            self.answers.keep(vectors)
            found.update(vectors)

        def without_vector(text: str, reason: str) -> None:
            self.refused[text] = reason
            keep({text: np.zeros(known.dimension, np.float32)})

        for start in range(0, len(batches), _CHECKED_EVERY):
            if self.unchecked >= _CHECKED_EVERY:
                self.require_same_model()
            part = batches[start : start + _CHECKED_EVERY]
            self.client.send_all(part, known, self.counted_by_server, keep, without_vector, self.waits)
            self.unchecked += len(part)
        return np.stack([found[text] for text in asked])

    def batches(self, asked: Sequence[str]) -> list[list[str]]:
        # They depend on the texts alone, not on which were answered before: a continued run sends what the
        # uninterrupted one would have sent, for servers whose vectors depend on the request.
        batches: list[list[str]] = []
        tokens = 0
        for length, text in sorted(zip(self.count(asked), asked, strict=True)):
            full = tokens + length > self.capabilities.most_tokens
            if not batches or full or len(batches[-1]) == self.capabilities.batch:
                batches.append([])
                tokens = 0
            batches[-1].append(text)
            tokens += length
        return batches

    def count(self, texts: Sequence[str]) -> list[int]:
        return list(map(len, self.tokenizer.encode_many(texts)))

    def counted_by_server(self, texts: Sequence[str]) -> float:
        known = self.capabilities
        return sum(self.count(texts)) * known.tokens_per_unit + known.overhead * len(texts)

    def require_same_model(self) -> None:
        found: dict[str, NDArray[np.float32]] = {}
        known = self.capabilities
        batches = [SENTINELS[start : start + known.batch] for start in range(0, len(SENTINELS), known.batch)]
        self.client.send_all(batches, known, self.counted_by_server, found.update, waits=self.waits)
        least = known.drift([found[text] for text in SENTINELS])
        if least is not None:
            raise ModelError(
                f"{self.name} has changed: the vectors of fixed texts now have a cosine of "
                f"{least:.4f} to their earlier ones. Finished measurements are kept; for the new model, move "
                f"{self.answers.folder} away and choose another run folder"
            )
        self.unchecked = 0


def load_endpoint(
    name: str,
    tokenizer: Any,
    *,
    candidates: str | Path | Sequence[str] | None = None,
    prompt: str | None = None,
    max_length: int | None = None,
    options: EndpointOptions | None = None,
) -> EndpointEncoder:
    options = options or EndpointOptions()
    address = parse_address(name, options.key_variable)
    vocabulary = vocabulary_of(tokenizer, candidates)
    if vocabulary is None:
        raise InputError(
            f"{name} is behind an endpoint, which hides its vocabulary: pass its tokenizer (a folder, a hub "
            "name, tiktoken:NAME), or a list of candidates if it is unpublished"
        )
    encoder = EndpointEncoder(address, vocabulary, prompt or "", options, max_length)
    sources = [source for source in (tokenizer, candidates) if source is not None]
    if all(isinstance(source, (str, Path)) for source in sources):  # or nobody can load the encoder again
        tokenizer_name, candidates_name = map(_independent, (tokenizer, candidates))
        encoder.spec = EncoderSpec(
            model=name,
            prompting=protocol.Prompting(prompt),
            max_length=max_length,
            vocabulary=tokenizer_name,
            candidates=candidates_name,
            endpoint=options,
        )
    return encoder


def _independent(source: Any) -> str | None:
    path = None if source is None else Path(source).expanduser()
    return None if path is None else str(path.resolve() if path.exists() else source)


@dataclass(frozen=True, slots=True)
class CostEstimate:
    requests: int
    texts: int  # in these requests
    tokens: int  # in these requests, as the server counts them
    answered: int  # texts that it needs too, and that were answered before
    cost: float | None  # price of the tokens; None without a price
    seconds: float  # at the latency that was measured, one request at a time
    # The same with everything that depends on results, where that is not certain.
    most: CostEstimate | None = None


_ROWS = 4099
_SEED = 5
# What tells a text from others, beside its tokens.
_OWN = 0.3


class DryRun(protocol.EncoderWrapper[EndpointEncoder]):
    """An encoder that records the requested texts, and makes up the vectors that are not cached yet."""

    # Such a vector is the mean of one random vector per token and one of the text, so that copies of a token
    # move it as they move a real one.

    def __init__(self, encoder: EndpointEncoder, uncertain: str | None = None) -> None:
        super().__init__(encoder)
        self._uncertain = uncertain
        self._certain: CostEstimate | None = None
        self._asked: set[str] = set()
        self._requests = self._texts = self._answered = 0
        self._tokens = 0.0

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        del allow_zero
        texts = protocol.texts_of(texts)
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        encoder, prompt = self._encoder, self._encoder.prompt
        vectors = encoder.answers.find([prompt + text for text in dict.fromkeys(texts)])
        asked = [prompt + text for text in dict.fromkeys(texts) if text not in self._asked]
        left = [text for text in asked if text not in vectors]
        self._answered += len(asked) - len(left)
        self._texts += len(left)
        self._requests += len(encoder.batches(left))
        self._tokens += encoder.counted_by_server(left)
        self._asked.update(texts)
        new = [text for text in texts if prompt + text not in vectors]
        if getattr(self.tokenizer, "estimates", False):  # the words stand for tokens that are unknown
            words = (text.split() for text in new)
            ids = [[zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in own] for own in words]
        else:
            ids = self.content_ids(new)
        vectors |= {prompt + text: self._vector(own) for text, own in zip(new, ids, strict=True)}
        return np.stack([vectors[prompt + text] for text in texts])

    @property
    def makes_up_vectors(self) -> bool:
        return self._texts > 0  # then a choice by results would mean nothing

    def reached(self, stage: str) -> None:
        if stage == self._uncertain and self._certain is None:
            self._certain = self._noted()

    def estimate(self) -> CostEstimate:
        noted = self._noted()
        if self._certain is None or self._certain.requests == noted.requests:
            return noted
        return replace(self._certain, most=noted)

    def _noted(self) -> CostEstimate:
        encoder, known = self._encoder, self._encoder.capabilities
        # The fixed texts are sent again among so many requests.
        checks = (encoder.unchecked + self._requests) // _CHECKED_EVERY if self._requests else 0
        tokens = self._tokens + checks * encoder.counted_by_server(SENTINELS)
        return CostEstimate(
            requests=self._requests,
            texts=self._texts,
            tokens=round(tokens),
            answered=self._answered,
            cost=price(tokens, encoder.options.price_per_million),
            seconds=self._requests * known.request_seconds + round(tokens) * known.token_seconds,
        )

    @cached_property
    def _table(self) -> NDArray[np.float32]:
        return np.random.default_rng(_SEED).standard_normal((_ROWS, self.dimension), dtype=np.float32)

    def _vector(self, ids: Sequence[int]) -> NDArray[np.float32]:
        whole = np.asarray(ids, dtype=np.int64)
        own = int.from_bytes(hashlib.sha256(whole.tobytes()).digest()[:8], "little") % _ROWS
        mean = self._table[whole % _ROWS].mean(axis=0) if len(ids) else 0.0
        return np.asarray(mean + _OWN * self._table[::-1][own], dtype=np.float32)


def estimate_cost(
    encoder: EndpointEncoder, measurement: Callable[[Any], object], uncertain: str | None = None
) -> CostEstimate:
    """Estimate what a measurement, such as ``lambda dry_run: detect(dry_run, out=folder)``, would cost."""
    dry_run = DryRun(encoder, uncertain)
    measurement(dry_run)
    return dry_run.estimate()
