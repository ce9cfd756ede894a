"""Find out how a server behaves, with a few cheap requests, before money is spent."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
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
# Words of the first and the longest text in the search for the longest text that a model reads.
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
_REPEATS = 3
# Seconds for which a request may fail while the server is being tried out.
_PATIENCE = 60.0
# Tokens that a server may count for a text beside its own.
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


class Capabilities(BaseModel):
    model_config = ConfigDict(frozen=True)  # earlier releases noted more

    version: Literal[1] = 1
    dimension: int
    encoding: Encoding  # as in `RequestForm`, and the next two
    sends_dimensions: bool = True
    as_list: bool = True
    batch: int  # texts that it takes in a request, as far as was tried
    max_length: int | None  # tokens that it reads, by the tokenizer that was passed
    long: Long
    normalised: bool
    # Standard deviation of the cosine of two texts from one call to the next, and from one composition of a
    # request to another.
    call_noise: float = Field(ge=0)
    batch_noise: float = Field(ge=0)
    least_cosine: float  # of one text's vectors in any two calls
    counts_tokens: bool
    overhead: float  # tokens that it counts for each text beside those of the text itself
    tokens_per_unit: float = 1.0  # tokens that it counts for one that is counted here; 1 with its tokenizer
    request_seconds: float = Field(ge=0)  # of a request, whatever is in it
    token_seconds: float = Field(ge=0)  # of each token more
    sentinels: str  # their vectors: float32 in base64

    @property
    def form(self) -> RequestForm:
        return RequestForm(self.encoding, self.sends_dimensions, self.as_list)

    @property
    def noise(self) -> float:
        return max(self.call_noise, self.batch_noise)

    @property
    def most_tokens(self) -> int:  # in a request, so that it is answered well before its time-out
        in_time = _REQUEST_SECONDS / max(self.token_seconds, _REQUEST_SECONDS / _MOST_TOKENS)
        return max(_LEAST_TOKENS, int(in_time))

    @property
    def sentinel_vectors(self) -> NDArray[np.float32]:
        flat = np.frombuffer(base64.b64decode(self.sentinels), dtype="<f4")
        return flat.reshape(len(SENTINELS), self.dimension)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.sentinel_vectors)

    def drift(self, rows: Sequence[NDArray[np.float32]]) -> float | None:
        if any(len(row) != self.dimension for row in rows):
            return 0.0
        cosines = (exact_unit_vectors(np.stack(rows)) * exact_unit_vectors(self.sentinel_vectors)).sum(axis=1)
        least = float(cosines.min())
        # A cosine of 1 - x is off by x: as far as the noisiest pair of calls was, several times over.
        return least if 1 - least > max(_DRIFT, _DRIFT_OF_NOISE * (1 - self.least_cosine)) else None


class _FaultyServerError(ModelError): ...


class _UnreachableError(ModelError): ...


def discover(
    client: Client, count: Callable[[Sequence[str]], list[int]], max_length: int | None, tokenizer_known: bool
) -> Capabilities:
    """Find out how a server behaves, and set the form of the client's requests.

    Args:
        client: a client of the server.
        count: counts the tokens of texts.
        max_length: tokens that the model reads; None finds out.
        tokenizer_known: `count` is by the tokenizer of the model.

    Raises:
        ModelError: the server cannot be reached or used, or its answers are not those of the wanted model.
    """
    discovery = _Discovery(client, count)
    name = discovery.name
    first = discovery.first_answer()
    dimension = first.vectors.shape[1]
    wanted = client.options.dimensions
    if wanted is not None and dimension != wanted:
        raise ModelError(
            f"{name} gives vectors of {dimension} components, not the {wanted} that were asked for: "
            "the model has no other dimensions, so omit them"
        )
    if not first.vectors.any(axis=1).all():
        raise ModelError(f"{name} gives a vector of zeros: check which model the server has loaded")
    call_noise, batch_noise, distance, least_cosine = discovery.stability(first)
    units = exact_unit_vectors(first.vectors)
    apart = np.linalg.norm(units[:, None] - units, axis=2)[np.triu_indices(len(units), 1)].min()
    if apart <= max(distance, _ROUNDING):
        raise ModelError(
            f"{name} gives different texts vectors that are no further apart ({apart:.2g}) than those "
            f"of one text in two requests ({distance:.2g}): check which model the server has loaded"
        )
    batch = discovery.largest_batch()
    long: Long = "unknown"
    if max_length is None:
        max_length, long = discovery.longest_text(distance)
    counts_tokens, overhead, tokens_per_unit = discovery.usage(max_length, tokenizer_known)
    # The quickest request shows what each costs whatever is in it; the largest, what its tokens add.
    quickest = min(seconds for _, seconds in discovery.timed)
    most_tokens, longest = max(discovery.timed)
    return Capabilities(
        dimension=dimension,
        encoding=client.form.encoding,
        sends_dimensions=client.form.dimensions,
        as_list=client.form.as_list,
        batch=batch,
        max_length=max_length,
        long=long,
        normalised=bool(np.abs(np.linalg.norm(first.vectors, axis=1) - 1).max() < 1e-3),
        call_noise=call_noise,
        batch_noise=batch_noise,
        least_cosine=least_cosine,
        counts_tokens=counts_tokens,
        overhead=overhead,
        tokens_per_unit=tokens_per_unit,
        request_seconds=quickest,
        token_seconds=(longest - quickest) / max(1, most_tokens),
        sentinels=base64.b64encode(first.vectors.astype("<f4").tobytes()).decode("ascii"),
    )


class _Discovery:
    def __init__(self, client: Client, count: Callable[[Sequence[str]], list[int]]) -> None:
        self.client = client
        self.count = count
        self.name = client.address.name
        self.one_by_one = False
        self.timed: list[tuple[int, float]] = []

    def ask(self, texts: Sequence[str], attempts: int = _ATTEMPTS, together: bool = False) -> Reply:
        """Return the vectors of all texts, after some attempts if need be.

        Args:
            texts: texts to send.
            attempts: failures of the server after which to give up.
            together: send one request, even if the server takes one text at a time.

        Raises:
            ModelError: the server is busy, cannot be reached, fails on the texts, or answers with a web page.
            RefusedError: the server refuses the texts.
        """
        if self.one_by_one and not together:
            replies = [self.ask([text], attempts, together=True) for text in texts]
            counts = [reply.tokens for reply in replies]
            return Reply(
                np.concatenate([reply.vectors for reply in replies]),
                None if None in counts else sum(count or 0 for count in counts),
                sum(reply.seconds for reply in replies),
            )
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
        """Return None if the server refuses the texts or fails on them, whatever the reason."""
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
            texts = [f"{place}" for place in range(batch)]
            if self.answers(texts, together=True) is not None:
                return batch
            batch //= 2
        return 1

    def stability(self, first: Reply) -> tuple[float, float, float, float]:
        # Returns the standard deviation of a cosine between calls and between compositions of a request, the
        # largest distance of two unit vectors of one text, and their smallest cosine.

        def again(texts: Sequence[str]) -> NDArray[np.float64]:
            try:
                reply = self.ask(texts)
            except RefusedError as error:
                raise self.client.refused(error) from None
            if reply.vectors.shape[1] != first.vectors.shape[1]:
                raise ModelError(
                    f"{self.name} gives vectors of {first.vectors.shape[1]} components and then of "
                    f"{reply.vectors.shape[1]}: several models answer under this name"
                )
            return exact_unit_vectors(reply.vectors)

        calls = [exact_unit_vectors(first.vectors), *(again(SENTINELS) for _ in range(_REPEATS - 1))]
        other = again(SENTINELS[::-1])[::-1].copy()
        mixed = other.copy()
        mixed[1] = again(SENTINELS[1:2])[0]
        every = np.stack([*calls, other, mixed])
        return (
            _cosine_noise(calls),
            max(_cosine_noise([calls[0], other]), _cosine_noise([calls[0], mixed])),
            float(np.linalg.norm(every - calls[0], axis=2).max()),
            float(min(1.0, np.einsum("csd,sd->cs", every, calls[0]).min())),
        )

    def longest_text(self, noise: float) -> tuple[int, Long]:
        # Otherwise one word at the end of a long text does not stand out from the noise.
        exact = noise < _ROUNDING
        long: Long = "truncates"

        def pair(words: int) -> list[str]:
            return [" ".join([*[_WORD] * words, *[end] * (1 if exact else words)]) for end in _ENDS]

        def read_whole(words: int) -> bool:
            nonlocal long
            reply = self.answers(pair(words))
            if reply is None:
                long = "refuses"
                return False
            first, second = exact_unit_vectors(reply.vectors)
            return float(np.linalg.norm(first - second)) > (_ROUNDING if exact else _ABOVE_NOISE * noise)

        low, high = 1, _FIRST if exact else _FIRST_OF_NOISY
        while high <= _LAST and read_whole(high):
            low, high = high, 2 * high
        if high > _LAST:
            long = "unknown"
        while high <= _LAST and high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if read_whole(middle) else (low, middle)
        # Of noisy texts, only what both share was certainly read.
        return min(self.count(pair(low) if exact else [" ".join([_WORD] * low)])), long

    def usage(self, max_length: int | None, tokenizer_known: bool) -> tuple[bool, float, float]:
        # Returns whether it counts tokens, what it counts for each text beside its tokens, and what it counts
        # for each token that is counted here.
        lengths = zip(_LONGER, self.count(_LONGER), strict=True)
        longer = [text for text, tokens in lengths if max_length is None or tokens <= max_length]
        short = _SHORT[: len(longer)]
        unknown = False, 0.0, 1.0
        if not longer:
            return unknown
        replies = self.answers(short), self.answers(longer)
        first, second = (None if reply is None else reply.tokens for reply in replies)
        if first is None or second is None or first == second:
            return unknown
        # Special tokens cancel out in the difference of two requests with equally many texts.
        theirs = second - first
        for size in (len, lambda text: len(text.encode()), lambda text: len(text.split())):
            if theirs == sum(map(size, longer)) - sum(map(size, short)):
                return unknown  # it counts characters, bytes or words
        tokens = sum(self.count(short)), sum(self.count(longer))
        ours = tokens[1] - tokens[0]
        if abs(theirs - ours) <= _MOST_DIFFERENT:
            return True, max(0.0, (first - tokens[0] + second - tokens[1]) / (2 * len(longer))), 1.0
        if tokenizer_known:
            raise ModelError(
                f"the tokenizer does not belong to {self.name}: from one request to a longer one, it "
                f"counts {ours} tokens more, and the server counts {theirs} more: pass the tokenizer of the "
                "model, or candidates if it is unpublished"
            )
        return True, 0.0, second / max(1, tokens[1])


def _cosine_noise(calls: Sequence[NDArray[np.float64]]) -> float:
    upper = np.triu_indices(len(SENTINELS), 1)
    cosines = np.stack([(call @ call.T)[upper] for call in calls])
    return float(np.sqrt(cosines.var(axis=0, ddof=1).mean()))
