"""Find out how a server behaves, with a few cheap requests, before money is spent."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from stickytoken.encoders.endpoint._answers import Attempts, NoAnswerError, until_answered
from stickytoken.encoders.endpoint._client import (
    Encoding,
    RefusedError,
    Reply,
    Requester,
    WebPageError,
    given_up,
    not_an_api,
    refused,
)
from stickytoken.encoders.endpoint.cost import Spending, Usage, compared_usage
from stickytoken.encoders.text_encoder import SENTINELS, fingerprint_of
from stickytoken.errors import ModelError
from stickytoken.unit_vectors import exact_unit_vectors

# Tokens in a request: enough to use a server fully, and far below what servers take.
_MOST_TOKENS = 16_384
_LEAST_TOKENS = 256
# Servers that compute on a slow machine answer large requests late. This is how long one may take.
_REQUEST_SECONDS = 5.0
# Vectors of the same model are this close, or as close as several times the noise.
_DRIFT = 1e-3
_DRIFT_OF_NOISE = 4.0
_FIRST = 64
_FIRST_OF_NOISY = 8
_LAST = 2048
_WORD = "the"
_ENDS = ("river", "stone")
# Vectors of different texts are further apart than rounding.
_ROUNDING = 5e-5
# With noise, texts differ in as many words as they share, and must be this many times further
# apart than noise.
_ABOVE_NOISE = 3.0
_MOST_TEXTS = 256  # in a request
_ATTEMPTS = 4
_PATIENCE = 60.0
_UNREACHABLE_ATTEMPTS = 2
_LENGTH_ONE = 1e-3
_REPEATS = 3
_ENCODINGS: tuple[Encoding, ...] = ("base64", "float")
# Tokens that a server may count for a text beside its own.
_ROOM = 8


class Long(StrEnum):
    """What a server does with a text that is longer than the model reads."""

    TRUNCATES = "truncates"
    REFUSES = "refuses"
    UNKNOWN = "unknown"


class Empty(StrEnum):
    """What a server does with an empty text."""

    VECTOR = "vector"
    ZERO = "zero"
    REFUSES = "refuses"


class Capabilities(BaseModel):
    """How a server behaves, as stored with its answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    dimension: int = Field(description="components of a vector")
    encoding: Literal["base64", "float"]
    batch: int = Field(description="texts that it takes in a request, as far as was tried")
    max_length: int | None = Field(description="tokens that it reads, by the tokenizer that was passed")
    long: Long
    empty: Empty
    normalised: bool = Field(description="whether its vectors have length 1")
    call_noise: float = Field(
        ge=0, description="standard deviation of the cosine of two texts from one call to the next"
    )
    batch_noise: float = Field(ge=0, description="the same from one composition of a request to another")
    least_cosine: float = Field(description="smallest cosine of one text's vectors in any two calls")
    counts_tokens: bool = Field(description="whether it reports the tokens of a request")
    overhead: float = Field(description="tokens that it counts for each text beside those of the text itself")
    tokens_per_unit: float = Field(
        default=1.0, description="tokens that it counts for one that is counted here; 1 with its tokenizer"
    )
    request_seconds: float = Field(ge=0, description="of a request, whatever is in it")
    token_seconds: float = Field(ge=0, description="of each token more")
    requests: int = Field(description="sent to find all this out")
    tokens: int = Field(description="in these requests")
    sentinels: str = Field(description="their vectors: float32 in base64")

    @property
    def noise(self) -> float:
        """Standard deviation of a cosine from one call to the next, for whatever reason."""
        return max(self.call_noise, self.batch_noise)

    @property
    def most_tokens(self) -> int:
        """Largest number of tokens to put into a request, so that it is answered well before its time-out."""
        in_time = _REQUEST_SECONDS / max(self.token_seconds, _REQUEST_SECONDS / _MOST_TOKENS)
        return max(_LEAST_TOKENS, int(in_time))

    @property
    def sentinel_vectors(self) -> NDArray[np.float32]:
        """Vectors of the sentinel texts, shape (n, d)."""
        flat = np.frombuffer(base64.b64decode(self.sentinels), dtype="<f4")
        return flat.reshape(len(SENTINELS), self.dimension)

    @property
    def fingerprint(self) -> str:
        """Identifies the model by the vectors of the sentinel texts."""
        return fingerprint_of(self.sentinel_vectors)

    def drift(self, rows: Sequence[NDArray[np.float32]]) -> float | None:
        """Return the smallest cosine of later vectors to the first ones; None if noise may explain it."""
        if any(len(row) != self.dimension for row in rows):
            return 0.0
        cosines = (exact_unit_vectors(np.stack(rows)) * exact_unit_vectors(self.sentinel_vectors)).sum(axis=1)
        least = float(cosines.min())
        # A cosine of 1 - x is off by x: as far as the noisiest pair of calls was, several times over.
        return least if 1 - least > max(_DRIFT, _DRIFT_OF_NOISE * (1 - self.least_cosine)) else None


