"""Measure a server's behaviour with a few cheap requests, before a run spends money."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from stickytoken.encoders.endpoint._client import (
    Attempts,
    Client,
    Encoding,
    Failure,
    RefusedError,
    Reply,
    RequestFormat,
    TemporaryError,
    as_one,
    request_formats,
)
from stickytoken.encoders.text_encoder import SENTINELS, fingerprint_of
from stickytoken.errors import ModelError
from stickytoken.unit_vectors import exact_unit_vectors

# Bounds for the number of tokens in a request. The upper bound is large enough to keep a server busy, and far
# below the sizes that servers refuse.
_MOST_TOKENS = 16_384
_LEAST_TOKENS = 256
# Requests are sized so that none is expected to take longer than this.
_LONGEST_REQUEST_SECONDS = 5.0
# The model is treated as unchanged if the cosine distance (1 - cosine) between the new and the stored vector
# of each fixed text is at most _DRIFT_TOLERANCE. On a noisy server, the limit is _DRIFT_PER_NOISE times the
# largest distance in the first requests, if that is more.
_DRIFT_TOLERANCE = 1e-3
_DRIFT_PER_NOISE = 4.0
# The search for the longest text that a model reads sends pairs of texts. The two texts of a pair repeat the
# same word equally often, and end with different words. The constants below are the number of repetitions in
# the first pair (fewer if vectors are noisy), the number of repetitions in the longest pair, the repeated
# word, and the two final words.
_FIRST_WORDS = 64
_FIRST_WORDS_OF_NOISY = 8
_MOST_WORDS = 2048
_WORD = "the"
_ENDS = ("river", "stone")
# Largest distance between two unit vectors that rounding alone can explain. Vectors of different texts are
# further apart.
_ROUNDING = 5e-5
# If vectors are noisy, the two texts of a pair share only their first half. The server is taken to
# distinguish the two texts of a pair if their vectors are further apart than this multiple of the largest
# distance between two vectors of the same text.
_DISTANCE_PER_NOISE = 3.0
# Largest number of texts to try in one request.
_MOST_TEXTS = 256
# Number of failures after which a measurement request is given up. A request that the server may be unable to
# answer is given up after fewer failures.
_ATTEMPTS = 4
_ATTEMPTS_OF_UNCERTAIN_REQUEST = 2
# Number of times that the fixed texts are sent in the same order, to measure the noise.
_CALLS_WITH_FIXED_TEXTS = 3
# How long to keep retrying a failing measurement request, in seconds.
_PATIENCE_SECONDS = 60.0
# Maximum number of extra tokens, such as special tokens, that a server is expected to count for each text.
_MOST_EXTRA_TOKENS = 8
# The server and the user's tokenizer each count how many more tokens the longer texts below have than the
# short texts. The server is taken to use the same tokenizer if its count differs from the user's by at most
# this many tokens. Special tokens do not affect the counts, because they cancel out. Between the tokenizers
# of BERT, RoBERTa, T5, XLM-R and Gemma, the counts differ by four or more, because tokenizers split names,
# numbers, code and different scripts differently.
_MOST_DIFFERENT_TOKENS = 2
_SHORT = ("a", "in", "the", "is", "of", "on")
_LONGER = (
    "Order 66-1047/b: naïve façades cost €1,234,567.89 (VAT №42), antidisestablishmentarianism included.",
    "def parseHTTPHeader(raw): return {k.strip(): v for k, v in re.findall(r'(\\w+):\\s*(.+)', raw)}",
    "東京タワーは1958年に建てられました。 Ελληνικά, русский язык, हिन्दी, العربية; 😀🚀 https://example.org/a?b=c&d=%20e",
    "Pneumonoultramicroscopicsilicovolcanoconiosis, Llanfairpwllgwyngyll, Qzxv-brxl, McDonald's iPhone15",
)

Long = Literal["truncates", "refuses", "unknown"]
"""What a server does with a text that is longer than the model reads."""


class ServerBehaviour(BaseModel):
    """The behaviour of a server, as measured by the first requests and stored in the server's cache.

    Attributes:
        version: version of this record's format.
        dimension: number of components in each vector.
        encoding: value of `RequestFormat.encoding` that the server accepts.
        sends_dimensions: value of `RequestFormat.dimensions` that the server accepts.
        as_list: value of `RequestFormat.as_list` that the server accepts.
        batch: largest number of texts, among those tried, that the server answered in one request.
        max_length: maximum number of tokens that the model reads, as counted by the user's tokenizer; None if
            unknown.
        long: what the server does with texts of more than `max_length` tokens.
        normalised: whether the vectors have length 1.
        call_noise: standard deviation of the cosine between two texts across identical requests.
        batch_noise: standard deviation of the cosine between two texts across requests that differ in the
            other texts or in their order.
        least_cosine: smallest cosine between two vectors of the same text, over all requests.
        counts_tokens: whether the server reports the number of tokens.
        overhead: number of tokens, such as special tokens, that the server counts for each text in addition
            to the text's own tokens.
        tokens_per_unit: number of tokens that the server counts for each token of the user's tokenizer; 1 if
            the server uses the same tokenizer.
        request_seconds: duration of a request with few tokens, in seconds.
        token_seconds: seconds that each token adds to the duration of a request.
        sentinels: vectors of the fixed texts: float32 in base64.
    """

    model_config = ConfigDict(frozen=True)  # further fields, which earlier releases stored, are ignored

    version: Literal[1] = 1
    dimension: int
    encoding: Encoding
    sends_dimensions: bool = True
    as_list: bool = True
    batch: int
    max_length: int | None
    long: Long
    normalised: bool
    call_noise: float = Field(ge=0)
    batch_noise: float = Field(ge=0)
    least_cosine: float
    counts_tokens: bool
    overhead: float
    tokens_per_unit: float = 1.0
    request_seconds: float = Field(ge=0)
    token_seconds: float = Field(ge=0)
    sentinels: str

    @property
    def request_format(self) -> RequestFormat:
        """The request format that the server answers."""
        return RequestFormat(self.encoding, self.sends_dimensions, self.as_list)

    @property
    def noise(self) -> float:
        """The larger of `call_noise` and `batch_noise`."""
        return max(self.call_noise, self.batch_noise)

    @property
    def most_tokens(self) -> int:
        """Maximum number of tokens in a request, chosen so that the answer comes well before the time-out."""
        # The measured time per token may be 0, so it is raised to the time that gives _MOST_TOKENS.
        seconds_per_token = max(self.token_seconds, _LONGEST_REQUEST_SECONDS / _MOST_TOKENS)
        return max(_LEAST_TOKENS, int(_LONGEST_REQUEST_SECONDS / seconds_per_token))

    @property
    def sentinel_vectors(self) -> NDArray[np.float32]:
        """Vectors of the fixed texts, shape (texts, d)."""
        flat = np.frombuffer(base64.b64decode(self.sentinels), dtype="<f4")
        return flat.reshape(len(SENTINELS), self.dimension)

    @property
    def fingerprint(self) -> str:
        """Hash of the fixed texts' vectors, which identifies the model."""
        return fingerprint_of(self.sentinel_vectors)

    def drift(self, vectors: Sequence[NDArray[np.float32]]) -> float | None:
        """Check whether the server still uses the same model.

        Args:
            vectors: the vectors that the server now gives for the fixed texts.

        Returns:
            None if the model has not changed since the fixed texts were first sent. If the model has changed,
            the lowest cosine between a new vector and the stored vector of the same text; 0 if the vectors
            differ in length.
        """
        if any(len(vector) != self.dimension for vector in vectors):
            return 0.0
        stored_units = exact_unit_vectors(self.sentinel_vectors)
        cosines = (exact_unit_vectors(np.stack(vectors)) * stored_units).sum(axis=1)
        lowest_cosine = float(cosines.min())
        # The first few requests underestimate the largest distance, so several times that distance is
        # allowed.
        tolerance = max(_DRIFT_TOLERANCE, _DRIFT_PER_NOISE * (1 - self.least_cosine))
        return lowest_cosine if 1 - lowest_cosine > tolerance else None


