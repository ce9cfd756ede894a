"""What a server says about a few fixed texts: its request format, its model, its noise, its token counts."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from stickytoken.encoders.endpoint._client import (
    ATTEMPTS,
    Client,
    Encoding,
    Failure,
    RefusedError,
    Reply,
    TemporaryError,
    request_formats,
)
from stickytoken.encoders.text_encoder import SENTINELS, fingerprint_of
from stickytoken.errors import ModelError
from stickytoken.unit_vectors import exact_unit_vectors

# The model is treated as unchanged if the cosine distance (1 - cosine) between the new and the stored vector
# of each fixed text is at most _DRIFT_TOLERANCE. On a noisy server, the limit is _DRIFT_PER_NOISE times the
# largest distance in the first requests, if that is more.
_DRIFT_TOLERANCE = 1e-3
_DRIFT_PER_NOISE = 4.0
# Largest distance between two unit vectors that rounding alone can explain. Vectors of different texts are
# further apart.
_ROUNDING = 5e-5
# Smallest cosine between two answers to the same text. Wrongly decoded, a vector has a cosine near 0.
_LEAST_AGREEMENT = 0.9
IN_BASE64 = 1
"""Index of the fixed text that is also asked for in base64."""
# Maximum number of extra tokens, such as special tokens, that a server is expected to count for each text.
_MOST_EXTRA_TOKENS = 8
# The server and the user's tokenizer each count how many more tokens the longer texts below have than the
# short texts. The server is taken to use the same tokenizer if its count differs from the user's by at most
# this many tokens. Special tokens do not affect the counts, because they cancel out. Between the tokenizers
# of BERT, RoBERTa, T5, XLM-R and Gemma, the counts differ by four or more, because tokenizers split names,
# numbers, code and different scripts differently.
_MOST_DIFFERENT_TOKENS = 2
_SHORT = ("a", "in", "the", "is")
_LONGER = (
    "Order 66-1047/b: naïve façades cost €1,234,567.89 (VAT №42), antidisestablishmentarianism included.",
    "def parseHTTPHeader(raw): return {k.strip(): v for k, v in re.findall(r'(\\w+):\\s*(.+)', raw)}",
    "東京タワーは1958年に建てられました。 Ελληνικά, русский язык, हिन्दी, العربية; 😀🚀 https://example.org/a?b=c&d=%20e",
    "Pneumonoultramicroscopicsilicovolcanoconiosis, Llanfairpwllgwyngyll, Qzxv-brxl, McDonald's iPhone15",
)


class ServerBehaviour(BaseModel):
    """What a server said about the fixed texts, as stored in the server's cache.

    Attributes:
        version: version of this record's format.
        dimension: number of components in each vector.
        encoding: value of `RequestFormat.encoding` that the server accepts.
        noise: standard deviation of the cosine between two texts across two requests that differ in the order
            of their texts.
        least_cosine: smallest cosine between two vectors of the same text in these requests.
        counts_tokens: whether the server reports the number of tokens.
        overhead: number of tokens, such as special tokens, that the server counts for each text in addition
            to the text's own tokens.
        tokens_per_unit: number of tokens that the server counts for each token of the user's tokenizer; 1 if
            the server uses the same tokenizer.
        request_seconds: duration of a request with few tokens, in seconds.
        token_seconds: seconds that each token adds to the duration of a request.
        sentinels: vectors of the fixed texts: float32 in base64.
    """

    model_config = ConfigDict(frozen=True)

    version: Literal[2] = 2
    dimension: int
    encoding: Encoding
    noise: float = Field(ge=0)
    least_cosine: float
    counts_tokens: bool
    overhead: float
    tokens_per_unit: float
    request_seconds: float = Field(ge=0)
    token_seconds: float = Field(ge=0)
    sentinels: str

    @property
    def sentinel_vectors(self) -> NDArray[np.float32]:
        """Vectors of the fixed texts, shape (texts, d)."""
        flat = np.frombuffer(base64.b64decode(self.sentinels), dtype="<f4")
        return flat.reshape(len(SENTINELS), self.dimension)

    @property
    def fingerprint(self) -> str:
        """Hash of the fixed texts' vectors, which identifies the model."""
        return fingerprint_of(self.sentinel_vectors)

    def drift(self, vectors: NDArray[np.float32]) -> float | None:
        """Check whether the server still uses the same model.

        Args:
            vectors: the vectors that the server now gives for the fixed texts, shape (texts, d).

        Returns:
            None if the model has not changed since the fixed texts were first sent. If the model has changed,
            the lowest cosine between a new vector and the stored vector of the same text; 0 if the vectors
            differ in length.
        """
        if vectors.shape[1] != self.dimension:
            return 0.0
        stored_units = exact_unit_vectors(self.sentinel_vectors)
        cosines = (exact_unit_vectors(vectors) * stored_units).sum(axis=1)
        lowest_cosine = float(cosines.min())
        # The first few requests underestimate the largest distance between two vectors of the same text, so
        # several times that distance is allowed.
        largest_distance = 1 - self.least_cosine
        tolerance = max(_DRIFT_TOLERANCE, _DRIFT_PER_NOISE * largest_distance)
        return lowest_cosine if 1 - lowest_cosine > tolerance else None


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