class _Lengths(NamedTuple):
    max_length: int | None
    long: Long


class _LengthSearch:
    """Sends pairs of texts that differ at their ends only: equal vectors mean that the ends were not read."""

    def __init__(
        self,
        answers: Callable[[Sequence[str]], Reply | None],
        count: Callable[[Sequence[str]], list[int]],
        noise: float,
    ) -> None:
        self._answers = answers
        self._count = count
        self._noise = noise
        self._refused = False

    def found(self) -> _Lengths:
        """Double the length until the end of a text is not read, then close in on the limit."""
        low, high = 1, _FIRST if self._exact else _FIRST_OF_NOISY
        while high <= _LAST and self._read_whole(high):
            low, high = high, 2 * high
        if high > _LAST:
            return _Lengths(self._tokens(low), Long.UNKNOWN)
        while high - low > 1:
            middle = (low + high) // 2
            if self._read_whole(middle):
                low = middle
            else:
                high = middle
        return _Lengths(self._tokens(low), Long.REFUSES if self._refused else Long.TRUNCATES)

    @property
    def _exact(self) -> bool:
        """Whether one word at the end of a long text stands out from the noise."""
        return self._noise < _ROUNDING

    def _read_whole(self, words: int) -> bool:
        reply = self._answers(self._pair(words))
        if reply is None:
            self._refused = True
            return False
        first, second = exact_unit_vectors(reply.vectors)
        limit = _ROUNDING if self._exact else _ABOVE_NOISE * self._noise
        return float(np.linalg.norm(first - second)) > limit

    def _pair(self, words: int) -> list[str]:
        ends = 1 if self._exact else words
        return [" ".join([*[_WORD] * words, *[end] * ends]) for end in _ENDS]

    def _tokens(self, words: int) -> int:
        """Count the tokens of the longest text that was read whole; of noisy ones, only what both share."""
        texts = self._pair(words) if self._exact else [" ".join([_WORD] * words)]
        return min(self._count(texts))


