"""The encoder of a model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from stickytoken.encoders import protocol
from stickytoken.encoders.endpoint import Address, parse_address
from stickytoken.encoders.endpoint._cache import AnswerCache
from stickytoken.encoders.endpoint._client import MOST_TEXTS, Client, Spending
from stickytoken.encoders.endpoint._sending import Sender
from stickytoken.encoders.endpoint._server import ServerBehaviour, ask_server, vectors_of_fixed_texts
from stickytoken.encoders.endpoint.vocabulary import CandidateVocabulary, vocabulary_of
from stickytoken.encoders.files.spec import EncoderSpec
from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer
from stickytoken.encoders.protocol import ENDPOINT_DEVICE, quote_text
from stickytoken.encoders.roles import Role
from stickytoken.encoders.text_encoder import TextEncoderBase, require_components, vocabulary_hash
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.settings.endpoint import EndpointOptions
from stickytoken.validation import file_path
from stickytoken.vocabulary import RoundTripTokenizer

CHECKED_EVERY = 40
"""Number of requests after which the fixed texts are sent again, to check that the same model answers.

A check is two requests with seven short texts, so that checks add at most 5% to the requests of many small
calls, and far fewer tokens. With fewer requests between checks, this share rises; with more, more answers are
forgotten and asked for again after a check fails.
"""
# Maximum number of tokens in a request, far below the sizes that servers refuse.
_MOST_TOKENS = 8192
# Part of every endpoint model's identity, in place of its modules.
_IDENTITY_NAME = "stickytoken.encoders.endpoint.encoder.EndpointModel"


@dataclass
class Session:
    """What the encoders of all roles share, because they send through one client.

    Attributes:
        requests_since_check: number of requests since the fixed texts were last sent to check the model.
        before_sending: called once, before the first texts are sent; None afterwards.
        waits: called before a pause of at least a second, with the reason and the length in seconds.
        client: sends the requests; None before the first.
    """

    requests_since_check: int
    before_sending: Callable[[], None] | None = None
    waits: Callable[[str, float], None] = lambda reason, seconds: None
    client: Client | None = None


class EndpointEncoder(TextEncoderBase):
    """Encodes texts through a server, and caches the server's answers.

    Attributes:
        answer_cache: the cache of vectors and refusals, shared with other sessions.
        server: what the server said about the fixed texts.
        spending: the cost of all requests that this process made.
        refused: the server's reasons for giving no vector in this session, keyed by text including the
            prompt.
        session: what this encoder shares with the encoders of other roles.
        spec: the name and options needed to load the encoder again; None if that is impossible.
    """

    def __init__(
        self,
        address: Address,
        tokenizer: RoundTripTokenizer,
        options: EndpointOptions,
        spec: EncoderSpec,
    ) -> None:
        """Load what the server said about the fixed texts from the cache, or ask the server.

        Args:
            address: the server and the name of the model.
            tokenizer: the model's tokenizer, or a vocabulary of candidate strings in place of it.
            options: the options for the server, such as the variable that holds the key, the price of tokens,
                and the spending and time limits.
            spec: prompts, maximum length and dimension. If the maximum length is None, the server decides,
                and a text that it refuses has no vector.
        """
        truncate_dim = spec.truncate_dim
        super().__init__(address.name, ENDPOINT_DEVICE, truncate_dim)
        self.address = address
        self.prompt = spec.prompting.prompt or ""
        query_prompt = spec.prompting.query_prompt
        self._prompts = {None: self.prompt, Role.DOCUMENT: self.prompt, Role.QUERY: query_prompt}
        self.options = options
        self._tokenizer = tokenizer
        self.spec: EncoderSpec | None = None
        self.answer_cache = AnswerCache(address, options)
        self.spending = Spending(options.price_per_million, options.max_cost)
        self.refused: dict[str, str] = {}
        # If the server's behaviour comes from the cache, it may be outdated, so the model is checked before
        # the first request.
        self.session = Session(requests_since_check=CHECKED_EVERY)
        self.server = self._recall_or_ask(spec.max_length)
        components = self.server.dimension
        if truncate_dim is not None:
            require_components(truncate_dim, components, self.name)
        # The cache holds the server's full vectors, which are truncated on reading.
        self._dimension = truncate_dim or components
        self.truncate_dim = None if self._dimension == components else truncate_dim
        self._max_length = spec.max_length

    def _recall_or_ask(self, max_length: int | None) -> ServerBehaviour:
        fact_name = f"server {vocabulary_hash(self.tokenizer)}"
        stored = self.answer_cache.fact(fact_name)  # the cache also stores facts about the server
        if stored is not None:
            with suppress(ValidationError):  # raised for a record of another version
                return ServerBehaviour.model_validate_json(stored)
        tokenizer_known = not isinstance(self.tokenizer, CandidateVocabulary)
        behaviour = ask_server(self.client, self.count_tokens, max_length, tokenizer_known)
        self.answer_cache.note(fact_name, behaviour.model_dump_json())
        self.session.requests_since_check = 0
        return behaviour

    @property
    def max_length(self) -> int | None:
        return self._max_length

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def tokenizer(self) -> RoundTripTokenizer:
        return self._tokenizer

    @property
    def capabilities(self) -> protocol.Capabilities:
        return protocol.Capabilities(noise=self.server.noise, spec=self.spec, prompt=self.prompt)

    def identify(self) -> protocol.EncoderIdentity:
        """Return what determines the vectors; the server's unknown modules are a hashed constant."""
        # The vectors that the server first gave for the fixed texts identify the model.
        weights = hashlib.sha256(self.server.fingerprint.encode()).hexdigest()
        # Fields that the user adds to every request may change the vectors.
        modules_description = _IDENTITY_NAME
        if self.options.fields_of_requests:
            modules_description += f" {json.dumps(self.options.fields_of_requests, sort_keys=True)}"
        modules = hashlib.sha256(modules_description.encode()).hexdigest()
        return protocol.EncoderIdentity(
            weights=weights,
            tokenizer=vocabulary_hash(self.tokenizer),
            modules=modules,
            prompt=self.prompt,
            dtype="float32",
            max_length=self.max_length,
            dimension=self.dimension,
        )

    @property
    def client(self) -> Client:
        """Sends the requests. It is made before the first request, because it needs the key and the SDK."""
        session = self.session
        if session.client is None:
            session.client = Client(
                self.address,
                self.options,
                self.spending,
                # Not `session.waits` itself, which may be set later.
                waits=lambda reason, seconds: session.waits(reason, seconds),  # noqa: PLW0108
            )
        return session.client

    def in_role(self, role: Role | None) -> EndpointEncoder:
        """Return the encoder of texts in a role, which continues the session of this one."""
        prompt = self._prompts[role]
        if prompt is None or prompt == self.prompt:  # None if the user names no prompt for queries
            return self
        of_role = copy.copy(self)  # a shallow copy, which shares the session, the cache and the spending
        of_role.prompt = prompt
        return of_role

    @property
    def refused_texts(self) -> frozenset[str]:
        return frozenset(text.removeprefix(self.prompt) for text in self.refused)

    @property
    def _model_tokenizer(self) -> Any:
        return self.tokenizer

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        if not isinstance(self.tokenizer, HuggingFaceTokenizer):
            return super().tokenize(texts)  # calls `content_ids`, which adds the prompt
        return self.tokenizer.tokenize(texts, self.prompt)

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.encode_many([self.prompt + text for text in texts])

    def _require_usable(
        self, vectors: NDArray[np.float32], texts: Sequence[str], *, allow_zero: bool
    ) -> None:
        """Raise an EncodingError if the server refused a text, whose row is NaN, or a vector cannot be used.

        With ``allow_zero``, refused texts and vectors of zeros are accepted.
        """
        refused_rows = np.flatnonzero(np.isnan(vectors).any(axis=1)).tolist()
        if not allow_zero and refused_rows:
            text = texts[refused_rows[0]]
            others = f" and {len(refused_rows) - 1:,} others" if len(refused_rows) > 1 else ""
            reason = self.refused[self.prompt + text]
            raise EncodingError(
                f"{self.name}: the server gives no vector for the text {quote_text(text)}{others} "
                f"({reason}): leave it out, or use shorter sentences or fewer copies"
            )
        answered_rows = np.delete(np.arange(len(vectors)), refused_rows)

        def label(row: int) -> str:
            return quote_text(texts[answered_rows[row]])

        protocol.require_usable(vectors[answered_rows], self.name, label, allow_zero=allow_zero)

    def _vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the full vectors of texts from the cache or the server, shape (texts, d).

        Vectors from the server are cached. The row of a text that the server refuses is NaN, and `refused`
        gets the server's reason.
        """
        prompted_texts = [self.prompt + text for text in texts]
        cache = self.answer_cache
        vectors = cache.find(prompted_texts)  # `keep` adds the vectors that are not cached
        unanswered = [text for text in prompted_texts if text not in vectors and text not in self.refused]
        refused_before = cache.refusals(unanswered)  # reasons from earlier sessions, keyed by text
        needed = set(unanswered) - set(refused_before)
        to_send: list[list[str]] = []
        # The batches are formed from all texts, including cached texts; see `batches`.
        for batch in self.batches(prompted_texts):
            needed_of_batch = [text for text in batch if text in needed]
            if needed_of_batch:
                to_send.append(needed_of_batch)
        session = self.session
        if (to_send or refused_before) and session.before_sending is not None:
            session.before_sending()
            session.before_sending = None
        # Answers that an earlier session has not checked are not used before a check.
        if session.requests_since_check >= CHECKED_EVERY and cache.unchecked_among(prompted_texts):
            self.require_same_model()

        def keep(answered: Mapping[str, NDArray[np.float32]]) -> None:
            """Cache the vectors that the server returned for a request, keyed by text, until a check."""
            self._require_dimension(answered)
            cache.keep(answered)
            vectors.update(answered)

        def without_vector(text: str, reason: str) -> None:
            self.refused[text] = reason
            cache.keep_refusal(text, reason)

        sender = Sender(self.client, self.count_by_server, self.server.counts_tokens, keep, without_vector)
        # Texts refused in an earlier session are sent once more, each alone, because the server may have been
        # repaired.
        self._send(sender, [[text] for text in refused_before], one_attempt=True)
        self._send(sender, to_send)
        no_vector = np.full(self.server.dimension, np.nan, np.float32)
        return np.stack([vectors.get(text, no_vector) for text in prompted_texts])

    def _require_dimension(self, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        for text, vector in vectors.items():
            if len(vector) != self.server.dimension:
                raise EncodingError(
                    f"{self.name}: the vector of the text {quote_text(text)} has {len(vector)} components, "
                    f"but earlier vectors had {self.server.dimension}: another model now answers under this "
                    "name"
                )

    def _send(self, sender: Sender, batches: Sequence[Sequence[str]], *, one_attempt: bool = False) -> None:
        """Send batches of texts, and check the model after every `CHECKED_EVERY` requests."""
        session = self.session
        start = 0
        while start < len(batches):
            # A session that found the server's behaviour in the cache begins as if a check were due.
            if session.requests_since_check >= CHECKED_EVERY:
                self.require_same_model()
            batches_before_check = CHECKED_EVERY - session.requests_since_check
            next_batches = batches[start : start + batches_before_check]
            sender.send_all(next_batches, one_attempt=one_attempt)
            start += len(next_batches)
            session.requests_since_check += len(next_batches)
            if session.requests_since_check >= CHECKED_EVERY:
                self.require_same_model()

    def batches(self, texts: Sequence[str]) -> list[list[str]]:
        """Divide texts, which include the prompt, into batches; each batch is one request.

        The texts are sorted by their number of tokens. On some servers, the vector of a text depends on the
        other texts in the request. To give a resumed run the same vectors as an uninterrupted run, pass all
        texts, including those whose vectors are cached, so that the batches are the same.
        """
        batches: list[list[str]] = []
        batch_tokens = 0
        for length, text in sorted(zip(self.count_tokens(texts), texts, strict=True)):
            exceeds_tokens = batch_tokens + length > _MOST_TOKENS
            if not batches or exceeds_tokens or len(batches[-1]) == MOST_TEXTS:
                batches.append([])
                batch_tokens = 0
            batches[-1].append(text)
            batch_tokens += length
        return batches

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens in each text, according to the user's tokenizer."""
        return list(map(len, self.tokenizer.encode_many(texts)))

    def count_by_server(self, texts: Sequence[str]) -> float:
        """Return the number of tokens that the server is expected to count for the given texts."""
        own_tokens = sum(self.count_tokens(texts)) * self.server.tokens_per_unit
        return own_tokens + self.server.overhead * len(texts)

    def require_same_model(self) -> None:
        """Send the fixed texts again, and compare their new vectors with the stored vectors.

        Raises:
            ModelError: the vectors have changed, so a different model answers. The cache then forgets all
                answers since the last passed check, because either model may have given them.
        """
        # Answers that other processes get during this check stay unchecked until the next check.
        unchecked = self.answer_cache.unchecked()
        lowest_cosine = self.server.drift(vectors_of_fixed_texts(self.client, self.count_tokens))
        if lowest_cosine is not None:
            self.answer_cache.forget_unchecked()
            raise ModelError(
                f"{self.name} has changed: the new and the earlier vector of a fixed text have a cosine of "
                f"only {lowest_cosine:.4f}. Finished measurements are kept, and the answers of at most the "
                f"last {CHECKED_EVERY} requests are forgotten, but an unfinished measurement may have used "
                "them: choose another folder for it and, for the new model, move "
                f"{self.answer_cache.folder} away"
            )
        self.answer_cache.confirm(unchecked)
        self.session.requests_since_check = 0

    def confirm_answers(self) -> None:
        """Check that the server still has the same model, if the cache has vectors newer than the last check.

        Raises:
            ModelError: as `require_same_model`.
        """
        if self.answer_cache.unchecked():
            self.require_same_model()


