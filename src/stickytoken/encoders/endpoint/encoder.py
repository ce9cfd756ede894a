"""A model behind an OpenAI-compatible endpoint as an encoder of texts, loaded by its name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from stickytoken.encoders.endpoint._answers import Answers, Sender, answers_folder
from stickytoken.encoders.endpoint._client import Requester
from stickytoken.encoders.endpoint._server import Capabilities, Conversation, discover
from stickytoken.encoders.endpoint.cost import Spending
from stickytoken.encoders.endpoint.options import Address, EndpointOptions, key_of, parse_address
from stickytoken.encoders.endpoint.vocabulary import CandidateVocabulary, vocabulary_of
from stickytoken.encoders.loading.resolution import EncoderSpec
from stickytoken.encoders.protocol import EncoderIdentity, Prompting, require_usable, shown
from stickytoken.encoders.text_encoder import SENTINELS, TextEncoder, vocabulary_hash
from stickytoken.encoders.tokenizer import HuggingFaceTokenizer
from stickytoken.errors import EncodingError, InputError, ModelError
from stickytoken.insertion import TokenizedText
from stickytoken.vocabulary import RoundTripTokenizer

# Requests after which the sentinel texts are sent again.
_CHECKED_EVERY = 200
_CHUNK = 4096


class EndpointModel:
    """Texts to vectors through requests; texts answered before are not sent again."""

    device = "endpoint"

    def __init__(
        self,
        address: Address,
        tokenizer: RoundTripTokenizer,
        prompt: str,
        options: EndpointOptions,
        max_length: int | None,
    ) -> None:
        self.address = address
        self.name = address.name
        self.tokenizer = tokenizer
        self.prompt = prompt
        self.options = options
        self.answers = Answers(answers_folder(address, options.dimensions))
        self.spending = Spending(options.price_per_million, options.max_cost)
        self._sender: Sender | None = None
        self._requester: Requester | None = None
        self._unchecked = _CHECKED_EVERY  # before the first request of this process
        self.before_sending: Callable[[], None] | None = None  # called once, before the first request
        self.refused: dict[str, str] = {}  # texts that the server does not take, and why
        self.waits: Callable[[str, float], None] | None = None
        self._noted = f"capabilities {vocabulary_hash(tokenizer)} {max_length}"
        self.capabilities = self._known() or self._discovered(max_length)
        self.max_length = self.capabilities.max_length if max_length is None else max_length

    @property
    def fingerprint(self) -> str:
        """Identifies the model by the vectors of fixed texts, as they were first answered."""
        return self.capabilities.fingerprint

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of distinct texts, shape (n, d); see `TextModel`."""
        asked = [self.prompt + text for text in texts]
        found = {}
        for start in range(0, len(asked), _CHUNK):
            found.update(self.answers.find(asked[start : start + _CHUNK]))
        batches = unanswered(self.batches(asked), found)
        if batches:
            if self.before_sending is not None:
                self.before_sending()
                self.before_sending = None
            found.update(self._sent(batches))
        return np.stack([found[text] for text in asked])

    def batches(self, asked: Sequence[str]) -> list[list[str]]:
        """Cut texts, prompts included, into requests."""
        known = self.capabilities
        return cut_into_batches(asked, self.count(asked), known.batch, known.most_tokens)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of texts as the tokenizer does."""
        return list(map(len, self.tokenizer.encode_many(texts)))

    def counted_by_server(self, texts: Sequence[str]) -> float:
        """Estimate the tokens that the server counts for texts."""
        known = self.capabilities
        return sum(self.count(texts)) * known.tokens_per_unit + known.overhead * len(texts)

    def checking(self, requests: int) -> float:
        """Estimate the tokens of the fixed texts that are sent again among so many requests."""
        checks = (self._unchecked + requests) // _CHECKED_EVERY if requests else 0
        return checks * self.counted_by_server(SENTINELS)

    def seconds(self, requests: int, tokens: float) -> float:
        """Estimate the time of requests, one after the other."""
        return requests * self.capabilities.request_seconds + tokens * self.capabilities.token_seconds

    def _sent(self, batches: Sequence[Sequence[str]]) -> dict[str, NDArray[np.float32]]:
        found: dict[str, NDArray[np.float32]] = {}

        def keep(vectors: Mapping[str, NDArray[np.float32]]) -> None:
            self._require_dimension(vectors)
            self.answers.keep(vectors)
            found.update(vectors)

        def without_vector(text: str, reason: str) -> None:
            self.refused[text] = reason
            keep({text: np.zeros(self.capabilities.dimension, np.float32)})

        sender = self._connected()
        while batches:
            if self._unchecked >= _CHECKED_EVERY:
                self.require_same_model()
            part, batches = batches[:_CHECKED_EVERY], batches[_CHECKED_EVERY:]
            sender.send_all(part, self.capabilities.encoding, keep, without_vector)
            self._unchecked += len(part)
        return found

    def _connected(self) -> Sender:
        if self._sender is None:
            self._requester = self._requester or self._new_requester()
            self._sender = Sender(
                self._requester,
                self.spending,
                self.options.patience,
                self.counted_by_server,
                self.capabilities.counts_tokens,
                self._tell,
            )
        return self._sender

    def _tell(self, reason: str, seconds: float) -> None:
        if self.waits is not None:
            self.waits(reason, seconds)

    def _new_requester(self) -> Requester:
        return Requester(
            self.address, key_of(self.address), self.options.request_seconds, self.options.dimensions
        )

    def _known(self) -> Capabilities | None:
        noted = self.answers.fact(self._noted)
        try:
            return None if noted is None else Capabilities.model_validate_json(noted)
        except ValidationError:  # of another version
            return None

    def _discovered(self, max_length: int | None) -> Capabilities:
        self._requester = self._new_requester()
        conversation = Conversation(self._requester, self.count, self.spending)
        candidates = isinstance(self.tokenizer, CandidateVocabulary)
        found = discover(conversation, max_length, self.options.dimensions, not candidates)
        self.answers.note(self._noted, found.model_dump_json())
        self._unchecked = 0
        return found

    def require_same_model(self) -> None:
        """Compare the sentinel texts with how they were first answered."""
        found: dict[str, NDArray[np.float32]] = {}
        size = self.capabilities.batch
        batches = [SENTINELS[start : start + size] for start in range(0, len(SENTINELS), size)]
        self._connected().send_all(batches, self.capabilities.encoding, found.update)
        least = self.capabilities.drift([found[text] for text in SENTINELS])
        if least is not None:
            raise ModelError(
                f"{self.name} has changed: the vectors of fixed texts now have a cosine of "
                f"{least:.4f} to their earlier ones. Finished measurements are kept; for the new model, move "
                f"{self.answers.folder} away and choose another run folder"
            )
        self._unchecked = 0

    def _require_dimension(self, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        for text, vector in vectors.items():
            if len(vector) != self.capabilities.dimension:
                raise EncodingError(
                    f"{self.name}: the vector of the text {shown(text)} has {len(vector)} components, and "
                    f"those before it had {self.capabilities.dimension}: another model answers under this "
                    "name"
                )


class EndpointEncoder(TextEncoder):
    """Encodes texts through an endpoint."""

    def __init__(self, model: EndpointModel, spec: EncoderSpec | None) -> None:
        super().__init__(model)
        self.endpoint = model
        self.spec = spec

    @property
    def capabilities(self) -> Capabilities:
        """What was found out about the server."""
        return self.endpoint.capabilities

    @property
    def noise(self) -> float:
        """Standard deviation of a cosine from one call to the next."""
        return self.capabilities.noise

    @property
    def dimension(self) -> int:
        """Number of components of a vector."""
        return self.capabilities.dimension

    @property
    def identity(self) -> EncoderIdentity:
        """What can change the vectors, as far as the endpoint reveals it."""
        return replace(super().identity, prompt=self.endpoint.prompt)

    def encode(self, texts: Sequence[str], *, allow_zero: bool = False) -> NDArray[np.float32]:
        """Encode texts; see `Encoder.encode`. A text that the server refuses has no vector."""
        vectors = super().encode(texts, allow_zero=True)
        if not allow_zero:
            for row in np.flatnonzero(~vectors.any(axis=1)).tolist():
                if (why := self.endpoint.refused.get(self.endpoint.prompt + texts[row])) is not None:
                    raise EncodingError(
                        f"{self.name}: the server refuses the text {shown(texts[row])} ({why}): "
                        "leave it out, or use shorter sentences or fewer copies"
                    )
            require_usable(vectors, self.name, lambda row: shown(texts[row]), allow_zero=False)
        return vectors

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Return the content ids of each text by word, the prompt in the head."""
        prompt = self.endpoint.prompt
        if not isinstance(self.tokenizer, HuggingFaceTokenizer):
            return super().tokenize(texts)  # its content ids include the prompt
        return self.tokenizer.tokenize(texts, prompt)

    def content_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the prompt and each text, without special tokens."""
        return self.tokenizer.encode_many([self.endpoint.prompt + text for text in texts])


def cut_into_batches(
    texts: Sequence[str], lengths: Sequence[int], most_texts: int, most_tokens: int
) -> list[list[str]]:
    """Cut distinct texts into requests of texts of similar length, which servers compute fastest.

    The requests depend on the texts alone, not on which of them were answered before: a run that is continued
    sends what the uninterrupted run would have sent, and servers whose vectors depend on the request give the
    same ones.
    """
    order = sorted(range(len(texts)), key=lambda place: (lengths[place], texts[place]))
    batches: list[list[str]] = []
    tokens = 0
    for place in order:
        if not batches or len(batches[-1]) == most_texts or tokens + lengths[place] > most_tokens:
            batches.append([])
            tokens = 0
        batches[-1].append(texts[place])
        tokens += lengths[place]
    return batches


def unanswered(batches: Sequence[Sequence[str]], known: Collection[str]) -> list[list[str]]:
    """Leave out the texts that were answered before, and requests without any other."""
    left = ([text for text in batch if text not in known] for batch in batches)
    return [batch for batch in left if batch]


def load_endpoint(
    name: str,
    tokenizer: Any,
    *,
    candidates: str | Path | Sequence[str] | None = None,
    prompt: str | None = None,
    max_length: int | None = None,
    options: EndpointOptions | None = None,
) -> EndpointEncoder:
    """Load a model behind an endpoint, and find out what its server does."""
    options = options or EndpointOptions()
    address = parse_address(name, options.key_variable)
    vocabulary = vocabulary_of(tokenizer, candidates)
    if vocabulary is None:
        raise InputError(
            f"{name} is behind an endpoint, which hides its vocabulary: pass its tokenizer (a folder, a hub "
            "name, tiktoken:NAME), or a list of candidates if it is unpublished"
        )
    model = EndpointModel(address, vocabulary, prompt or "", options, max_length)
    sources = {"tokenizer": tokenizer, "candidates": candidates}
    return EndpointEncoder(model, _spec(name, sources, prompt, max_length, options))


def _spec(
    name: str,
    sources: dict[str, Any],
    prompt: str | None,
    max_length: int | None,
    options: EndpointOptions,
) -> EncoderSpec | None:
    """Say how to load the encoder again; None if its vocabulary is an object that only its maker has."""
    paths = {key: _absolute(value) for key, value in sources.items() if value is not None}
    if not all(isinstance(value, str) for value in paths.values()):
        return None
    return EncoderSpec(
        model=name,
        device=None,
        prompting=Prompting(prompt),
        dtype="float32",
        revision=None,
        trust_remote_code=False,
        max_length=max_length,
        token_budget=None,
        vocabulary=paths.get("tokenizer"),
        candidates=paths.get("candidates"),
        endpoint=options,
    )


def _absolute(value: Any) -> str | None:
    """Make a path independent of the working folder; a name stays as it is."""
    if not isinstance(value, (str, Path)):
        return None
    path = Path(value).expanduser()
    return str(path.resolve()) if path.exists() else str(value)
