"""Find out how a server behaves, with a few cheap requests, before money is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stickytoken.encoders._sentinels import SENTINELS
from stickytoken.encoders.endpoint._advice import given_up, not_an_api, refused, unreachable
from stickytoken.encoders.endpoint._attempts import Attempts, NoAnswerError, until_answered
from stickytoken.encoders.endpoint._capabilities import Capabilities, Empty, packed
from stickytoken.encoders.endpoint._lengths import Lengths, LengthSearch
from stickytoken.encoders.endpoint._request import (
    Encoding,
    RefusedError,
    Reply,
    Requester,
    WebPageError,
)
from stickytoken.encoders.endpoint._usage import Usage, usage_of
from stickytoken.encoders.endpoint.cost import Spending
from stickytoken.errors import ModelError
from stickytoken.unit_vectors import exact_unit_vectors

MOST_TEXTS = 256
"""Texts in a request, at most."""
_ATTEMPTS = 4
_PATIENCE = 60.0
_UNREACHABLE_ATTEMPTS = 2
_LENGTH_ONE = 1e-3
_REPEATS = 3
_ENCODINGS: tuple[Encoding, ...] = ("base64", "float")
_SHORT = ("a", "in", "the", "is", "of", "on")
# Names, numbers, code and scripts, which tokenizers cut in different ways.
_LONGER = (
    "Order 66-1047/b: naïve façades cost €1,234,567.89 (VAT №42), antidisestablishmentarianism included.",
    "def parseHTTPHeader(raw): return {k.strip(): v for k, v in re.findall(r'(\\w+):\\s*(.+)', raw)}",
    "東京タワーは1958年に建てられました。 Ελληνικά, русский язык, हिन्दी, العربية; 😀🚀 https://example.org/a?b=c&d=%20e",
    "Pneumonoultramicroscopicsilicovolcanoconiosis, Llanfairpwllgwyngyll, Qzxv-brxl, McDonald's iPhone15",
)
# Tokens that a server may count for a text beside its own.
_ROOM = 8


@dataclass
class Conversation:
    """Sequential requests and their cost.

    Attributes:
        requester: sends one.
        count: counts the tokens of texts.
        spending: counts what is sent.
        timed: tokens and seconds of every answered request.
        one_by_one: whether the server takes only one text in a request.
    """

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
        """Send texts; return None if the server refuses them or fails on them, whatever the reason.

        Args:
            texts: the texts.
            encoding: form of the vectors.
            together: in one request, even if the server did not take several texts before.
        """
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
            return _UnreachableError(str(unreachable(self.name, last)))
        kind = ModelError if last.busy else _FaultyServerError
        return kind(str(given_up(self.name, str(error))))


class _UnreachableError(ModelError):
    """A server that nobody answers for."""


class _FaultyServerError(ModelError):
    """A server that fails on a request."""


def discover(
    conversation: Conversation,
    max_length: int | None = None,
    dimensions: int | None = None,
    tokenizer_known: bool = True,
) -> Capabilities:
    """Find out how a server behaves.

    Args:
        conversation: sends the requests.
        max_length: tokens that the model reads, if the user says so; otherwise they are searched for.
        dimensions: number of components that were asked for.
        tokenizer_known: whether tokens are counted by a tokenizer, which must be that of the model.
    """
    first, encoding = _first_answer(conversation)
    if dimensions is not None and first.vectors.shape[1] != dimensions:
        raise ModelError(
            f"{conversation.name} gives vectors of {first.vectors.shape[1]} components, not the "
            f"{dimensions} that were asked for: the model has no other dimensions, so omit them"
        )
    stability = _stability(conversation, encoding, first)
    batch = _largest_batch(conversation, encoding)
    search = LengthSearch(
        lambda texts: conversation.answers(texts, encoding), conversation.count, stability.distance
    )
    lengths = Lengths.given(max_length) if max_length is not None else search.found()
    usage = _usage(conversation, encoding, lengths.max_length, tokenizer_known)
    empty = _empty(conversation, encoding)
    # The quickest request shows what each costs whatever is in it; the largest, what its tokens add.
    quickest = min(seconds for _, seconds in conversation.timed)
    most_tokens, longest = max(conversation.timed)
    return Capabilities(
        dimension=first.vectors.shape[1],
        encoding=encoding,
        batch=batch,
        max_length=lengths.max_length,
        long=lengths.long,
        empty=empty,
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
        sentinels=packed(first.vectors),
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


@dataclass(frozen=True)
class _Stability:
    """How far the vectors of one text differ.

    Attributes:
        calls: standard deviation of a cosine between calls.
        batches: the same between compositions of a request.
        distance: largest distance of two unit vectors of one text.
        least_cosine: their smallest cosine.
    """

    calls: float
    batches: float
    distance: float
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
    """Compare the tokens that the server counts with those of the tokenizer, on texts that it reads whole."""
    fitting = [
        text
        for text, tokens in zip(_LONGER, conversation.count(_LONGER), strict=True)
        if max_length is None or tokens <= max_length
    ]
    if not fitting:
        return usage_of([], [], [None, None])
    texts = [list(_SHORT[: len(fitting)]), fitting]
    replies = [conversation.answers(each, encoding) for each in texts]
    counted = [None if reply is None else reply.tokens for reply in replies]
    usage = usage_of(texts, [conversation.count(each) for each in texts], counted)
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
    size = MOST_TEXTS
    while size > 1:
        texts = [f"{place}" for place in range(size)]
        if conversation.answers(texts, encoding, together=True) is not None:
            return size
        size //= 2
    return 1


def _empty(conversation: Conversation, encoding: Encoding) -> Empty:
    reply = conversation.answers([""], encoding)
    if reply is None:
        return Empty.REFUSES
    return Empty.VECTOR if reply.vectors.any() else Empty.ZERO