def ask_server(
    client: Client, count: Callable[[Sequence[str]], list[int]], max_length: int | None, tokenizer_known: bool
) -> ServerBehaviour:
    """Send the fixed texts and return what the server says; set a request format that it answers.

    Args:
        client: sends requests to the server.
        count: function that returns the number of tokens in each text.
        max_length: maximum number of tokens that the user wants to send; None if the user sets none.
        tokenizer_known: whether `count` uses a tokenizer that the user passed as the model's own.

    Raises:
        ModelError: the server cannot be reached or used, or its answers contradict the user's description of
            the model.
    """
    questions = _Questions(client, count)
    first = questions.ask_first()
    dimension = first.vectors.shape[1]
    _require_floats(first.vectors, client.address.name)
    asked_dimension = client.options.request_dimensions
    if asked_dimension is not None and dimension != asked_dimension:
        raise ModelError(
            f"{client.address.name} gives vectors of {dimension} components, not the {asked_dimension} that "
            "were requested: the model does not support other dimensions, so leave request-dimensions out"
        )
    if not first.vectors.any(axis=1).all():
        raise ModelError(
            f"{client.address.name} gives a vector of zeros: check which model the server has loaded"
        )
    questions.use_base64_if_it_agrees(first.vectors)
    # Unit vectors of the same texts in two requests, shape (texts, d). On a noisy server, they differ.
    first_units = exact_unit_vectors(first.vectors)
    second_units = questions.ask_in_opposite_order(dimension)
    largest_distance = float(np.linalg.norm(second_units - first_units, axis=1).max())
    _require_distinct_vectors(first.vectors, largest_distance, client.address.name)
    cosines_across_requests = (first_units * second_units).sum(axis=1)
    counting = questions.ask_for_counts(max_length, tokenizer_known)
    # The shortest duration is taken as the fixed part of every request's duration. The largest request shows
    # how much time each token adds.
    quickest = min(seconds for _, seconds in questions.timed)
    most_tokens, seconds_of_largest = max(questions.timed)
    return ServerBehaviour(
        dimension=dimension,
        encoding=client.request_format.encoding,
        noise=_measure_noise(first_units, second_units),
        least_cosine=float(min(1.0, cosines_across_requests.min())),
        counts_tokens=counting.counts_tokens,
        overhead=counting.overhead,
        tokens_per_unit=counting.tokens_per_unit,
        request_seconds=quickest,
        token_seconds=max(0.0, seconds_of_largest - quickest) / max(1, most_tokens),
        sentinels=base64.b64encode(first.vectors.astype("<f4").tobytes()).decode("ascii"),
    )


def vectors_of_fixed_texts(
    client: Client, count: Callable[[Sequence[str]], list[int]]
) -> NDArray[np.float32]:
    """Return the vectors that the server gives now, for `ServerBehaviour.drift`; wait for it if it fails.

    Sets the client's request format, because a server may have been replaced by one that refuses a field.
    """
    questions = _Questions(client, count, attempts=None)  # as often as the user's patience allows
    vectors = questions.ask_first().vectors
    questions.use_base64_if_it_agrees(vectors)
    return vectors


def _require_distinct_vectors(vectors: NDArray[np.float32], distance_of_requests: float, name: str) -> None:
    units = exact_unit_vectors(vectors)
    distances = np.linalg.norm(units[:, None] - units, axis=2)  # of every text from every text
    pairs_of_texts = np.triu_indices(len(units), 1)  # each pair once, and no text with itself
    distance_of_texts = distances[pairs_of_texts].min()
    if distance_of_texts <= max(distance_of_requests, _ROUNDING):
        raise ModelError(
            f"{name}: the vectors of two different texts are no further apart ({distance_of_texts:.2g}) than "
            "the vectors of one text in two requests "
            f"({distance_of_requests:.2g}): check which model the server has loaded"
        )