def load_endpoint(spec: EncoderSpec) -> EndpointEncoder:
    """Return the encoder of a model behind an endpoint, which is named ``openai:MODEL`` or ``URL#MODEL``.

    Raises:
        InputError: the address is malformed, or there is neither a tokenizer nor candidates.
        ModelError: the server cannot be reached or used.
    """
    options = spec.endpoint or EndpointOptions()
    name = spec.model
    address = parse_address(name, options.key_variable)
    vocabulary = vocabulary_of(spec.tokenizer, spec.candidates)
    if vocabulary is None:
        raise InputError(
            f"{name} is behind an endpoint, which hides its vocabulary: pass its tokenizer (a folder, a hub "
            "name, tiktoken:NAME), or a list of candidates if it is unpublished"
        )
    encoder = EndpointEncoder(address, vocabulary, options, spec)
    # A run can load the encoder again from another folder if its vocabulary has a name or a place, but not
    # from an object in memory.
    vocabulary_sources = [source for source in (spec.tokenizer, spec.candidates) if source is not None]
    if all(isinstance(source, (str, Path)) for source in vocabulary_sources):
        encoder.spec = replace(
            spec,
            truncate_dim=encoder.truncate_dim,
            tokenizer=_make_absolute("tokenizer", spec.tokenizer),
            candidates=_make_absolute("candidates", spec.candidates),
            endpoint=options,
        )
    return encoder


def _make_absolute(name: str, source: Any) -> str | None:
    if source is None:
        return None
    path = file_path(name, source)
    return str(path.resolve() if path.exists() else source)  # otherwise it is a name on the hub