class _FaultyServerError(ModelError):
    """The server answers, but its answers cannot be used."""


class _UnreachableError(ModelError):
    """The server does not answer."""


@dataclass(frozen=True, slots=True)
class _Stability:
    """How much the vectors of the same text differ between requests.

    Attributes:
        call_noise: see `ServerBehaviour.call_noise`.
        batch_noise: see `ServerBehaviour.batch_noise`.
        distance: largest distance between two unit vectors of one text.
        least_cosine: smallest cosine between two vectors of one text.
    """

    call_noise: float
    batch_noise: float
    distance: float
    least_cosine: float


@dataclass(frozen=True, slots=True)
class _Counting:
    """How a server counts tokens. The defaults describe a server that does not count tokens.

    Attributes:
        counts_tokens: see `ServerBehaviour.counts_tokens`.
        overhead: see `ServerBehaviour.overhead`.
        tokens_per_unit: see `ServerBehaviour.tokens_per_unit`.
    """

    counts_tokens: bool = False
    overhead: float = 0.0
    tokens_per_unit: float = 1.0


def discover(
    client: Client, count: Callable[[Sequence[str]], list[int]], max_length: int | None, tokenizer_known: bool
) -> ServerBehaviour:
    """Measure and return a server's behaviour; set the client's request format to one that works.

    Args:
        client: sends requests to the server.
        count: function that returns the number of tokens in each text.
        max_length: maximum number of tokens that the model reads; if None, this number is measured.
        tokenizer_known: whether `count` uses a tokenizer that the user passed as the model's own.

    Raises:
        ModelError: the server cannot be reached or used, or its answers contradict the user's description of
            the model.
    """
    discovery = _Discovery(client, count)
    name = discovery.name
    first = discovery.first_answer()
    dimension = first.vectors.shape[1]
    asked_dimension = client.options.dimensions
    if asked_dimension is not None and dimension != asked_dimension:
        raise ModelError(
            f"{name} gives vectors of {dimension} components, not the {asked_dimension} that were requested: "
            "the model does not support other dimensions, so leave `dimensions` out"
        )
    if not first.vectors.any(axis=1).all():
        raise ModelError(f"{name} gives a vector of zeros: check which model the server has loaded")
    stability = discovery.stability(first)
    _require_distinct_vectors(first.vectors, stability.distance, name)
    batch = discovery.largest_batch()
    long: Long = "unknown"  # what the server does with longer texts is found only if the length is measured
    if max_length is None:
        max_length, long = discovery.longest_text(stability.distance)
    counting = discovery.counting(max_length, tokenizer_known)
    # The shortest duration is taken as the fixed part of every request's duration. The largest request shows
    # how much time each token adds.
    quickest = min(seconds for _, seconds in discovery.timed)
    most_tokens, seconds_of_largest = max(discovery.timed)
    return ServerBehaviour(
        dimension=dimension,
        encoding=client.request_format.encoding,
        sends_dimensions=client.request_format.dimensions,
        as_list=client.request_format.as_list,
        batch=batch,
        max_length=max_length,
        long=long,
        normalised=bool(np.abs(np.linalg.norm(first.vectors, axis=1) - 1).max() < 1e-3),
        call_noise=stability.call_noise,
        batch_noise=stability.batch_noise,
        least_cosine=stability.least_cosine,
        counts_tokens=counting.counts_tokens,
        overhead=counting.overhead,
        tokens_per_unit=counting.tokens_per_unit,
        request_seconds=quickest,
        token_seconds=(seconds_of_largest - quickest) / max(1, most_tokens),
        sentinels=base64.b64encode(first.vectors.astype("<f4").tobytes()).decode("ascii"),
    )