def _require_floats(vectors: NDArray[np.float32], name: str) -> None:
    # Whole numbers alone mean that the server compresses vectors.
    has_fractions = bool((vectors != np.round(vectors)).any())
    is_zero = not vectors.any()  # refused elsewhere, with another message
    if has_fractions or is_zero:
        return
    kind = "packed bits or 8-bit integers" if np.abs(vectors).max() > 1 else "signs or bits"
    raise ModelError(
        f"{name} sends vectors of whole numbers ({kind}, such as int8, uint8, binary or ubinary): set the "
        "server to send float vectors"
    )


def _is_same_vector(first: NDArray[np.float32], second: NDArray[np.float32]) -> bool:
    if first.shape != second.shape:
        return False
    return float(exact_unit_vectors(first) @ exact_unit_vectors(second)) > _LEAST_AGREEMENT


def _join_replies(first: Reply, second: Reply) -> Reply:
    tokens = None  # stays None unless the server has counted the tokens of both requests
    if first.tokens is not None and second.tokens is not None:
        tokens = first.tokens + second.tokens
    return Reply(  # without `problems`, because `_Questions.ask` returns only usable vectors
        vectors=np.concatenate([first.vectors, second.vectors]),
        tokens=tokens,
        seconds=first.seconds + second.seconds,
    )