@dataclass
class Conversation:
    """Sequential requests, their cost, and the tokens and seconds of each (`timed`)."""

    requester: Requester
    count: Callable[[Sequence[str]], list[int]]
    spending: Spending = field(default_factory=Spending)
    timed: list[tuple[int, float]] = field(default_factory=list)
    one_by_one: bool = False

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.requester.address.name

    def ask(self, texts: Sequence[str], encoding: Encoding, attempts: int = _ATTEMPTS) -> Reply:
        """Send texts in one request, or one by one if the server wants it so; a few times if need be."""
        if not self.one_by_one:
            return self.ask_together(texts, encoding, attempts)
        replies = [self.ask_together([text], encoding, attempts) for text in texts]
        counted = [reply.tokens for reply in replies]
        return Reply(
            np.concatenate([reply.vectors for reply in replies]),
            None if None in counted else sum(tokens or 0 for tokens in counted),
            sum(reply.seconds for reply in replies),
        )

    def ask_together(self, texts: Sequence[str], encoding: Encoding, attempts: int = _ATTEMPTS) -> Reply:
        """Send one request, a few times if need be."""
        own = sum(self.count(texts))
        reserved = own + _ROOM * len(texts)
        failures = Attempts(_PATIENCE, attempts, _UNREACHABLE_ATTEMPTS, (WebPageError,))
        try:
            reply = until_answered(self.requester, texts, encoding, failures, self.spending, reserved)
        except NoAnswerError as error:
            raise self._no_answer(error) from None
        self.spending.answered(reserved, own if reply.tokens is None else reply.tokens)
        self.timed.append((own, reply.seconds))
        return reply

    def answers(self, texts: Sequence[str], encoding: Encoding, together: bool = False) -> Reply | None:
        """Send texts; return None if the server refuses them or fails on them, whatever the reason."""
        try:
            return (self.ask_together if together else self.ask)(texts, encoding, attempts=2)
        except (RefusedError, _FaultyServerError):
            return None
        except _UnreachableError:
            self.ask(SENTINELS[:1], encoding)  # if it answers this, it hung up on the texts
            return None

    def _no_answer(self, error: NoAnswerError) -> ModelError:
        last = error.last
        if isinstance(last, WebPageError):
            return not_an_api(self.requester.address)
        if last.unreachable:
            return _UnreachableError(
                f"{self.name} cannot be reached ({last}): check the URL, and that the server is running"
            )
        kind = ModelError if last.busy else _FaultyServerError
        return kind(str(given_up(self.name, str(error))))


class _UnreachableError(ModelError):
    pass


class _FaultyServerError(ModelError):
    pass


def discover(
    conversation: Conversation,
    max_length: int | None = None,
    dimensions: int | None = None,
    tokenizer_known: bool = True,
) -> Capabilities:
    """Find out how a server behaves.

    The longest text is searched for unless the user says `max_length`. A known tokenizer must be the model's.
    """
    first, encoding = _first_answer(conversation)
    if dimensions is not None and first.vectors.shape[1] != dimensions:
        raise ModelError(
            f"{conversation.name} gives vectors of {first.vectors.shape[1]} components, not the "
            f"{dimensions} that were asked for: the model has no other dimensions, so omit them"
        )
    stability = _stability(conversation, encoding, first)
    batch = _largest_batch(conversation, encoding)
    search = _LengthSearch(
        lambda texts: conversation.answers(texts, encoding), conversation.count, stability.distance
    )
    lengths = _Lengths(max_length, Long.UNKNOWN) if max_length is not None else search.found()
    usage = _usage(conversation, encoding, lengths.max_length, tokenizer_known)
    empty = conversation.answers([""], encoding)
    # The quickest request shows what each costs whatever is in it; the largest, what its tokens add.
    quickest = min(seconds for _, seconds in conversation.timed)
    most_tokens, longest = max(conversation.timed)
    return Capabilities(
        dimension=first.vectors.shape[1],
        encoding=encoding,
        batch=batch,
        max_length=lengths.max_length,
        long=lengths.long,
        empty=Empty.REFUSES if empty is None else Empty.VECTOR if empty.vectors.any() else Empty.ZERO,
        normalised=bool(np.abs(np.linalg.norm(first.vectors, axis=1) - 1).max() < _LENGTH_ONE),
        call_noise=stability.calls,
        batch_noise=stability.batches,
        least_cosine=stability.least_cosine,
        counts_tokens=usage.counts_tokens,
        overhead=usage.overhead,
        tokens_per_unit=usage.tokens_per_unit,
        request_seconds=quickest,
        token_seconds=(longest - quickest) / max(1, most_tokens),
        requests=conversation.spending.requests,
        tokens=conversation.spending.tokens,
        sentinels=base64.b64encode(first.vectors.astype("<f4").tobytes()).decode("ascii"),
    )


