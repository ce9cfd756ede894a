"""A model behind an OpenAI-compatible endpoint as an encoder of texts, its answers, and what it will cost."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
from stickytoken.encoders.endpoint._cache import Answers
from stickytoken.encoders.endpoint._client import Client, RequestForm, Spending, price
from stickytoken.encoders.endpoint._sending import Sender
from stickytoken.encoders.endpoint._server import Capabilities, discover
from stickytoken.encoders.endpoint.vocabulary import CandidateVocabulary, vocabulary_of
from stickytoken.encoders.loading.resolution import EncoderSpec
from stickytoken.encoders.protocol import shown
from stickytoken.encoders.text_encoder import (
    SENTINELS,
    TextEncoder,
    require_components,
    vocabulary_hash,
)
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.vocabulary import RoundTripTokenizer

# Requests after which the sentinel texts are sent again.
_CHECKED_EVERY = 200
# What earlier releases wrote into identities.
_KIND = "stickytoken.encoders.endpoint.encoder.EndpointModel"


class EndpointEncoder(TextEncoder):
    def __init__(
        self,
        address: Address,
        tokenizer: RoundTripTokenizer,
        prompt: str,
        options: EndpointOptions,
        max_length: int | None,
        truncate_dim: int | None = None,
    ) -> None:
        self.address = address
        self.prompt = prompt
        self.options = options
        self.name = address.name
        self.device = "endpoint"
        self.tokenizer = tokenizer
        self.spec: EncoderSpec | None = None
        self.answers = Answers(address, options.dimensions)
        self.spending = Spending(options.price_per_million, options.max_cost)
        self.before_sending: Callable[[], None] | None = None  # called once, before the first request
        self.waits: Callable[[str, float], None] = lambda reason, seconds: None
        # Texts, with the prompt, for which the server gave no vector in this session, and why.
        self.refused: dict[str, str] = {}
        self.unchecked = _CHECKED_EVERY  # before the first request of this process
        self._form = RequestForm()
        # What was found out about the server before, or else is found out now.
        fact = f"capabilities {vocabulary_hash(tokenizer)} {max_length}"
        noted = self.answers.fact(fact)
        known = None
        if noted is not None:
            with suppress(ValidationError):  # of another version
                known = Capabilities.model_validate_json(noted)
                self._form = known.form
        if known is None:
            tokenizer_known = not isinstance(tokenizer, CandidateVocabulary)
            known = discover(self.client, self.count, max_length, tokenizer_known)
            self.answers.note(fact, known.model_dump_json())
            self.unchecked = 0
        self.capabilities = known
        if truncate_dim is not None:
            require_components(truncate_dim, known.dimension, self.name)
        # The server's vectors are kept whole, and truncated where they are read.
        self.dimension = truncate_dim or known.dimension
        self.truncate_dim = None if self.dimension == known.dimension else truncate_dim
        self._max_length = known.max_length if max_length is None else max_length
        self.noise = known.noise  # standard deviation of a cosine from one call to the next

    @property
    def max_length(self) -> int | None:
        return self._max_length

    @property
    def identity(self) -> protocol.EncoderIdentity:
        # The vectors of fixed texts, as they were first answered, identify the model.
        return protocol.EncoderIdentity(
            weights=hashlib.sha256(self.capabilities.fingerprint.encode()).hexdigest(),
            tokenizer=vocabulary_hash(self.tokenizer),
            modules=hashlib.sha256(_KIND.encode()).hexdigest(),
            prompt=self.prompt,
            dtype="float32",
            max_length=self.max_length,
            dimension=self.dimension,
        )

    @cached_property
    def client(self) -> Client:
        client = Client(self.address, self.options, self.spending)
        client.form = self._form
        return client

    @property
    def refused_texts(self) -> frozenset[str]:
        return frozenset(text.removeprefix(self.prompt) for text in self.refused)

    @property
    def _model_tokenizer(self) -> Any:
        return self.tokenizer

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        if not isinstance(self.tokenizer, HuggingFaceTokenizer):
            return super().tokenize(texts)  # its content ids include the prompt
        return self.tokenizer.tokenize(texts, self.prompt)

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.encode_many([self.prompt + text for text in texts])

    def _require_usable(
        self, vectors: NDArray[np.float32], texts: Sequence[str], *, allow_zero: bool
    ) -> None:
        missing = np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist()
        if not allow_zero and missing:
            text = texts[missing[0]]
            others = f" and {len(missing) - 1:,} others" if len(missing) > 1 else ""
            why = self.refused[self.prompt + text]
            raise EncodingError(
                f"{self.name}: the server gives no vector for the text {shown(text)}{others} ({why}): "
                "leave it out, or use shorter sentences or fewer copies"
            )
        answered = np.delete(np.arange(len(vectors)), missing)
        protocol.require_usable(
            vectors[answered], self.name, lambda row: shown(texts[answered[row]]), allow_zero=allow_zero
        )

    def _vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of texts, from earlier answers or the server; NaN where it gives none."""
        asked = [self.prompt + text for text in texts]
        vectors = self.answers.find(asked)
        unanswered = [text for text in asked if text not in vectors and text not in self.refused]
        refused_before = self.answers.refusals(unanswered)
        to_send: list[list[str]] = []
        for batch in self.batches(asked):
            needed = [
                text
                for text in batch
                if not (text in vectors or text in self.refused or text in refused_before)
            ]
            if needed:
                to_send.append(needed)
        if (to_send or refused_before) and self.before_sending is not None:
            self.before_sending()
            self.before_sending = None

        def keep(new: Mapping[str, NDArray[np.float32]]) -> None:
            for text, vector in new.items():
                if len(vector) != self.dimension:
                    raise EncodingError(
                        f"{self.name}: the vector of the text {shown(text)} has {len(vector)} components, "
                        f"and those before it had {self.dimension}: another model answers under this name"
                    )
            self.answers.keep(new)
            vectors.update(new)

        def without_vector(text: str, reason: str) -> None:
            self.refused[text] = reason
            self.answers.keep_refusal(text, reason)

        sender = self._sender(keep, without_vector)
        # What failed in an earlier session is asked for once more, alone: the server may have been mended.
        self._send(sender, [[text] for text in refused_before], once=True)
        self._send(sender, to_send)
        missing = np.full(self.dimension, np.nan, np.float32)
        return np.stack([vectors.get(text, missing) for text in asked])

    def _send(self, sender: Sender, batches: Sequence[Sequence[str]], *, once: bool = False) -> None:
        """Send batches, and check now and then that the same model still answers."""
        for start in range(0, len(batches), _CHECKED_EVERY):
            if self.unchecked >= _CHECKED_EVERY:
                self.require_same_model()
            part = batches[start : start + _CHECKED_EVERY]
            sender.send_all(part, once=once)
            self.unchecked += len(part)

    def _sender(
        self,
        keep: Callable[[Mapping[str, NDArray[np.float32]]], None],
        without_vector: Callable[[str, str], None] | None = None,
    ) -> Sender:
        return Sender(
            self.client,
            self.counted_by_server,
            self.capabilities.counts_tokens,
            keep,
            without_vector,
            self.waits,
        )

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
        """Send the fixed texts again.

        Raises:
            ModelError: their vectors have changed.
        """
        vectors: dict[str, NDArray[np.float32]] = {}
        size = self.capabilities.batch
        batches = [SENTINELS[start : start + size] for start in range(0, len(SENTINELS), size)]
        self._sender(vectors.update).send_all(batches)
        least = self.capabilities.drift([vectors[text] for text in SENTINELS])
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
    truncate_dim: int | None = None,
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
    encoder = EndpointEncoder(address, vocabulary, prompt or "", options, max_length, truncate_dim)
    sources = [source for source in (tokenizer, candidates) if source is not None]
    if all(isinstance(source, (str, Path)) for source in sources):  # or nobody can load the encoder again
        tokenizer_name, candidates_name = map(_independent, (tokenizer, candidates))
        encoder.spec = EncoderSpec(
            model=name,
            prompting=protocol.Prompting(prompt),
            max_length=max_length,
            truncate_dim=encoder.truncate_dim,
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
        return np.stack([vectors[prompt + text] for text in texts])[:, : encoder.truncate_dim]

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
        components = self._encoder.capabilities.dimension
        return np.random.default_rng(_SEED).standard_normal((_ROWS, components), dtype=np.float32)

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