class _Questions:
    """Sends the fixed texts.

    Attributes:
        count_own: counts the tokens of texts with the user's tokenizer.
        attempts: see `Client.request`.
        timed: number of tokens and duration in seconds of each answered request.
    """

    def __init__(
        self, client: Client, count: Callable[[Sequence[str]], list[int]], attempts: int | None = ATTEMPTS
    ) -> None:
        self.client = client
        self.count_own = count
        self.attempts = attempts
        self.name = client.address.name
        self.timed: list[tuple[int, float]] = []

    def ask(self, texts: Sequence[str]) -> Reply:
        """Send texts, in smaller requests if they are refused, and return one reply with all vectors."""
        own_tokens = sum(self.count_own(texts))
        expected_tokens = own_tokens + _MOST_EXTRA_TOKENS * len(texts)
        try:
            reply = self.client.request(texts, expected_tokens, attempts=self.attempts)
        except RefusedError as error:
            if len(texts) == 1 or error.access_error is not None:  # fewer texts would not help
                raise
            middle = len(texts) // 2
            return _join_replies(self.ask(texts[:middle]), self.ask(texts[middle:]))
        if reply.problems:
            first_problem = next(iter(reply.problems.values()))
            raise TemporaryError(first_problem, Failure.UNUSABLE)
        self.timed.append((own_tokens, reply.seconds))
        return reply

    def ask_first(self) -> Reply:
        """Find a request format that the server answers, and return the reply to the fixed texts.

        Sets the client's `request_format`.

        Raises:
            ModelError: the server cannot be reached, or refuses every format or fails on it.
        """
        problems: list[RefusedError | TemporaryError] = []
        for request_format in request_formats(self.client.options.request_dimensions):
            self.client.request_format = request_format
            try:
                return self.ask(SENTINELS)
            except RefusedError as error:
                # The HTTP status suggests that the key or the name of the model is wrong, not a field.
                if error.access_error is not None:
                    raise error.access_error from None
                problems.append(error)
            except TemporaryError as error:
                # A status that means "try again later" may also say that the server fails on a field that it
                # doesn't know, so the next format is tried.
                if error.failure is not Failure.REFUSED:
                    raise self._make_unusable_error(error) from None
                problems.append(error)
        # The first format is the usual one, so the server's answer to it says most about what is wrong.
        if isinstance(problems[0], TemporaryError):
            raise self._make_unusable_error(problems[0])
        raise self.client.make_refusal_error(problems[0])

    def _make_unusable_error(self, error: TemporaryError) -> ModelError:
        if error.failure is Failure.WEB_PAGE:
            advice = (
                self.client.advice_on_url() or "check the URL, or try later if the server is in maintenance"
            )
            return ModelError(f"{self.name} is a web page, not an API: {advice}")
        if error.failure in (Failure.UNREACHED, Failure.LATE, Failure.LOST):
            return ModelError(
                f"{self.name} cannot be reached ({error}): check the URL, and that the server is running"
            )
        return ModelError(f"{self.name} gives no usable answer ({error}): check the server, or try later")

    def use_base64_if_it_agrees(self, vectors: NDArray[np.float32]) -> None:
        """Ask for vectors in base64, which is shorter, from now on, if a vector is then the same as before.

        ``vectors`` are the vectors of the fixed texts, received as lists.
        """
        format_of_lists = self.client.request_format
        if format_of_lists.encoding == "omitted":  # the server refuses the field that asks for base64
            return
        text = SENTINELS[IN_BASE64]
        expected_tokens = sum(self.count_own([text])) + _MOST_EXTRA_TOKENS
        self.client.request_format = replace(format_of_lists, encoding="base64")
        try:
            reply = self.client.request([text], expected_tokens, attempts=1)
        except (RefusedError, TemporaryError):
            is_same = False
        else:
            is_same = _is_same_vector(reply.vectors[0], vectors[IN_BASE64])
        if not is_same:
            self.client.request_format = format_of_lists

    def ask_in_opposite_order(self, dimension: int) -> NDArray[np.float64]:
        """Send the fixed texts in reverse, and return their unit vectors in the usual order, shape (n, d)."""
        try:
            reply = self.ask(SENTINELS[::-1])
        except RefusedError as error:
            raise self.client.make_refusal_error(error) from None
        except TemporaryError as error:
            raise self._make_unusable_error(error) from None
        if reply.vectors.shape[1] != dimension:
            raise ModelError(
                f"{self.name} gives vectors of {dimension} components and then of "
                f"{reply.vectors.shape[1]}: several models answer under this name"
            )
        return exact_unit_vectors(reply.vectors)[::-1]

    def ask_for_counts(self, max_length: int | None, tokenizer_known: bool) -> _Counting:
        """Find out how the server counts tokens, from one request with short texts and one with longer texts.

        The server is taken to use the user's tokenizer if both find almost the same difference between the
        two requests. If the user said so (``tokenizer_known``), but it is not the case, a ModelError is
        raised.

        Returns:
            The number of special tokens per text (``overhead``) if the tokenizers are the same, otherwise how
            many tokens the server counts for each of the user's. ``counts_tokens`` is False if the server
            reports no counts, or counts something other than tokens.
        """
        does_not_count = _Counting(counts_tokens=False)
        longer = [  # the longer texts that the model reads in full
            text
            for text, tokens in zip(_LONGER, self.count_own(_LONGER), strict=True)
            if max_length is None or tokens <= max_length
        ]
        if not longer:
            return does_not_count
        short = _SHORT[: len(longer)]  # as many short texts
        counted_short = self._ask_for_count(short)
        counted_longer = self._ask_for_count(longer)
        if counted_short is None or counted_longer is None:
            return does_not_count
        if counted_short == counted_longer:  # the server reports a constant, or counts texts
            return does_not_count
        # Special tokens cancel out in the difference between two requests with the same number of texts.
        server_difference = counted_longer - counted_short
        # Some servers report the number of characters, bytes or words instead of tokens.
        if server_difference in _differences_in_other_units(short, longer):
            return does_not_count
        own_short = sum(self.count_own(short))
        own_longer = sum(self.count_own(longer))
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

    def _ask_for_count(self, texts: Sequence[str]) -> int | None:
        try:
            return self.ask(texts).tokens
        except (RefusedError, TemporaryError):  # the server may read fewer tokens than these texts have
            return None


def _differences_in_other_units(short: Sequence[str], longer: Sequence[str]) -> list[int]:
    def subtract(size_of: Callable[[str], int]) -> int:
        return sum(map(size_of, longer)) - sum(map(size_of, short))

    characters = subtract(len)
    encoded_bytes = subtract(lambda text: len(text.encode()))
    words = subtract(lambda text: len(text.split()))
    return [characters, encoded_bytes, words]


def _measure_noise(first_units: NDArray[np.float64], second_units: NDArray[np.float64]) -> float:
    """Return the standard deviation of the cosine between two fixed texts across two requests.

    Both arrays have the unit vectors of the fixed texts in a request, shape (texts, d).
    """
    pairs_of_texts = np.triu_indices(len(SENTINELS), 1)
    first_cosines = (first_units @ first_units.T)[pairs_of_texts]
    second_cosines = (second_units @ second_units.T)[pairs_of_texts]
    variances = np.var([first_cosines, second_cosines], axis=0, ddof=1)  # shape (pairs,)
    return float(np.sqrt(variances.mean()))