def _first_answer(conversation: Conversation) -> tuple[Reply, Encoding]:
    """Ask for base64, which is shorter; servers that do not know it refuse it or send numbers."""
    first: RefusedError | None = None
    for conversation.one_by_one in (False, True):
        for encoding in _ENCODINGS:
            try:
                return conversation.ask(SENTINELS, encoding), encoding
            except RefusedError as error:
                first = first or error
    raise refused(conversation.name, first)


class _Stability(NamedTuple):
    calls: float  # standard deviation of a cosine between calls
    batches: float  # the same between compositions of a request
    distance: float  # largest distance of two unit vectors of one text
    least_cosine: float


def _stability(conversation: Conversation, encoding: Encoding, first: Reply) -> _Stability:
    """Embed the sentinel texts again: as they were, in another order, and one alone."""
    again = [first, *(_same(conversation, SENTINELS, encoding, first) for _ in range(_REPEATS - 1))]
    reversed_ = _same(conversation, SENTINELS[::-1], encoding, first)
    alone = _same(conversation, SENTINELS[1:2], encoding, first)
    calls = [exact_unit_vectors(reply.vectors) for reply in again]
    other = exact_unit_vectors(reversed_.vectors)[::-1].copy()
    mixed = other.copy()
    mixed[1] = exact_unit_vectors(alone.vectors)[0]
    every = np.stack([*calls, other, mixed])
    gaps = np.linalg.norm(every - calls[0], axis=2)
    return _Stability(
        calls=_cosine_noise(calls),
        batches=max(_cosine_noise([calls[0], other]), _cosine_noise([calls[0], mixed])),
        distance=float(gaps.max()),
        least_cosine=float(min(1.0, np.einsum("csd,sd->cs", every, calls[0]).min())),
    )


def _same(conversation: Conversation, texts: Sequence[str], encoding: Encoding, first: Reply) -> Reply:
    try:
        reply = conversation.ask(texts, encoding)
    except RefusedError as error:
        raise refused(conversation.name, error) from None
    if reply.vectors.shape[1] != first.vectors.shape[1]:
        raise ModelError(
            f"{conversation.name} gives vectors of {first.vectors.shape[1]} components and then of "
            f"{reply.vectors.shape[1]}: several models answer under this name"
        )
    return reply


def _cosine_noise(calls: Sequence[NDArray[np.float64]]) -> float:
    """Standard deviation, over calls, of the cosine of two different texts; root mean square over pairs."""
    upper = np.triu_indices(len(SENTINELS), 1)
    cosines = np.stack([(call @ call.T)[upper] for call in calls])
    return float(np.sqrt(cosines.var(axis=0, ddof=1).mean()))


def _usage(
    conversation: Conversation, encoding: Encoding, max_length: int | None, tokenizer_known: bool
) -> Usage:
    def counted(texts: Sequence[str]) -> int | None:
        reply = conversation.answers(texts, encoding)
        return None if reply is None else reply.tokens

    usage = compared_usage(counted, conversation.count, max_length)
    if tokenizer_known and usage.mismatch is not None:
        ours, theirs = usage.mismatch
        raise ModelError(
            f"the tokenizer does not belong to {conversation.name}: from one request to a longer one, it "
            f"counts {ours} tokens more, and the server counts {theirs} more: pass the tokenizer of the "
            "model, or candidates if it is unpublished"
        )
    return usage


def _largest_batch(conversation: Conversation, encoding: Encoding) -> int:
    """Find how many texts a request may have, from the most that are ever sent downward."""
    size = _MOST_TEXTS
    while size > 1:
        texts = [f"{place}" for place in range(size)]
        if conversation.answers(texts, encoding, together=True) is not None:
            return size
        size //= 2
    return 1