def _require_distinct_vectors(vectors: NDArray[np.float32], noise: float, name: str) -> None:
    """Raise a ModelError if two texts get vectors that are no further apart than the noise.

    Args:
        vectors: vectors of different texts, shape (texts, d).
        noise: largest distance between two unit vectors of one text.
        name: name of the model, for the message.
    """
    units = exact_unit_vectors(vectors)
    distances = np.linalg.norm(units[:, None] - units, axis=2)
    distance_of_texts = distances[np.triu_indices(len(units), 1)].min()
    if distance_of_texts <= max(noise, _ROUNDING):
        raise ModelError(
            f"{name}: the vectors of two different texts are no further apart ({distance_of_texts:.2g}) than "
            f"the vectors of one text in two requests ({noise:.2g}): check which model the server has loaded"
        )


class _Discovery:
    """Sends the requests that tell `discover` how a server behaves.

    Attributes:
        one_by_one: whether every text is sent in a separate request.
        timed: number of tokens and duration in seconds of each answered request.
    """

    def __init__(self, client: Client, count: Callable[[Sequence[str]], list[int]]) -> None:
        self.client = client
        self.count = count
        self.name = client.address.name
        self.one_by_one = False
        self.timed: list[tuple[int, float]] = []

    def ask(self, texts: Sequence[str], attempts: int = _ATTEMPTS, in_one_request: bool = False) -> Reply:
        """Send texts, in several attempts if necessary, and return the reply.

        Args:
            texts: texts to send.
            attempts: number of failures after which to give up.
            in_one_request: whether to send all texts in one request even if `one_by_one` is set.

        Raises:
            ModelError: the server is busy, cannot be reached, fails on the texts, or answers with a web page.
            RefusedError: the server refuses the texts.
        """
        if self.one_by_one and not in_one_request:
            return as_one([self.ask([text], attempts, in_one_request=True) for text in texts])
        own_tokens = sum(self.count(texts))
        tries = Attempts(_PATIENCE_SECONDS, attempts)
        while True:
            try:
                reply = self.client.request(texts, own_tokens + _MOST_EXTRA_TOKENS * len(texts))
                if not reply.problems:
                    self.timed.append((own_tokens, reply.seconds))
                    return reply
                failure = TemporaryError(next(iter(reply.problems.values())), Failure.UNUSABLE)
            except TemporaryError as error:
                failure = error
            except RefusedError as error:
                # The HTTP status suggests that the key or the name of the model is wrong, not the texts.
                if error.access_error is not None:
                    raise error.access_error from None
                raise
            pause = tries.pause_after(failure, time.monotonic())
            if pause is None:
                raise self._giving_up_error(failure, tries)
            time.sleep(pause)

    def _giving_up_error(self, last: TemporaryError, tries: Attempts) -> ModelError:
        """Return the error to raise when a request is given up after this failure."""
        if last.failure is Failure.WEB_PAGE:
            advice = self.client.other_url() or "check the URL, or try later if the server is in maintenance"
            return ModelError(f"{self.name} is a web page, not an API: {advice}")
        if last.unreachable:
            return _UnreachableError(
                f"{self.name} cannot be reached ({last}): check the URL, and that the server is running"
            )
        kind = ModelError if last.busy else _FaultyServerError
        return kind(f"{self.name} {tries.why_given_up(last)}: check the server, or try later")

    def answers(self, texts: Sequence[str], in_one_request: bool = False) -> Reply | None:
        """Send texts and return the reply; None if the server refuses the texts or fails on them.

        Args:
            texts: texts to send.
            in_one_request: whether to send all texts in one request even if `one_by_one` is set.

        Raises:
            ModelError: the server does not answer other texts either.
        """
        try:
            return self.ask(texts, _ATTEMPTS_OF_UNCERTAIN_REQUEST, in_one_request)
        except (RefusedError, _FaultyServerError):
            return None
        except _UnreachableError:
            # Either the server is down, or it breaks the connection because of these texts. If it is down, it
            # does not answer a fixed text either, and this call raises an error.
            self.ask(SENTINELS[:1])
            return None

    def first_answer(self) -> Reply:
        """Find a request format that the server answers, and return the reply to the fixed texts.

        Sets the client's `request_format`. Also sets `one_by_one` if the server takes no lists of texts, or
        if its answers do not say which vector belongs to which text.

        Raises:
            ModelError: the server refuses every request format or fails on it, is busy, or cannot be reached.
        """
        first_refusal: RefusedError | None = None
        first_failure: _FaultyServerError | None = None
        attempts = _ATTEMPTS
        for request_format, one_by_one in self._formats_to_try():
            self.client.request_format = request_format
            self.one_by_one = one_by_one
            try:
                return self.ask(SENTINELS, attempts)
            except RefusedError as error:
                if first_refusal is None:
                    first_refusal = error
            except _FaultyServerError as error:
                if first_failure is None:
                    first_failure = error
                # A field of the request may have caused the failure. In that case, retries would fail too, so
                # each of the later formats is tried only once.
                attempts = 1
        # A refusal may only mean that the server does not support one of the formats. A failure concerns a
        # format that the server did not refuse, so it says more about what is wrong.
        if first_failure is not None:
            raise first_failure
        raise self.client.refused(first_refusal)

    def _formats_to_try(self) -> Iterator[tuple[RequestFormat, bool]]:
        """Yield request formats in the order in which to try them, each with a value of `one_by_one`.

        A format with lists is tried with all texts in one request, and then with one text per request.
        """
        for request_format in request_formats(self.client.options.dimensions):
            if request_format.as_list:
                yield request_format, False
            yield request_format, True

    def largest_batch(self) -> int:
        """Return how many texts the server takes in a request: a power of two, at most _MOST_TEXTS."""
        if not self.client.request_format.as_list:
            return 1
        batch = _MOST_TEXTS
        while batch > 1:
            texts = [f"{number}" for number in range(batch)]
            if self.answers(texts, in_one_request=True) is not None:
                return batch
            batch //= 2
        return 1

    def stability(self, first: Reply) -> _Stability:
        """Measure how much the vectors of the fixed texts differ between requests.

        All fixed texts are sent again in the same order and in reverse order, and one of them is sent alone.
        The noise between a text sent alone and a text sent with others includes the noise of the order.

        Args:
            first: the server's first reply to the fixed texts.

        Returns:
            The noise between calls and between batches, the largest distance, and the smallest cosine, as
            described by `_Stability`.

        Raises:
            ModelError: the server refuses a text that it has answered before, or its vectors have a different
                length than before.
        """
        repeated = [self._answered_again(SENTINELS, first) for _ in range(_CALLS_WITH_FIXED_TEXTS - 1)]
        calls = [exact_unit_vectors(first.vectors), *repeated]
        # The texts are sent in reverse order, and their vectors are put back in the original order.
        in_opposite_order = self._answered_again(SENTINELS[::-1], first)[::-1].copy()
        with_one_alone = in_opposite_order.copy()
        with_one_alone[1] = self._answered_again(SENTINELS[1:2], first)[0]
        vectors = np.stack([*calls, in_opposite_order, with_one_alone])
        noise_of_order = _cosine_noise([calls[0], in_opposite_order])
        noise_alone = _cosine_noise([calls[0], with_one_alone])
        # c: call, s: text, d: component. The cosine of each vector with the first vector of its text.
        cosines = np.einsum("csd,sd->cs", vectors, calls[0])
        return _Stability(
            call_noise=_cosine_noise(calls),
            batch_noise=max(noise_of_order, noise_alone),
            distance=float(np.linalg.norm(vectors - calls[0], axis=2).max()),
            least_cosine=float(min(1.0, cosines.min())),
        )

    def _answered_again(self, texts: Sequence[str], first: Reply) -> NDArray[np.float64]:
        """Send texts that the server has answered before, and return their new unit vectors, shape (n, d).

        Args:
            texts: texts from `SENTINELS`.
            first: the server's first reply, whose vectors have the expected length.
        """
        try:
            reply = self.ask(texts)
        except RefusedError as error:
            raise self.client.refused(error) from None
        first_dimension = first.vectors.shape[1]
        dimension = reply.vectors.shape[1]
        if dimension != first_dimension:
            raise ModelError(
                f"{self.name} gives vectors of {first_dimension} components and then of "
                f"{dimension}: several models answer under this name"
            )
        return exact_unit_vectors(reply.vectors)

    def longest_text(self, noise: float) -> tuple[int, Long]:
        """Measure the length of the longest text that the server reads in full.

        The server is sent pairs of texts that differ only at the end. If the two texts of a pair get equal
        vectors, the server did not read their ends.

        Args:
            noise: largest distance between two unit vectors of one text.

        Returns:
            The length, in tokens, of the longest text that the server reads in full, and what the server does
            with longer texts.
        """
        search = _LengthSearch(self, noise)
        longest_read = 1
        shortest_not_read = _FIRST_WORDS if search.is_exact else _FIRST_WORDS_OF_NOISY
        while shortest_not_read <= _MOST_WORDS and search.reads(shortest_not_read):
            longest_read = shortest_not_read
            shortest_not_read = 2 * shortest_not_read
        if shortest_not_read > _MOST_WORDS:
            return search.tokens(longest_read), "unknown"
        while shortest_not_read - longest_read > 1:
            middle = (longest_read + shortest_not_read) // 2
            if search.reads(middle):
                longest_read = middle
            else:
                shortest_not_read = middle
        return search.tokens(longest_read), "refuses" if search.was_refused else "truncates"

    def counting(self, max_length: int | None, tokenizer_known: bool) -> _Counting:
        """Find out how the server counts tokens, from one request with short texts and one with longer texts.

        The server is taken to use the user's tokenizer if both find almost the same difference between the
        number of tokens in the longer texts and the number of tokens in the short texts.

        Args:
            max_length: maximum number of tokens that the model reads; None if unknown.
            tokenizer_known: whether the user passed a tokenizer and said that the server uses it.

        Returns:
            A `_Counting`. If the server uses the same tokenizer, ``overhead`` is the number of special tokens
            per text. If the server uses a different tokenizer, ``tokens_per_unit`` is the number of tokens
            that the server counts for each token of the user's tokenizer. If the server reports no counts, or
            counts something other than tokens, ``counts_tokens`` is False.

        Raises:
            ModelError: the user said that the server uses the given tokenizer, but the server's token counts
                differ.
        """
        tokens_of_longer = self.count(_LONGER)
        longer = [
            text
            for text, tokens in zip(_LONGER, tokens_of_longer, strict=True)
            if max_length is None or tokens <= max_length
        ]
        does_not_count = _Counting(counts_tokens=False)
        if not longer:
            return does_not_count
        short = _SHORT[: len(longer)]
        counted_short = self._counted(short)
        counted_longer = self._counted(longer)
        if counted_short is None or counted_longer is None:
            return does_not_count
        if counted_short == counted_longer:  # the server reports a constant, or counts texts
            return does_not_count
        # Special tokens cancel out in the difference between two requests with the same number of texts.
        server_difference = counted_longer - counted_short
        # Some servers report the number of characters, bytes or words instead of tokens.
        if server_difference in _differences_in_other_units(short, longer):
            return does_not_count
        own_short = sum(self.count(short))
        own_longer = sum(self.count(longer))
        own_difference = own_longer - own_short
        if abs(server_difference - own_difference) <= _MOST_DIFFERENT_TOKENS:
            # How many more tokens the server counts than the user's tokenizer, in both requests together.
            extra_tokens = (counted_short - own_short) + (counted_longer - own_longer)
            text_count = len(short) + len(longer)
            return _Counting(counts_tokens=True, overhead=max(0.0, extra_tokens / text_count))
        if tokenizer_known:
            raise ModelError(
                f"the tokenizer does not belong to {self.name}: for a long request, it counts "
                f"{own_difference} more tokens than for a short one, but the server counts "
                f"{server_difference} more: pass the model's tokenizer or, if the tokenizer is unpublished, "
                "a list of candidates"
            )
        return _Counting(counts_tokens=True, tokens_per_unit=counted_longer / max(1, own_longer))

    def _counted(self, texts: Sequence[str]) -> int | None:
        """Return the number of tokens that the server reports for texts; None if it reports no number."""
        reply = self.answers(texts)
        return None if reply is None else reply.tokens


