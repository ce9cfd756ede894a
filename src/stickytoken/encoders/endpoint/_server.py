"""Find out how a server behaves, with a few cheap requests, before money is spent."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
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
    RequestForm,
    TemporaryError,
    as_one,
    request_forms,
)
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
# The search for the longest text that a model reads: words of the first text, of the first text where vectors
# are noisy, and of the longest text; the word that is repeated; and the last words in which two texts differ.
_FIRST_WORDS = 64
_FIRST_WORDS_OF_NOISY = 8
_LAST_WORDS = 2048
_WORD = "the"
_ENDS = ("river", "stone")
# Vectors of different texts are further apart than rounding.
_ROUNDING = 5e-5
# With noise, texts differ in as many words as they share, and must be this many times further
# apart than noise.
_ABOVE_NOISE = 3.0
# Largest number of texts that is tried in a request.
_MOST_TEXTS = 256
# Failures after which a request of the discovery is given up.
_ATTEMPTS = 4
# Times that the fixed texts are sent, to measure the noise.
_REPEATS = 3
# Seconds for which a request may fail while the server is being tried out.
_PATIENCE = 60.0
# Tokens that a server is expected to count for a text, at most, beside those of the text itself.
_ROOM = 8
# Counts of one tokenizer differ by special tokens alone, which cancel out. Those of BERT, RoBERTa, T5, XLM-R
# and Gemma differ by four and more on these texts: short ones, and names, numbers, code and scripts, which
# tokenizers cut in different ways.
_MOST_DIFFERENT = 2
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
    """How a server behaves, as the first requests found out. It is stored with the answers.

    Attributes:
        version: of this record.
        dimension: number of components of a vector.
        encoding: as in `RequestForm`, like the next two.
        sends_dimensions: see `RequestForm.dimensions`.
        as_list: see `RequestForm`.
        batch: number of texts that it takes in a request, as far as was tried.
        max_length: number of tokens that it reads, by the tokenizer that was passed; None is unknown.
        long: what it does with longer texts.
        normalised: whether its vectors have length 1.
        call_noise: standard deviation of the cosine of two texts from one call to the next.
        batch_noise: the same from one composition of a request to another.
        least_cosine: smallest cosine of two vectors of one text, in any two calls.
        counts_tokens: whether it counts tokens.
        overhead: number of tokens that it counts for each text beside those of the text itself.
        tokens_per_unit: number of tokens that it counts for one token of the tokenizer; 1 with its own.
        request_seconds: duration of a request without tokens.
        token_seconds: what each token adds to that.
        sentinels: vectors of the fixed texts: float32 in base64.
    """

    model_config = ConfigDict(frozen=True)  # earlier releases noted more

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
    def form(self) -> RequestForm:
        return RequestForm(self.encoding, self.sends_dimensions, self.as_list)

    @property
    def noise(self) -> float:
        return max(self.call_noise, self.batch_noise)

    @property
    def most_tokens(self) -> int:
        """Number of tokens to send in a request, so that it is answered well before its time-out."""
        tokens_in_time = _REQUEST_SECONDS / max(self.token_seconds, _REQUEST_SECONDS / _MOST_TOKENS)
        return max(_LEAST_TOKENS, int(tokens_in_time))

    @property
    def sentinel_vectors(self) -> NDArray[np.float32]:
        flat = np.frombuffer(base64.b64decode(self.sentinels), dtype="<f4")
        return flat.reshape(len(SENTINELS), self.dimension)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.sentinel_vectors)

    def drift(self, vectors: Sequence[NDArray[np.float32]]) -> float | None:
        """Return how far the model behind the server has changed; None if it is the same.

        Args:
            vectors: of the fixed texts, as the server gives them now.

        Returns:
            The lowest cosine of a vector with the stored one; 0 if they differ in length.
        """
        if any(len(vector) != self.dimension for vector in vectors):
            return 0.0
        stored_units = exact_unit_vectors(self.sentinel_vectors)
        cosines = (exact_unit_vectors(np.stack(vectors)) * stored_units).sum(axis=1)
        lowest_cosine = float(cosines.min())
        # Vectors of the same model may differ several times as much as those of the noisiest pair of calls.
        tolerance = max(_DRIFT, _DRIFT_OF_NOISE * (1 - self.least_cosine))
        return lowest_cosine if 1 - lowest_cosine > tolerance else None


class _FaultyServerError(ModelError):
    """The server answers, but not as it should."""


class _UnreachableError(ModelError):
    """The server does not answer."""


@dataclass(frozen=True, slots=True)
class _Stability:
    """How far the vectors of a text differ from one request to another.

    Attributes:
        call_noise: standard deviation of the cosine of two texts between calls.
        batch_noise: the same between compositions of a request.
        distance: largest distance of two unit vectors of one text.
        least_cosine: their smallest cosine.
    """

    call_noise: float
    batch_noise: float
    distance: float
    least_cosine: float


@dataclass(frozen=True, slots=True)
class _Counting:
    """How a server counts tokens; the defaults are those of a server that does not.

    Attributes:
        counts_tokens: whether it counts tokens.
        overhead: number of tokens that it counts for each text beside those of the text itself.
        tokens_per_unit: number of tokens that it counts for one token of the tokenizer.
    """

    counts_tokens: bool = False
    overhead: float = 0.0
    tokens_per_unit: float = 1.0


def discover(
    client: Client, count: Callable[[Sequence[str]], list[int]], max_length: int | None, tokenizer_known: bool
) -> ServerBehaviour:
    """Find out how a server behaves, and set the form of the client's requests.

    Args:
        client: a client of the server.
        count: counts the tokens of texts.
        max_length: tokens that the model reads; None finds out.
        tokenizer_known: whether the user says that `count` is by the tokenizer of the model.

    Raises:
        ModelError: the server cannot be reached or used, or its answers are not those of the model that the
            user describes.
    """
    discovery = _Discovery(client, count)
    name = discovery.name
    first = discovery.first_answer()
    dimension = first.vectors.shape[1]
    asked_dimension = client.options.dimensions
    if asked_dimension is not None and dimension != asked_dimension:
        raise ModelError(
            f"{name} gives vectors of {dimension} components, not the {asked_dimension} that were asked for: "
            "the model has no other dimensions, so omit them"
        )
    if not first.vectors.any(axis=1).all():
        raise ModelError(f"{name} gives a vector of zeros: check which model the server has loaded")
    stability = discovery.stability(first)
    units = exact_unit_vectors(first.vectors)
    distances = np.linalg.norm(units[:, None] - units, axis=2)
    distance_of_texts = distances[np.triu_indices(len(units), 1)].min()
    if distance_of_texts <= max(stability.distance, _ROUNDING):
        raise ModelError(
            f"{name} gives different texts vectors that are no further apart ({distance_of_texts:.2g}) than "
            f"those of one text in two requests ({stability.distance:.2g}): check which model the server has "
            "loaded"
        )
    batch = discovery.largest_batch()
    long: Long = "unknown"
    if max_length is None:
        max_length, long = discovery.longest_text(stability.distance)
    counting = discovery.counting(max_length, tokenizer_known)
    # The quickest request shows what each costs whatever is in it; the largest, what its tokens add.
    quickest = min(seconds for _, seconds in discovery.timed)
    most_tokens, longest = max(discovery.timed)
    return ServerBehaviour(
        dimension=dimension,
        encoding=client.form.encoding,
        sends_dimensions=client.form.dimensions,
        as_list=client.form.as_list,
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
        token_seconds=(longest - quickest) / max(1, most_tokens),
        sentinels=base64.b64encode(first.vectors.astype("<f4").tobytes()).decode("ascii"),
    )


class _Discovery:
    """Finds out one thing after the other about a server.

    Attributes:
        one_by_one: whether texts are sent one by one.
        timed: tokens and seconds of the requests that were answered.
    """

    def __init__(self, client: Client, count: Callable[[Sequence[str]], list[int]]) -> None:
        self.client = client
        self.count = count
        self.name = client.address.name
        self.one_by_one = False
        self.timed: list[tuple[int, float]] = []

    def ask(self, texts: Sequence[str], attempts: int = _ATTEMPTS, together: bool = False) -> Reply:
        """Return the vectors of all texts, after several attempts if necessary.

        Args:
            texts: texts to send.
            attempts: number of failures of the server after which to give up.
            together: send one request, even if texts are sent one by one.

        Raises:
            ModelError: the server is busy, cannot be reached, fails on the texts, or answers with a web page.
            RefusedError: the server refuses the texts.
        """
        if self.one_by_one and not together:
            return as_one([self.ask([text], attempts, together=True) for text in texts])
        own_tokens = sum(self.count(texts))
        tries = Attempts(_PATIENCE, attempts)
        while True:
            try:
                reply = self.client.request(texts, own_tokens + _ROOM * len(texts))
                if not reply.problems:
                    self.timed.append((own_tokens, reply.seconds))
                    return reply
                failure = TemporaryError(next(iter(reply.problems.values())), Failure.UNUSABLE)
            except TemporaryError as error:
                failure = error
            except RefusedError as error:
                if error.for_all is not None:
                    raise error.for_all from None
                raise
            pause = tries.pause_after(failure, time.monotonic())
            if pause is None:
                raise self._given_up(failure, tries)
            time.sleep(pause)

    def _given_up(self, last: TemporaryError, tries: Attempts) -> ModelError:
        """Return the error to raise after the last failure."""
        if last.failure is Failure.WEB_PAGE:
            advice = self.client.other_url() or "check the URL, or try later if the server is in maintenance"
            return ModelError(f"{self.name}: a web page answers there, not an API: {advice}")
        if last.unreachable:
            return _UnreachableError(
                f"{self.name} cannot be reached ({last}): check the URL, and that the server is running"
            )
        kind = ModelError if last.busy else _FaultyServerError
        return kind(f"{self.name} {tries.why_given_up(last)}: check the server, or try later")

    def answers(self, texts: Sequence[str], together: bool = False) -> Reply | None:
        """Return the reply to texts; None if the server refuses them or fails on them, for any reason.

        Raises:
            ModelError: the server cannot be used at all.
        """
        try:
            return self.ask(texts, 2, together)
        except (RefusedError, _FaultyServerError):
            return None
        except _UnreachableError:
            self.ask(SENTINELS[:1])  # if it answers this, it hung up on the texts
            return None

    def first_answer(self) -> Reply:
        """Find the form of request that the server answers; return its first answer.

        Optional fields that it refuses are left out. Texts are sent one by one if it takes no list of them,
        or answers lists with vectors that cannot be told apart.
        """
        refusal: RefusedError | None = None
        failure: _FaultyServerError | None = None
        attempts = _ATTEMPTS
        for form in request_forms(self.client.options.dimensions):
            self.client.form = form
            for self.one_by_one in (False, True) if form.as_list else (True,):
                try:
                    return self.ask(SENTINELS, attempts)
                except RefusedError as error:
                    refusal = refusal or error
                except _FaultyServerError as error:
                    # It may fail because of a field, and then it fails every time.
                    failure = failure or error
                    attempts = 1
        if failure is not None:
            raise failure
        raise self.client.refused(refusal)

    def largest_batch(self) -> int:
        """Return how many texts the server takes in a request, as a power of two."""
        if not self.client.form.as_list:
            return 1
        batch = _MOST_TEXTS
        while batch > 1:
            texts = [f"{number}" for number in range(batch)]
            if self.answers(texts, together=True) is not None:
                return batch
            batch //= 2
        return 1

    def stability(self, first: Reply) -> _Stability:
        """Send the fixed texts several times: in the same order, in the opposite order, and one alone.

        Raises:
            ModelError: the server refuses a text that it has answered, or gives vectors of another length.
        """
        repeated = [self._answered_again(SENTINELS, first) for _ in range(_REPEATS - 1)]
        calls = [exact_unit_vectors(first.vectors), *repeated]
        in_opposite_order = self._answered_again(SENTINELS[::-1], first)[::-1].copy()
        with_one_alone = in_opposite_order.copy()
        with_one_alone[1] = self._answered_again(SENTINELS[1:2], first)[0]
        vectors = np.stack([*calls, in_opposite_order, with_one_alone])
        noise_of_order = _cosine_noise([calls[0], in_opposite_order])
        noise_alone = _cosine_noise([calls[0], with_one_alone])
        cosines = np.einsum("csd,sd->cs", vectors, calls[0])
        return _Stability(
            call_noise=_cosine_noise(calls),
            batch_noise=max(noise_of_order, noise_alone),
            distance=float(np.linalg.norm(vectors - calls[0], axis=2).max()),
            least_cosine=float(min(1.0, cosines.min())),
        )

    def _answered_again(self, texts: Sequence[str], first: Reply) -> NDArray[np.float64]:
        """Return the unit vectors of texts that the server has answered before, in its first reply."""
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
        """Find the longest text that the server reads, with pairs of texts that differ at their end only.

        Args:
            noise: largest distance of two unit vectors of one text.

        Returns:
            Its number of tokens, and what the server does with longer texts.
        """
        search = _LengthSearch(self, noise)
        read = 1
        unread = _FIRST_WORDS if search.is_exact else _FIRST_WORDS_OF_NOISY
        while unread <= _LAST_WORDS and search.reads(unread):
            read = unread
            unread = 2 * unread
        if unread > _LAST_WORDS:
            return search.tokens(read), "unknown"
        while unread - read > 1:
            middle = (read + unread) // 2
            if search.reads(middle):
                read = middle
            else:
                unread = middle
        return search.tokens(read), "refuses" if search.was_refused else "truncates"

    def counting(self, max_length: int | None, tokenizer_known: bool) -> _Counting:
        """Find out what the server counts, from a request with short texts and one with longer texts.

        Args:
            max_length: number of tokens that the model reads; None is unknown.
            tokenizer_known: whether the tokenizer should be the server's.

        Raises:
            ModelError: the tokenizer should be the server's, and counts other tokens.
        """
        tokens_of_longer = self.count(_LONGER)
        longer = [
            text
            for text, tokens in zip(_LONGER, tokens_of_longer, strict=True)
            if max_length is None or tokens <= max_length
        ]
        if not longer:
            return _Counting()
        short = _SHORT[: len(longer)]
        counted_short = self._counted(short)
        counted_longer = self._counted(longer)
        if counted_short is None or counted_longer is None or counted_short == counted_longer:
            return _Counting()
        # Special tokens cancel out in the difference of two requests with equally many texts.
        server_difference = counted_longer - counted_short
        if server_difference in _differences_in_other_units(short, longer):
            return _Counting()
        own_short = sum(self.count(short))
        own_longer = sum(self.count(longer))
        own_difference = own_longer - own_short
        if abs(server_difference - own_difference) <= _MOST_DIFFERENT:
            beside_texts = (counted_short - own_short) + (counted_longer - own_longer)
            return _Counting(counts_tokens=True, overhead=max(0.0, beside_texts / (2 * len(longer))))
        if tokenizer_known:
            raise ModelError(
                f"the tokenizer does not belong to {self.name}: from one request to a longer one, it "
                f"counts {own_difference} tokens more, and the server counts {server_difference} more: pass "
                "the tokenizer of the model, or candidates if it is unpublished"
            )
        return _Counting(counts_tokens=True, tokens_per_unit=counted_longer / max(1, own_longer))

    def _counted(self, texts: Sequence[str]) -> int | None:
        """Return the number of tokens that the server counts for texts; None if it does not."""
        reply = self.answers(texts)
        return None if reply is None else reply.tokens


class _LengthSearch:
    """Tests whether the server reads texts of a number of words to their end.

    Attributes:
        is_exact: whether one word at the end of a long text stands out from the noise. Otherwise the texts of
            a pair differ in as many words as they share.
        was_refused: whether the server refused a text.
    """

    def __init__(self, discovery: _Discovery, noise: float) -> None:
        self._discovery = discovery
        self._noise = noise
        self.is_exact = noise < _ROUNDING
        self.was_refused = False

    def _pair(self, words: int) -> list[str]:
        """Return two texts that share so many words and differ in those after them."""
        ends = 1 if self.is_exact else words
        return [" ".join([_WORD] * words + [end] * ends) for end in _ENDS]

    def reads(self, words: int) -> bool:
        """Whether the vectors of two texts with so many common words differ."""
        reply = self._discovery.answers(self._pair(words))
        if reply is None:
            self.was_refused = True
            return False
        first, second = exact_unit_vectors(reply.vectors)
        threshold = _ROUNDING if self.is_exact else _ABOVE_NOISE * self._noise
        return float(np.linalg.norm(first - second)) > threshold

    def tokens(self, words: int) -> int:
        """Return how many tokens were certainly read of texts with so many common words."""
        texts = self._pair(words) if self.is_exact else [" ".join([_WORD] * words)]
        return min(self._discovery.count(texts))


def _differences_in_other_units(short: Sequence[str], longer: Sequence[str]) -> list[int]:
    """Return how many more characters, bytes and words the longer texts have."""

    def difference(size: Callable[[str], int]) -> int:
        return sum(map(size, longer)) - sum(map(size, short))

    characters = difference(len)
    encoded_bytes = difference(lambda text: len(text.encode()))
    words = difference(lambda text: len(text.split()))
    return [characters, encoded_bytes, words]


def _cosine_noise(calls: Sequence[NDArray[np.float64]]) -> float:
    """Return the standard deviation of the cosine of two fixed texts between calls."""
    upper = np.triu_indices(len(SENTINELS), 1)
    cosines = np.stack([(call @ call.T)[upper] for call in calls])
    return float(np.sqrt(cosines.var(axis=0, ddof=1).mean()))