class _LengthSearch:
    """Tests whether the server reads texts with a given number of words in full.

    The test sends two texts that differ only after the given number of words. If the server gives both texts
    equal vectors, the server truncated the texts.

    Attributes:
        is_exact: whether vectors have no noise, so that the texts of a pair need to differ in only one word.
            If vectors are noisy, the texts of a pair differ in as many words as they share, so that their
            distance exceeds the noise.
        was_refused: whether the server refused a text.
    """

    def __init__(self, discovery: _Discovery, noise: float) -> None:
        self._discovery = discovery
        self._noise = noise
        self.is_exact = noise < _ROUNDING
        self.was_refused = False

    def _pair(self, words: int) -> list[str]:
        """Return two texts that share their first `words` words and differ in all later words."""
        ends = 1 if self.is_exact else words
        return [" ".join([_WORD] * words + [end] * ends) for end in _ENDS]

    def reads(self, words: int) -> bool:
        """Whether the server distinguishes two texts that share their first `words` words."""
        reply = self._discovery.answers(self._pair(words))
        if reply is None:
            self.was_refused = True
            return False
        first, second = exact_unit_vectors(reply.vectors)
        threshold = _ROUNDING if self.is_exact else _DISTANCE_PER_NOISE * self._noise
        return float(np.linalg.norm(first - second)) > threshold

    def tokens(self, words: int) -> int:
        """Return a lower bound on the number of tokens that the server reads.

        Args:
            words: a number of words for which `reads` has returned True.
        """
        texts = self._pair(words) if self.is_exact else [" ".join([_WORD] * words)]
        return min(self._discovery.count(texts))


def _differences_in_other_units(short: Sequence[str], longer: Sequence[str]) -> list[int]:
    """Return how many more characters, bytes and words the longer texts have than the short texts."""

    def difference(size: Callable[[str], int]) -> int:
        return sum(map(size, longer)) - sum(map(size, short))

    characters = difference(len)
    encoded_bytes = difference(lambda text: len(text.encode()))
    words = difference(lambda text: len(text.split()))
    return [characters, encoded_bytes, words]


def _cosine_noise(calls: Sequence[NDArray[np.float64]]) -> float:
    """Return how much the cosine of two fixed texts varies between calls, as a standard deviation.

    Args:
        calls: unit vectors of the fixed texts in each call, shape (texts, d).

    Returns:
        The square root of the mean, over all pairs of texts, of the variance of the pair's cosine between
        calls.
    """
    upper = np.triu_indices(len(SENTINELS), 1)
    cosines = np.stack([(call @ call.T)[upper] for call in calls])
    return float(np.sqrt(cosines.var(axis=0, ddof=1).mean()))
